// Re-encoding of weights that must be rounded, in slabs of rows so that memory stays bounded, with
// the error measured on the way.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "quant/format.h"
#include "tools/output/job.h"

namespace nibble::tools {

// Largest magnitude of a weight. kDataLoss when an element is NaN or infinite; `name` is for the
// message.
Result<float> weight_amax(const quant::WeightView& weight, std::string_view name);

// What a weight becomes, and where its tensors go.
struct EncodeTarget {
  quant::Format format = quant::Format::kBf16;
  size_t codes_index = 0;  // of the piece's tensors
  size_t scales_index = 0;
  float global_scale = 1.0f;  // of formats that have one
};

// Decodes `weight`, encodes it as `target` says with the usual scale dtype of the format, and
// writes codes and scales. Memory: a few slabs of 128 rows. kDataLoss for elements that are NaN or
// infinite.
Result<ErrorStatistics> encode_weight(const quant::WeightView& weight,
                                      std::string_view name,
                                      const EncodeTarget& target,
                                      const WriteBytes& write);

}  // namespace nibble::tools
