#include "tools/convert/stored_weight.h"

#include "base/check.h"

namespace nibble::tools {

using quant::Format;

std::vector<TensorMeta> stored_tensors(const std::string& module,
                                       Format format,
                                       int64_t n,
                                       int64_t k) {
  const quant::FormatInfo& info = quant::format_info(format);
  const Shape codes = quant::code_shape(format, n, k);
  const DType code_dtype = info.code_dtypes.dtypes[0];
  if (!info.has_scales()) return {{module + ".weight", code_dtype, codes}};
  const Shape scales = quant::scale_shape(format, n, k);
  const DType scale_dtype = info.scale_dtypes.dtypes[0];
  switch (format) {
    case Format::kNvfp4:
      return {{module + ".weight", code_dtype, codes},
              {module + ".weight_scale", scale_dtype, scales},
              {module + ".weight_scale_2", DType::kF32, Shape{}}};
    case Format::kInt4Group32:
      return {{module + ".weight_packed", code_dtype, codes},
              {module + ".weight_scale", scale_dtype, scales},
              {module + ".weight_shape", DType::kI64, Shape{2}}};
    default:
      return {{module + ".weight", code_dtype, codes}, {module + ".scale", scale_dtype, scales}};
  }
}

}  // namespace nibble::tools
