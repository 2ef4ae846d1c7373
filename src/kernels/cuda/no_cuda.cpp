// Records of CUDA kernels in builds without the backend: known, not launchable. Nor are peers.
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/peers.h"
#include "kernels/repack.h"

namespace nibble::kernels::cuda {

std::vector<KernelInfo> with_launchers(std::span<const KernelInfo> table) {
  return {table.begin(), table.end()};
}

namespace {

Error not_built() { return unsupported("this build has no CUDA backend"); }

}  // namespace

Result<ReadStream> ReadStream::make(device::Device& /*device*/) { return not_built(); }
Result<void> ReadStream::launch(const std::byte* /*data*/,
                                int64_t /*num_bytes*/,
                                device::Stream& /*stream*/) const {
  return not_built();
}

struct BlasProduct::State {};
BlasProduct::BlasProduct(BlasProduct&&) noexcept = default;
BlasProduct& BlasProduct::operator=(BlasProduct&&) noexcept = default;
BlasProduct::~BlasProduct() = default;
Result<BlasProduct> BlasProduct::make(
    device::Device& /*device*/, BlasType /*type*/, int64_t /*m*/, int64_t /*n*/, int64_t /*k*/) {
  return not_built();
}
Result<void> BlasProduct::launch(const void* /*x*/,
                                 const void* /*weight*/,
                                 void* /*y*/,
                                 device::Stream& /*stream*/) const {
  return not_built();
}

}  // namespace nibble::kernels::cuda

namespace nibble::kernels {

const RepackInfo* find_repack(quant::Format /*format*/, PackedLayout /*layout*/) { return nullptr; }

}  // namespace nibble::kernels
