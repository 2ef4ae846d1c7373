// The update of the residual streams with the first part of the next read: its dots and squares.
// Source of the design: spec "kernels" 8.3.
//
// The dots are products of tensor cores: 16 tokens are the rows of A, rows of fn the columns of B.
// Both are sums of two TF32 numbers, which is exact to 2^-21; products of two second terms are left
// out. A warp takes 16 columns of every stream at a time (a group) and adds its dots from zero; a
// part's groups are added in order. So the bits of a token follow from its part alone, however many
// tokens there are and whichever of the two kernels ran.
//
// Lane 4 g + t has tokens g and g + 8 of a tile and columns 4 t .. 4 t + 3 of a group: memory is
// read as vectors, and k of a product counts columns in the order in which lanes hold them.
#include <algorithm>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"
#include "kernels/cuda/ops/stream_columns.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kTileTokens = 16;
constexpr int kGroupColumns = 16;
constexpr int kMaxGroups = 8;  // of a part
constexpr int kMaxStreams = 4;
constexpr int kMaxMix = (2 + kMaxStreams) * kMaxStreams;
constexpr int kMixTiles = kMaxMix / 8;
constexpr int kSumStride = kMaxMix + 4;        // in shared memory, with the squares
constexpr int kFewWarps = 4, kBulkWarps = 16;  // of a block, at most
constexpr int32_t kFewTokens = 128;

// What is added to the sums of a tile: dots[tile] is a fragment, squares are of tokens g and g + 8.
struct GroupSums {
  float dots[kMixTiles][4] = {};
  float squares[2] = {};
};

// Those of a tile's tokens, of one warp.
template <int kMult>
struct Coefficients {
  TokenCoefficients<kMult> tokens[kTileTokens];
};

// Those that a lane reads; storing them waits for them.
template <int kMult>
struct CoefficientReader {
  static constexpr int kCount = TokenCoefficients<kMult>::kCount;
  static constexpr int kSteps = (kTileTokens * kCount + 31) / 32;
  float kept[kSteps];

  __device__ __forceinline__ void read(const DeviceStreamUpdateArgs& args, int64_t first) {
    constexpr int kSquare = kMult * kMult;
    if (args.post == nullptr) return;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int64_t token = first + index(i) / kCount;
      const int place = index(i) % kCount;
      if (index(i) >= kTileTokens * kCount || token >= args.m) continue;
      kept[i] = __ldcg(place < kSquare ? args.comb + token * kSquare + place
                                       : args.post + token * kMult + place - kSquare);
    }
  }
  __device__ __forceinline__ void store(Coefficients<kMult>& to) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (index(i) < kTileTokens * kCount)
        to.tokens[index(i) / kCount].values[index(i) % kCount] = kept[i];
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ static int index(int i) {
    return i * 32 + static_cast<int>(threadIdx.x % 32);
  }
};

// Two rows of A in two of its columns that a lane holds.
struct RowTerms {
  uint32_t first[4], second[4];

  __device__ __forceinline__ RowTerms(float low0, float high0, float low1, float high1) {
    const float values[4] = {low0, high0, low1, high1};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Tf32Terms terms = tf32_terms(values[i]);
      first[i] = terms.first;
      second[i] = terms.second;
    }
  }
};

// The dots of one group of a tile; the small products have sums of their own, so that no product
// waits for the one before it for long.
struct Dots {
  float sums[kMixTiles][4] = {};
  float rests[kMixTiles][4] = {};

  __device__ __forceinline__ void add(int tile, const RowTerms& rows, float fn0, float fn1) {
    const Tf32Terms b0 = tf32_terms(fn0), b1 = tf32_terms(fn1);
    mma_tf32(sums[tile], rows.first, b0.first, b1.first);
    mma_tf32(rests[tile], rows.first, b0.second, b1.second);
    mma_tf32(rests[tile], rows.second, b0.first, b1.first);
  }
};

// The sums of one group of a tile.
//   squares: of this lane's columns; fn(stream, tile): four values of row 8 tile + g
template <int kMult, class Fn>
__device__ __forceinline__ GroupSums sums_of(const DeviceStreamUpdateArgs& args,
                                             float2 squares,
                                             const Columns<kMult>& low,
                                             const Columns<kMult>& high,
                                             const Fn& fn) {
  GroupSums total{.squares = {squares.x, squares.y}};
#pragma unroll
  for (float& square : total.squares) {
    square += __shfl_xor_sync(~0U, square, 1);
    square += __shfl_xor_sync(~0U, square, 2);
  }
  Dots dots;
#pragma unroll
  for (int stream = 0; stream < kMult; ++stream) {
    const float4 &a = low.streams[stream], &b = high.streams[stream];
    const RowTerms left(a.x, b.x, a.y, b.y), right(a.z, b.z, a.w, b.w);
#pragma unroll
    for (int tile = 0; tile < kMixTiles; ++tile) {
      const float4 values = fn(stream, tile);
      dots.add(tile, left, values.x, values.y);
      dots.add(tile, right, values.z, values.w);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kMixTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total.dots[tile][i] = dots.rests[tile][i] + dots.sums[tile][i];
    }
  }
  return total;
}

