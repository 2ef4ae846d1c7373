#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/stream_read/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kBlockBytes = 8192;
constexpr int kStages = 6;  // 48 KB in flight per block
constexpr int kConsumerWarps = 4;

__global__ void __launch_bounds__(kConsumerWarps * 32 + 32, 1)
    stream_read(const uint8_t* data, int64_t num_blocks, uint32_t* sink) {
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t full = shared_address(barriers), empty = full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, kConsumerWarps * kWarpArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  int slot = 0;
  uint32_t parity = 0;
  const auto advance = [&] {
    if (++slot < kStages) return;
    slot = 0;
    parity ^= 1;
  };
  if (warp == kConsumerWarps) {
    if (lane != 0) return;
    const uint64_t policy = evict_first_policy();
    for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
      barrier_wait(empty + 8 * slot, parity ^ 1);
      barrier_arrive_expect(full + 8 * slot, kBlockBytes);
      bulk_copy_to_shared(shared_address(ring) + slot * kBlockBytes,
                          data + block * kBlockBytes,
                          kBlockBytes,
                          full + 8 * slot,
                          policy);
      advance();
    }
    return;
  }
  uint32_t mixed = 0;
  for (int64_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    barrier_wait(full + 8 * slot, parity);
    for (int offset = threadIdx.x * 16; offset < kBlockBytes; offset += kConsumerWarps * 512) {
      const uint4 v = *reinterpret_cast<const uint4*>(ring + slot * kBlockBytes + offset);
      mixed ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    warp_arrive(empty + 8 * slot, lane);
    advance();
  }
  constexpr uint32_t kUnlikely = 0x9E3779B9;
  if (mixed == kUnlikely) *sink = mixed;
}

}  // namespace

Result<void> launch_stream_read(const std::byte* data,
                                int64_t num_bytes,
                                int32_t num_units,
                                uint32_t* sink,
                                device::Stream& stream) {
  DCHECK(num_bytes % kBlockBytes == 0) << num_bytes;
  return launch_kernel(&stream_read,
                       {.grid = static_cast<uint32_t>(2 * num_units),
                        .block = kConsumerWarps * 32 + 32,
                        .shared_bytes = kStages * kBlockBytes},
                       stream,
                       reinterpret_cast<const uint8_t*>(data),
                       num_bytes / kBlockBytes,
                       sink);
}

}  // namespace nibble::kernels::cuda
