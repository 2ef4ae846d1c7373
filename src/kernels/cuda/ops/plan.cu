// What surrounds the layers of a step: the plan, copied rows, embeddings.
#include <algorithm>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rows.cuh"

namespace nibble::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct PlannedToken {
  int position;
  int slot;
  int row_begin;
  int position_begin;
  bool is_direct;
};

// The window pool's row of the key at `position` of the token's sequence.
__device__ __forceinline__ int key_row(const DevicePlanArgs& args,
                                       const PlannedToken& token,
                                       int position) {
  if (position >= token.position_begin && !token.is_direct) {
    return args.num_slots * args.ring_capacity + token.row_begin + position - token.position_begin;
  }
  return token.slot * args.ring_capacity + position % args.ring_capacity;
}

__device__ __forceinline__ void store(int* out, int64_t index, int value) {
  if (out != nullptr) out[index] = value;
}

// One block per token.
__global__ void __launch_bounds__(kThreads) plan(const DevicePlanArgs args) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t t = blockIdx.x;
  const DeviceSequences& sequences = args.sequences;
  const int s = args.tokens.sequences[t];
  const bool is_real = s >= 0;
  PlannedToken token{};
  int window_begin = 0;
  const int* pages = nullptr;
  if (is_real) {
    token = {args.tokens.positions[t],
             sequences.slots[s],
             sequences.row_begin[s],
             sequences.position_begin[s],
             sequences.num_tokens[s] <= args.direct_tokens};
    window_begin = max(sequences.window_begin[s], token.position - args.window + 1);
    pages = sequences.pages + static_cast<int64_t>(s) * sequences.max_pages;
  }
  const int window_count = is_real ? token.position - window_begin + 1 : 0;
  const int count_4 = is_real ? (token.position + 1) / 4 : 0;
  const int count_128 = is_real ? (token.position + 1) / 128 : 0;
  if (threadIdx.x == 0) {
    store(args.key_rows, t, is_real ? key_row(args, token, token.position) : -1);
    store(args.window_counts, t, window_count);
    store(args.counts_4, t, count_4);
    store(args.selected_counts, t, min(count_4, args.top_k));
    store(args.counts_128, t, count_128);
    store(args.window_ready, t, min(max(token.position_begin - window_begin, 0), window_count));
    store(args.ready_128, t, token.position_begin / 128);
    store(args.ready_4, t, count_4 <= args.top_k ? token.position_begin / 4 : 0);
  }
  for (int i = threadIdx.x; i < args.window; i += kThreads) {
    store(args.window_rows,
          t * args.window + i,
          i < window_count ? key_row(args, token, window_begin + i) : -1);
  }
  for (int i = threadIdx.x; i < sequences.max_pages; i += kThreads) {
    store(args.token_pages, t * sequences.max_pages + i, is_real ? pages[i] : -1);
  }
  const int per_page_4 = args.page_tokens / 4;
  const int listed = args.selected != nullptr && count_4 <= args.top_k ? args.top_k : 0;
  for (int c = threadIdx.x; c < listed; c += kThreads) {
    store(args.selected,
          t * args.top_k + c,
          c < count_4 ? pages[c / per_page_4] * per_page_4 + c % per_page_4 : -1);
  }
  const int per_page = args.page_tokens / 128;
  for (int c = threadIdx.x; c < args.max_rows_128; c += kThreads) {
    store(args.rows_128,
          t * args.max_rows_128 + c,
          c < count_128 ? pages[c / per_page] * per_page + c % per_page : -1);
  }
}

// One block per row and 4 KB of it. Bytes: 2 row_bytes per row.
template <class Vector>
__global__ void __launch_bounds__(kThreads) copy_rows(const DeviceCopyRowsArgs args) {
  launch_dependents();
  wait_for_predecessors();
  const int64_t row = blockIdx.x;
  const int64_t from = args.from == nullptr ? row : __ldcg(args.from + row);
  const int64_t to = args.to == nullptr ? row : __ldcg(args.to + row);
  if (from < 0 || to < 0) return;
  const auto* const in = reinterpret_cast<const Vector*>(args.in + from * args.row_bytes);
  auto* const out = reinterpret_cast<Vector*>(args.out + to * args.row_bytes);
  const int64_t vectors = args.row_bytes / static_cast<int64_t>(sizeof(Vector));
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<int64_t>(gridDim.y) * kThreads) {
    out[i] = __ldcg(in + i);
  }
}

// One thread per four columns of a token, for all copies. Bytes: per token the row and 4 copies D.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads) embed(const DeviceEmbedArgs args) {
  launch_dependents();
  const int64_t t = blockIdx.y;
  const bool is_real = args.tokens.sequences[t] >= 0;
  wait_for_predecessors();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  const int64_t left = args.hidden - column;
  float4 v{0, 0, 0, 0};
  if (is_real) {
    const int64_t index = __ldcg(args.tokens.ids + t) * args.hidden + column;
    v = args.table_dtype == DType::kBf16
            ? load4<kVectors>(static_cast<const uint16_t*>(args.table) + index, left)
            : load4<kVectors>(static_cast<const float*>(args.table) + index, left);
  }
  for (int64_t copy = 0; copy < args.copies; ++copy) {
    store4<kVectors>(args.out + (t * args.copies + copy) * args.hidden + column, v, left);
  }
}

}  // namespace

Result<void> launch_plan(const DevicePlanArgs& args, device::Stream& stream) {
  return launch_kernel(&plan,
                       {.grid = static_cast<uint32_t>(args.tokens.m),
                        .block = kThreads,
                        .is_dependent = args.is_dependent},
                       stream,
                       args);
}

Result<void> launch_copy_rows(const DeviceCopyRowsArgs& args, device::Stream& stream) {
  if (args.count == 0) return {};
  constexpr int64_t kVectorBytes = 16, kBlockBytes = kThreads * kVectorBytes;
  const auto address = reinterpret_cast<uintptr_t>(args.in) | reinterpret_cast<uintptr_t>(args.out);
  const bool is_wide =
      args.row_bytes % kVectorBytes == 0 && address % static_cast<uintptr_t>(kVectorBytes) == 0;
  DCHECK(args.row_bytes % 4 == 0) << args.row_bytes;
  return launch_kernel(is_wide ? &copy_rows<uint4> : &copy_rows<uint32_t>,
                       {.grid = static_cast<uint32_t>(args.count),
                        .block = kThreads,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(
                            std::min(ceil_div(args.row_bytes, kBlockBytes), int64_t{64}))},
                       stream,
                       args);
}

Result<void> launch_embed(const DeviceEmbedArgs& args, device::Stream& stream) {
  const bool is_vector =
      has_vectors(args.out, args.hidden) && has_vectors(static_cast<const float*>(args.table), 4);
  return launch_kernel(is_vector ? &embed<true> : &embed<false>,
                       {.grid = static_cast<uint32_t>(ceil_div(args.hidden, int64_t{kThreads} * 4)),
                        .block = kThreads,
                        .is_dependent = args.is_dependent,
                        .grid_y = static_cast<uint32_t>(args.tokens.m)},
                       stream,
                       args);
}

}  // namespace nibble::kernels::cuda
