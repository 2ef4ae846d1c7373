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

// Activations of quantised products on a GPU: E4M3 codes with one power-of-two scale per row and
// 128 values of k. Device memory.
struct Fp8Rows {
  const std::byte* codes = nullptr;  // [rows, k], rows aligned to 16 bytes
  const float* scales = nullptr;     // [rows, k / 128]
};

// Activations of dense quantised products for few tokens on a GPU, in the order of the tiles that
// read them: for each 128 values of k a block of codes [128 / 16][m][16], then m f32 scales, padded
// to 16 bytes. Device memory, aligned to 16 bytes.
constexpr int64_t fp8_block_bytes(int64_t m) { return m * 128 + round_up(m * 4, int64_t{16}); }

// MatMulArgs on a GPU with FP8 activations, everything in device memory. With groups, rows
// g * n / groups and on of W see columns g * k and on of x (the grouped output projection).
// Results go to one of
//   y: [splits, m, n] f32, whose sum over the first axis, in order, is W x
//   y_fp8: blocks of n / 128 x fp8_block_bytes(m); needs splits 1 and n a multiple of 128
struct DeviceMatMulArgs {
  const std::byte* x = nullptr;  // blocks of groups * k / 128 x fp8_block_bytes(m)
  int32_t m = 0;
  const PackedWeight* weight = nullptr;
  int32_t groups = 1;
  int32_t splits = 1;  // of k
  float* y = nullptr;
  std::byte* y_fp8 = nullptr;
  int32_t num_units = 0;      // streaming multiprocessors: the grid
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
};

// Which rows go through which expert, as the device's own routing left it. A pair t * choices + j
// is token t's j-th choice. A slot is up to `rows` pairs of one expert; an expert with more pairs
// has several slots, one with none has no slot. With one row, slot s is pair s: `experts` are the
// router's ids, of which negative ones are no expert, and `count` and `pairs` are not read.
struct ExpertSlots {
  int32_t rows = 0;                  // pairs per slot: 1, 8 or 16
  const int32_t* count = nullptr;    // [1] number of slots
  const int32_t* experts = nullptr;  // [max_slots]
  const int32_t* pairs = nullptr;    // [max_slots, rows]; -1: none
  int32_t max_slots = 0;
};

// GroupedMatMulArgs on a GPU, everything in device memory. With swiglu, the weight is a stack of
// gate and up rows in gate-up order and y[p, i] = silu(min(g, limit)) * clamp(u, -limit, limit) *
// pair_weights[p], limit 0 meaning none; otherwise y = W x.
//   y: [pairs, n] f32; with swiglu [pairs, n / 2] bf16. Only rows of pairs in a slot are written.
struct DeviceGroupedMatMulArgs {
  Fp8Rows x;
  const void* x_bf16 = nullptr;  // instead of x: [rows, k] bf16, quantised as x is; slots of 1 row
  int32_t pairs_per_row = 1;     // x row of pair p is p / pairs_per_row
  const PackedWeight* weight = nullptr;  // n and k of one expert; packages of all, one by one
  ExpertSlots slots;
  bool swiglu = false;
  float limit = 0;
  const float* pair_weights = nullptr;  // [pairs]; null: 1
  // Slots of 1 row that were written before the stream's last expert product of such slots began:
  // weights may be read while that still runs.
  bool slots_are_ready = false;
  void* y = nullptr;
  int32_t num_units = 0;      // streaming multiprocessors: the grid
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
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

// Which rows of a pool each token sees. Device memory. The counts are plan data: a launch may read
// them before the kernels ahead of it in the stream have ended.
struct DeviceKeyRows {
  const void* pool = nullptr;       // never null
  const int32_t* rows = nullptr;    // [m, max_rows]; -1: no key
  const int32_t* counts = nullptr;  // [m], 0 .. max_rows
  int32_t max_rows = 0;
};

// SparseAttentionArgs on a GPU, everything in device memory: q and out in bf16, d 512.
//   q, out: [m, H, d] bf16, must not alias; sink: [H] f32
struct DeviceSparseAttentionArgs {
  const void* q = nullptr;
  DeviceKeyRows window;
  DeviceKeyRows entries;
  DType kv_dtype = DType::kBf16;  // kBf16, or kF8E4m3: quant::Fp8KeyLayout of 448 and 64
  const float* sink = nullptr;
  float scale = 0;
  void* out = nullptr;
  int32_t m = 0;
  int32_t heads = 0;
  int32_t num_units = 0;  // streaming multiprocessors
  // What was complete before the stream's last kernel began, and may be read while it runs.
  bool is_q_ready = false;
  bool is_window_ready = false;  // pool and rows
  bool are_entries_ready = false;
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
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

// Rows of the pools of all tokens' sequences, as PagedRows. Device memory; pages and counts are
// plan data, see DeviceKeyRows.
struct DevicePagedRows {
  const void* pool = nullptr;
  const int32_t* pages = nullptr;   // [m, max_pages]
  const int32_t* counts = nullptr;  // [m]
  int32_t max_pages = 0;
  int32_t entries_per_page = 0;
};

// IndexerScoreArgs on a GPU, everything in device memory, key width 128, keys in bf16.
//   q: [m, Hi, 128] bf16; head_weights: [m, Hi] f32; scores: [m, columns] f32
struct DeviceIndexerScoreArgs {
  const void* q = nullptr;
  const float* head_weights = nullptr;
  DevicePagedRows keys;
  float* scores = nullptr;
  int64_t columns = 0;  // at least every count
  int32_t m = 0;
  int32_t heads = 0;
  int32_t unscored_count = 0;  // tokens with at most so many entries keep all: nothing is written
  int32_t num_units = 0;       // streaming multiprocessors
  bool is_dependent = false;   // launch as a programmatic dependent of the stream's last kernel
};

// TopKArgs on a GPU, everything in device memory; what is not selected is -1. With pages, an index
// becomes the pool row of its entry: pages[t, index / entries_per_page] * entries_per_page + index
// % entries_per_page.
//   scores: [m, columns] f32, aligned to 16, columns and k multiples of 4; counts: [m], plan data;
//   indices: [m, k] i32; num_selected: [m] i32
struct DeviceTopKArgs {
  const float* scores = nullptr;
  const int32_t* counts = nullptr;
  int64_t columns = 0;
  int32_t m = 0;
  int32_t k = 0;
  const int32_t* pages = nullptr;  // [m, max_pages] or null
  int32_t max_pages = 0;
  int32_t entries_per_page = 0;
  int32_t* indices = nullptr;
  int32_t* num_selected = nullptr;  // null: not wanted
  std::byte* workspace = nullptr;   // cuda::top_k_workspace_bytes(), aligned to 16
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
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