// Four values of row 8 tile + g of fn; zeros where it ends.
__device__ __forceinline__ float4
read_fn(const DeviceStreamUpdateArgs& args, int64_t width, int stream, int tile, int64_t column) {
  const int row = tile * 8 + static_cast<int>(threadIdx.x % 32 / 4);
  if (args.fn == nullptr || row >= args.num_mix || column >= args.hidden) return {0, 0, 0, 0};
  return __ldg(
      reinterpret_cast<const float4*>(args.fn + row * width + stream * args.hidden + column));
}

// Where the sums of this block's part go.
__device__ __forceinline__ float* partial_of(const DeviceStreamUpdateArgs& args, int64_t token) {
  return args.partials + (token * args.parts + blockIdx.x) * (args.num_mix + 1);
}

// The columns of a part, and those of this lane in its groups.
struct Part {
  int64_t begin, end;

  __device__ __forceinline__ Part(const DeviceStreamUpdateArgs& args, int64_t columns)
      : begin(min(args.hidden, blockIdx.x * columns)), end(min(args.hidden, begin + columns)) {}
  __device__ __forceinline__ int num_groups() const {
    return static_cast<int>((end - begin + kGroupColumns - 1) / kGroupColumns);
  }
  // Beyond the part: as if beyond the row.
  __device__ __forceinline__ int64_t column(const DeviceStreamUpdateArgs& args, int group) const {
    const int64_t column = begin + group * kGroupColumns + threadIdx.x % 4 * 4;
    return column < end ? column : args.hidden;
  }
};

// For few tokens: a block per part and tile, a warp per group, whose sums meet in shared memory.
// fn is read before the kernels ahead have ended.
// Bytes: per token 8 M D + 4 D (splits + choices); fn once per tile.
template <int kMult>
__global__ void __launch_bounds__(kFewWarps * 32, 2)
    stream_update_few(const DeviceStreamUpdateArgs args, int64_t part_columns) {
  launch_dependents();
  __shared__ Coefficients<kMult> coefficients[kFewWarps];
  extern __shared__ float sums[];  // [groups of a part][kTileTokens][kSumStride]
  const auto sum_at = [](int group, int token, int row) -> float& {
    return sums[(group * kTileTokens + token) * kSumStride + row];
  };
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t first = blockIdx.y * int64_t{kTileTokens};
  const Part part(args, part_columns);
  const int num_groups = part.num_groups();
  float4 fn[kMult][kMixTiles];
  const auto read_all = [&](int64_t column) {
#pragma unroll
    for (int stream = 0; stream < kMult; ++stream) {
#pragma unroll
      for (int tile = 0; tile < kMixTiles; ++tile) {
        fn[stream][tile] = read_fn(args, kMult * args.hidden, stream, tile, column);
      }
    }
  };
  read_all(part.column(args, warp));
  wait_for_predecessors();
  CoefficientReader<kMult> reader;
  reader.read(args, first);
  for (int group = warp; group < num_groups; group += kFewWarps) {
    const int64_t column = part.column(args, group);
    Columns<kMult> low, high;
    low.read(args, first + g, column);
    high.read(args, first + g + 8, column);
    if (group == warp) {
      reader.store(coefficients[warp]);
    } else {
      read_all(column);
    }
    low.add(args, first + g, column);
    high.add(args, first + g + 8, column);
    const float2 squares = {
        low.update(args, coefficients[warp].tokens[g], first + g, column),
        high.update(args, coefficients[warp].tokens[g + 8], first + g + 8, column)};
    if (args.fn == nullptr) continue;
    const GroupSums own = sums_of<kMult>(
        args, squares, low, high, [&](int stream, int tile) { return fn[stream][tile]; });
#pragma unroll
    for (int tile = 0; tile < kMixTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum_at(group, g + i / 2 * 8, tile * 8 + 2 * t + i % 2) = own.dots[tile][i];
      }
    }
    if (t < 2) sum_at(group, g + t * 8, kMaxMix) = t == 0 ? own.squares[0] : own.squares[1];
  }
  if (args.fn == nullptr) return;
  __syncthreads();
  if (lane > args.num_mix) return;
  const int row = lane == args.num_mix ? kMaxMix : lane;
  for (int token = warp; token < kTileTokens && first + token < args.m; token += kFewWarps) {
    float total = 0;
#pragma unroll
    for (int group = 0; group < kMaxGroups; ++group) {
      if (group < num_groups) total += sum_at(group, token, row);
    }
    partial_of(args, first + token)[lane] = total;
  }
}

