// In builds whose NIBBLE_CUDA_ARCHS leave out sm_120: its records are known, not launchable.
#include "kernels/cuda/launchers.h"

namespace nibble::kernels::cuda {

std::span<const NamedLaunch> sm120_launchers() { return {}; }

}  // namespace nibble::kernels::cuda
