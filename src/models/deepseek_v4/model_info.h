// What a loaded model says of itself, on any device.
#pragma once

#include <cstdint>

#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/state.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

ModelInfo model_info(const Config& config,
                     const Numerics& numerics,
                     bool has_mtp,
                     uint64_t weights_fingerprint,
                     const StateBytes& state);

}  // namespace nibble::models::deepseek_v4
