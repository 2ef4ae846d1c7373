// The argument block of each op: shapes, meaning, aliasing. One struct per op; every kernel of that
// op takes it. CPU kernels take and give f32 activations; what they multiply in (f32 or bf16) is
// part of the kernel's record. Errors of launchers are of the device only: routes have proved the
// shapes.
//   m: tokens (or rows)   n: output features   k: input features   D: hidden_size   M: hc_mult
//   H: heads   d: head_dim   N: n_routed_experts
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "kernels/packed_weight.h"
#include "tensor/tensor_view.h"

namespace nibble::kernels {

// y[t, :] = W x[t, :].
//   x: [m, k] f32; y: [m, n] f32; W: [n, k]; x and y must not overlap
struct MatMulArgs {
  TensorView x;
  const PackedWeight* weight = nullptr;
  TensorView y;
};

// For each group g and each i in [group_offsets[g], group_offsets[g + 1]):
//   y[out_rows[i], :] = W_g x[in_rows[i], :].
// All weights have one format and one [n, k]; out_rows are distinct; empty groups cost nothing. A
// group is a routed expert, or an output group of the grouped output projection.
struct GroupedMatMulArgs {
  TensorView x;  // [rows, k] f32
  std::span<const PackedWeight> weights;
  std::span<const int32_t> group_offsets;  // [num_groups + 1]
  std::span<const int32_t> in_rows;
  std::span<const int32_t> out_rows;
  TensorView y;  // [rows, n] f32
};

// y[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * gamma.
//   x, y: [m, k] f32, may alias; gamma: [k] f32 or null (none)
struct RmsNormArgs {
  TensorView x;
  const float* gamma = nullptr;
  float eps = 0;
  TensorView y;
};

// Rotates the last 2 * num_freqs elements of each head in place, interleaved pairs (2i, 2i + 1), by
// the angle f32(position) * f32(freq) rounded to f32; `inverse` is the conjugate rotation.
//   x: [m, heads, d] f32
struct RopeArgs {
  TensorView x;
  std::span<const int32_t> positions;  // [m]
  std::span<const float> freqs;
  bool inverse = false;
};

// Hyper-connection read (spec 3.3 HC_PRE): flat norm, 2M + M*M mixing rows, split, Sinkhorn.
//   state: [m, M*D] f32; fn: [2M + M*M, M*D]; base: [2M + M*M]; scale: [3]
//   x: [m, D]; post: [m, M]; comb: [m, M*M] (row = source stream, column = destination)
struct HyperPreArgs {
  TensorView state;
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
  int32_t hc_mult = 0;
  int32_t sinkhorn_iters = 0;
  float hc_eps = 0;
  float norm_eps = 0;
  TensorView x;
  TensorView post;
  TensorView comb;
};

// Hyper-connection write: state'[j] = post[j] * y + sum_m comb[m][j] * state[m], in place.
struct HyperPostArgs {
  TensorView y;     // [m, D]
  TensorView post;  // [m, M]
  TensorView comb;  // [m, M*M]
  int32_t hc_mult = 0;
  TensorView state;  // [m, M*D]
};

// HC_HEAD: x = sum_m pre[m] * state[m] with fn: [M, M*D], base: [M], scale: [1].
struct HyperHeadArgs {
  TensorView state;
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
  int32_t hc_mult = 0;
  float hc_eps = 0;
  float norm_eps = 0;
  TensorView x;
};

// The keys one query token sees, as rows of two pools; summed window first, then entries, in list
// order.
struct KeySet {
  const void* window = nullptr;  // rows as SparseAttentionArgs::kv_dtype says
  std::span<const int32_t> window_rows = {};
  const void* entries = nullptr;
  std::span<const int32_t> entry_rows = {};
};

// Multi-query attention where each key row is also the value (spec 3.4 Core): one softmax over
// window and entries, sink only in the denominator. Without keys the output is zero.
//   q, out: [m, H, d] f32, must not alias
struct SparseAttentionArgs {
  TensorView q;
  std::span<const KeySet> keys;  // [m]
  // Of both pools: kF32 or kBf16 elements, or kF8E4m3 for quant::Fp8KeyLayout rows, whose last
  // num_rotary elements are BF16.
  DType kv_dtype = DType::kF32;
  int32_t num_rotary = 0;
  const float* sink = nullptr;  // [H]
  float scale = 0;              // d^-0.5
  TensorView out;
};

// Rows 0 .. count - 1 of a sequence's compressed entries: entry c is row c % entries_per_page of
// page pages[c / entries_per_page].
struct PagedRows {
  const void* base = nullptr;  // the layer's pool: [num_pages * entries_per_page, width]
  std::span<const PageId> pages;
  int32_t entries_per_page = 0;
  int32_t count = 0;
};

// scores[t, c] = sum_h relu(q[t, h] . key_c) * head_weights[t, h] for c < keys[t].count.
// -0 becomes +0.
struct IndexerScoreArgs {
  TensorView q;                     // [m, Hi, di] f32
  TensorView head_weights;          // [m, Hi] f32, scale included
  std::span<const PagedRows> keys;  // [m]
  // kF32 or kBf16 elements, or kF8E4m3 for the FP8 index keys of quant/fp8_key.h.
  DType key_dtype = DType::kF32;
  TensorView scores;  // [m, >= max count] f32
};

// The k best of scores[t, 0 .. counts[t] - 1], written in ascending index order. Ties go to the
// lower index; -0 equals +0 and NaN ranks with -inf.
struct TopKArgs {
  TensorView scores;                // [m, columns] f32
  std::span<const int32_t> counts;  // [m]
  int32_t k = 0;
  TensorView indices;               // [m, k] i32
  std::span<int32_t> num_selected;  // [m]: min(k, counts[t])
};

// Softmax-weighted pooling of the compressor (spec 3.5): for entry e and channel a,
//   out[e, a] = sum_s softmax_s(gate[e, s][a]) * value[e, s][a].
// Row pointers are per (entry, slot); null rows do not take part (the missing overlap of entry 0),
// but one row of each entry must.
struct CompressArgs {
  std::span<const float* const> values;  // [num_entries * num_slots], each -> [width]
  std::span<const float* const> gates;
  int32_t num_slots = 0;
  TensorView out;  // [num_entries, width] f32
};

// Expert choice (spec 4.1): s = sqrt(softplus(logits)); ids = top-k of s + bias, best first (ties
// to the lower id), or the hash table's row of the token; weights = s[ids] / sum *
// routed_scaling_factor.
struct SelectExpertsArgs {
  TensorView logits;                          // [m, N] f32
  const float* bias = nullptr;                // [N]; null for hash layers
  const int32_t* token_to_experts = nullptr;  // [vocab, k]; null for score layers
  std::span<const int32_t> token_ids = {};    // [m]; used by hash layers
  bool reuse_ids = false;  // true: `ids` is input (replayed decisions), only weights are computed
  float routed_scaling_factor = 1;
  TensorView ids;      // [m, k] i32
  TensorView weights;  // [m, k] f32
};

// y[r, i] = silu(min(g, limit)) * clamp(u, -limit, limit) * row_weights[r]
// with g = x[r, i], u = x[r, I + i]. limit 0 means no clamp; row_weights may be null (1).
//   x: [rows, 2 I] f32; y: [rows, I] f32
struct SwigluArgs {
  TensorView x;
  float limit = 0;
  const float* row_weights = nullptr;
  TensorView y;
};

// y[t, :] = shared[t, :] + sum_{j < k} experts[t * k + j, :], summed in slot order.
//   experts: [m * k, D]; shared, y: [m, D], may alias each other.
struct CombineExpertsArgs {
  TensorView experts;
  TensorView shared;
  int32_t experts_per_token = 0;
  TensorView y;
};

// out[t, c * D : (c + 1) * D] = table[ids[t], :] for each of `copies`.
//   table: [V, D] f32, bf16 or f16
struct EmbedArgs {
  TensorView table;
  std::span<const int32_t> ids;
  int32_t copies = 1;
  TensorView out;  // [m, copies * D] f32
};

}  // namespace nibble::kernels