// Whether the coefficients of the next tile are read during this one, and numbers of tokens. ptxas
// runs out of registers from sm_100 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kReadsAhead = false;
using TokenIndex = int32_t;
#else
constexpr bool kReadsAhead = true;
using TokenIndex = int64_t;
#endif

// For many tokens: a block per part and share of the tiles, of which each warp takes one at a time,
// with kStages groups on their way. fn stays in shared memory in the order of fragments.
// Bytes: per token 8 M D + 4 D (splits + choices); fn once.
template <int kMult, int kStages>
__global__ void __launch_bounds__(kBulkWarps * 32, 1)
    stream_update_bulk(const DeviceStreamUpdateArgs args, int64_t part_columns, int num_slots) {
  launch_dependents();
  extern __shared__ float4 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int num_warps = blockDim.x / 32;
  const Part part(args, part_columns);
  const int num_groups = part.num_groups();
  float4* const fn = shared;  // [groups][kMult][kMixTiles][32]
  auto& coefficients =
      reinterpret_cast<Coefficients<kMult>*>(fn + num_groups * kMult * kMixTiles * 32)[warp];
  // [kStages][low, high][num_slots][32] of this warp
  float4* const slots = reinterpret_cast<float4*>(&coefficients + num_warps - warp) +
                        warp * kStages * 2 * num_slots * 32 + lane;
  for (int i = warp; i < num_groups * kMult * kMixTiles; i += num_warps) {
    const int group = i / (kMult * kMixTiles), place = i % (kMult * kMixTiles);
    fn[i * 32 + lane] = read_fn(
        args, kMult * args.hidden, place / kMixTiles, place % kMixTiles, part.column(args, group));
  }
  wait_for_predecessors();
  __syncthreads();
  const auto stride = static_cast<TokenIndex>(gridDim.y) * num_warps * kTileTokens;
  auto first = static_cast<TokenIndex>(blockIdx.y * num_warps + warp) * kTileTokens;
  CoefficientReader<kMult> reader;
  if constexpr (kReadsAhead) reader.read(args, first);
  TokenIndex wanted_first = first;  // the group to ask for next
  int wanted_group = 0;
  const auto request = [&](int stage) {
    float4* const to = slots + stage * 2 * num_slots * 32;
    const int64_t column = part.column(args, wanted_group);
    Columns<kMult>::request(args, wanted_first + g, column, to);
    Columns<kMult>::request(args, wanted_first + g + 8, column, to + num_slots * 32);
    commit_copies();
    if (++wanted_group == num_groups) {
      wanted_group = 0;
      wanted_first += stride;
    }
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) request(stage);
  int stage = 0;
  for (; first < args.m; first += stride) {
    if constexpr (!kReadsAhead) reader.read(args, first);
    reader.store(coefficients);
    if constexpr (kReadsAhead) reader.read(args, first + stride);
    GroupSums total;
    for (int group = 0; group < num_groups; ++group) {
      const int64_t column = part.column(args, group);
      const float4* const from = slots + stage * 2 * num_slots * 32;
      wait_for_copies<kStages - 1>();
      Columns<kMult> low, high;
      float2 squares;
      low.take(args, first + g, column, from);
      squares.x = low.update(args, coefficients.tokens[g], first + g, column);
      high.take(args, first + g + 8, column, from + num_slots * 32);
      squares.y = high.update(args, coefficients.tokens[g + 8], first + g + 8, column);
      request(stage);  // its memory was read by now
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (args.fn == nullptr) continue;
      const float4* const fragments = fn + group * kMult * kMixTiles * 32 + lane;
      const GroupSums own = sums_of<kMult>(args, squares, low, high, [&](int stream, int tile) {
        return fragments[(stream * kMixTiles + tile) * 32];
      });
#pragma unroll
      for (int tile = 0; tile < kMixTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total.dots[tile][i] += own.dots[tile][i];
      }
      total.squares[0] += own.squares[0];
      total.squares[1] += own.squares[1];
    }
    if (args.fn == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t token = first + g + half * 8;
      if (token >= args.m) break;
      float* const partial = partial_of(args, token);
#pragma unroll
      for (int i = 0; i < kMixTiles * 2; ++i) {
        const int row = i / 2 * 8 + 2 * t + i % 2;
        if (row < args.num_mix) partial[row] = total.dots[i / 2][half * 2 + i % 2];
      }
      if (t == 0) partial[args.num_mix] = total.squares[half];
    }
  }
}

