// What surrounds the layers of a GPU step: the plan, copied rows, slots of experts, embeddings.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/reference/device_ops_launchers.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

// The window pool's row of the key at `position` of sequence `s`.
int32_t key_row(const DevicePlanArgs& args, int32_t s, int32_t position) {
  const DeviceSequences& sequences = args.sequences;
  const int32_t begin = sequences.position_begin[s];
  const bool is_new = position >= begin;
  if (is_new && sequences.num_tokens[s] > args.direct_tokens) {
    const int32_t scratch = args.num_slots * args.ring_capacity;
    return scratch + sequences.row_begin[s] + position - begin;
  }
  return sequences.slots[s] * args.ring_capacity + position % args.ring_capacity;
}

// The pool row of entry `c` of `ratio` tokens.
int32_t entry_row(const DevicePlanArgs& args, int32_t s, int32_t ratio, int32_t c) {
  const int32_t per_page = args.page_tokens / ratio;
  const int32_t* const pages = args.sequences.pages + int64_t{s} * args.sequences.max_pages;
  return pages[c / per_page] * per_page + c % per_page;
}

template <class T>
void store(T* out, int64_t index, T value) {
  if (out != nullptr) out[index] = value;
}

void plan_padding(const DevicePlanArgs& args, int64_t t) {
  const auto clear = [t](int32_t* rows, int32_t count) {
    if (rows != nullptr) std::fill_n(rows + t * count, count, -1);
  };
  clear(args.key_rows, 1);
  clear(args.window_rows, args.window);
  clear(args.token_pages, args.sequences.max_pages);
  clear(args.rows_128, args.max_rows_128);
  clear(args.selected, args.top_k);
  for (int32_t* const counts : {args.window_counts,
                                args.window_ready,
                                args.counts_4,
                                args.selected_counts,
                                args.ready_4,
                                args.counts_128,
                                args.ready_128}) {
    store(counts, t, 0);
  }
}

void plan_window(const DevicePlanArgs& args, int64_t t, int32_t s, int32_t position) {
  const int32_t first = std::max(args.sequences.window_begin[s], position - args.window + 1);
  const int32_t count = position - first + 1;
  store(args.window_counts, t, count);
  store(args.window_ready, t, std::clamp(args.sequences.position_begin[s] - first, 0, count));
  for (int32_t i = 0; i < args.window; ++i) {
    store(args.window_rows,
          t * args.window + i,
          i < count ? key_row(args, s, first + i) : int32_t{-1});
  }
}

void plan_entries(const DevicePlanArgs& args, int64_t t, int32_t s, int32_t position) {
  const int32_t count_4 = (position + 1) / 4;
  store(args.counts_4, t, count_4);
  store(args.selected_counts, t, std::min(count_4, args.top_k));
  const bool are_all = count_4 <= args.top_k;
  store(args.ready_4, t, are_all ? args.sequences.position_begin[s] / 4 : 0);
  for (int32_t c = 0; args.selected != nullptr && are_all && c < args.top_k; ++c) {
    store(args.selected, t * args.top_k + c, c < count_4 ? entry_row(args, s, 4, c) : int32_t{-1});
  }
  const int32_t count_128 = (position + 1) / 128;
  store(args.counts_128, t, count_128);
  store(args.ready_128, t, args.sequences.position_begin[s] / 128);
  for (int32_t c = 0; c < args.max_rows_128; ++c) {
    store(args.rows_128,
          t * args.max_rows_128 + c,
          c < count_128 ? entry_row(args, s, 128, c) : int32_t{-1});
  }
}

float element(const void* data, DType dtype, int64_t index) {
  return dtype == DType::kBf16 ? quant::bf16_to_f32(static_cast<const uint16_t*>(data)[index])
                               : static_cast<const float*>(data)[index];
}

}  // namespace

Result<void> device_plan(const DevicePlanArgs& args, device::Stream&) {
  const DeviceSequences& sequences = args.sequences;
  for (int64_t t = 0; t < args.tokens.m; ++t) {
    const int32_t s = args.tokens.sequences[t];
    if (s < 0) {
      plan_padding(args, t);
      continue;
    }
    const int32_t position = args.tokens.positions[t];
    store(args.key_rows, t, key_row(args, s, position));
    plan_window(args, t, s, position);
    for (int32_t i = 0; i < sequences.max_pages; ++i) {
      store(args.token_pages,
            t * sequences.max_pages + i,
            sequences.pages[int64_t{s} * sequences.max_pages + i]);
    }
    plan_entries(args, t, s, position);
  }
  return {};
}

Result<void> device_copy_rows(const DeviceCopyRowsArgs& args, device::Stream&) {
  for (int32_t i = 0; i < args.count; ++i) {
    const int64_t from = args.from == nullptr ? i : args.from[i];
    const int64_t to = args.to == nullptr ? i : args.to[i];
    if (from < 0 || to < 0) continue;
    std::memcpy(args.out + to * args.row_bytes,
                args.in + from * args.row_bytes,
                static_cast<size_t>(args.row_bytes));
  }
  return {};
}

Result<void> device_make_slots(const DeviceMakeSlotsArgs& args, device::Stream&) {
  int32_t count = 0;
  for (int32_t expert = 0; expert < args.num_experts; ++expert) {
    std::vector<int32_t> members;
    for (int32_t pair = 0; pair < args.num_pairs; ++pair) {
      if (args.ids[pair] == expert) members.push_back(pair);
    }
    while (members.size() % static_cast<size_t>(args.rows) != 0) members.push_back(-1);
    std::copy(members.begin(), members.end(), args.pairs + int64_t{count} * args.rows);
    const auto num_slots = static_cast<int32_t>(members.size()) / args.rows;
    std::fill_n(args.experts + count, num_slots, expert);
    count += num_slots;
  }
  *args.count = count;
  return {};
}

Result<void> device_embed(const DeviceEmbedArgs& args, device::Stream&) {
  for (int64_t t = 0; t < args.tokens.m; ++t) {
    const bool is_padding = args.tokens.sequences[t] < 0;
    for (int64_t i = 0; i < args.copies * args.hidden; ++i) {
      const int64_t source = int64_t{args.tokens.ids[t]} * args.hidden + i % args.hidden;
      args.out[t * args.copies * args.hidden + i] =
          is_padding ? 0.0f : element(args.table, args.table_dtype, source);
    }
  }
  return {};
}

}  // namespace nibble::kernels::reference
