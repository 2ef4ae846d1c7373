// DeepSeek-V4 on a GPU behind models::Model.
#pragma once

#include <memory>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "models/deepseek_v4/config.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4::gpu {

// Errors of load_weights(), route_ops() and gpu_numerics_of(); kUnsupported also for check_finite.
Result<std::unique_ptr<Model>> load(Config config,
                                    const checkpoint::Checkpoint& checkpoint,
                                    device::Device& device,
                                    const LoadOptions& options);

}  // namespace nibble::models::deepseek_v4::gpu
