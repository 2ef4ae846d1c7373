// The turn of the residual streams from one half layer to the next, for few tokens on sm_90a: the
// update, the mixer's dots, Sinkhorn, the combination and its norm in one launch.
//
// A cluster of 16 blocks serves a token; block i owns the i-th range of columns of all streams. A
// warp for each 128 of them updates the streams and writes the output; the others multiply, each
// 128 columns of two streams by 12 rows of fn, whose values wait in registers and shared memory
// before the kernels ahead have ended. Blocks exchange their sums once, each to all: the dots, and
// products of the streams with each other, of which the squares of what is combined follow. So
// every block knows the shares of the streams, and one of them makes `post` and `comb` beside the
// combination. Where streams cancel each other the squares would lose digits, and are exchanged.
//
// The kernel behind starts only when those ahead have ended: earlier it would take the place of
// blocks that are still at work, on some multiprocessors twice, as this one fills a few of them
// only.
//
// Sums have a fixed order, which is not that of stream_update: dots in f32, of a lane (two streams,
// four columns), of the lanes of a warp, of the warps, of the blocks (for the shares, of halves of
// them).
// Bytes: per token 8 M D + 4 D (splits + choices), the forms, and fn.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/ops/mixing.cuh"
#include "kernels/cuda/ops/rows.cuh"
#include "kernels/cuda/ops/stream_columns.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kTurnCluster = 16, kTurnStreams = 4;
inline constexpr int kTurnMix = (2 + kTurnStreams) * kTurnStreams;
inline constexpr int kTurnHalfMix = kTurnMix / 2;
// What blocks exchange, in fours: the dots of the shares, products of streams, the other dots.
inline constexpr int kTurnProducts = 10, kTurnProductFours = 3;
inline constexpr int kTurnSums = kTurnMix / 4 + kTurnProductFours;

// The work of a block, kGroups times 128 columns, and its memory.
template <int kGroups>
struct StreamTurn {
  static constexpr int kNumGroups = kGroups, kColumns = kGroups * kGroup;
  static constexpr int kQuads = kColumns / 4;
  static constexpr int kParts = 2 * kGroups;    // warps that share a row's dots
  static constexpr int kDotWarps = 2 * kParts;  // twelve rows each
  static constexpr int kDotThreads = kDotWarps * 32;
  static constexpr int kThreads = kDotThreads + kGroups * 32;
  static constexpr int kBlocks = kGroups > 2 ? 1 : 2;               // of a multiprocessor
  static constexpr int kFnBytes = kTurnHalfMix * kDotThreads * 16;  // half of a block's part of fn
  static_assert(kDotThreads >= kTurnCluster * kTurnSums);
  static_assert(kTurnHalfMix == kTurnProductFours * 4);

  struct Shared {
    alignas(16) float4 state[kTurnStreams][kQuads];
    float4 dots[kParts][kTurnMix / 4];
    float4 products[kGroups][kTurnProductFours];
    float4 received[kTurnCluster][kTurnSums];
    float received_squares[kTurnCluster][kGroups];
    alignas(8) uint64_t state_barrier, sums_barrier, squares_barrier;
  };
};

// What this block owns, and how many blocks own something.
template <class Turn>
struct TurnPlace {
  int token, rank, begin, num_blocks, num_groups;

  __device__ __forceinline__ explicit TurnPlace(const DeviceStreamUpdateArgs& args)
      : token(static_cast<int>(blockIdx.x) / kTurnCluster),
        rank(static_cast<int>(cluster_rank())),
        begin(rank * Turn::kColumns) {
    const auto hidden = static_cast<int>(args.hidden);
    num_blocks = (hidden + Turn::kColumns - 1) / Turn::kColumns;
    num_groups = max(0, min(Turn::kColumns, hidden - begin)) / kGroup;
  }
};

// One thread.
template <class Turn>
__device__ __forceinline__ void init_barriers(const TurnPlace<Turn>& place,
                                              typename Turn::Shared& shared) {
  const uint32_t sums = shared_address(&shared.sums_barrier);
  const uint32_t squares = shared_address(&shared.squares_barrier);
  barrier_init(shared_address(&shared.state_barrier), Turn::kNumGroups * kWarpArrivals);
  barrier_init(sums, 1);
  barrier_init(squares, 1);
  fence_barrier_init();
  barrier_arrive_expect(sums, place.num_blocks * kTurnSums * 16);
  barrier_arrive_expect(squares, place.num_blocks * Turn::kNumGroups * 4);
}

