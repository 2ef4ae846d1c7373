// Records of CUDA kernels in builds without the backend: known, not launchable.
#include "kernels/cuda/launchers.h"
#include "kernels/repack.h"

namespace nibble::kernels::cuda {

std::vector<KernelInfo> with_launchers(std::span<const KernelInfo> table) {
  return {table.begin(), table.end()};
}

}  // namespace nibble::kernels::cuda

namespace nibble::kernels {

const RepackInfo* find_repack(quant::Format /*format*/, PackedLayout /*layout*/) { return nullptr; }

}  // namespace nibble::kernels
