// The read of the residual streams behind their update, and norms. Source of the design: spec
// "kernels" 8.3.
#include <algorithm>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/mixing.cuh"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kStreams = 4;                      // at most
constexpr int kMix = (2 + kStreams) * kStreams;  // at most
constexpr int kMixStride = 32;                   // of kMix + 1 sums

// --- read and norm ---

// The values of one row over the block's first kWarps warps: warp w has groups w, w + kWarps, ...
template <int kKept>
struct RowValues {
  float4 group[kKept];
};

// The norm's factor of a row that the first kWarps warps hold; they alone call it.
template <int kWarps, int kKept>
__device__ __forceinline__ float inverse_rms_of(const RowValues<kKept>& x, int64_t k, float eps) {
  __shared__ float warps[kWarps];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) squares += sum_of_squares(x.group[i]);
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = squares;
  named_barrier_sync(1, kWarps * 32);
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += warps[w];
  return rsqrtf(sum / static_cast<float>(k) + eps);
}

// The weights of the norm for the same columns; null: 1.
template <int kKept, int kWarps, bool kVectors>
__device__ __forceinline__ RowValues<kKept> read_gamma(const float* gamma, int64_t k) {
  RowValues<kKept> values;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t column = (threadIdx.x / 32 + i * kWarps) * kGroup + threadIdx.x % 32 * 4;
    values.group[i] =
        gamma == nullptr ? float4{1, 1, 1, 1} : load4<kVectors>(gamma + column, k - column);
  }
  return values;
}

template <int kWarps, bool kVectors, int kKept>
__device__ __forceinline__ void write_normed(const RowValues<kKept>& x,
                                             float factor,
                                             const RowValues<kKept>& gamma,
                                             const ActivationForms& y,
                                             int64_t m,
                                             int64_t k,
                                             int64_t row) {
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int64_t group = threadIdx.x / 32 + i * kWarps;
    if (group * kGroup >= k) break;
    const float4 v = x.group[i], g = gamma.group[i];
    write_group<kVectors>(
        y,
        m,
        k,
        row,
        group,
        {v.x * factor * g.x, v.y * factor * g.y, v.z * factor * g.z, v.w * factor * g.w});
  }
}

// sinkhorn4() for fewer streams, by one thread.
__device__ void sinkhorn(float* comb, int size, int iterations, float eps) {
  const auto normalise = [&](int first, int step) {
    float sum = eps;
    for (int i = 0; i < size; ++i) sum += comb[first + i * step];
    for (int i = 0; i < size; ++i) comb[first + i * step] /= sum;
  };
  for (int row = 0; row < size; ++row) {
    float* const line = comb + row * size;
    float largest = line[0], sum = 0;
    for (int j = 1; j < size; ++j) largest = fmaxf(largest, line[j]);
    for (int j = 0; j < size; ++j) sum += line[j] = expf(line[j] - largest);
    for (int j = 0; j < size; ++j) line[j] = line[j] / sum + eps;
  }
  for (int column = 0; column < size; ++column) normalise(column, size);
  for (int i = 1; i < iterations; ++i) {
    for (int row = 0; row < size; ++row) normalise(row * size, 1);
    for (int column = 0; column < size; ++column) normalise(column, size);
  }
}

// Writes `post` and `comb` of row t from the mixing logits. One warp.
//   mix: [num_mix] in shared memory
__device__ __forceinline__ void write_coefficients(const DeviceStreamMixArgs& args,
                                                   float* mix,
                                                   int64_t t) {
  const int lane = threadIdx.x % 32, mult = args.hc_mult;
  if (mult == 4) return write_coefficients4(args, mix[min(lane, args.num_mix - 1)], t);
  if (lane < mult) args.post[t * mult + lane] = 2.0f * sigmoid(mix[mult + lane]);
  float* const comb = mix + 2 * mult;
  float* const out = args.comb + t * mult * mult;
  if (lane == 0) sinkhorn(comb, mult, args.sinkhorn_iters, args.hc_eps);
  __syncwarp();
  if (lane < mult * mult) out[lane] = comb[lane];
}

