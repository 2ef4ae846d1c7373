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

constexpr int kMixWarps = 16;  // that hold a row

// The sum of this lane's row of partials of stream row `row` over parts warp, warp + kMixWarps, ...
__device__ __forceinline__ float sum_parts(const DeviceStreamMixArgs& args, int64_t row, int warp) {
  const int num_sums = args.num_mix + 1, lane = threadIdx.x % 32;
  if (lane >= num_sums) return 0;
  const float* const from = args.partials + row * args.parts * num_sums + lane;
  float sum = 0;
#pragma unroll 4
  for (int part = warp; part < args.parts; part += kMixWarps) sum += __ldcg(from + part * num_sums);
  return sum;
}

// Those of all kMixWarps warps, added in order; many are read at a time.
__device__ __forceinline__ float sum_all_parts(const DeviceStreamMixArgs& args, int64_t row) {
  const int num_sums = args.num_mix + 1, lane = threadIdx.x % 32;
  const float* const from = args.partials + row * args.parts * num_sums + min(lane, args.num_mix);
  float sums[kMixWarps] = {};
  for (int first = 0; first < args.parts; first += kMixWarps) {
    float values[kMixWarps];
#pragma unroll
    for (int w = 0; w < kMixWarps; ++w) {  // behind the end, too: a branch would wait for the loads
      values[w] = __ldcg(from + min(first + w, args.parts - 1) * num_sums);
    }
#pragma unroll
    for (int w = 0; w < kMixWarps; ++w) {
      if (first + w < args.parts) sums[w] += values[w];
    }
  }
  float total = 0;
#pragma unroll
  for (const float sum : sums) total += sum;
  return total;
}

// The mixing logits of stream row `row` in `mix` and the streams' shares in `pre`. Every thread.
__device__ __forceinline__ void mix_partials(
    const DeviceStreamMixArgs& args, int64_t row, const MixerRow& mixer, float* mix, float* pre) {
  __shared__ float sums[kMixWarps][kMixStride];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < kMixWarps) sums[warp][lane] = sum_parts(args, row, warp);
  __syncthreads();
  if (warp == 0) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kMixWarps; ++w) total += sums[w][lane];
    const float squares = __shfl_sync(~0U, total, args.num_mix);
    if (lane < args.num_mix) {
      const float value = mixer.logit(args, total, squares);
      mix[lane] = value;
      if (lane < args.hc_mult) pre[lane] = sigmoid(value) + args.hc_eps;
    }
  }
  __syncthreads();
}

// The streams of a row, or with kLate their place: for rows that do not fit in registers.
template <int kMult, int kKept, bool kLate>
struct RowStreams {
  const float* state;
  int64_t hidden;
  float4 early[kLate ? 1 : kKept][kMult];

  __device__ __forceinline__ RowStreams(const DeviceStreamMixArgs& args, int64_t row)
      : state(args.streams + row * kMult * args.hidden), hidden(args.hidden) {
    if constexpr (!kLate) {
      if (threadIdx.x / 32 >= kMixWarps) return;
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
#pragma unroll
        for (int stream = 0; stream < kMult; ++stream) early[i][stream] = read(i, stream);
      }
    }
  }
  //   shares: of the streams
  __device__ __forceinline__ RowValues<kKept> combine(const float* shares) const {
    RowValues<kKept> x;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      float4& sum = x.group[i];
      sum = {0, 0, 0, 0};
#pragma unroll
      for (int stream = 0; stream < kMult; ++stream) {
        const float4 v = kLate ? read(i, stream) : early[kLate ? 0 : i][stream];
        const float share = shares[stream];
        sum = {fmaf(share, v.x, sum.x),
               fmaf(share, v.y, sum.y),
               fmaf(share, v.z, sum.z),
               fmaf(share, v.w, sum.w)};
      }
    }
    return x;
  }

 private:
  __device__ __forceinline__ float4 read(int i, int stream) const {
    const int64_t column = (threadIdx.x / 32 + i * kMixWarps) * kGroup + threadIdx.x % 32 * 4;
    return load4<true>(state + stream * hidden + column, hidden - column);
  }
};

// Output row t: kMixWarps warps combine, norm and quantise; one more, if the block has it, makes
// `post` and `comb` beside them.
template <int kMult, int kKept, bool kLate, bool kEarlyGamma>
__device__ __forceinline__ void mix_row(const DeviceStreamMixArgs& args, int64_t t) {
  __shared__ float mix[kMix];
  __shared__ float pre[kStreams];
  const int warp = threadIdx.x / 32;
  RowValues<kKept> gamma;
  if (kEarlyGamma && warp < kMixWarps)
    gamma = read_gamma<kKept, kMixWarps, true>(args.gamma, args.hidden);
  const MixerRow mixer(args);
  wait_for_predecessors();
  const int64_t row = args.rows == nullptr ? t : __ldcg(args.rows + t);
  if (row < 0) {
    if (warp >= kMixWarps) return;
    RowValues<kKept> zeros;
#pragma unroll
    for (float4& group : zeros.group) group = {0, 0, 0, 0};
    write_normed<kMixWarps, true>(zeros, 0.0f, zeros, args.x, args.m, args.hidden, t);
    return;
  }
  const RowStreams<kMult, kKept, kLate> streams(args, row);
  mix_partials(args, row, mixer, mix, pre);
  if (warp == kMixWarps) {
    if (args.comb != nullptr) write_coefficients(args, mix, t);
    return;
  }
  const RowValues<kKept> x = streams.combine(pre);
  const float factor = inverse_rms_of<kMixWarps>(x, args.hidden, args.norm_eps);
  if (!kEarlyGamma) gamma = read_gamma<kKept, kMixWarps, true>(args.gamma, args.hidden);
  write_normed<kMixWarps, true>(x, factor, gamma, args.x, args.m, args.hidden, t);
}

