// Which GPUs the code of a build runs on. Source: CUDA 13.0 "NVCC", GPU feature list: code for
// sm_XY runs on later minor versions of the same major one, architecture-specific code (a) on that
// version alone, family-specific code (f) on those of its family.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble::device {

//   generations: as in NIBBLE_CUDA_ARCHS, separated by commas: "80,89,90a,100f,120f"
//   sm: 10 * major + minor of the GPU
bool has_code_for(std::string_view generations, int32_t sm);

}  // namespace nibble::device