// The mixing logits of stream row `row` in `mix` and the streams' shares in `pre`. Every thread.
template <int kAllWarps>
__device__ __forceinline__ void mix_partials(
    const DeviceStreamMixArgs& args, int64_t row, const MixerRow& mixer, float* mix, float* pre) {
  __shared__ float sums[kAllWarps][kMixStride];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_sums = args.num_mix + 1;
  float sum = 0;
  if (lane < num_sums) {
    const float* const from = args.partials + row * args.parts * num_sums + lane;
#pragma unroll 4
    for (int part = warp; part < args.parts; part += kAllWarps)
      sum += __ldcg(from + part * num_sums);
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kAllWarps; ++w) total += sums[w][lane];
    const float squares = __shfl_sync(~0U, total, args.num_mix);
    if (lane < args.num_mix) {
      const float value = mixer.logit(args, total, squares);
      mix[lane] = value;
      if (lane < args.hc_mult) pre[lane] = sigmoid(value) + args.hc_eps;
    }
  }
  __syncthreads();
}

// One block per row: kWarps warps combine, norm and quantise, one more makes `post` and `comb`
// beside them. With kEarly the streams are read before their shares are known: for few rows.
// Bytes: per row 4 M D, 4 parts (num_mix + 1), and the forms.
template <int kMult, int kWarps, int kKept, bool kEarly>
__global__ void __launch_bounds__((kWarps + 1) * 32, 1) stream_mix(const DeviceStreamMixArgs args) {
  launch_dependents();
  __shared__ float mix[kMix];
  __shared__ float pre[kStreams];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t t = blockIdx.x;
  constexpr bool kEarlyGamma = kEarly && kKept <= 2;  // where registers suffice
  RowValues<kKept> gamma;
  if (kEarlyGamma && warp < kWarps)
    gamma = read_gamma<kKept, kWarps, true>(args.gamma, args.hidden);
  const MixerRow mixer(args);
  wait_for_predecessors();
  const int64_t row = args.rows == nullptr ? t : __ldcg(args.rows + t);
  RowValues<kKept> x;
  if (row < 0) {
    if (warp >= kWarps) return;
#pragma unroll
    for (int i = 0; i < kKept; ++i) x.group[i] = {0, 0, 0, 0};
    write_normed<kWarps, true>(x, 0.0f, x, args.x, args.m, args.hidden, t);
    return;
  }
  const float* const state = args.streams + row * kMult * args.hidden;
  const auto read = [&](int i, int stream) {
    const int64_t column = (warp + i * kWarps) * kGroup + lane * 4;
    return load4<true>(state + stream * args.hidden + column, args.hidden - column);
  };
  float4 early[kEarly ? kKept : 1][kMult];
  if (kEarly && warp < kWarps) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
#pragma unroll
      for (int stream = 0; stream < kMult; ++stream) {
        early[kEarly ? i : 0][stream] = read(i, stream);
      }
    }
  }
  mix_partials<kWarps + 1>(args, row, mixer, mix, pre);
  if (warp == kWarps) {
    if (args.comb != nullptr) write_coefficients(args, mix, t);
    return;
  }
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    x.group[i] = {0, 0, 0, 0};
#pragma unroll
    for (int stream = 0; stream < kMult; ++stream) {
      const float4 v = kEarly ? early[kEarly ? i : 0][stream] : read(i, stream);
      const float share = pre[stream];
      float4& sum = x.group[i];
      sum = {fmaf(share, v.x, sum.x),
             fmaf(share, v.y, sum.y),
             fmaf(share, v.z, sum.z),
             fmaf(share, v.w, sum.w)};
    }
  }
  const float factor = inverse_rms_of<kWarps>(x, args.hidden, args.norm_eps);
  if (!kEarlyGamma) gamma = read_gamma<kKept, kWarps, true>(args.gamma, args.hidden);
  write_normed<kWarps, true>(x, factor, gamma, args.x, args.m, args.hidden, t);
}

