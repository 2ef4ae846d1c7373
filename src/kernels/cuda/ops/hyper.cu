// Hyper-connections. Source of the design: spec "kernels" 8.3.
#include "base/checked_math.h"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 8;  // of a token's cluster
constexpr int kMaxStreams = 8;
constexpr int kMaxMix = (2 + kMaxStreams) * kMaxStreams;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct HyperParams {
  const float* state;
  int64_t state_stride;
  int64_t width;  // streams * columns
  const float* fn;
  const float* base;
  const float* scale;
  int streams;
  int num_mix;  // rows of fn
  int iterations;
  float eps;
  float norm_eps;
  float* x;
  int64_t x_stride;
  float* post;
  int64_t post_stride;
  float* comb;
  int64_t comb_stride;
};

// The part [begin, end) of `count` that owner `index` of `owners` takes, in steps of 4.
struct Part {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ Part part_of(int64_t count, int64_t index, int64_t owners) {
  const int64_t size = (count + 4 * owners - 1) / (4 * owners) * 4;
  const int64_t begin = min(count, index * size);
  return {begin, min(count, begin + size)};
}

// Multiplies values [begin, end) of the state, four at a time where `vectors`, with rows
// [first, first + kRows) of fn, and writes the warp's sums to `sums`.
template <int kRows>
__device__ __forceinline__ void add_rows(const HyperParams& params,
                                         const float* state,
                                         Part part,
                                         int first,
                                         bool vectors,
                                         float* sums) {
  const int lane = threadIdx.x % 32;
  float acc[kRows] = {};
  const int rows = min(kRows, params.num_mix - first);
  const float* const fn = params.fn + first * params.width;
  if (vectors && rows == kRows) {
    for (int64_t i = part.begin + lane * 4; i < part.end; i += 128) {
      const float4 q = *reinterpret_cast<const float4*>(state + i);
      float4 p[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        p[j] = __ldg(reinterpret_cast<const float4*>(fn + j * params.width + i));
      }
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        acc[j] = fmaf(p[j].x, q.x, fmaf(p[j].y, q.y, fmaf(p[j].z, q.z, fmaf(p[j].w, q.w, acc[j]))));
      }
    }
  } else {
    for (int64_t i = part.begin + lane; i < part.end; i += 32) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (j < rows) acc[j] = fmaf(fn[j * params.width + i], state[i], acc[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const float sum = warp_sum(acc[j]);
    if (lane == 0 && j < rows) sums[first + j] = sum;
  }
}

__device__ __forceinline__ float sum_of_squares(const float* state, Part part) {
  float sum = 0;
#pragma unroll 4
  for (int64_t i = part.begin + threadIdx.x % 32; i < part.end; i += 32) {
    sum = fmaf(state[i], state[i], sum);
  }
  return warp_sum(sum);
}

// Softmax of the rows, then Sinkhorn; columns are normalised last. One warp.
//   comb: [size, size] logits, in shared memory
__device__ void sinkhorn(float* comb, int size, int iterations, float eps) {
  const int lane = threadIdx.x % 32, count = size * size;
  // Every element becomes f(element, the sum over its row or column).
  const auto update = [&](bool rows, const auto& f) {
    float values[kMaxStreams * kMaxStreams / 32];
    for (int e = lane, i = 0; e < count; e += 32, ++i) {
      const float* const line = comb + (rows ? e / size * size : e % size);
      float sum = 0;
      for (int j = 0; j < size; ++j) sum += line[j * (rows ? 1 : size)];
      values[i] = f(comb[e], sum);
    }
    __syncwarp();
    for (int e = lane, i = 0; e < count; e += 32, ++i) comb[e] = values[i];
    __syncwarp();
  };
  float exps[kMaxStreams * kMaxStreams / 32];
  for (int e = lane, i = 0; e < count; e += 32, ++i) {
    float largest = comb[e / size * size];
    for (int j = 1; j < size; ++j) largest = fmaxf(largest, comb[e / size * size + j]);
    exps[i] = expf(comb[e] - largest);
  }
  __syncwarp();
  for (int e = lane, i = 0; e < count; e += 32, ++i) comb[e] = exps[i];
  __syncwarp();
  update(true, [eps](float value, float sum) { return value / sum + eps; });
  const auto normalise = [eps](float value, float sum) { return value / (sum + eps); };
  update(false, normalise);
  for (int i = 1; i < iterations; ++i) {
    update(true, normalise);
    update(false, normalise);
  }
}

// The same for 4 streams: lane 4 i + j of each 16 holds element (i, j).
__device__ __forceinline__ float sinkhorn4(float logit, int iterations, float eps) {
  const auto sum_over = [](float value, int step) {
    value += __shfl_xor_sync(~0U, value, step);
    return value + __shfl_xor_sync(~0U, value, 2 * step);
  };
  constexpr int kRow = 1, kColumn = 4;  // distance of neighbours
  float largest = fmaxf(logit, __shfl_xor_sync(~0U, logit, kRow));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2 * kRow));
  float value = expf(logit - largest);
  value = value / sum_over(value, kRow) + eps;
  value /= sum_over(value, kColumn) + eps;
  for (int i = 1; i < iterations; ++i) {
    value = __fdividef(value, sum_over(value, kRow) + eps);
    value = __fdividef(value, sum_over(value, kColumn) + eps);
  }
  return value;
}

