// Runs CUDA kernels on the host, so that code for GPUs that are not at hand is tested as it is
// written: each thread of a block is a thread, blocks follow each other. The headers under include/
// stand in for those of kernels/cuda/common, whose instructions they compute in plain C++ from the
// fragment layouts of PTX ISA 9.0; everything else of a kernel is the kernel's own source.
//
// What it does not show: memory that copies have not filled yet (a bulk copy is complete when it
// was started), and what the hardware's own products round.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "base/check.h"

#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace nibble::cuda_on_host {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxWarps = 8;
inline constexpr int kSharedBytes = 99 << 10;  // of a block on sm_120

// An mbarrier with one arrival per phase, which announces bytes.
struct CopyBarrier {
  std::atomic<int32_t> missing_bytes = 0;
  std::atomic<uint32_t> completed = 0;  // phases
};

// The block that runs now.
struct Block {
  explicit Block(int num_threads);

  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  // What lanes show each other: room for the fragments of a product. Two, in turns: nobody writes
  // the next before all have come to its barrier, when all are done with the one before.
  std::array<std::array<std::array<std::array<uint32_t, 8>, kWarpLanes>, kMaxWarps>, 2> shown = {};
  std::array<CopyBarrier, kSharedBytes / 8> barriers;  // by address / 8
};
Block& block();

// Runs `kernel` on every thread of `grid` blocks of `num_threads`.
void run(int grid, int num_threads, const std::function<void()>& kernel);

using Words = std::array<uint32_t, 8>;
using WarpWords = std::array<Words, kWarpLanes>;
// Every lane's words, for all lanes. All lanes of the warp call it.
WarpWords show(const Words& mine);

// A value of an 8-bit or 4-bit float of any lane's register.
float e4m3(uint32_t code);
float e2m1(uint32_t code);
// Two E4M3 codes, nearest even, saturating.
uint32_t to_e4m3x2(float first, float second);

}  // namespace nibble::cuda_on_host

struct Index3 {
  uint32_t x = 0;
};
extern thread_local Index3 threadIdx;
extern Index3 blockIdx, gridDim;

void __syncthreads();
void __syncwarp();
float __shfl_xor_sync(uint32_t mask, float value, int lane_mask);

template <class T>
T __ldcg(const T* pointer) {
  CHECK(reinterpret_cast<uintptr_t>(pointer) % sizeof(T) == 0);
  return *pointer;
}
template <class T>
T __ldg(const T* pointer) {
  return *pointer;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = selector >> (4 * i) & 0xFU;
    CHECK(from < 8) << "the sign-replicating mode is not computed";
    result |= static_cast<uint32_t>(bytes >> (8 * from) & 0xFFU) << (8 * i);
  }
  return result;
}
inline int min(int a, int b) { return std::min(a, b); }

// Shared memory of the block.
namespace nibble::kernels::cuda {
extern __align__(128) uint8_t memory[];
}
