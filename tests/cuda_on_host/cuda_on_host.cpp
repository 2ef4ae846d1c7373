#include "cuda_on_host/cuda_on_host.h"

#include <thread>

#include "quant/numeric.h"

thread_local Index3 threadIdx;
Index3 blockIdx, gridDim;

namespace nibble::kernels::cuda {
__align__(128) uint8_t memory[cuda_on_host::kSharedBytes];
}

namespace nibble::cuda_on_host {
namespace {

std::unique_ptr<Block> current;

size_t lane() { return threadIdx.x % kWarpLanes; }
size_t warp() { return threadIdx.x / kWarpLanes; }

}  // namespace

Block::Block(int num_threads) : all(num_threads) {
  for (int i = 0; i < num_threads / kWarpLanes; ++i) {
    warps.push_back(std::make_unique<std::barrier<>>(kWarpLanes));
  }
}
Block& block() { return *current; }

void run(int grid, int num_threads, const std::function<void()>& kernel) {
  CHECK(num_threads % kWarpLanes == 0 && num_threads <= kMaxWarps * kWarpLanes);
  gridDim.x = static_cast<uint32_t>(grid);
  for (int i = 0; i < grid; ++i) {
    blockIdx.x = static_cast<uint32_t>(i);
    current = std::make_unique<Block>(num_threads);
    std::fill_n(kernels::cuda::memory, kSharedBytes, uint8_t{0xFF});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < num_threads; ++thread) {
      threads.emplace_back([thread, &kernel] {
        threadIdx.x = static_cast<uint32_t>(thread);
        kernel();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

WarpWords show(const Words& mine) {
  thread_local size_t turn = 0;
  WarpWords& shown = block().shown[turn][warp()];
  turn ^= 1;
  shown[lane()] = mine;
  __syncwarp();
  return shown;
}

float e4m3(uint32_t code) { return quant::e4m3_to_f32(static_cast<uint8_t>(code & 0xFFU)); }
float e2m1(uint32_t code) { return quant::e2m1_to_f32(static_cast<uint8_t>(code & 0xFU)); }
uint32_t to_e4m3x2(float first, float second) {
  return quant::f32_to_e4m3(first) | static_cast<uint32_t>(quant::f32_to_e4m3(second)) << 8;
}

}  // namespace nibble::cuda_on_host

void __syncthreads() { nibble::cuda_on_host::block().all.arrive_and_wait(); }
void __syncwarp() {
  using namespace nibble::cuda_on_host;
  block().warps[warp()]->arrive_and_wait();
}
float __shfl_xor_sync(uint32_t /*mask*/, float value, int lane_mask) {
  using namespace nibble::cuda_on_host;
  const WarpWords all = show({__float_as_uint(value)});
  return __uint_as_float(all[lane() ^ static_cast<size_t>(lane_mask)][0]);
}
