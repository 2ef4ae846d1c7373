// What a decode step will launch, for plans.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/device.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/gpu/ops.h"
#include "models/deepseek_v4/gpu/weights.h"
#include "models/deepseek_v4/numerics.h"

namespace nibble::models::deepseek_v4::gpu {

// Launches of a decode step of `rows` sequences with up to `max_context` tokens each, from the
// tokens to the choice of the next ones: the step itself, with launches that are only counted.
// Steps of more than kMaxDecodeRows end with logits, of which the host chooses.
//   weights: may be those of plan_weights(); kUnsupported where a product takes a planned kernel,
//            kExhausted where the host has no addresses for the step's memory
Result<int32_t> count_decode_launches(const Config& config,
                                      const Numerics& numerics,
                                      const Weights& weights,
                                      const Ops& ops,
                                      const device::DeviceInfo& device,
                                      int32_t rows,
                                      int32_t max_context);

}  // namespace nibble::models::deepseek_v4::gpu
