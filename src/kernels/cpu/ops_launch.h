// Launchers of the ops over the inner routines of one instruction set: they cut the work into tasks
// by tokens (and by heads, rows or channels where there are few tokens) and hand them to the pool.
// How the work is cut depends on the batch and the pool, the result does not.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/result.h"
#include "device/device.h"
#include "kernels/cpu/ops_leaves.h"
#include "kernels/cpu/ops_parallel.h"
#include "kernels/op_args.h"
#include "quant/fp8_key.h"

namespace nibble::kernels::cpu {

template <const OpLeaves& kLeaves>
struct OpLaunchers {
  static Result<void> sparse_attention(const SparseAttentionArgs& args, device::Stream& stream);
  static Result<void> indexer_score(const IndexerScoreArgs& args, device::Stream& stream);
  static Result<void> top_k(const TopKArgs& args, device::Stream& stream);
  static Result<void> rms_norm(const RmsNormArgs& args, device::Stream& stream);
  static Result<void> rope(const RopeArgs& args, device::Stream& stream);
  static Result<void> hyper_pre(const HyperPreArgs& args, device::Stream& stream);
  static Result<void> hyper_post(const HyperPostArgs& args, device::Stream& stream);
  static Result<void> hyper_head(const HyperHeadArgs& args, device::Stream& stream);
  static Result<void> compress(const CompressArgs& args, device::Stream& stream);
  static Result<void> select_experts(const SelectExpertsArgs& args, device::Stream& stream);
  static Result<void> swiglu(const SwigluArgs& args, device::Stream& stream);
  static Result<void> combine_experts(const CombineExpertsArgs& args, device::Stream& stream);
  static Result<void> embed(const EmbedArgs& args, device::Stream& stream);
};

// Multiply-adds that take as long as one exponential or one division of a lane.
inline constexpr int64_t kExpCost = 16;

// --- attention -----------------------------------------------------------------------------------

// Plain rows have d elements.
inline KeyRows plain_rows(DType dtype, int64_t d) {
  return {.storage = dtype == DType::kBf16 ? KeyStorage::kBf16 : KeyStorage::kF32,
          .row_bytes = d * dtype_size(dtype)};
}

inline KeyRows attention_key_rows(const SparseAttentionArgs& args) {
  const int64_t d = args.q.shape[2];
  if (args.kv_dtype != DType::kF8E4m3) return plain_rows(args.kv_dtype, d);
  const quant::Fp8KeyLayout layout{.num_codes = d - args.num_rotary, .num_rotary = args.num_rotary};
  return {.storage = KeyStorage::kFp8Key,
          .row_bytes = layout.row_bytes(),
          .num_codes = layout.num_codes};
}

inline AttentionTask attention_task(const SparseAttentionArgs& args,
                                    int64_t token,
                                    int64_t head,
                                    int64_t heads) {
  const KeySet& keys = args.keys[static_cast<size_t>(token)];
  const int64_t d = args.q.shape[2];
  return {.q = args.q.row<float>(token) + head * d,
          .sink = args.sink + head,
          .heads = heads,
          .d = d,
          .scale = args.scale,
          .key_rows = attention_key_rows(args),
          .window = keys.window,
          .window_rows = keys.window_rows.data(),
          .num_window = static_cast<int64_t>(keys.window_rows.size()),
          .entries = keys.entries,
          .entry_rows = keys.entry_rows.data(),
          .num_entries = static_cast<int64_t>(keys.entry_rows.size()),
          .out = args.out.row<float>(token) + head * d};
}

// Heads of one task: all of them, so that keys are read once per token, unless there are too few
// tokens to occupy the threads. Even, because heads are computed in pairs.
inline int64_t heads_per_task(int64_t heads, int64_t tokens, int64_t threads) {
  const int64_t groups = ceil_div(threads, tokens);
  return std::min(heads, round_up(ceil_div(heads, groups), 2));
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::sparse_attention(const SparseAttentionArgs& args,
                                                    device::Stream& stream) {
  const int64_t tokens = args.q.num_rows();
  const int64_t heads = args.q.shape[1];
  const int64_t d = args.q.shape[2];
  CHECK(d <= kMaxKeyWidth) << d;
  if (tokens == 0 || heads == 0) return {};

  const int64_t per_task = heads_per_task(heads, tokens, num_threads(stream));
  const int64_t groups = ceil_div(heads, per_task);
  int64_t num_keys = 0;
  for (const KeySet& keys : args.keys) {
    num_keys += static_cast<int64_t>(keys.window_rows.size() + keys.entry_rows.size());
  }
  const int64_t task_cost = (num_keys / tokens + 1) * 2 * d * per_task;
  for_each_item(stream, tokens * groups, task_cost, [&](int64_t task) {
    const int64_t head = task % groups * per_task;
    kLeaves.attend(attention_task(args, task / groups, head, std::min(per_task, heads - head)));
  });
  return {};
}

// --- indexer -------------------------------------------------------------------------------------

// Entries of one task of the indexer; a multiple of kEntryAlignment.
inline constexpr int64_t kEntriesPerTask = 512;

inline KeyRows index_key_rows(const IndexerScoreArgs& args) {
  const int64_t d = args.q.shape[2];
  if (args.key_dtype != DType::kF8E4m3) return plain_rows(args.key_dtype, d);
  return {.storage = KeyStorage::kFp8IndexKey, .row_bytes = quant::fp8_index_key_bytes(d)};
}

inline IndexerTask indexer_task(const IndexerScoreArgs& args, int64_t token, int64_t begin) {
  static_assert(sizeof(PageId) == sizeof(int32_t));
  const PagedRows& keys = args.keys[static_cast<size_t>(token)];
  return {.q = args.q.row<float>(token),
          .head_weights = args.head_weights.row<float>(token),
          .heads = args.q.shape[1],
          .d = args.q.shape[2],
          .base = keys.base,
          .key_rows = index_key_rows(args),
          .pages = keys.pages.empty() ? nullptr : &keys.pages.front().value,
          .entries_per_page = keys.entries_per_page,
          .begin = begin,
          .end = std::min<int64_t>(keys.count, begin + kEntriesPerTask),
          .scores = args.scores.row<float>(token)};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::indexer_score(const IndexerScoreArgs& args,
                                                 device::Stream& stream) {
  CHECK(args.q.shape[2] <= kMaxKeyWidth) << args.q.shape[2];
  int64_t max_count = 0;
  for (const PagedRows& keys : args.keys) max_count = std::max<int64_t>(max_count, keys.count);
  const int64_t blocks = ceil_div(max_count, kEntriesPerTask);
  const int64_t cost = std::min(max_count, kEntriesPerTask) * args.q.shape[1] * args.q.shape[2];
  for_each_item(stream, args.q.num_rows() * blocks, cost, [&](int64_t task) {
    const IndexerTask leaf = indexer_task(args, task / blocks, task % blocks * kEntriesPerTask);
    if (leaf.begin < leaf.end) kLeaves.indexer_scores(leaf);
  });
  return {};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::top_k(const TopKArgs& args, device::Stream& stream) {
  int64_t max_count = 0;
  for (const int32_t count : args.counts) max_count = std::max<int64_t>(max_count, count);
  for_each_item(stream, args.scores.num_rows(), 64 * max_count, [&](int64_t t) {
    const int32_t count = args.counts[static_cast<size_t>(t)];
    const int32_t selected = std::min(count, args.k);
    int32_t* indices = args.indices.row<int32_t>(t);
    args.num_selected[static_cast<size_t>(t)] = selected;
    if (count <= args.k) {
      for (int32_t i = 0; i < count; ++i) indices[i] = i;
    } else if (selected > 0) {
      kLeaves.top_k(args.scores.row<float>(t), count, selected, indices);
    }
  });
  return {};
}

// --- norm and rope -------------------------------------------------------------------------------

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::rms_norm(const RmsNormArgs& args, device::Stream& stream) {
  const int64_t k = args.x.shape[1];
  for_each_item(stream, args.x.num_rows(), 4 * k, [&](int64_t t) {
    kLeaves.rms_norm(args.x.row<float>(t), args.gamma, args.eps, k, args.y.row<float>(t));
  });
  return {};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::rope(const RopeArgs& args, device::Stream& stream) {
  const auto num_freqs = static_cast<int64_t>(args.freqs.size());
  const int64_t cost = num_freqs * (4 * kExpCost + 4 * args.x.shape[1]);
  for_each_item(stream, args.x.num_rows(), cost, [&](int64_t t) {
    kLeaves.rope({.x = args.x.row<float>(t),
                  .heads = args.x.shape[1],
                  .d = args.x.shape[2],
                  .position = static_cast<float>(args.positions[static_cast<size_t>(t)]),
                  .freqs = args.freqs.data(),
                  .num_freqs = num_freqs,
                  .inverse = args.inverse});
  });
  return {};
}

// --- hyper-connections ---------------------------------------------------------------------------

// Tokens whose mixing products one task holds on its stack.
inline constexpr int64_t kMixTokens = 8;
// Rows of fn of one task when a few tokens are spread over the threads; whole dot tiles.
inline constexpr int64_t kMixRowsPerTask = 8;

// Computes the mixing products of all tokens and calls finish(token, mix) for each.
template <const OpLeaves& kLeaves, class F>
void for_each_mix(const TensorView& state,
                  const float* fn,
                  int64_t num_rows,
                  int64_t finish_cost,
                  const device::Stream& stream,
                  const F& finish) {
  const int64_t tokens = state.num_rows();
  const int64_t width = state.shape[1];
  CHECK(num_rows <= kMaxMixRows) << num_rows;
  const auto mix_task = [&](int64_t token, int64_t count, float* mix) {
    return HyperMixTask{.state = state.row<float>(token),
                        .state_stride = state.row_stride,
                        .num_tokens = count,
                        .fn = fn,
                        .width = width,
                        .row_begin = 0,
                        .row_end = num_rows,
                        .mix = mix,
                        .mix_stride = num_rows};
  };

  if (tokens < kMixTokens && tokens < 2 * num_threads(stream)) {
    std::array<float, kMixTokens * kMaxMixRows> mix;
    const HyperMixTask all = mix_task(0, tokens, mix.data());
    const int64_t cost = tokens * width * kMixRowsPerTask;
    for_each_item(stream, ceil_div(num_rows, kMixRowsPerTask), cost, [&](int64_t task) {
      HyperMixTask rows = all;
      rows.row_begin = task * kMixRowsPerTask;
      rows.row_end = std::min(num_rows, rows.row_begin + kMixRowsPerTask);
      kLeaves.hyper_mix(rows);
    });
    for_each_item(stream, tokens, width + finish_cost, [&](int64_t t) {
      finish(t, mix.data() + t * num_rows);
    });
    return;
  }

  const int64_t groups = ceil_div(tokens, kMixTokens);
  const int64_t cost = kMixTokens * (width * num_rows + finish_cost);
  for_each_item(stream, groups, cost, [&](int64_t group) {
    std::array<float, kMixTokens * kMaxMixRows> mix;
    const int64_t first = group * kMixTokens;
    const int64_t count = std::min(kMixTokens, tokens - first);
    kLeaves.hyper_mix(mix_task(first, count, mix.data()));
    for (int64_t t = 0; t < count; ++t) finish(first + t, mix.data() + t * num_rows);
  });
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::hyper_pre(const HyperPreArgs& args, device::Stream& stream) {
  const HyperSplit split{.base = args.base,
                         .scale = args.scale,
                         .mult = args.hc_mult,
                         .sinkhorn_iters = args.sinkhorn_iters,
                         .hc_eps = args.hc_eps,
                         .norm_eps = args.norm_eps,
                         .d = args.x.shape[1]};
  const int64_t num_rows = int64_t{2 + args.hc_mult} * args.hc_mult;
  // A Sinkhorn iteration is a chain of two divisions.
  const int64_t finish_cost = 40 * kExpCost * args.sinkhorn_iters;
  for_each_mix<kLeaves>(
      args.state, args.fn, num_rows, finish_cost, stream, [&](int64_t t, const float* mix) {
        kLeaves.hyper_pre(split,
                          args.state.row<float>(t),
                          mix,
                          args.x.row<float>(t),
                          args.post.row<float>(t),
                          args.comb.row<float>(t));
      });
  return {};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::hyper_post(const HyperPostArgs& args, device::Stream& stream) {
  const int64_t d = args.y.shape[1];
  const int64_t cost = d * args.hc_mult * (2 + args.hc_mult);
  for_each_item(stream, args.y.num_rows(), cost, [&](int64_t t) {
    kLeaves.hyper_post(args.y.row<float>(t),
                       args.post.row<float>(t),
                       args.comb.row<float>(t),
                       args.hc_mult,
                       d,
                       args.state.row<float>(t));
  });
  return {};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::hyper_head(const HyperHeadArgs& args, device::Stream& stream) {
  const HyperSplit split{.base = args.base,
                         .scale = args.scale,
                         .mult = args.hc_mult,
                         .hc_eps = args.hc_eps,
                         .norm_eps = args.norm_eps,
                         .d = args.x.shape[1]};
  for_each_mix<kLeaves>(
      args.state, args.fn, args.hc_mult, kExpCost, stream, [&](int64_t t, const float* mix) {
        kLeaves.hyper_head(split, args.state.row<float>(t), mix, args.x.row<float>(t));
      });
  return {};
}

// --- compressor ----------------------------------------------------------------------------------

// Channels of one task: long enough for whole cache lines and few enough to spread one entry.
inline constexpr int64_t kChannelsPerTask = 128;

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::compress(const CompressArgs& args, device::Stream& stream) {
  const int64_t width = args.out.shape[1];
  const int64_t blocks = ceil_div(width, kChannelsPerTask);
  const int64_t cost = args.num_slots * std::min(width, kChannelsPerTask) * kExpCost;
  for_each_item(stream, args.out.num_rows() * blocks, cost, [&](int64_t task) {
    const int64_t entry = task / blocks;
    const int64_t begin = task % blocks * kChannelsPerTask;
    const int64_t first = entry * args.num_slots;
    kLeaves.compress(args.values.data() + first,
                     args.gates.data() + first,
                     args.num_slots,
                     begin,
                     std::min(width, begin + kChannelsPerTask),
                     args.out.row<float>(entry));
  });
  return {};
}

// --- experts -------------------------------------------------------------------------------------

// The k best of score + bias, best first, ties to the lower id; NaN ranks lowest.
void choose_experts(const float* scores, const float* bias, int64_t n, int64_t k, int32_t* ids);

// weights[j] = scores[ids[j]] / sum of the chosen scores * scaling_factor.
void weigh_experts(
    const float* scores, const int32_t* ids, int64_t k, float scaling_factor, float* weights);

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::select_experts(const SelectExpertsArgs& args,
                                                  device::Stream& stream) {
  const int64_t n = args.logits.shape[1];
  const int64_t k = args.ids.shape[1];
  CHECK(n <= kMaxExperts) << n;
  for_each_item(stream, args.logits.num_rows(), 3 * n * kExpCost, [&](int64_t t) {
    std::array<float, kMaxExperts> scores;
    kLeaves.expert_scores(args.logits.row<float>(t), n, scores.data());
    int32_t* ids = args.ids.row<int32_t>(t);
    if (args.token_to_experts != nullptr && !args.reuse_ids) {
      std::copy_n(args.token_to_experts + args.token_ids[static_cast<size_t>(t)] * k, k, ids);
    } else if (!args.reuse_ids) {
      choose_experts(scores.data(), args.bias, n, k, ids);
    }
    weigh_experts(scores.data(), ids, k, args.routed_scaling_factor, args.weights.row<float>(t));
  });
  return {};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::swiglu(const SwigluArgs& args, device::Stream& stream) {
  const int64_t width = args.y.shape[1];
  const float limit = args.limit > 0 ? args.limit : std::numeric_limits<float>::infinity();
  for_each_item(stream, args.y.num_rows(), 2 * width * kExpCost, [&](int64_t r) {
    const float weight = args.row_weights == nullptr ? 1.0f : args.row_weights[r];
    kLeaves.swiglu(args.x.row<float>(r), width, limit, weight, args.y.row<float>(r));
  });
  return {};
}

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::combine_experts(const CombineExpertsArgs& args,
                                                   device::Stream& stream) {
  const int64_t width = args.y.shape[1];
  const int64_t k = args.experts_per_token;
  for_each_item(stream, args.y.num_rows(), 4 * (k + 2) * width, [&](int64_t t) {
    kLeaves.combine(args.shared.row<float>(t),
                    args.experts.row<float>(t * k),
                    args.experts.row_stride,
                    k,
                    width,
                    args.y.row<float>(t));
  });
  return {};
}

// --- embedding -----------------------------------------------------------------------------------

template <const OpLeaves& kLeaves>
Result<void> OpLaunchers<kLeaves>::embed(const EmbedArgs& args, device::Stream& stream) {
  const int64_t width = args.table.shape[1];
  const auto row_bytes = static_cast<size_t>(width) * sizeof(float);
  for_each_item(stream, args.out.num_rows(), 4 * width * args.copies, [&](int64_t t) {
    const int64_t id = args.ids[static_cast<size_t>(t)];
    float* out = args.out.row<float>(t);
    switch (args.table.dtype) {
      case DType::kBf16:
        kLeaves.widen_bf16(args.table.row<uint16_t>(id), width, out);
        break;
      case DType::kF16:
        kLeaves.widen_f16(args.table.row<uint16_t>(id), width, out);
        break;
      default:
        std::memcpy(out, args.table.row<float>(id), row_bytes);
    }
    for (int64_t copy = 1; copy < args.copies; ++copy) {
      std::memcpy(out + copy * width, out, row_bytes);
    }
  });
  return {};
}

}  // namespace nibble::kernels::cpu