// Shared memory that a block may have on this GPU.
Result<int64_t> shared_bytes_limit() {
  int device = 0, limit = 0;
  CUDA_TRY(cudaGetDevice(&device));
  CUDA_TRY(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return int64_t{limit};
}

struct Parts {
  int64_t count;
  int64_t columns;
  int64_t tiles;  // of tokens
};

template <int kMult>
Result<void> launch_few(const DeviceStreamUpdateArgs& args,
                        const Parts& parts,
                        device::Stream& stream) {
  // No more than needed: an early start needs room beside the kernel ahead.
  const int64_t groups = ceil_div(parts.columns, int64_t{kGroupColumns});
  constexpr int64_t kGroupBytes = kTileTokens * kSumStride * int64_t{sizeof(float)};
  return launch_kernel(&stream_update_few<kMult>,
                       {.grid = static_cast<uint32_t>(parts.count),
                        .block = kFewWarps * 32,
                        .shared_bytes = static_cast<int32_t>(groups * kGroupBytes),
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(parts.tiles)},
                       stream,
                       args,
                       parts.columns);
}

// With as many warps as shared memory holds; with few of them the other kernel is no slower.
Result<void> launch_bulk(const DeviceStreamUpdateArgs& args,
                         const Parts& parts,
                         device::Stream& stream) {
  constexpr int64_t kMult = 4, kBlocks = 132, kVectorBytes = 32 * 16;
  const int64_t choices =
      args.pairs == nullptr ? 0 : std::min(args.choices, Columns<kMult>::kPairsAtOnce);
  const int64_t slots = kMult + (args.post == nullptr ? 0 : 1 + choices);
  const bool has_pairs = choices > 0;
  const int64_t warp_bytes = static_cast<int64_t>(sizeof(Coefficients<kMult>)) +
                             (has_pairs ? 1 : 2) * 2 * slots * kVectorBytes;
  const int64_t fn_bytes =
      ceil_div(parts.columns, int64_t{kGroupColumns}) * kMult * kMixTiles * kVectorBytes;
  TRY_ASSIGN(const int64_t limit, shared_bytes_limit());
  const int64_t most_warps = std::min((limit - fn_bytes) / warp_bytes, int64_t{kBulkWarps});
  if (most_warps < kFewWarps) return launch_few<kMult>(args, parts, stream);
  const int64_t shares = std::min(parts.tiles, std::max(int64_t{1}, kBlocks / parts.count));
  const int64_t warps = std::min(most_warps, ceil_div(parts.tiles, shares));
  return launch_kernel(has_pairs ? &stream_update_bulk<kMult, 1> : &stream_update_bulk<kMult, 2>,
                       {.grid = static_cast<uint32_t>(parts.count),
                        .block = static_cast<uint32_t>(warps * 32),
                        .shared_bytes = static_cast<int32_t>(fn_bytes + warps * warp_bytes),
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(shares)},
                       stream,
                       args,
                       parts.columns,
                       static_cast<int>(slots));
}

}  // namespace

Result<void> launch_stream_update(const DeviceStreamUpdateArgs& args, device::Stream& stream) {
  DCHECK(args.hc_mult <= kMaxStreams && args.hidden % 4 == 0) << args.hc_mult;
  DCHECK(args.fn == nullptr || args.num_mix <= kMaxMix) << args.num_mix;
  const int64_t count = args.fn == nullptr ? ceil_div(args.hidden, int64_t{64}) : args.parts;
  const Parts parts{.count = count,
                    .columns = round_up(ceil_div(args.hidden, count), int64_t{4}),
                    .tiles = ceil_div(args.m, kTileTokens)};
  DCHECK(parts.columns <= kMaxGroups * kGroupColumns) << parts.columns;
  switch (args.hc_mult) {
    case 1:
      return launch_few<1>(args, parts, stream);
    case 2:
      return launch_few<2>(args, parts, stream);
    case 3:
      return launch_few<3>(args, parts, stream);
    default:
      return args.m <= kFewTokens ? launch_few<4>(args, parts, stream)
                                  : launch_bulk(args, parts, stream);
  }
}

}  // namespace nibble::kernels::cuda
