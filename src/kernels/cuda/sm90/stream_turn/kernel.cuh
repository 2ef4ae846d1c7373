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

// Sums of blocks that own nothing. Read after barriers_are_made().
template <class Turn>
__device__ __forceinline__ void clear_sums(const TurnPlace<Turn>& place,
                                           typename Turn::Shared& shared) {
  const auto first = static_cast<int>(threadIdx.x) + place.num_blocks * kTurnSums;
  for (int i = first; i < kTurnCluster * kTurnSums; i += Turn::kThreads) {
    shared.received[0][i] = {0, 0, 0, 0};
  }
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

// What a thread of those that multiply adds up and sends: four of the sums of this block's warps to
// one block.
template <class Turn>
struct TurnMessage {
  const float4* from;  // the first of those of the warps
  int count, step;     // of them
  uint32_t to, barrier;

  __device__ __forceinline__ TurnMessage(const TurnPlace<Turn>& place,
                                         const typename Turn::Shared& shared) {
    const int rank = min(static_cast<int>(threadIdx.x) / kTurnSums, kTurnCluster - 1);
    const auto sums = static_cast<int>(threadIdx.x) % kTurnSums;
    const bool are_products = sums >= 1 && sums <= kTurnProductFours;
    const int dots = sums == 0 ? 0 : sums - kTurnProductFours;
    from = are_products ? &shared.products[0][sums - 1] : &shared.dots[0][dots];
    count = are_products ? Turn::kNumGroups : Turn::kParts;
    step = are_products ? kTurnProductFours : kTurnMix / 4;
    if (static_cast<int>(threadIdx.x) >= place.num_blocks * kTurnSums) count = 0;
    to = shared_address_of_rank(shared_address(&shared.received[place.rank][sums]), rank);
    barrier = shared_address_of_rank(shared_address(&shared.sums_barrier), rank);
    keep_in_register(to);
    keep_in_register(barrier);
  }
  __device__ __forceinline__ void send() const {
    if (count == 0) return;
    float4 total = *from;
#pragma unroll
    for (int i = 1; i < Turn::kParts; ++i) {
      if (i < count) total = total + from[i * step];
    }
    store_async(to, total, barrier);
  }
};

// The total of a sum over kCount blocks, when the sums of all have come.
//   first: of the first block
template <int kCount>
__device__ __forceinline__ float receive_sum(const float* first) {
  float total = first[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) total += first[i * kTurnSums * 4];
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
  const float* const sums = reinterpret_cast<const float*>(shared.received[0]);
  barrier_wait(shared_address(&shared.sums_barrier), 0);
  const float total = receive_sum<kTurnCluster>(sums + min(index, kTurnSums * 4 - 1));
  const float squares = sum_of_lanes4(total, 0);
  write_coefficients4(args, mixer.logit(args, total, squares), place.token);
}

// What of each stream is combined.
struct TurnShares {
  float of[kTurnStreams];
  float squares;           // of what is combined, as follows from the streams' products
  float separate_squares;  // the sum of those of its terms

  // When the sums have come. The whole warp; half of it adds those of half of the blocks.
  template <class Shared>
  __device__ __forceinline__ TurnShares(const DeviceStreamMixArgs& args,
                                        const MixerRow& mixer,
                                        const Shared& shared)
      : squares(0), separate_squares(0) {
    constexpr int kHalf = kTurnCluster / 2;
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const float* const sums =
        reinterpret_cast<const float*>(shared.received[lane / 16 * kHalf]) + lane % 16;
    barrier_wait(shared_address(&shared.sums_barrier), 0);
    float total = receive_sum<kHalf>(sums);
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

// `comb` and `post` of a token, if any.
__device__ __forceinline__ TokenCoefficients<kTurnStreams> read_coefficients(const float* comb,
                                                                             const float* post) {
  TokenCoefficients<kTurnStreams> coefficients{};
  if (post == nullptr) return coefficients;
#pragma unroll
  for (int i = 0; i <= kTurnStreams; ++i) {
    const float4 v = load_vector(i < kTurnStreams ? comb + i * 4 : post);
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

// Writes 128 columns of the output rows that read stream row `token`, as `rows` says; padding is of
// the row of its number. The whole warp.
__device__ __forceinline__ void write_turn(const DeviceStreamMixArgs& args,
                                           int64_t token,
                                           int64_t group,
                                           const float4& v) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
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

// A warp of those that hold the streams: updates 128 columns, combines and norms them. While it
// waits it makes the addresses of what comes next: alone it takes some four clocks an instruction.
template <class Turn>
struct TurnColumns {
  const DeviceStreamTurnArgs& args;
  const TurnPlace<Turn>& place;
  typename Turn::Shared& shared;
  int group, lane, column;
  bool is_owned;

  struct State {
    float4 of[kTurnStreams];
  };
  __device__ __forceinline__ State load_state() const {
    State state;
#pragma unroll
    for (int i = 0; i < kTurnStreams; ++i) state.of[i] = shared.state[i][group * 32 + lane];
    return state;
  }

  __device__ __forceinline__ TurnColumns(const DeviceStreamTurnArgs& turn,
                                         const TurnPlace<Turn>& of_block,
                                         int group_of_block,
                                         typename Turn::Shared& memory)
      : args(turn),
        place(of_block),
        shared(memory),
        group(group_of_block),
        lane(static_cast<int>(threadIdx.x % 32)),
        column(of_block.begin + group_of_block * kGroup + lane * 4),
        is_owned(group_of_block < of_block.num_groups) {}

  // Once the kernels ahead have ended; those who multiply wait for it.
  __device__ __forceinline__ void update() {
    const DeviceStreamUpdateArgs& update = args.update;
    ColumnPlaces<kTurnStreams> places(update, place.token, column);
    const float* comb = update.comb;
    const float* post = update.post;
    if (post != nullptr) {
      comb += int64_t{place.token} * kTurnStreams * kTurnStreams;
      post += int64_t{place.token} * kTurnStreams;
    }
    places.keep();
    keep_in_register(comb);
    keep_in_register(post);
    wait_for_predecessors();
    launch_dependents();
    Columns<kTurnStreams> columns;
    columns.read(places);
    const auto coefficients = read_coefficients(comb, post);
    columns.add(update, place.token, column);
    float* const to = places.y == nullptr ? nullptr : places.streams;
    columns.update(to, places.stream_step, coefficients);
#pragma unroll
    for (int i = 0; i < kTurnStreams; ++i) shared.state[i][group * 32 + lane] = columns.streams[i];
    warp_arrive(shared_address(&shared.state_barrier), lane);
  }
  // The streams come from shared memory, so that the others are let go on before this begins.
  __device__ __forceinline__ void multiply() {
    const State state = load_state();
    const float product = stream_products(state.of);
    const int index = turn_row(lane);
    if (index < kTurnHalfMix && lane % 2 == 0) {
      reinterpret_cast<float*>(shared.products[group])[index] = product;
    }
    named_barrier_arrive(1, Turn::kThreads);
  }
  __device__ __forceinline__ void combine(const MixerRow& mixer, const float4& gamma) {
    const DeviceStreamMixArgs& mix = args.mix;
    float inverse_hidden = 1.0f / static_cast<float>(mix.hidden);
    keep_in_register(inverse_hidden);
    GroupPlaces<true> places(mix.x, mix.m, mix.hidden, place.token, column / kGroup);
    places.keep();
    const TurnShares shares(mix, mixer, shared);
    const State state = load_state();
    float4 x{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kTurnStreams; ++i) x = multiply_add(shares.of[i], state.of[i], x);
    const float squares = shares.cancel()
                              ? exchange_squares<Turn>(sum_of_squares(x), group, place, shared)
                              : shares.squares;
    if (!is_owned) return;
    const float factor = rsqrtf(fmaf(squares, inverse_hidden, mix.norm_eps));
    const float4 y = {x.x * factor * gamma.x,
                      x.y * factor * gamma.y,
                      x.z * factor * gamma.z,
                      x.w * factor * gamma.w};
    if (mix.rows != nullptr) return write_turn(mix, place.token, column / kGroup, y);
    if (place.token < mix.m) places.write(y);
  }
};

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
  clear_sums(place, shared);
  __syncwarp();
  cluster_arrive_relaxed();
  if (place.num_groups == 0) return cluster_wait();
  if constexpr (kWarpArrivals == 32) __syncthreads();  // see barriers_are_made()
  if (warp >= Turn::kDotWarps) {
    TurnColumns<Turn> columns(args, place, warp - Turn::kDotWarps, shared);
    const MixerRow mixer(args.mix);
    const float4 gamma =
        columns.is_owned ? __ldg(reinterpret_cast<const float4*>(args.mix.gamma + columns.column))
                         : float4{0, 0, 0, 0};
    barriers_are_made<Turn>();
    columns.update();
    columns.multiply();
    cluster_wait();  // every block has its barriers
    return columns.combine(mixer, gamma);
  }
  const TurnShare<Turn> share(args.update, place);
  const TurnWeights<Turn> weights(share, fn);
  const MixerRow mixer(args.mix);
  const TurnMessage<Turn> message(place, shared);
  barriers_are_made<Turn>();
  cluster_wait();  // every block has its barriers
  multiply_columns<Turn>(share, weights, shared);
  named_barrier_sync(1, Turn::kThreads);  // all sums of warps are there
  message.send();
  if (warp == 0 && place.rank == 0 && args.mix.comb != nullptr) {
    make_coefficients<Turn>(args.mix, place, mixer, shared);
  }
}

}  // namespace nibble::kernels::cuda
