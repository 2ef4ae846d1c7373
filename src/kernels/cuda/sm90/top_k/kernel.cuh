// The k best of a row of scores, exactly: ties go to the lower index, and indices come out in
// ascending order.
//
// A block selects from up to 16,384 scores. A longer row is cut in parts for the blocks of a
// cluster. Each finds the k / n-th best of its part; the least of these bounds the k-th best of
// all, and the first block selects from what reaches it, which lies in ascending order of index, so
// that ties stay right. Where a part has more than k such scores, as when most are equal, the
// blocks hand over the k best of their parts instead.
//
// Bytes: 4 per score, 8 k per further block.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/sm90/top_k/select.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kTopKThreads = 1024;
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

// Shared memory of a block.
struct TopKState : SelectState<kTopKThreads> {
  // Of all blocks of the cluster, written by them.
  uint32_t bounds[kTopKMaxCluster];
  uint32_t num_candidates[kTopKMaxCluster];
};

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

// Where an index goes: itself, or its row of the pool.
__device__ __forceinline__ int translate(const TopKParams& params, int row, int index) {
  if (params.pages == nullptr) return index;
  const int page = __ldg(params.pages + static_cast<int64_t>(row) * params.max_pages +
                         index / params.entries_per_page);
  return page * params.entries_per_page + index % params.entries_per_page;
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
  cluster_arrive();
  clear(state);  // beside the others; place_selected() synchronises the block
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