// Waits for that. Warps come here from two places, where __syncthreads() is for one. synccheck
// wants all warps at one place: in the build for it they have waited before.
template <class Turn>
__device__ __forceinline__ void barriers_are_made() {
  if constexpr (kWarpArrivals == 1) named_barrier_sync(2, Turn::kThreads);
}

// Sums each of twelve values over the warp: at every step a lane gives half of its values away and
// adds what it gets to the others. Lane l is left with value turn_row(l), each twice.
__device__ __forceinline__ float sum_twelve(const float (&values)[kTurnHalfMix]) {
  const auto lane = threadIdx.x % 32;
  const auto add = [&](float low, float high, unsigned step) {
    const bool is_high = (lane & step) != 0;
    return (is_high ? high : low) + __shfl_xor_sync(~0U, is_high ? low : high, step);
  };
  float six[6], three[3];
#pragma unroll
  for (int i = 0; i < 6; ++i) six[i] = add(values[i], values[i + 6], 16);
#pragma unroll
  for (int i = 0; i < 3; ++i) three[i] = add(six[i], six[i + 3], 8);
  const float first = add(three[0], three[2], 4), second = add(three[1], 0.0f, 4);
  const float one = add(first, second, 2);
  return one + __shfl_xor_sync(~0U, one, 1);
}
// At least twelve: none.
__device__ __forceinline__ int turn_row(int lane) {
  const int in_three = (lane >> 2 & 1) * 2 + (lane >> 1 & 1);
  return in_three < 3 ? (lane >> 4) * 6 + (lane >> 3 & 1) * 3 + in_three : kTurnHalfMix;
}

