// Sums over warps and blocks in a fixed order. Device code only.
#pragma once

namespace nibble::kernels::cuda {

// The same sum in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0U, value, step);
  return value;
}

// The same sum in every thread of the block, whose warps are full. Blocks that call it twice need a
// __syncthreads() between.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float warps[32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += warps[w];
  return sum;
}

}  // namespace nibble::kernels::cuda
