// Looks at stored scales for what headers cannot show: codes that mean NaN, zero or negative
// multipliers, bytes that look like another format, conventions mixed up.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/detect.h"
#include "quant/diagnostic.h"
#include "quant/stored_module.h"

namespace nibble::quant {

// A quantised module with the tensors that classify() found.
struct ScaledModule {
  const StoredModule* stored = nullptr;
  const Physical* physical = nullptr;
  ModuleRole role = {};
};

// S3 to S7, S9, and D2 for act-order that was not declared. Reads at most a few megabytes: whole
// scale tensors of small checkpoints, samples of large ones.
std::vector<Diagnostic> check_values(const DetectInput& input,
                                     const DetectOptions& options,
                                     const std::vector<ScaledModule>& modules,
                                     const Declaration& declaration);

}  // namespace nibble::quant
