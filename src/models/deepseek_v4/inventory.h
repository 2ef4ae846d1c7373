// Every tensor that a DeepSeek-V4 checkpoint of a given config must hold, by its original name and
// logical shape. For checking headers before any weight is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/deepseek_v4/config.h"
#include "tensor/shape.h"

namespace nibble::models::deepseek_v4 {

enum class DraftKind { kNone, kMtp, kDspark };

struct ExpectedModule {
  std::string name;  // without ".weight": "layers.3.attn.wq_a", "layers.3.hc_attn_fn"
  // Logical shape: [n, k] of a matrix, [k] of a vector, whatever the storage format.
  Shape shape;
};

std::vector<ExpectedModule> expected_modules(const Config& config, DraftKind draft);

}  // namespace nibble::models::deepseek_v4
