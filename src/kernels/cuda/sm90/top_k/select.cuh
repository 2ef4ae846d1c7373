// Exact selection of the k best of a block's keys: ties go to the lower index, and what is selected
// comes out in ascending order of index.
//
// The keys, up to 32 a thread, stay in registers. A bound from parts of them leaves few candidates,
// the k-th best of these is found by three digits of a radix select in shared memory, and prefix
// sums place what is selected.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/ptx.cuh"

namespace nibble::kernels::cuda {

// A score's place in the order, above 0: NaN ranks with -inf, -0 equals +0.
__device__ __forceinline__ uint32_t rank_key(float score) {
  constexpr uint32_t kMinusInfinity = 0xFF800000U;
  const uint32_t plain = __float_as_uint(score + 0.0f);
  const uint32_t bits = isnan(score) ? kMinusInfinity : plain;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// Shared memory of a block of kBlockThreads that selects. Up to four digits are counted, each in
// bins of its own.
template <int kBlockThreads>
struct SelectState {
  static constexpr int kThreads = kBlockThreads, kWarps = kThreads / 32;
  static constexpr int kBins = 2048, kCounts = 4, kOwnBins = kBins / kThreads;
  static constexpr int kChunk = kThreads * 4;  // keys per step: four per thread
  static constexpr int kSurvivors = kChunk;
  // Of so many parts of a thread's keys the best are compared for a first bound.
  static constexpr int kBests = kThreads == 1024 ? 1 : 4;
  uint32_t bins[kCounts][kBins];
  uint32_t warp_sums[kCounts][kWarps];
  uint32_t digit[kCounts];   // of the k-th best key, 0 where there are fewer
  uint32_t wanted[kCounts];  // how many of those with this digit are selected
  uint32_t found[kCounts];   // how many have this digit
  // Keys above a first bound, and their indices, in ascending order of index.
  uint32_t survivor_keys[kSurvivors];
  int survivor_indices[kSurvivors];
};

// Before a selection; __syncthreads() must follow.
template <class State>
__device__ __forceinline__ void clear(State& state) {
  uint4* const words = reinterpret_cast<uint4*>(state.bins);
  for (int i = static_cast<int>(threadIdx.x); i < State::kCounts * State::kBins / 4;
       i += State::kThreads) {
    words[i] = {0, 0, 0, 0};
  }
  if (threadIdx.x < State::kCounts) state.digit[threadIdx.x] = 0;
}

// Adds the digits of the keys that count. Equal scores are normal, so a thread or a warp whose keys
// agree adds once.
template <int kKeys, class Counts, class Digit>
__device__ __forceinline__ void count_digits(const uint32_t (&keys)[kKeys],
                                             uint32_t* bins,
                                             const Counts& counts,
                                             const Digit& digit) {
  const uint32_t first = digit(keys[0]);
  bool agrees = counts(keys[0]);
#pragma unroll
  for (int i = 1; i < kKeys; ++i) agrees = agrees && counts(keys[i]) && digit(keys[i]) == first;
  constexpr uint32_t kNoDigit = 0x10000;
  int is_same = 0;
  __match_all_sync(~0U, agrees ? first : kNoDigit + threadIdx.x % 32, &is_same);
  if (is_same != 0) {
    if (threadIdx.x % 32 == 0) atomicAdd(bins + first, 32U * kKeys);
  } else if (agrees) {
    atomicAdd(bins + first, uint32_t{kKeys});
  } else {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (counts(keys[i])) atomicAdd(bins + digit(keys[i]), 1U);
    }
  }
}

// A thread's bins of one count, the highest digit first.
template <class State>
__device__ __forceinline__ void read_bins(const State& state,
                                          int count,
                                          uint32_t top,
                                          uint32_t (&bins)[State::kOwnBins]) {
  const uint32_t* const from = state.bins[count] + top + 1 - State::kOwnBins;
  if constexpr (State::kOwnBins == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    bins[0] = two.y;
    bins[1] = two.x;
  } else {
    static_assert(State::kOwnBins == 4);
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    bins[0] = four.w;
    bins[1] = four.z;
    bins[2] = four.y;
    bins[3] = four.x;
  }
}

// The digit of the `wanted`-th best of the keys counted in bins[count], and how many of that digit
// are wanted. Synchronises the block before and after.
template <class State>
__device__ __forceinline__ void find_digit(State& state, int count, uint32_t wanted) {
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t top = State::kBins - 1 - State::kOwnBins * threadIdx.x;
  uint32_t bins[State::kOwnBins];
  read_bins(state, count, top, bins);
  uint32_t own = 0;
#pragma unroll
  for (const uint32_t bin : bins) own += bin;
  uint32_t inclusive = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0U, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) state.warp_sums[count][warp] = inclusive;
  __syncthreads();
  uint32_t before = lane < warp ? state.warp_sums[count][lane] : 0;
  before = __reduce_add_sync(~0U, before) + inclusive - own;
#pragma unroll
  for (uint32_t i = 0; i < State::kOwnBins; ++i) {
    if (before < wanted && wanted <= before + bins[i]) {
      state.digit[count] = top - i;
      state.wanted[count] = wanted - before;
      state.found[count] = bins[i];
    }
    before += bins[i];
  }
  __syncthreads();
}