__device__ __forceinline__ float dot4(const float4& a, const float4& b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

// What a thread of those that multiply has to do: twelve rows of fn and four columns of two
// streams.
template <class Turn>
struct TurnShare {
  int part, stream, first_row, num_rows, quad;
  const float* fn;  // the row's columns of the first stream
  int64_t stream_width, row_width;

  __device__ __forceinline__ TurnShare(const DeviceStreamUpdateArgs& args,
                                       const TurnPlace<Turn>& place)
      : stream_width(args.hidden), row_width(args.hidden * kTurnStreams) {
    const auto warp = static_cast<int>(threadIdx.x / 32);
    part = warp % Turn::kParts;
    const int group = part % Turn::kNumGroups;
    stream = part / Turn::kNumGroups * 2;
    first_row = warp / Turn::kParts * kTurnHalfMix;
    num_rows = group < place.num_groups ? args.num_mix - first_row : 0;
    quad = group * 32 + static_cast<int>(threadIdx.x % 32);
    fn = args.fn + first_row * row_width + stream * stream_width + place.begin + quad * 4;
  }
};

// The vectors of fn that a thread multiplies, zeros where it ends: those of the first stream in
// registers, the others in shared memory, each in a place of its own.
template <class Turn>
struct TurnWeights {
  float4 first[kTurnHalfMix];
  float4* second;  // every kDotThreads-th

  __device__ __forceinline__ TurnWeights(const TurnShare<Turn>& share, float4* memory)
      : second(memory + threadIdx.x) {
#pragma unroll
    for (int row = 0; row < kTurnHalfMix; ++row) {
      float4* const to = second + row * Turn::kDotThreads;
      const float* const from = share.fn + row * share.row_width;
      first[row] = {0, 0, 0, 0};
      if (row < share.num_rows) {
        first[row] = __ldg(reinterpret_cast<const float4*>(from));
        copy_16_to_shared(shared_address(to), from + share.stream_width);
      } else {
        *to = {0, 0, 0, 0};
      }
    }
    commit_copies();
  }
};

// The dots of one warp, when the streams are there.
template <class Turn>
__device__ __forceinline__ void multiply_columns(const TurnShare<Turn>& share,
                                                 const TurnWeights<Turn>& weights,
                                                 typename Turn::Shared& shared) {
  wait_for_copies<0>();
  barrier_wait(shared_address(&shared.state_barrier), 0);
  const float4 first = shared.state[share.stream][share.quad];
  const float4 second = shared.state[share.stream + 1][share.quad];
  float dots[kTurnHalfMix];
#pragma unroll
  for (int row = 0; row < kTurnHalfMix; ++row) {
    dots[row] = dot4(
        weights.second[row * Turn::kDotThreads], second, dot4(weights.first[row], first, 0.0f));
  }
  const float sum = sum_twelve(dots);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int row = turn_row(lane);
  if (row < kTurnHalfMix && lane % 2 == 0) {
    reinterpret_cast<float*>(shared.dots[share.part])[share.first_row + row] = sum;
  }
}

// The products of each stream with itself, then of any two, of this block's columns that a lane
// holds: those of the warp. Each in some lanes, see sum_twelve().
__device__ __forceinline__ float stream_products(const float4 (&streams)[kTurnStreams]) {
  float products[kTurnHalfMix] = {};
  int next = kTurnStreams;
#pragma unroll
  for (int i = 0; i < kTurnStreams; ++i) {
    products[i] = dot4(streams[i], streams[i], 0.0f);
#pragma unroll
    for (int j = i + 1; j < kTurnStreams; ++j) {
      products[next++] = dot4(streams[i], streams[j], 0.0f);
    }
  }
  return sum_twelve(products);
}

// Adds up the sums of this block's warps and sends them to all blocks. All threads that multiply.
template <class Turn>
__device__ __forceinline__ void send_sums(const TurnPlace<Turn>& place,
                                          typename Turn::Shared& shared) {
  const auto rank = static_cast<int>(threadIdx.x) / kTurnSums;
  const auto sums = static_cast<int>(threadIdx.x) % kTurnSums;
  if (rank >= place.num_blocks) return;
  float4 total{0, 0, 0, 0};
  if (sums >= 1 && sums <= kTurnProductFours) {
#pragma unroll
    for (int i = 0; i < Turn::kNumGroups; ++i) total = total + shared.products[i][sums - 1];
  } else {
    const int dots = sums == 0 ? 0 : sums - kTurnProductFours;
#pragma unroll
    for (int i = 0; i < Turn::kParts; ++i) total = total + shared.dots[i][dots];
  }
  store_async(shared_address_of_rank(shared_address(&shared.received[place.rank][sums]), rank),
              total,
              shared_address_of_rank(shared_address(&shared.sums_barrier), rank));
}

// The total of sum `index` over kCount blocks from `first` on, when the sums of all have come.
template <int kCount, class Turn>
__device__ __forceinline__ float receive_sum(const TurnPlace<Turn>& place,
                                             int first,
                                             int index,
                                             const typename Turn::Shared& shared) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (first + i < place.num_blocks) {
      total += reinterpret_cast<const float*>(shared.received[first + i])[index];
    }
  }
  return total;
}

// The four of which lanes `first` and its successors hold one each, added up.
__device__ __forceinline__ float sum_of_lanes4(float value, int first) {
  return (__shfl_sync(~0U, value, first) + __shfl_sync(~0U, value, first + 1)) +
         (__shfl_sync(~0U, value, first + 2) + __shfl_sync(~0U, value, first + 3));
}

// Writes `post` and `comb`, when the sums have come: lanes 4 .. 23 take the dots of their rows, the
// first four the squares of the streams. One warp.
template <class Turn>
__device__ __forceinline__ void make_coefficients(const DeviceStreamMixArgs& args,
                                                  const TurnPlace<Turn>& place,
                                                  const MixerRow& mixer,
                                                  const typename Turn::Shared& shared) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int index = lane < kTurnStreams ? kTurnStreams + lane : lane + kTurnProductFours * 4;
  barrier_wait(shared_address(&shared.sums_barrier), 0);
  const float total = receive_sum<kTurnCluster>(place, 0, min(index, kTurnSums * 4 - 1), shared);
  const float squares = sum_of_lanes4(total, 0);
  write_coefficients4(args, mixer.logit(args, total, squares), place.token);
}

// What of each stream is combined.
struct TurnShares {
  float of[kTurnStreams];
  float squares;           // of what is combined, as follows from the streams' products
  float separate_squares;  // the sum of those of its terms

