#include "kernels/cuda/portable/matmul/params.h"

#include <bit>
#include <cmath>

#include "kernels/kernel.h"

namespace nibble::kernels::cuda {
namespace {

// Sets what follows from the weight. `parts`: of its output rows.
MatMulParams params_of(const PackedWeight& weight, int32_t parts) {
  DCHECK(weight.layout == PackedLayout::kRowMajor);
  const quant::FormatInfo& info = quant::format_info(weight.format);
  MatMulParams params;
  params.codes = reinterpret_cast<const uint8_t*>(weight.codes);
  params.scales = reinterpret_cast<const float*>(weight.scales);
  params.k = static_cast<int32_t>(weight.k);
  params.row_bytes = static_cast<int32_t>(weight.k * info.bits_per_weight / 8);
  if (info.has_scales()) {
    const int64_t group = group_size(weight.format, weight.k);
    constexpr int32_t kOneGroup = 30;
    params.scale_groups = static_cast<int32_t>(ceil_div(weight.k, group));
    params.scale_shift =
        group >= weight.k ? kOneGroup : std::countr_zero(static_cast<uint32_t>(group));
  }
  params.codes_per_matrix = weight.n * params.row_bytes;
  params.scales_per_matrix = weight.n * params.scale_groups;
  params.rows_per_part = static_cast<int32_t>(weight.n / parts);
  return params;
}

void set_activations(const ActivationForms& x,
                     ActivationForm form,
                     int64_t width,
                     MatMulParams& params) {
  switch (form) {
    case ActivationForm::kF32:
      params.x = reinterpret_cast<const uint8_t*>(x.f32);
      params.x_row_bytes = width * 4;
      return;
    case ActivationForm::kBf16:
      params.x = static_cast<const uint8_t*>(x.bf16);
      params.x_row_bytes = width * 2;
      return;
    case ActivationForm::kFp8Rows:
      DCHECK(params.k % 128 == 0) << params.k;
      params.x = reinterpret_cast<const uint8_t*>(x.fp8);
      params.x_row_bytes = width;
      params.x_scales = x.fp8_scales;
      params.x_scale_stride = static_cast<int32_t>(width / 128);
      return;
    case ActivationForm::kFp8Blocks:
    case ActivationForm::kBf16Blocks:
    case ActivationForm::kBf16Terms:
      break;
  }
  CHECK(false) << "form of activations";
}

}  // namespace

MatMulParams matmul_params(const DeviceMatMulArgs& args, ActivationForm form) {
  DCHECK(args.y != nullptr && args.splits == 1);
  MatMulParams params = params_of(*args.weight, args.groups);
  set_activations(args.x, form, args.groups * args.weight->k, params);
  params.m = args.m;
  params.y = args.y;
  params.y_stride = args.weight->n;
  return params;
}

MatMulParams matmul_params(const DeviceGroupedMatMulArgs& args, ActivationForm form) {
  MatMulParams params = params_of(*args.weight, args.swiglu ? 2 : 1);
  set_activations(args.x, form, args.weight->k, params);
  params.swiglu = args.swiglu;
  params.limit = args.limit > 0 ? args.limit : INFINITY;
  params.pair_weights = args.pair_weights;
  params.slot_count = args.slots.count;
  params.slot_experts = args.slots.experts;
  params.slot_pairs = args.slots.pairs;
  params.slot_rows = args.slots.rows;
  params.pairs_per_row = args.pairs_per_row;
  params.y = args.y;
  params.y_stride = params.rows_per_part;
  return params;
}

}  // namespace nibble::kernels::cuda
