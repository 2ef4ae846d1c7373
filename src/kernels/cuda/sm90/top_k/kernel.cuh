// The k best of a row of scores, exactly: ties go to the lower index, and indices come out in
// ascending order.
//
// A block keeps up to 16,384 scores in registers as ordered integers, finds the k-th best by three
// digits of a radix select in shared memory, and places what is selected by prefix sums. A longer
// row is cut in parts for the blocks of a cluster. Each finds the k / n-th best of its part; the
// least of these bounds the k-th best of all, and the first block selects from what reaches it,
// which lies in ascending order of index, so that ties stay right. Where a part has more than k
// such scores, as when most are equal, the blocks hand over the k best of their parts instead.
//
// Bytes: 4 per score, 8 k per further block.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/ptx.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kTopKThreads = 1024;
inline constexpr int kTopKWarps = kTopKThreads / 32;
inline constexpr int kTopKChunk = kTopKThreads * 4;  // keys per step: four per thread
inline constexpr int kTopKMaxChunks = 4;
inline constexpr int kTopKPart = kTopKChunk * kTopKMaxChunks;  // the most keys of a block
inline constexpr int kTopKMaxCluster = 16;
inline constexpr int kTopKMaxK = 1024;

// DeviceTopKArgs as the kernel takes them.
struct TopKParams {
  const float* scores;
  const int* counts;
  int64_t columns;
  int k;
  const int* pages;
  int max_pages;
  int entries_per_page;
  int* indices;
  int* num_selected;
  bool skips_short_rows;
  uint32_t* candidate_keys;  // [m, cluster, k], in device memory
  int* candidate_indices;    // [m, cluster, k]
};