  // When the sums have come. The whole warp; half of it adds those of half of the blocks.
  template <class Turn>
  __device__ __forceinline__ TurnShares(const DeviceStreamMixArgs& args,
                                        const TurnPlace<Turn>& place,
                                        const MixerRow& mixer,
                                        const typename Turn::Shared& shared)
      : squares(0), separate_squares(0) {
    constexpr int kHalf = kTurnCluster / 2;
    const auto lane = static_cast<int>(threadIdx.x % 32);
    barrier_wait(shared_address(&shared.sums_barrier), 0);
    float total = receive_sum<kHalf>(place, lane / 16 * kHalf, lane % 16, shared);
    total += __shfl_xor_sync(~0U, total, 16);
    const float share =
        sigmoid(mixer.logit(args, total, sum_of_lanes4(total, kTurnStreams))) + args.hc_eps;
    int next = 2 * kTurnStreams;  // the lane of the next product
#pragma unroll
    for (int i = 0; i < kTurnStreams; ++i) of[i] = __shfl_sync(~0U, share, i);
#pragma unroll
    for (int i = 0; i < kTurnStreams; ++i) {
      const float term = of[i] * __shfl_sync(~0U, total, kTurnStreams + i);
      float others = 0;
#pragma unroll
      for (int j = i + 1; j < kTurnStreams; ++j) {
        others = fmaf(of[j], __shfl_sync(~0U, total, next++), others);
      }
      squares = fmaf(of[i], fmaf(2.0f, others, term), squares);
      separate_squares = fmaf(of[i], term, separate_squares);
    }
  }
  // Whether `squares` is what is left of larger numbers.
  __device__ __forceinline__ bool cancel() const {
    constexpr float kLeft = 0x1p-4f;  // costs squares four bits
    return squares < kLeft * separate_squares;
  }
};

// `comb` and `post` of a token.
__device__ __forceinline__ TokenCoefficients<kTurnStreams> read_coefficients(
    const DeviceStreamUpdateArgs& args, int64_t token) {
  constexpr int kSquare = kTurnStreams * kTurnStreams;
  TokenCoefficients<kTurnStreams> coefficients{};
  if (args.post == nullptr) return coefficients;
#pragma unroll
  for (int i = 0; i <= kTurnStreams; ++i) {
    const float4 v = load_vector(i < kTurnStreams ? args.comb + token * kSquare + i * 4
                                                  : args.post + token * kTurnStreams);
    float* const to = coefficients.values + i * 4;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  return coefficients;
}

// The sum of the squares of all columns of what was combined, from those of this warp.
template <class Turn>
__device__ __forceinline__ float exchange_squares(float squares,
                                                  int group,
                                                  const TurnPlace<Turn>& place,
                                                  typename Turn::Shared& shared) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t barrier = shared_address(&shared.squares_barrier);
  squares = warp_sum(squares);
  if (lane < place.num_blocks) {
    store_async(
        shared_address_of_rank(shared_address(&shared.received_squares[place.rank][group]), lane),
        squares,
        shared_address_of_rank(barrier, lane));
  }
  barrier_wait(barrier, 0);
  const float* const all = shared.received_squares[0];
  float total = 0;
#pragma unroll
  for (int i = lane; i < kTurnCluster * Turn::kNumGroups; i += 32) {
    if (i < place.num_blocks * Turn::kNumGroups) total += all[i];
  }
  return warp_sum(total);
}

// Writes 128 columns of the output rows that read stream row `token`; padding is of the row of its
// number. The whole warp.
__device__ __forceinline__ void write_turn(const DeviceStreamMixArgs& args,
                                           int64_t token,
                                           int64_t group,
                                           const float4& v) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (args.rows == nullptr) {
    return write_group<true>(args.x, args.m, args.hidden, token, group, v);
  }
#pragma unroll 1
  for (int first = 0; first < args.m; first += 32) {
    const int of_lane = first + lane;
    int read = of_lane;
    if (of_lane < args.m) read = __ldcg(args.rows + of_lane);
    const bool is_padding = read < 0 && of_lane == token;
    const uint32_t padding = __ballot_sync(~0U, is_padding);
    uint32_t rows = __ballot_sync(~0U, of_lane < args.m && (read == token || is_padding));
#pragma unroll 1
    for (; rows != 0; rows &= rows - 1) {
      const int row = __ffs(static_cast<int>(rows)) - 1;
      const float4 written = (padding >> row & 1) != 0 ? float4{0, 0, 0, 0} : v;
      write_group<true>(args.x, args.m, args.hidden, first + row, group, written);
    }
  }
}