// Keys above `key` are selected, and the first `ties` of those equal to it.
struct Threshold {
  uint32_t key;
  uint32_t ties;
};
// Counts the first 11 bits of the keys, and of those that agree with the k-th best the next 11.
// `state` is clear but for bins[3], and at least k keys are not 0, which is padding. Returns 0, or
// the first bits of the k-th best key at that place where exactly all keys with them are selected.
template <int kKeys, class State>
__device__ __forceinline__ uint32_t count_first_bits(const uint32_t (&keys)[kKeys],
                                                     uint32_t k,
                                                     State& state) {
  count_digits(
      keys,
      state.bins[0],
      [](uint32_t key) { return key != 0; },
      [](uint32_t key) { return key >> 21; });
  find_digit(state, 0, k);
  const uint32_t top = state.digit[0];
  if (state.wanted[0] == state.found[0]) return top << 21;
  count_digits(
      keys,
      state.bins[1],
      [top](uint32_t key) { return key != 0 && key >> 21 == top; },
      [](uint32_t key) { return (key >> 10) & 0x7FF; });
  find_digit(state, 1, state.wanted[0]);
  return state.wanted[1] == state.found[1] ? top << 21 | state.digit[1] << 10 : 0;
}

template <int kKeys, class State>
__device__ __forceinline__ Threshold find_threshold(const uint32_t (&keys)[kKeys],
                                                    uint32_t k,
                                                    State& state) {
  const uint32_t least = count_first_bits(keys, k, state);
  if (least != 0) return {least - 1, 0};
  const uint32_t prefix = state.digit[0] << 11 | state.digit[1];
  count_digits(
      keys,
      state.bins[2],
      [prefix](uint32_t key) { return key != 0 && key >> 10 == prefix; },
      [](uint32_t key) { return key & 0x3FF; });
  find_digit(state, 2, state.wanted[1]);
  return {prefix << 10 | state.digit[2], state.wanted[2]};
}

// A bound below which no key can be among the k best: k parts of the threads' keys have one of at
// least the k-th best of all parts' best keys. At least 1.
template <int kKeys, class State>
__device__ __forceinline__ uint32_t first_bound(const uint32_t (&keys)[kKeys],
                                                uint32_t k,
                                                State& state) {
  uint32_t best[State::kBests] = {};
#pragma unroll
  for (int i = 0; i < kKeys; ++i) best[i % State::kBests] = max(best[i % State::kBests], keys[i]);
  count_digits(
      best,
      state.bins[3],
      [](uint32_t key) { return key != 0; },
      [](uint32_t key) { return key >> 21; });
  find_digit(state, 3, k);
  return max(state.digit[3] << 21, 1U);
}

// Sums of the bytes of a word.
__device__ __forceinline__ uint32_t sum_of_bytes(uint32_t word) {
  return (word & 0xFF) + (word >> 8 & 0xFF) + (word >> 16 & 0xFF) + (word >> 24);
}
__device__ __forceinline__ uint32_t sum_of_bytes(unsigned long long word) {
  return sum_of_bytes(static_cast<uint32_t>(word)) +
         sum_of_bytes(static_cast<uint32_t>(word >> 32));
}

// Calls place(slot, i) for each key above the threshold and the first ties equal to it, in
// ascending order of position: (warp, chunk, lane, element). Returns how many keys are above.
// Synchronises the block.
template <int kChunks, bool kHasTies, class State, class Place>
__device__ __forceinline__ uint32_t place_selected(const uint32_t (&keys)[kChunks * 4],
                                                   Threshold threshold,
                                                   State& state,
                                                   const Place& place) {
  using Bytes = std::conditional_t<(kChunks > 4), unsigned long long, uint32_t>;
  static_assert(kChunks <= 8 && sizeof(Bytes) >= kChunks);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Counts of keys above the threshold and of keys equal to it, one byte per chunk: at most 128 of
  // a warp, so that the bytes of sums over a warp do not meet.
  Bytes above = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kChunks * 4; ++i) {
    above += keys[i] > threshold.key ? Bytes{1} << (i / 4 * 8) : 0;
    if constexpr (kHasTies) equal += keys[i] == threshold.key ? Bytes{1} << (i / 4 * 8) : 0;
  }
  Bytes above_before = above, equal_before = equal;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Bytes a = __shfl_up_sync(~0U, above_before, step);
    if (lane >= step) above_before += a;
    if constexpr (kHasTies) {
      const Bytes e = __shfl_up_sync(~0U, equal_before, step);
      if (lane >= step) equal_before += e;
    }
  }
  const Bytes above_warp = __shfl_sync(~0U, above_before, 31);
  const Bytes equal_warp = __shfl_sync(~0U, equal_before, 31);
  above_before -= above;
  equal_before -= equal;
  // Both totals in one word: at most 16,384 of each.
  if (lane == 0) {
    state.warp_sums[3][warp] = sum_of_bytes(above_warp) | sum_of_bytes(equal_warp) << 16;
  }
  __syncthreads();
  const uint32_t totals = lane < State::kWarps ? state.warp_sums[3][lane] : 0;
  const uint32_t before = __reduce_add_sync(~0U, lane < warp ? totals : 0);
  uint32_t above_base = before & 0xFFFF, equal_base = before >> 16;
  if (above + equal != 0) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t above_here = above_base + static_cast<uint32_t>(above_before >> (chunk * 8) & 0xFF);
      uint32_t equal_here = equal_base + static_cast<uint32_t>(equal_before >> (chunk * 8) & 0xFF);