// A score's place in the order, above 0: NaN ranks with -inf, -0 equals +0.
__device__ __forceinline__ uint32_t rank_key(float score) {
  constexpr uint32_t kMinusInfinity = 0xFF800000U;
  const uint32_t plain = __float_as_uint(score + 0.0f);
  const uint32_t bits = isnan(score) ? kMinusInfinity : plain;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// Shared memory of a block. A selection counts up to four digits, each in its own bins.
struct TopKState {
  static constexpr int kBins = 2048, kCounts = 4, kSurvivors = kTopKChunk;
  uint32_t bins[kCounts][kBins];
  uint32_t warp_sums[kCounts][kTopKWarps];
  uint32_t digit[kCounts];   // of the k-th best key, 0 where there are fewer
  uint32_t wanted[kCounts];  // how many of those with this digit are selected
  uint32_t found[kCounts];   // how many have this digit
  // Keys above a first bound, and their indices, in ascending order of index.
  uint32_t survivor_keys[kSurvivors];
  int survivor_indices[kSurvivors];
  // Of all blocks of the cluster, written by them.
  uint32_t bounds[kTopKMaxCluster];
  uint32_t num_candidates[kTopKMaxCluster];
};

// Before a selection; __syncthreads() must follow.
__device__ __forceinline__ void clear(TopKState& state) {
  uint4* const words = reinterpret_cast<uint4*>(state.bins);
  for (int i = static_cast<int>(threadIdx.x); i < TopKState::kCounts * TopKState::kBins / 4;
       i += kTopKThreads) {
    words[i] = {0, 0, 0, 0};
  }
  if (threadIdx.x < TopKState::kCounts) state.digit[threadIdx.x] = 0;
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

// The digit of the `wanted`-th best of the keys counted in bins[count], and how many of that digit
// are wanted. Synchronises the block before and after.
__device__ __forceinline__ void find_digit(TopKState& state, int count, uint32_t wanted) {
  __syncthreads();
  // Thread i has the bins from the top: kBins - 1 - 2 i and the one below.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto bin = static_cast<uint32_t>(TopKState::kBins - 1 - 2 * static_cast<int>(threadIdx.x));
  const uint2 pair = *reinterpret_cast<const uint2*>(state.bins[count] + bin - 1);
  const uint32_t high = pair.y, low = pair.x;
  uint32_t inclusive = high + low;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0U, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) state.warp_sums[count][warp] = inclusive;
  __syncthreads();
  uint32_t before = lane < warp ? state.warp_sums[count][lane] : 0;
  before = __reduce_add_sync(~0U, before) + inclusive - high - low;
  if (before < wanted && wanted <= before + high) {
    state.digit[count] = bin;
    state.wanted[count] = wanted - before;
    state.found[count] = high;
  } else if (before + high < wanted && wanted <= before + high + low) {
    state.digit[count] = bin - 1;
    state.wanted[count] = wanted - before - high;
    state.found[count] = low;
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
template <int kKeys>
__device__ __forceinline__ uint32_t count_first_bits(const uint32_t (&keys)[kKeys],
                                                     uint32_t k,
                                                     TopKState& state) {
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

template <int kKeys>
__device__ __forceinline__ Threshold find_threshold(const uint32_t (&keys)[kKeys],
                                                    uint32_t k,
                                                    TopKState& state) {
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

// A bound below which no key can be among the k best: k threads have a key of at least the k-th
// best of all threads' best keys. At least 1.
template <int kKeys>
__device__ __forceinline__ uint32_t first_bound(const uint32_t (&keys)[kKeys],
                                                uint32_t k,
                                                TopKState& state) {
  uint32_t best[1] = {0};
#pragma unroll
  for (int i = 0; i < kKeys; ++i) best[0] = max(best[0], keys[i]);
  count_digits(
      best,
      state.bins[3],
      [](uint32_t key) { return key != 0; },
      [](uint32_t key) { return key >> 21; });
  find_digit(state, 3, k);
  return max(state.digit[3] << 21, 1U);
}

// Sum of the bytes of a word.
__device__ __forceinline__ uint32_t sum_of_bytes(uint32_t word) {
  return (word & 0xFF) + (word >> 8 & 0xFF) + (word >> 16 & 0xFF) + (word >> 24);
}

// Calls place(slot, i) for each key above the threshold and the first ties equal to it, in
// ascending order of position: (warp, chunk, lane, element). Returns how many keys are above.
// Synchronises the block.
template <int kChunks, bool kHasTies, class Place>
__device__ __forceinline__ uint32_t place_selected(const uint32_t (&keys)[kChunks * 4],
                                                   Threshold threshold,
                                                   TopKState& state,
                                                   const Place& place) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Counts of keys above the threshold and of keys equal to it, one byte per chunk: at most 128 of
  // a warp, so that the bytes of sums over a warp do not meet.
  uint32_t above = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kChunks * 4; ++i) {
    above += keys[i] > threshold.key ? 1U << (i / 4 * 8) : 0;
    if constexpr (kHasTies) equal += keys[i] == threshold.key ? 1U << (i / 4 * 8) : 0;
  }
  uint32_t above_before = above, equal_before = equal;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t a = __shfl_up_sync(~0U, above_before, step);
    if (lane >= step) above_before += a;
    if constexpr (kHasTies) {
      const uint32_t e = __shfl_up_sync(~0U, equal_before, step);
      if (lane >= step) equal_before += e;
    }
  }
  const uint32_t above_warp = __shfl_sync(~0U, above_before, 31);
  const uint32_t equal_warp = __shfl_sync(~0U, equal_before, 31);
  above_before -= above;
  equal_before -= equal;
  // Both totals in one word: at most 16,384 of each.
  if (lane == 0) {
    state.warp_sums[3][warp] = sum_of_bytes(above_warp) | sum_of_bytes(equal_warp) << 16;
  }
  __syncthreads();
  const uint32_t totals = state.warp_sums[3][lane];
  const uint32_t before = __reduce_add_sync(~0U, lane < warp ? totals : 0);
  uint32_t above_base = before & 0xFFFF, equal_base = before >> 16;
  if (above + equal != 0) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t above_here = above_base + (above_before >> (chunk * 8) & 0xFF);
      uint32_t equal_here = equal_base + (equal_before >> (chunk * 8) & 0xFF);
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
      above_base += above_warp >> (chunk * 8) & 0xFF;
      equal_base += equal_warp >> (chunk * 8) & 0xFF;
    }
  }
  return __reduce_add_sync(~0U, totals) & 0xFFFF;
}

// Puts the keys that can be among the `wanted` best into state.survivor_*, or says that they are
// too many. Synchronises the block.
template <int kChunks, class IndexOf>
__device__ __forceinline__ bool keep_survivors(const uint32_t (&keys)[kChunks * 4],
                                               uint32_t wanted,
                                               TopKState& state,
                                               const IndexOf& index_of,
                                               uint32_t (&left)[4]) {
  const uint32_t bound = first_bound(keys, wanted, state);
  const uint32_t survivors = place_selected<kChunks, false>(
      keys, {.key = bound - 1, .ties = 0}, state, [&](uint32_t slot, int i) {
        if (slot >= TopKState::kSurvivors) return;
        state.survivor_keys[slot] = keys[i];
        state.survivor_indices[slot] = index_of(i);
      });
  __syncthreads();
  const uint32_t first = threadIdx.x * 4;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    left[i] = first + i < survivors && survivors <= TopKState::kSurvivors
                  ? state.survivor_keys[first + i]
                  : 0;
  }
  return survivors <= TopKState::kSurvivors;
}