// Updates 128 columns, for which those who multiply wait. One warp.
template <class Turn>
__device__ __forceinline__ void update_columns(const DeviceStreamUpdateArgs& args,
                                               int64_t token,
                                               int column,
                                               int group,
                                               typename Turn::Shared& shared) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  Columns<kTurnStreams> columns;
  columns.read(args, token, column);
  const auto coefficients = read_coefficients(args, token);
  columns.add(args, token, column);
  columns.update(args, coefficients, token, column);
#pragma unroll
  for (int i = 0; i < kTurnStreams; ++i) shared.state[i][group * 32 + lane] = columns.streams[i];
  warp_arrive(shared_address(&shared.state_barrier), lane);
  const float product = stream_products(columns.streams);
  const int index = turn_row(lane);
  if (index < kTurnHalfMix && lane % 2 == 0) {
    reinterpret_cast<float*>(shared.products[group])[index] = product;
  }
  named_barrier_arrive(1, Turn::kThreads);
}

// A warp of those that hold the streams: updates 128 columns, combines and norms them.
template <class Turn>
__device__ __forceinline__ void turn_columns(const DeviceStreamTurnArgs& args,
                                             const TurnPlace<Turn>& place,
                                             const MixerRow& mixer,
                                             int group,
                                             typename Turn::Shared& shared) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const DeviceStreamMixArgs& mix = args.mix;
  const int column = place.begin + group * kGroup + lane * 4;
  const bool is_owned = group < place.num_groups;
  const float4 gamma =
      is_owned ? __ldg(reinterpret_cast<const float4*>(mix.gamma + column)) : float4{0, 0, 0, 0};
  wait_for_predecessors();
  launch_dependents();
  update_columns<Turn>(args.update, place.token, column, group, shared);
  cluster_wait();  // every block has its barriers

  const TurnShares shares(mix, place, mixer, shared);
  float4 x{0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kTurnStreams; ++i) {
    x = multiply_add(shares.of[i], shared.state[i][group * 32 + lane], x);
  }
  const float squares = shares.cancel()
                            ? exchange_squares<Turn>(sum_of_squares(x), group, place, shared)
                            : shares.squares;
  if (!is_owned) return;
  const float factor = rsqrtf(squares / static_cast<float>(mix.hidden) + mix.norm_eps);
  write_turn(mix,
             place.token,
             column / kGroup,
             {x.x * factor * gamma.x,
              x.y * factor * gamma.y,
              x.z * factor * gamma.z,
              x.w * factor * gamma.w});
}

// Grid: a cluster per token; block: the warps that multiply, then those that hold the streams.
template <int kGroups>
__global__ void __launch_bounds__(StreamTurn<kGroups>::kThreads, StreamTurn<kGroups>::kBlocks)
    stream_turn(const DeviceStreamTurnArgs args) {
  using Turn = StreamTurn<kGroups>;
  extern __shared__ float4 fn[];
  __shared__ typename Turn::Shared shared;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const TurnPlace<Turn> place(args.update);
  if (threadIdx.x == 0) init_barriers(place, shared);
  __syncwarp();
  cluster_arrive_relaxed();
  if (place.num_groups == 0) return cluster_wait();
  if constexpr (kWarpArrivals == 32) __syncthreads();  // see barriers_are_made()
  if (warp >= Turn::kDotWarps) {
    const MixerRow mixer(args.mix);
    barriers_are_made<Turn>();
    return turn_columns<Turn>(args, place, mixer, warp - Turn::kDotWarps, shared);
  }
  const TurnShare<Turn> share(args.update, place);
  const TurnWeights<Turn> weights(share, fn);
  barriers_are_made<Turn>();
  multiply_columns<Turn>(share, weights, shared);
  const MixerRow mixer(args.mix);
  named_barrier_sync(1, Turn::kThreads);  // all sums of warps are there
  cluster_wait();                         // every block has its barriers
  send_sums<Turn>(place, shared);
  if (warp == 0 && place.rank == 0 && args.mix.comb != nullptr) {
    make_coefficients<Turn>(args.mix, place, mixer, shared);
  }
}

}  // namespace nibble::kernels::cuda
