#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// One block per row, whose values stay in registers where there are at most 16 a thread. Bytes: 8 k
// per row.
__global__ void __launch_bounds__(kThreads) rms_norm(const float* x,
                                                     int64_t x_stride,
                                                     const float* gamma,
                                                     float eps,
                                                     int64_t k,
                                                     float* y,
                                                     int64_t y_stride) {
  constexpr int kKept = 16;
  const float* const row = x + blockIdx.x * x_stride;
  float kept[kKept];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t i = threadIdx.x + j * kThreads;
    kept[j] = i < k ? row[i] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kKept; ++j) squares = fmaf(kept[j], kept[j], squares);
  for (int64_t i = threadIdx.x + kKept * kThreads; i < k; i += kThreads) {
    squares = fmaf(row[i], row[i], squares);
  }
  const float inverse_rms = rsqrtf(block_sum(squares) / static_cast<float>(k) + eps);
  float* const out = y + blockIdx.x * y_stride;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int64_t i = threadIdx.x + j * kThreads;
    if (i < k) out[i] = kept[j] * inverse_rms * (gamma == nullptr ? 1.0f : gamma[i]);
  }
  for (int64_t i = threadIdx.x + kKept * kThreads; i < k; i += kThreads) {
    out[i] = row[i] * inverse_rms * (gamma == nullptr ? 1.0f : gamma[i]);
  }
}

// One block per token; a thread rotates pairs (head, frequency).
__global__ void __launch_bounds__(kThreads) rope(float* x,
                                                 int64_t x_stride,
                                                 int heads,
                                                 int d,
                                                 const int* positions,
                                                 const float* freqs,
                                                 int num_freqs,
                                                 bool inverse) {
  const auto position = static_cast<float>(positions[blockIdx.x]);
  for (int i = threadIdx.x; i < heads * num_freqs; i += kThreads) {
    const int head = i / num_freqs, freq = i % num_freqs;
    float sin, cos;
    sincosf(position * freqs[freq], &sin, &cos);
    if (inverse) sin = -sin;
    float* const pair =
        x + blockIdx.x * x_stride + static_cast<int64_t>(head + 1) * d - 2 * (num_freqs - freq);
    const float first = pair[0], second = pair[1];
    pair[0] = first * cos - second * sin;
    pair[1] = first * sin + second * cos;
  }
}

}  // namespace

Result<void> launch_rms_norm(const RmsNormArgs& args, device::Stream& stream) {
  return launch_kernel(&rms_norm,
                       {.grid = static_cast<uint32_t>(args.x.num_rows()), .block = kThreads},
                       stream,
                       args.x.as<float>(),
                       args.x.row_stride,
                       args.gamma,
                       args.eps,
                       args.x.shape[1],
                       args.y.as<float>(),
                       args.y.row_stride);
}

Result<void> launch_rope(const RopeArgs& args, device::Stream& stream) {
  return launch_kernel(&rope,
                       {.grid = static_cast<uint32_t>(args.x.num_rows()), .block = kThreads},
                       stream,
                       args.x.as<float>(),
                       args.x.row_stride,
                       static_cast<int>(args.x.shape[1]),
                       static_cast<int>(args.x.shape[2]),
                       args.positions.data(),
                       args.freqs.data(),
                       static_cast<int>(args.freqs.size()),
                       args.inverse);
}

}  // namespace nibble::kernels::cuda