// Calls emit(slot, key, index) for the k best keys in ascending order of index. `state` is clear;
// at least k keys are not 0. index_of(i): of this thread's i-th key, ascending with its position.
template <int kChunks, class IndexOf, class Emit>
__device__ __forceinline__ void select_best(const uint32_t (&keys)[kChunks * 4],
                                            int k,
                                            TopKState& state,
                                            const IndexOf& index_of,
                                            const Emit& emit) {
  const auto wanted = static_cast<uint32_t>(k);
  if constexpr (kChunks > 1) {
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

// A key that at least `wanted` of the block's keys reach, and few more; 1 where it has fewer keys.
// `state` is clear.
template <int kChunks>
__device__ __forceinline__ uint32_t
local_bound(const uint32_t (&keys)[kChunks * 4], int count, int wanted, TopKState& state) {
  if (count < wanted) return 1;
  const auto find = [&](const auto& from) {
    const uint32_t least = count_first_bits(from, static_cast<uint32_t>(wanted), state);
    return max(least != 0 ? least : state.digit[0] << 21 | state.digit[1] << 10, 1U);
  };
  if constexpr (kChunks > 1) {
    uint32_t left[4];
    const auto no_index = [](int) { return 0; };
    if (keep_survivors<kChunks>(keys, static_cast<uint32_t>(wanted), state, no_index, left)) {
      return find(left);
    }
  }
  return find(keys);
}

// Position within a block's part of element `i` of this thread, in place_selected()'s order.
template <int kChunks>
__device__ __forceinline__ int position_of(int i) {
  const auto warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  return warp * (128 * kChunks) + i / 4 * 128 + lane * 4 + i % 4;
}

// Where an index goes: itself, or its row of the pool.
__device__ __forceinline__ int translate(const TopKParams& params, int row, int index) {
  if (params.pages == nullptr) return index;
  const int page = __ldg(params.pages + static_cast<int64_t>(row) * params.max_pages +
                         index / params.entries_per_page);
  return page * params.entries_per_page + index % params.entries_per_page;
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

// Writes the k best of a row's first `end` scores as final indices.
template <int kChunks>
__device__ __forceinline__ void select_scores(const TopKParams& params,
                                              int row,
                                              int end,
                                              TopKState& state) {
  uint32_t keys[kChunks * 4];
  read_scores<kChunks>(params.scores + row * params.columns, 0, end, keys);
  int* const indices = params.indices + static_cast<int64_t>(row) * params.k;
  select_best<kChunks>(
      keys,
      params.k,
      state,
      [](int i) { return position_of<kChunks>(i); },
      [&](uint32_t slot, uint32_t, int index) { indices[slot] = translate(params, row, index); });
}

// One block's part of a row that a cluster shares.
struct TopKPart {
  int row;
  int rank;
  int begin;
  int end;
  int64_t candidates;  // of the row; block `rank` has k places from rank * k on
};

// Writes a value to the same place of every block of the cluster. Warp 0.
__device__ __forceinline__ void publish(uint32_t& place, uint32_t value, int cluster) {
  if (static_cast<int>(threadIdx.x) < cluster) {
    store_to_rank(shared_address_of_rank(shared_address(&place), threadIdx.x), value);
  }
}

// Writes the candidates of a part: what reaches the bound of all parts, or, where a part has more
// than k of that, the k best of each part. state.num_candidates says how many.
template <int kChunks>
__device__ __forceinline__ void select_candidates(const TopKParams& params,
                                                  const TopKPart& part,
                                                  int cluster,
                                                  TopKState& state) {
  uint32_t keys[kChunks * 4];
  read_scores<kChunks>(params.scores + part.row * params.columns, part.begin, part.end, keys);
  const int count = max(part.end - part.begin, 0);
  const uint32_t own_bound =
      local_bound<kChunks>(keys, count, (params.k + cluster - 1) / cluster, state);
  cluster_wait();  // all blocks have begun
  publish(state.bounds[part.rank], own_bound, cluster);
  __syncthreads();
  clear(state);
  cluster_arrive();
  cluster_wait();
  const int lane = threadIdx.x % 32;
  const uint32_t bound = __reduce_min_sync(~0U, lane < cluster ? state.bounds[lane] : ~0U);

  const int64_t own = part.candidates + part.rank * params.k;
  const auto k = static_cast<uint32_t>(params.k);
  const auto index_of = [&](int i) { return part.begin + position_of<kChunks>(i); };
  const auto emit = [&](uint32_t slot, uint32_t key, int index) {
    params.candidate_keys[own + slot] = key;
    params.candidate_indices[own + slot] = index;
  };
  const uint32_t reaching = place_selected<kChunks, false>(
      keys, {.key = bound - 1, .ties = 0}, state, [&](uint32_t slot, int i) {
        if (slot < k) emit(slot, keys[i], index_of(i));
      });
  publish(state.num_candidates[part.rank], reaching, cluster);
  cluster_arrive();
  cluster_wait();
  const uint32_t most = __reduce_max_sync(~0U, lane < cluster ? state.num_candidates[lane] : 0);
  if (most <= k) return;

  if (count > params.k) {
    select_best<kChunks>(keys, params.k, state, index_of, emit);
  } else {
    place_selected<kChunks, false>(keys, {.key = 0, .ties = 0}, state, [&](uint32_t slot, int i) {
      emit(slot, keys[i], index_of(i));
    });
  }
  __syncthreads();
  clear(state);
  cluster_arrive();  // all have read the numbers
  cluster_wait();
  publish(state.num_candidates[part.rank], static_cast<uint32_t>(min(count, params.k)), cluster);
  cluster_arrive();
  cluster_wait();
}

// Writes the k best of `total` candidates as final indices. The first block.
template <int kChunks>
__device__ __forceinline__ void select_from_candidates(
    const TopKParams& params, const TopKPart& part, int cluster, int total, TopKState& state) {
  uint32_t keys[kChunks * 4];
  int found[kChunks * 4];
#pragma unroll
  for (int i = 0; i < kChunks * 4; ++i) {
    // Candidates lie in ascending order of index: by block, then as placed.
    const int position = position_of<kChunks>(i);
    keys[i] = 0;
    found[i] = 0;
    if (position >= total) continue;
    int rank = 0, before = 0, through = 0;
    for (int r = 0; r < cluster; ++r) {
      through += static_cast<int>(state.num_candidates[r]);
      if (position < through) continue;
      rank = r + 1;
      before = through;
    }
    const int64_t place = part.candidates + rank * params.k + (position - before);
    keys[i] = __ldcg(params.candidate_keys + place);
    found[i] = __ldcg(params.candidate_indices + place);
  }
  int* const indices = params.indices + static_cast<int64_t>(part.row) * params.k;
  select_best<kChunks>(
      keys,
      params.k,
      state,
      [&](int i) { return found[i]; },
      [&](uint32_t slot, uint32_t, int index) {
        indices[slot] = translate(params, part.row, index);
      });
}

// Grid: (row, block of the cluster). The counts decide how much of it works.
__global__ void __launch_bounds__(kTopKThreads, 1) top_k(const TopKParams params, int cluster) {
  extern __shared__ __align__(16) uint8_t memory[];
  TopKState& state = *reinterpret_cast<TopKState*>(memory);
  const auto rank = static_cast<int>(blockIdx.x) % cluster;
  const auto row = static_cast<int>(blockIdx.x) / cluster;
  const int count = __ldg(params.counts + row);
  launch_dependents();
  if (params.skips_short_rows && count <= params.k) {
    wait_for_predecessors();
    return;
  }
  clear(state);
  __syncthreads();
  wait_for_predecessors();
  const bool is_shared = count > kTopKPart;
  if (rank == 0 && threadIdx.x == 0 && params.num_selected != nullptr) {
    params.num_selected[row] = min(params.k, count);
  }
  if (!is_shared) {
    if (rank != 0) return;
    if (count <= params.k) {
      int* const indices = params.indices + static_cast<int64_t>(row) * params.k;
      for (int i = static_cast<int>(threadIdx.x); i < params.k; i += kTopKThreads) {
        indices[i] = i < count ? translate(params, row, i) : -1;
      }
    } else if (count <= kTopKChunk) {
      select_scores<1>(params, row, count, state);
    } else if (count <= 2 * kTopKChunk) {
      select_scores<2>(params, row, count, state);
    } else {
      select_scores<4>(params, row, count, state);
    }
    return;
  }

  // Parts are equal multiples of four scores, so that reads stay aligned.
  cluster_arrive();
  const int size = ((count + cluster - 1) / cluster + 3) / 4 * 4;
  const int begin = min(rank * size, count);
  const TopKPart part{.row = row,
                      .rank = rank,
                      .begin = begin,
                      .end = min(begin + size, count),
                      .candidates = static_cast<int64_t>(row) * cluster * params.k};
  const int chunks = (size + kTopKChunk - 1) / kTopKChunk;
  if (chunks == 1) {
    select_candidates<1>(params, part, cluster, state);
  } else if (chunks == 2) {
    select_candidates<2>(params, part, cluster, state);
  } else {
    select_candidates<4>(params, part, cluster, state);
  }
  if (rank != 0) return;
  int total = 0;
  for (int i = 0; i < cluster; ++i) total += static_cast<int>(state.num_candidates[i]);
  if (total <= kTopKChunk) {
    select_from_candidates<1>(params, part, cluster, total, state);
  } else if (total <= 2 * kTopKChunk) {
    select_from_candidates<2>(params, part, cluster, total, state);
  } else {
    select_from_candidates<4>(params, part, cluster, total, state);
  }
}

}  // namespace nibble::kernels::cuda
