// The matrices of a model: which tensors form which weight, and their shapes (spec 2). The same for
// every backend, with and without a checkpoint.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/deepseek_v4/config.h"

namespace nibble::models::deepseek_v4 {

// A stored matrix [n, k] by its original module name, relative to the layer's prefix.
struct Projection {
  std::string_view module;
  int64_t n = 0;
};

// Matrices with the same k, one below the other.
struct WeightShape {
  std::vector<Projection> projections;
  int64_t k = 0;
  int32_t groups = 1;           // of rows, each with columns of its own
  bool is_exact = false;        // multiplied in f32: what follows selects (spec 7.4)
  std::string_view label = {};  // in plans and logs; empty: the first module

  int64_t n() const;
  std::string_view name() const { return label.empty() ? projections.front().module : label; }
};

WeightShape head_shape(const Config& config);

// Of attention, relative to "attn.".
WeightShape latents_shape(const Config& config);
WeightShape queries_shape(const Config& config);
WeightShape output_groups_shape(const Config& config);
WeightShape output_shape(const Config& config);
// Of layers with that ratio; those of 4 have an indexer, too.
WeightShape compressors_shape(const Config& config, int32_t compress_ratio);
WeightShape index_queries_shape(const Config& config);

// Of the mixture, relative to "ffn."; those of one expert relative to "ffn.experts.N.".
WeightShape gate_shape(const Config& config);
WeightShape expert_up_shape(const Config& config);
WeightShape expert_down_shape(const Config& config);
WeightShape shared_up_shape(const Config& config);
WeightShape shared_down_shape(const Config& config);

// Of the MTP layer: "e_proj" or "h_proj".
WeightShape mtp_shape(const Config& config, std::string_view module);

}  // namespace nibble::models::deepseek_v4