// For few rows: one block per row. Bytes: per row 4 M D, 4 parts (num_mix + 1), and the forms.
template <int kMult, int kKept>
__global__ void __launch_bounds__((kMixWarps + 1) * 32, 1)
    stream_mix_few(const DeviceStreamMixArgs args) {
  launch_dependents();
  mix_row<kMult, kKept, false, kKept <= 2>(args, blockIdx.x);
}

constexpr int kCoefficientRows = 32;  // of a block

// `post` and `comb` of kCoefficientRows rows from `first` on: warps add up, then a thread has a
// row, so that the steps of Sinkhorn, which wait for each other, are those of many rows at once.
__device__ __forceinline__ void write_many_coefficients(const DeviceStreamMixArgs& args,
                                                        int64_t first) {
  constexpr int kSquare = kStreams * kStreams;
  __shared__ float mix[kCoefficientRows][kMix + 1];  // an odd stride, for threads at one column
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const MixerRow mixer(args);
  wait_for_predecessors();
  for (int i = warp; i < kCoefficientRows && first + i < args.m; i += kMixWarps) {
    const float total = sum_all_parts(args, first + i);
    const float value = mixer.logit(args, total, __shfl_sync(~0U, total, kMix));
    if (lane < kMix) mix[i][lane] = value;
  }
  __syncthreads();
  const int64_t t = first + threadIdx.x;
  if (threadIdx.x >= kCoefficientRows || t >= args.m) return;
  const float* const logits = mix[threadIdx.x];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    args.post[t * kStreams + i] = 2.0f * sigmoid(logits[kStreams + i]);
  }
  float matrix[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kSquare; ++i) matrix[i / kStreams][i % kStreams] = logits[2 * kStreams + i];
  sinkhorn4(matrix, args.sinkhorn_iters, args.hc_eps);
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    store_vector(args.comb + t * kSquare + i * kStreams,
                 {matrix[i][0], matrix[i][1], matrix[i][2], matrix[i][3]});
  }
}

// For many rows of four streams, none of which is padding where coefficients are made: blocks for
// the coefficients, then one per row. The bits are those of stream_mix_few. Bytes: the same, and
// the partials twice.
template <int kKept>
__global__ void __launch_bounds__(kMixWarps * 32, 2)
    stream_mix_many(const DeviceStreamMixArgs args, int num_coefficient_blocks) {
  launch_dependents();
  const int block = blockIdx.x;
  if (block < num_coefficient_blocks) {
    write_many_coefficients(args, int64_t{block} * kCoefficientRows);
  } else {
    mix_row<kStreams, kKept, (kKept > 2), false>(args, block - num_coefficient_blocks);
  }
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

constexpr int kFewRows = 132;  // about one for each multiprocessor

template <int kMult>
auto* mix_kernel(const DeviceStreamMixArgs& args) {
  return args.hidden > kMixWarps * 2 * kGroup ? &stream_mix_few<kMult, 4>
                                              : &stream_mix_few<kMult, 2>;
}

Result<void> launch_mix_many(const DeviceStreamMixArgs& args, device::Stream& stream) {
  DCHECK(args.comb == nullptr || args.rows == nullptr);
  const int64_t coefficients =
      args.comb == nullptr ? 0 : ceil_div(int64_t{args.m}, int64_t{kCoefficientRows});
  const bool is_wide = args.hidden > kMixWarps * 2 * kGroup;
  return launch_kernel(is_wide ? &stream_mix_many<4> : &stream_mix_many<2>,
                       {.grid = static_cast<uint32_t>(coefficients + args.m),
                        .block = kMixWarps * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args,
                       static_cast<int>(coefficients));
}

}  // namespace

Result<void> launch_stream_mix(const DeviceStreamMixArgs& args, device::Stream& stream) {
  DCHECK(args.hc_mult <= kStreams && args.hidden <= 8192 && args.hidden % 4 == 0) << args.hidden;
  if (args.hc_mult == kStreams && args.m > kFewRows) return launch_mix_many(args, stream);
  auto* kernel = mix_kernel<4>(args);
  if (args.hc_mult == 3) kernel = mix_kernel<3>(args);
  if (args.hc_mult == 2) kernel = mix_kernel<2>(args);
  if (args.hc_mult == 1) kernel = mix_kernel<1>(args);
  return launch_kernel(kernel,
                       {.grid = static_cast<uint32_t>(args.m),
                        .block = (kMixWarps + 1) * 32,
                        .is_dependent = args.is_dependent},
                       stream,
                       args);
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
