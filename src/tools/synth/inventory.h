// Every tensor of a DeepSeek-V4 model, from its config alone. Source: spec "deepseek-v4" 2.1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/deepseek_v4/config.h"
#include "tensor/tensor_view.h"
#include "tools/convert/roles.h"

namespace nibble::tools {

struct InventoryEntry {
  // kOther: a tensor as it is stored, `name` in full. Otherwise a weight [n, k] whose tensors
  // depend on the format; `name` is the module.
  WeightRole role = WeightRole::kOther;
  std::string name;
  DType dtype = DType::kBf16;  // of kOther
  Shape shape;                 // of kOther as stored, of weights [n, k]
  // Values of floating-point tensors: normal, with this mean and deviation. Integer tensors hold
  // rows of distinct expert ids.
  float mean = 0;
  float deviation = 0;
};

// In the order of a forward pass; drafts and the head last.
std::vector<InventoryEntry> model_inventory(const models::deepseek_v4::Config& config);

}  // namespace nibble::tools
