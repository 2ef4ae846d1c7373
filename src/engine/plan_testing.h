// Plans of checkpoints that tests describe, and what they say.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/model_description.h"
#include "engine/plan.h"
#include "quant/fixture_testing.h"

namespace nibble::engine {

// All tensors in one shard.
inline checkpoint::ModelDescription describe(const quant::Fixture& fixture,
                                             std::string name = "model") {
  checkpoint::ModelDescription description;
  description.name = std::move(name);
  description.shards = {{.file_name = "model.safetensors"}};
  for (const quant::ConfigText& config : fixture.configs) {
    description.configs.push_back({.file_name = config.file_name, .text = config.text});
  }
  for (const TensorMeta& tensor : fixture.tensors) {
    description.tensors.push_back(tensor);
    description.shard_of.push_back(0);
    description.data_begin.push_back(description.data_bytes);
    description.data_bytes += tensor.shape.num_elements() * dtype_size(tensor.dtype);
  }
  description.shards[0].file_bytes = description.data_bytes;
  return description;
}

inline checkpoint::ModelDescription v4(const quant::V4Shape& shape,
                                       const quant::V4Options& options,
                                       std::string_view section = quant::kV4NativeSection) {
  quant::Fixture fixture = quant::v4_fixture(shape, options);
  fixture.config("config.json", quant::v4_config(shape, section));
  return describe(fixture);
}

inline PlanOptions on(std::string_view device, int32_t count = 1) {
  return {.device = find_device_sheet(device).value(), .num_devices = count};
}

inline std::string text_of(const Plan& plan) {
  std::string text;
  for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
    text += quant::to_text(diagnostic) + "\n";
  }
  return text;
}
inline std::set<std::string> codes_of(const Plan& plan, quant::Severity at_least) {
  std::set<std::string> codes;
  for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
    if (diagnostic.severity >= at_least) codes.insert(diagnostic.code);
  }
  return codes;
}

}  // namespace nibble::engine