// A cluster of 8 blocks per token. Each block takes an eighth of the flat state for all mixing rows
// and its norm; the sums meet in every block, which then reads its eighth of the columns. Block 0
// also makes `post` and `comb`, which are null for the head.
// Bytes: 4 (num_mix + 2) width per token, of which fn comes from the cache for all but the first.
__global__ void __launch_bounds__(kThreads) hyper_read(const HyperParams params) {
  constexpr int kRowsAtOnce = 12;
  __shared__ float warp_sums[kWarps][kMaxMix + 1];  // the last is that of the squares
  __shared__ float sums[kMaxMix + 1];               // of this block
  __shared__ float mix[kMaxMix];
  __shared__ float pre[kMaxStreams];
  const uint32_t rank = cluster_rank();
  const int64_t token = blockIdx.x / kBlocks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* const state = params.state + token * params.state_stride;
  const bool vectors = params.width % 4 == 0 && params.state_stride % 4 == 0;
  const Part block = part_of(params.width, rank, kBlocks);
  const Part inside = part_of(block.end - block.begin, warp, kWarps);
  const Part part{block.begin + inside.begin, block.begin + inside.end};
  for (int first = 0; first < params.num_mix; first += kRowsAtOnce) {
    add_rows<kRowsAtOnce>(params, state, part, first, vectors, warp_sums[warp]);
  }
  const float squares = sum_of_squares(state, part);
  if (lane == 0) warp_sums[warp][params.num_mix] = squares;
  __syncthreads();
  if (threadIdx.x <= params.num_mix) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += warp_sums[w][threadIdx.x];
    sums[threadIdx.x] = sum;
  }
  cluster_arrive();
  cluster_wait();
  float total = 0;
  if (threadIdx.x <= params.num_mix) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      total += load_from_rank(shared_address_of_rank(shared_address(sums + threadIdx.x), block));
    }
  }
  cluster_arrive();
  cluster_wait();  // all have read; this block's sums may now be replaced
  if (threadIdx.x <= params.num_mix) sums[threadIdx.x] = total;
  __syncthreads();
  const int streams = params.streams;
  if (threadIdx.x < params.num_mix) {
    const float inverse_rms =
        rsqrtf(sums[params.num_mix] / static_cast<float>(params.width) + params.norm_eps);
    const int part_of_mix = min(static_cast<int>(threadIdx.x) / streams, 2);
    mix[threadIdx.x] =
        sums[threadIdx.x] * inverse_rms * params.scale[part_of_mix] + params.base[threadIdx.x];
    if (threadIdx.x < streams) pre[threadIdx.x] = sigmoid(mix[threadIdx.x]) + params.eps;
  }
  __syncthreads();
  const int64_t columns = params.width / streams;
  const Part own = part_of(columns, rank, kBlocks);
  for (int64_t i = own.begin + threadIdx.x; i < own.end; i += kThreads) {
    float sum = 0;
    for (int m = 0; m < streams; ++m) sum = fmaf(pre[m], state[m * columns + i], sum);
    params.x[token * params.x_stride + i] = sum;
  }
  if (rank != 0 || warp != 0 || params.comb == nullptr) return;
  if (lane < streams) {
    params.post[token * params.post_stride + lane] = 2.0f * sigmoid(mix[streams + lane]);
  }
  float* const comb = mix + 2 * streams;
  if (streams == 4) {
    const float value = sinkhorn4(comb[lane % 16], params.iterations, params.eps);
    if (lane < 16) params.comb[token * params.comb_stride + lane] = value;
    return;
  }
  sinkhorn(comb, streams, params.iterations, params.eps);
  for (int e = lane; e < streams * streams; e += 32) {
    params.comb[token * params.comb_stride + e] = comb[e];
  }
}

