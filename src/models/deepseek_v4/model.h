// DeepSeek-V4 behind models::Model.
#pragma once

#include <memory>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config_reader.h"
#include "device/device.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

// `config` is the checkpoint's config.json. Errors of parse_config, load_weights and route_ops.
Result<std::unique_ptr<Model>> load(const checkpoint::ConfigReader& config,
                                    const checkpoint::Checkpoint& checkpoint,
                                    device::Device& device,
                                    const LoadOptions& options);

}  // namespace nibble::models::deepseek_v4
