// Random weights in DeepSeek's native formats. Every value depends on the seed of its tensor and
// its position alone, so threads, slabs and shards leave no trace. Scales spread as those of
// trained models do: some groups and rows are a few powers of two above or below the rest. Scales
// are the ones that the ceil rule would choose for the values, so that decoding to BF16 and
// encoding again gives the same scales and values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quant/reference.h"

namespace nibble::tools {

// The seed of a tensor of a model.
uint64_t tensor_seed(uint64_t seed, std::string_view name);

// Rows [row_begin, row_begin + num_rows) of an MXFP4 weight with k inputs, deviation 1 / sqrt(k).
quant::QuantizedWeight random_mxfp4_rows(uint64_t seed,
                                         int64_t k,
                                         int64_t row_begin,
                                         int64_t num_rows);
// Only the scales, of all n rows.   out: [n, k / 32]
void fill_mxfp4_scales(uint64_t seed, int64_t n, int64_t k, std::span<uint8_t> out);

// The same in FP8 128x128 with E8M0 scales. `row_begin` must be a multiple of 128, and `num_rows`
// too unless the weight ends there.
quant::QuantizedWeight random_fp8_rows(uint64_t seed,
                                       int64_t k,
                                       int64_t row_begin,
                                       int64_t num_rows);

// A number of mean 0 and deviation 1, at most 3.5 from 0.
float random_normal(uint64_t seed, uint64_t position);

// Distinct ids below num_experts for one token.
void fill_expert_ids(uint64_t seed, int64_t num_experts, int64_t row, std::span<int64_t> out);

}  // namespace nibble::tools