struct HyperPostParams {
  const float* y;
  int64_t y_stride;
  const float* post;
  int64_t post_stride;
  const float* comb;
  int64_t comb_stride;
  int streams;
  int64_t columns;
  float* state;
  int64_t state_stride;
};

// One thread per token (blockIdx.y) and column. Bytes: 8 streams + 4 per thread.
__global__ void __launch_bounds__(kThreads) hyper_post(const HyperPostParams params) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = blockIdx.y;
  if (i >= params.columns) return;
  const float* const post = params.post + token * params.post_stride;
  const float* const comb = params.comb + token * params.comb_stride;
  float* const state = params.state + token * params.state_stride + i;
  const float y = params.y[token * params.y_stride + i];
  float old[kMaxStreams];
#pragma unroll
  for (int m = 0; m < kMaxStreams; ++m) {
    old[m] = m < params.streams ? state[m * params.columns] : 0.0f;
  }
  for (int j = 0; j < params.streams; ++j) {
    float sum = post[j] * y;
#pragma unroll
    for (int m = 0; m < kMaxStreams; ++m) {
      if (m < params.streams) sum = fmaf(comb[m * params.streams + j], old[m], sum);
    }
    state[j * params.columns] = sum;
  }
}

Result<void> launch_read(const HyperParams& params, int64_t tokens, device::Stream& stream) {
  DCHECK(params.streams <= kMaxStreams) << params.streams;
  return launch_kernel(
      &hyper_read,
      {.grid = static_cast<uint32_t>(tokens * kBlocks), .block = kThreads, .cluster = kBlocks},
      stream,
      params);
}

}  // namespace

Result<void> launch_hyper_pre(const HyperPreArgs& args, device::Stream& stream) {
  return launch_read({.state = args.state.as<float>(),
                      .state_stride = args.state.row_stride,
                      .width = args.state.shape[1],
                      .fn = args.fn,
                      .base = args.base,
                      .scale = args.scale,
                      .streams = args.hc_mult,
                      .num_mix = (2 + args.hc_mult) * args.hc_mult,
                      .iterations = args.sinkhorn_iters,
                      .eps = args.hc_eps,
                      .norm_eps = args.norm_eps,
                      .x = args.x.as<float>(),
                      .x_stride = args.x.row_stride,
                      .post = args.post.as<float>(),
                      .post_stride = args.post.row_stride,
                      .comb = args.comb.as<float>(),
                      .comb_stride = args.comb.row_stride},
                     args.state.num_rows(),
                     stream);
}

Result<void> launch_hyper_head(const HyperHeadArgs& args, device::Stream& stream) {
  return launch_read({.state = args.state.as<float>(),
                      .state_stride = args.state.row_stride,
                      .width = args.state.shape[1],
                      .fn = args.fn,
                      .base = args.base,
                      .scale = args.scale,
                      .streams = args.hc_mult,
                      .num_mix = args.hc_mult,
                      .iterations = 0,
                      .eps = args.hc_eps,
                      .norm_eps = args.norm_eps,
                      .x = args.x.as<float>(),
                      .x_stride = args.x.row_stride,
                      .post = nullptr,
                      .post_stride = 0,
                      .comb = nullptr,
                      .comb_stride = 0},
                     args.state.num_rows(),
                     stream);
}

Result<void> launch_hyper_post(const HyperPostArgs& args, device::Stream& stream) {
  DCHECK(args.hc_mult <= kMaxStreams) << args.hc_mult;
  const int64_t columns = args.y.shape[1];
  return launch_kernel(&hyper_post,
                       {.grid = static_cast<uint32_t>(ceil_div(columns, kThreads)),
                        .block = kThreads,
                        .grid_y = static_cast<uint32_t>(args.y.num_rows())},
                       stream,
                       HyperPostParams{.y = args.y.as<float>(),
                                       .y_stride = args.y.row_stride,
                                       .post = args.post.as<float>(),
                                       .post_stride = args.post.row_stride,
                                       .comb = args.comb.as<float>(),
                                       .comb_stride = args.comb.row_stride,
                                       .streams = args.hc_mult,
                                       .columns = columns,
                                       .state = args.state.as<float>(),
                                       .state_stride = args.state.row_stride});
}

}  // namespace nibble::kernels::cuda