#pragma unroll
      for (int i = chunk * 4; i < chunk * 4 + 4; ++i) {
        if (keys[i] > threshold.key) {
          place(above_here + (kHasTies ? min(equal_here, threshold.ties) : 0), i);
          ++above_here;
        } else if (kHasTies && keys[i] == threshold.key) {
          if (equal_here < threshold.ties) place(above_here + equal_here, i);
          ++equal_here;
        }
      }
      above_base += static_cast<uint32_t>(above_warp >> (chunk * 8) & 0xFF);
      equal_base += static_cast<uint32_t>(equal_warp >> (chunk * 8) & 0xFF);
    }
  }
  return __reduce_add_sync(~0U, totals) & 0xFFFF;
}

// Puts the keys that can be among the `wanted` best into state.survivor_*, or says that they are
// too many. Synchronises the block.
template <int kChunks, class State, class IndexOf>
__device__ __forceinline__ bool keep_survivors(const uint32_t (&keys)[kChunks * 4],
                                               uint32_t wanted,
                                               State& state,
                                               const IndexOf& index_of,
                                               uint32_t (&left)[4]) {
  const uint32_t bound = first_bound(keys, wanted, state);
  const uint32_t survivors = place_selected<kChunks, false>(
      keys, {.key = bound - 1, .ties = 0}, state, [&](uint32_t slot, int i) {
        if (slot >= State::kSurvivors) return;
        state.survivor_keys[slot] = keys[i];
        state.survivor_indices[slot] = index_of(i);
      });
  __syncthreads();
  const uint32_t first = threadIdx.x * 4;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    left[i] = first + i < survivors && survivors <= State::kSurvivors
                  ? state.survivor_keys[first + i]
                  : 0;
  }
  return survivors <= State::kSurvivors;
}

// Calls emit(slot, key, index) for the k best keys in ascending order of index. `state` is clear;
// at least k keys are not 0. index_of(i): of this thread's i-th key, ascending with its position.
template <int kChunks, class State, class IndexOf, class Emit>
__device__ __forceinline__ void select_best(const uint32_t (&keys)[kChunks * 4],
                                            int k,
                                            State& state,
                                            const IndexOf& index_of,
                                            const Emit& emit) {
  const auto wanted = static_cast<uint32_t>(k);
  // For fewer keys the bound would cost more than it saves.
  constexpr int kManyKeys = 4096;
  if constexpr (kChunks * State::kChunk > kManyKeys) {
    uint32_t left[4];
    if (keep_survivors<kChunks>(keys, wanted, state, index_of, left)) {
      const Threshold threshold = find_threshold(left, wanted, state);
      place_selected<1, true>(left, threshold, state, [&](uint32_t slot, int i) {
        emit(slot, left[i], state.survivor_indices[threadIdx.x * 4 + static_cast<uint32_t>(i)]);
      });
      return;
    }
  }
  const Threshold threshold = find_threshold(keys, wanted, state);
  place_selected<kChunks, true>(
      keys, threshold, state, [&](uint32_t slot, int i) { emit(slot, keys[i], index_of(i)); });
}

// Position within a block's part of element `i` of this thread, in place_selected()'s order.
template <int kChunks>
__device__ __forceinline__ int position_of(int i) {
  const auto warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp * (128 * kChunks) + i / 4 * 128 + lane * 4 + i % 4;
}

// Scores begin .. end - 1 of a row as keys; rows start at multiples of 16 bytes.
template <int kChunks>
__device__ __forceinline__ void read_scores(const float* scores,
                                            int begin,
                                            int end,
                                            uint32_t (&keys)[kChunks * 4]) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int first = begin + position_of<kChunks>(chunk * 4);
    float4 four = {0, 0, 0, 0};
    if (first < end) four = __ldcg(reinterpret_cast<const float4*>(scores + first));
    keys[chunk * 4] = first < end ? rank_key(four.x) : 0;
    keys[chunk * 4 + 1] = first + 1 < end ? rank_key(four.y) : 0;
    keys[chunk * 4 + 2] = first + 2 < end ? rank_key(four.z) : 0;
    keys[chunk * 4 + 3] = first + 3 < end ? rank_key(four.w) : 0;
  }
}

}  // namespace nibble::kernels::cuda