// One block per row. Bytes: 4 k per row and the forms.
constexpr int kNormWarps = 8, kNormKept = 8;
template <bool kVectors>
__global__ void __launch_bounds__(kNormWarps * 32) rms_norm(const DeviceRmsNormArgs args) {
  launch_dependents();
  const auto gamma = read_gamma<kNormKept, kNormWarps, kVectors>(args.gamma, args.k);
  wait_for_predecessors();
  const int64_t t = blockIdx.x;
  RowValues<kNormKept> x;
#pragma unroll
  for (int i = 0; i < kNormKept; ++i) {
    const int64_t column = (threadIdx.x / 32 + i * kNormWarps) * kGroup + threadIdx.x % 32 * 4;
    x.group[i] = load4<kVectors>(args.x + t * args.k + column, args.k - column);
  }
  const float factor = inverse_rms_of<kNormWarps>(x, args.k, args.eps);
  write_normed<kNormWarps, kVectors>(x, factor, gamma, args.y, args.m, args.k, t);
}

// One warp per 128 columns of a row. Bytes: 4 (splits of both + M) D per token.
constexpr int kJoinWarps = 4;
template <bool kVectors>
__global__ void __launch_bounds__(kJoinWarps * 32) join_mtp(const DeviceJoinMtpArgs args) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t row = blockIdx.x;
  const int64_t column = (blockIdx.y * int64_t{kJoinWarps} * 32 + threadIdx.x) * 4,
                left = args.hidden - column;
  const int64_t rows = int64_t{args.m} * args.hc_mult;
  const float4 embedded = sum4<kVectors>(
      args.embedded, args.m * args.hidden, row / args.hc_mult * args.hidden + column, left);
  const float4 projected =
      sum4<kVectors>(args.projected, rows * args.hidden, row * args.hidden + column, left);
  store4<kVectors>(args.streams + row * args.hidden + column, embedded + projected, left);
}

constexpr int kFewRows = 32, kMixWarps = 16;

template <int kMult>
auto* mix_kernel(const DeviceStreamMixArgs& args) {
  const bool is_few = args.m <= kFewRows;
  if (args.hidden > kMixWarps * 2 * kGroup) {
    return is_few ? &stream_mix<kMult, kMixWarps, 4, true>
                  : &stream_mix<kMult, kMixWarps, 4, false>;
  }
  return is_few ? &stream_mix<kMult, kMixWarps, 2, true> : &stream_mix<kMult, kMixWarps, 2, false>;
}

}  // namespace

Result<void> launch_stream_mix(const DeviceStreamMixArgs& args, device::Stream& stream) {
  DCHECK(args.hc_mult <= kStreams && args.hidden <= 8192 && args.hidden % 4 == 0) << args.hidden;
  const LaunchShape shape{.grid = static_cast<uint32_t>(args.m),
                          .block = (kMixWarps + 1) * 32,
                          .is_dependent = args.is_dependent};
  auto* kernel = mix_kernel<4>(args);
  if (args.hc_mult == 3) kernel = mix_kernel<3>(args);
  if (args.hc_mult == 2) kernel = mix_kernel<2>(args);
  if (args.hc_mult == 1) kernel = mix_kernel<1>(args);
  return launch_kernel(kernel, shape, stream, args);
}

Result<void> launch_rms_norm(const DeviceRmsNormArgs& args, device::Stream& stream) {
  DCHECK(args.k <= kNormWarps * kNormKept * kGroup) << args.k;
  const bool is_vector =
      has_vectors(args.x, args.k) && has_vectors(args.gamma, args.k) && has_vectors(args.y, args.k);
  return launch_kernel(is_vector ? &rms_norm<true> : &rms_norm<false>,
                       {.grid = static_cast<uint32_t>(args.m),
                        .block = kNormWarps * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args);
}

Result<void> launch_join_mtp(const DeviceJoinMtpArgs& args, device::Stream& stream) {
  const bool is_vector = has_vectors(args.embedded.data, args.hidden) &&
                         has_vectors(args.projected.data, args.hidden) &&
                         has_vectors(args.streams, args.hidden);
  return launch_kernel(
      is_vector ? &join_mtp<true> : &join_mtp<false>,
      {.grid = static_cast<uint32_t>(args.m * args.hc_mult),
       .block = kJoinWarps * 32,
       .is_dependent = args.is_dependent,
       .grid_y = static_cast<uint32_t>(ceil_div(args.hidden, kJoinWarps * kGroup))},
      stream,
      args);
}

}  // namespace nibble::kernels::cuda
