// The argument block of each op on a GPU. Every pointer is device memory and everything that
// changes from step to step is read from there, so that a launch can be recorded in a graph and
// replayed. A graph is made for a number of rows; those that a step does not need are padding
// (DeviceTokens::sequences is -1): they are computed, harmless, and write no decoding state.
//   m: rows (tokens)   n: output features   k: input features   D: hidden_size   M: hc_mult
//   H: heads   d: head_dim   N: n_routed_experts   S: sequences
// Every op has scalar reference rows for the emulated GPU (device/emulated_gpu.h), which state
// what these structs mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked_math.h"
#include "kernels/packed_weight.h"
#include "tensor/dtype.h"

namespace nibble::kernels {

// --- what many ops share ---

// The form in which a product reads its activations.
enum class ActivationForm : uint8_t { kF32, kBf16, kFp8Rows, kFp8Blocks, kBf16Blocks, kBf16Terms };

// One [m, k] matrix in the forms that its readers want; a producer writes every form that is not
// null, a reader takes the one that its record names. FP8: E4M3 codes with one power-of-two scale
// per row and 128 values of k, max(|x|, 1e-4) / 448 rounded up; k is then a multiple of 128.
struct ActivationForms {
  float* f32 = nullptr;              // [m, k]
  void* bf16 = nullptr;              // [m, k]
  std::byte* fp8 = nullptr;          // [m, k] codes, aligned to 16
  float* fp8_scales = nullptr;       // [m, k / 128]; with fp8
  std::byte* fp8_blocks = nullptr;   // fp8_blocks_bytes(m, k), see there; aligned to 16
  std::byte* bf16_blocks = nullptr;  // bf16_blocks_bytes(m, k, 1), see there; aligned to 16
  std::byte* bf16_terms = nullptr;   // bf16_blocks_bytes(m, k, kBf16Terms), likewise
};

// FP8 activations in the order of the tiles that read them. Rows are cut into slices of 128, of
// which the last may be shorter. A slice of r rows is, for each 128 values of k, a block of codes
// [128 / 16][r][16], then r f32 scales, padded to 16 bytes.
inline constexpr int64_t kSliceRows = 128;
constexpr int64_t fp8_block_bytes(int64_t rows) {
  return rows * 128 + round_up(rows * 4, int64_t{16});
}
constexpr int64_t fp8_blocks_bytes(int64_t m, int64_t k) { return k / 128 * fp8_block_bytes(m); }

// Where a row's part of the block that holds `column` lies in an [m, k] matrix of blocks.
struct Fp8BlockPlace {
  int64_t block = 0;  // offset
  int64_t rows = 0;   // of the slice
  int64_t row = 0;    // in the slice

  constexpr int64_t code(int64_t column) const {
    return block + (column % 128 / 16 * rows + row) * 16 + column % 16;
  }
  constexpr int64_t scale() const { return block + rows * 128 + row * 4; }
};
constexpr Fp8BlockPlace fp8_block_place(int64_t m, int64_t k, int64_t row, int64_t column) {
  const int64_t slice = row / kSliceRows;
  const int64_t left = m - slice * kSliceRows;
  const int64_t rows = left < kSliceRows ? left : kSliceRows;
  return {.block = slice * fp8_blocks_bytes(kSliceRows, k) + column / 128 * fp8_block_bytes(rows),
          .rows = rows,
          .row = row % kSliceRows};
}

// BF16 activations in the order of the tiles that read them: one term per value, or three whose sum
// an f32 value is. k is then a multiple of 64. Slices are those of the FP8 blocks. A slice of r
// rows is, for each 64 values of k, a block [terms][64 / 8][r][8].
inline constexpr int64_t kBf16Terms = 3;
constexpr int64_t bf16_block_bytes(int64_t rows, int64_t terms) { return terms * rows * 64 * 2; }
constexpr int64_t bf16_blocks_bytes(int64_t m, int64_t k, int64_t terms) {
  return k / 64 * bf16_block_bytes(m, terms);
}
// Where term `term` of `terms` of one value lies.
constexpr int64_t bf16_block_offset(
    int64_t m, int64_t k, int64_t row, int64_t column, int64_t term, int64_t terms) {
  const int64_t slice = row / kSliceRows;
  const int64_t left = m - slice * kSliceRows;
  const int64_t rows = left < kSliceRows ? left : kSliceRows;
  return slice * bf16_blocks_bytes(kSliceRows, k, terms) +
         column / 64 * bf16_block_bytes(rows, terms) +
         ((term * 8 + column % 64 / 8) * rows + row % kSliceRows) * 16 + column % 8 * 2;
}

// The result of a product as partial sums of its input features: [splits, m, n] f32, to be added
// in order.
struct DeviceSums {
  const float* data = nullptr;
  int32_t splits = 1;
};

// The rows of a step. Plan data: constant while a step runs.
struct DeviceTokens {
  const int32_t* ids = nullptr;        // [m]
  const int32_t* positions = nullptr;  // [m]
  const int32_t* sequences = nullptr;  // [m] index into DeviceSequences; -1: padding
  int32_t m = 0;
};

// The sequences of a step; rows row_begin .. row_begin + num_tokens - 1 hold positions from
// position_begin on. Plan data.
struct DeviceSequences {
  const int32_t* slots = nullptr;           // [S]
  const int32_t* row_begin = nullptr;       // [S]
  const int32_t* num_tokens = nullptr;      // [S]
  const int32_t* position_begin = nullptr;  // [S]
  const int32_t* window_begin = nullptr;    // [S] the oldest position whose key may be read
  const int32_t* pages = nullptr;           // [S, max_pages]
  int32_t max_pages = 0;
};

// Rotation of the last num_rotary elements, interleaved pairs (2i, 2i + 1), by the angle
// f32(position) * freqs[i] rounded to f32.
struct DeviceRotation {
  const float* freqs = nullptr;  // [num_rotary / 2]
  int32_t num_rotary = 0;
};

// --- the plan of a step ---

// From tokens and sequences to the index lists that all layers share.
//
// A window pool has num_slots * ring_capacity rows, where position p of slot s lies in row
// s * ring_capacity + p % ring_capacity, and after them one scratch row per row of the step. A
// sequence with more than `direct_tokens` tokens in the step keeps its new keys in scratch rows
// until attention has read them; others write the ring at once. Old keys are read from the ring.
struct DevicePlanArgs {
  DeviceTokens tokens;
  DeviceSequences sequences;
  int32_t num_slots = 0;
  int32_t window = 0;
  int32_t ring_capacity = 0;
  int32_t direct_tokens = 0;
  int32_t page_tokens = 0;  // tokens per page
  int32_t top_k = 0;        // of the indexer
  // Outputs, null where not wanted. Padding rows get -1 and 0.
  int32_t* key_rows = nullptr;         // [m] where a token's key goes
  int32_t* window_rows = nullptr;      // [m, window] positions ascending, then -1
  int32_t* window_counts = nullptr;    // [m]
  int32_t* window_ready = nullptr;     // [m] of these, keys of tokens before the step
  int32_t* token_pages = nullptr;      // [m, max_pages] the pages of the token's sequence
  int32_t* counts_4 = nullptr;         // [m] entries of ratio 4 that the token sees
  int32_t* selected_counts = nullptr;  // [m] min(counts_4, top_k)
  int32_t* selected = nullptr;         // [m, top_k] their pool rows where that is all, then -1
  int32_t* ready_4 = nullptr;          // [m] of these rows, entries closed before the step
  int32_t* counts_128 = nullptr;       // [m]
  int32_t* ready_128 = nullptr;        // [m] of these, entries closed before the step
  int32_t* rows_128 = nullptr;         // [m, max_rows_128] pool rows, then -1
  int32_t max_rows_128 = 0;
  bool is_dependent = false;
};

// Rows from one pool to another: out[to[i], :] = in[from[i], :] where both are not negative.
struct DeviceCopyRowsArgs {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  const int32_t* from = nullptr;  // [count]; null: i
  const int32_t* to = nullptr;    // [count]; null: i
  int32_t count = 0;
  int64_t row_bytes = 0;  // a multiple of 4
  bool is_dependent = false;
};

// --- products ---

// y = W x.   With groups, rows g * n / groups and on of W see columns g * k and on of x (the
// grouped output projection). Results go to one of
//   y: [splits, m, n] f32 (DeviceSums)
//   y_fp8: instead of y, as ActivationForms::fp8_blocks; of kernels with KernelInfo::gives_fp8,
//     splits 1 and n / groups a multiple of 128
struct DeviceMatMulArgs {
  ActivationForms x;  // [m, groups * k]
  int32_t m = 0;
  const PackedWeight* weight = nullptr;
  int32_t groups = 1;
  int32_t splits = 1;  // of k; num_splits() of the record
  float* y = nullptr;
  std::byte* y_fp8 = nullptr;
  int32_t num_units = 0;      // streaming multiprocessors: the grid
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
};

// Two products of the same rows in one launch, each with the bits that it has alone.
struct DeviceMatMulPairArgs {
  DeviceMatMulArgs first;  // m, num_units and is_dependent as the second's; f32 sums
  DeviceMatMulArgs second;
  int32_t first_blocks = 0;  // of num_units blocks, the first's; plan_matmul_pair()
};

// Which rows go through which expert, as the device's own routing left it. A pair t * choices + j
// is token t's j-th choice. A slot is up to `rows` pairs of one expert; an expert with more pairs
// has several slots, one with none has no slot. With one row, slot s is pair s: `experts` are the
// router's ids, of which negative ones are no expert, and `count` and `pairs` are not read.
struct ExpertSlots {
  int32_t rows = 0;                  // pairs per slot
  const int32_t* count = nullptr;    // [1] number of slots
  const int32_t* experts = nullptr;  // [max_slots]
  const int32_t* pairs = nullptr;    // [max_slots, rows]; -1: none
  int32_t max_slots = 0;
};

// Groups pairs by expert into slots, in ascending order of expert and pair, so that equal choices
// give equal slots. Ids outside of 0 .. num_experts - 1 get no slot.
//   ids: [num_pairs]
struct DeviceMakeSlotsArgs {
  const int32_t* ids = nullptr;
  int32_t num_pairs = 0;
  int32_t num_experts = 0;
  int32_t rows = 0;  // pairs per slot
  int32_t* count = nullptr;
  int32_t* experts = nullptr;
  int32_t* pairs = nullptr;  // room for max_slots(num_pairs, num_experts, rows) slots
  bool is_dependent = false;
};

// The most slots that any choice can need.
constexpr int32_t max_slots(int32_t num_pairs, int32_t num_experts, int32_t rows) {
  const int32_t touched = num_pairs < num_experts ? num_pairs : num_experts;
  return touched + (num_pairs - touched) / rows;
}

// silu(min(g, limit)) * clamp(u, -limit, limit) of sums [splits, m, 2 n], gate over up, in every
// form asked for; limit 0: none.   y: [m, n]
struct DeviceSwiglu {
  DeviceSums x;
  int32_t m = 0;
  int64_t n = 0;
  float limit = 0;
  ActivationForms y;
};

// For how many tokens select_experts makes slots: its last block does, which is slower than a
// launch of its own where there are more.
inline constexpr int32_t kMaxSlotTokens = 16;

// Per token: lanes of a warp. For one token, each choice is a slot of one row.
inline constexpr int32_t kMaxChoices = 32;

// Expert choice (spec 4.1, kernels::SelectExpertsArgs), and beside it the SwiGLU of the shared
// expert. Padding rows get ids -1 and weights 0.
struct DeviceSelectExpertsArgs {
  DeviceSums logits;  // [splits, m, N]
  DeviceTokens tokens;
  int32_t num_experts = 0;
  int32_t choices = 0;                        // at most kMaxChoices
  const float* bias = nullptr;                // [N]; null for hash layers
  const int32_t* token_to_experts = nullptr;  // [vocab, choices]; null for score layers
  bool reuse_ids = false;  // `ids` is input (replayed decisions), only weights are computed
  float routed_scaling_factor = 1;
  int32_t* ids = nullptr;    // [m, choices]
  float* weights = nullptr;  // [m, choices]
  DeviceSwiglu shared;       // m 0: none
  // What make_slots does with these choices, for up to kMaxSlotTokens tokens; without count: none.
  DeviceMakeSlotsArgs slots;
  int32_t* arrivals = nullptr;  // with slots: [1] zero; a launch leaves zero
  bool is_dependent = false;
};

// Of DeviceGroupedMatMulArgs::beside: only where num_splits() gives the product so many on its GPU.
// Rows of W in 64 panels, as of hidden size 4096, are split so on 128 to 255 multiprocessors.
inline constexpr int32_t kBesideSplits = 2;

inline constexpr int32_t kMaxRowSlots = 32;  // of one row, of a launch
static_assert(kMaxChoices <= kMaxRowSlots);

// What a product of gate and up rows may go on with in the same launch, where the record says so
// (KernelInfo::joins_down): y of it, in the x_form of the record, through the experts' second
// weight.
struct DeviceDownProduct {
  const PackedWeight* weight = nullptr;  // null: none
  float* y = nullptr;                    // [pairs, n of this weight]
  int32_t* counters = nullptr;           // [max_slots + 1] zeros; a launch leaves zeros
};

// y = W_expert(pair) x[pair / pairs_per_row] for every pair in a slot. With swiglu, the weight is a
// stack of gate over up rows (packed in gate-up order where the layout has one) and
//   y[p, i] = silu(min(g, limit)) * clamp(u, -limit, limit) * pair_weights[p], limit 0: none.
//   y: [pairs, n] f32; with swiglu [pairs, n / 2] bf16. Only rows of pairs in a slot are written.
struct DeviceGroupedMatMulArgs {
  ActivationForms x;                     // in the record's form, or see KernelInfo::quantizes
  int32_t pairs_per_row = 1;             // x row of pair p is p / pairs_per_row
  const PackedWeight* weight = nullptr;  // n and k of one expert; packages of all, one by one
  ExpertSlots slots;
  bool swiglu = false;
  float limit = 0;
  const float* pair_weights = nullptr;  // [pairs]; null: 1
  // Slots of 1 row that were written before the stream's last expert product of such slots began:
  // weights may be read while that still runs.
  bool slots_are_ready = false;
  void* y = nullptr;
  DeviceDownProduct down;  // with swiglu and slots of 1 row
  // With down, where the record names KernelInfo::beside: for one token, first what select_experts
  // does (choice.ids are slots.experts, choice.weights pair_weights), and the second product of the
  // shared expert, whose x is choice.shared.y: of m 1 and kBesideSplits splits, with the bits of
  // the row of that name. Only choice.shared.y may stay as it was. No choice.slots, and no
  // choice.reuse_ids: blocks choose on their own while one writes the ids. Without tokens: neither.
  DeviceSelectExpertsArgs choice;
  DeviceMatMulArgs beside;
  int32_t num_units = 0;      // streaming multiprocessors: the grid
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
};

// --- residual streams ---

// streams[t, c * D : (c + 1) * D] = table[ids[t], :] for each of `copies`. Padding rows become 0.
//   table: [V, D] f32 or bf16; out: [m, copies * D] f32
struct DeviceEmbedArgs {
  const void* table = nullptr;
  DType table_dtype = DType::kBf16;
  int64_t hidden = 0;
  DeviceTokens tokens;
  int32_t copies = 1;
  float* out = nullptr;
  bool is_dependent = false;
};

// The write of one half layer and the first part of the next one's read.
//   y = shared sums + sum_j pairs[t * choices + j, :] (in order; pairs may be null)
//   state'[j] = post[j] * y + sum_i comb[i][j] * state[i], in place   (left out when post is null)
// and for part q of `parts` equal ranges of the D columns (of ceil(D / parts) rounded up to 4),
// over all streams:
//   partials[t, q, r] = sum fn[r, :] * state'[t, :] for r < num_mix, then the sum of state'^2
struct DeviceStreamUpdateArgs {
  DeviceSums y;                  // [splits, m, D]
  const float* pairs = nullptr;  // [m * choices, D]
  int32_t choices = 0;
  const float* post = nullptr;  // [m, M]
  const float* comb = nullptr;  // [m, M * M] row: source stream, column: destination
  float* streams = nullptr;     // [m, M * D]
  int64_t hidden = 0;
  int32_t hc_mult = 0;
  int32_t m = 0;
  const float* fn = nullptr;  // [num_mix, M * D]; null: no partials
  int32_t num_mix = 0;        // 2 M + M * M of a half layer, M of the head
  int32_t parts = 0;
  float* partials = nullptr;  // [m, parts, num_mix + 1]
  bool is_dependent = false;
};

// The read of a half layer (spec 3.3 HC_PRE; kernels::HyperPreArgs) from those partials, and the
// norm behind it: x = rms_norm(sum_i pre[i] * state[i]) * gamma in every form asked for. Of the
// head (num_mix = M; kernels::HyperHeadArgs): no post and comb. Output row i is of stream row
// rows[i]; without `rows` of row i.
struct DeviceStreamMixArgs {
  const float* streams = nullptr;   // [m, M * D]
  const float* partials = nullptr;  // [m, parts, num_mix + 1]
  int32_t parts = 0;
  int32_t num_mix = 0;
  const float* base = nullptr;   // [num_mix]
  const float* scale = nullptr;  // [3]; head [1]
  int64_t hidden = 0;
  int32_t hc_mult = 0;
  int32_t sinkhorn_iters = 0;
  float hc_eps = 0;
  float norm_eps = 0;
  const float* gamma = nullptr;   // [D]
  const int32_t* rows = nullptr;  // [m_out] stream rows, -1: padding
  int32_t m = 0;                  // output rows
  ActivationForms x;              // [m, D]
  float* post = nullptr;          // [m, M]; null for the head
  float* comb = nullptr;          // [m, M * M]; null for the head
  bool is_dependent = false;
};

// Both in one launch, for few tokens: the mixer's dots stay in it, so that of `update` partials and
// of `mix` streams and partials are only for rows that launch two. Has fn and, for a half layer,
// post and comb; without update.post the streams are read only. mix.m is at most update.m.
struct DeviceStreamTurnArgs {
  DeviceStreamUpdateArgs update;
  DeviceStreamMixArgs mix;
  bool is_dependent = false;  // instead of theirs
};

// --- between the products of attention ---

// One compressor of a layer: its columns in a projection row and where its entries go.
struct DeviceCompressor {
  int32_t value_column = 0;
  int32_t gate_column = 0;
  int32_t width = 0;                 // of an entry; twice as many channels where blocks overlap
  const float* ape = nullptr;        // [ratio, channels], added to the gates by position % ratio
  const float* gamma = nullptr;      // [width]
  std::byte* entries = nullptr;      // pool: [num_pages * page_tokens / ratio] rows
  DType entry_dtype = DType::kBf16;  // kF32, kBf16; kF8E4m3 as the next line says
  bool is_index = false;  // FP8 entries are quant::fp8_index_key rows, otherwise Fp8KeyLayout
};

// The compressors of a layer (spec 3.5), with ring rows for the steps to come: columns
// [0, ring_width) of a token's projections, gates with their position bias.
// forms_entries: every token whose position closes a block of `ratio` tokens pools the block
// (ratio 4: and the one before it, kernels::CompressArgs), norms, rotates by the block's first
// position and stores the entry. Rows of tokens before the step come from the ring.
// stores_rows: writes the last ring_capacity rows of each sequence. Both in one launch only where
// no sequence has more than `direct` tokens (DevicePlanArgs), as ring rows are then free.
struct DeviceCompression {
  DeviceSums projections;  // [splits, m, row_width]
  int32_t row_width = 0;
  DeviceSequences sequences;
  int32_t ratio = 0;
  int32_t page_tokens = 0;
  DeviceCompressor parts[2];
  int32_t num_parts = 0;  // 0: the layer has none
  float* ring = nullptr;  // [num_slots * ring_capacity, ring_width]
  int32_t ring_capacity = 0;
  int32_t ring_width = 0;
  bool forms_entries = true;
  bool stores_rows = true;
};

// What a layer makes of its first products: latents, keys and compressed entries.
// qr_kv holds the latents of queries and the keys: q = rms_norm(qr) * q_gamma in every form asked
// for; key = rotate(rms_norm(kv) * kv_gamma) into row key_rows[t] of the window pool, -1: nowhere.
struct DeviceLatentsArgs {
  DeviceSums qr_kv;  // [splits, m, q_rank + d]; null data: only the compression
  DeviceTokens tokens;
  int32_t q_rank = 0;
  int32_t head_dim = 0;
  const float* q_gamma = nullptr;
  const float* kv_gamma = nullptr;
  float eps = 0;
  DeviceRotation rotation;  // of keys and entries
  ActivationForms q;        // [m, q_rank]
  const int32_t* key_rows = nullptr;
  std::byte* window_pool = nullptr;
  DType key_dtype = DType::kBf16;  // kF32, kBf16, or kF8E4m3: quant::Fp8KeyLayout
  DeviceCompression compression;
  bool is_dependent = false;
};

// The weights of the indexer's heads: columns [column, + Hi) of a product, times `scale`.
struct DeviceHeadWeights {
  DeviceSums projections;  // [splits, m, row_width]
  int32_t row_width = 0;
  int32_t column = 0;
  float scale = 0;
};

// q: every head rms-normed without weight and rotated. With index_q: the indexer's queries rotated
// (no norm) and head_weights of `weights`.
struct DeviceQueriesArgs {
  DeviceSums q_sums;  // [splits, m, H * d]
  DeviceTokens tokens;
  int32_t heads = 0;
  int32_t head_dim = 0;
  float eps = 0;
  DeviceRotation rotation;  // of both
  void* q = nullptr;        // [m, H, d] bf16
  DeviceSums index_sums;    // [splits, m, index_heads * index_width]; null data: no indexer
  int32_t index_heads = 0;
  int32_t index_width = 0;
  DeviceHeadWeights weights;
  void* index_q = nullptr;        // [m, index_heads, index_width] bf16
  float* head_weights = nullptr;  // [m, index_heads]
  bool is_dependent = false;
};

// Attention's queries where another launch makes them: q of DeviceQueriesArgs.
struct DeviceHeadQueries {
  DeviceSums sums;  // [splits, m, H * d]; null data: none
  int32_t heads = 0;
  int32_t head_dim = 0;
  float eps = 0;
  void* q = nullptr;  // [m, H, d] bf16
};

// Which rows of a pool each token sees. Device memory. The counts are plan data: a launch may read
// them before the kernels ahead of it in the stream have ended.
struct DeviceKeyRows {
  const void* pool = nullptr;       // never null
  const int32_t* rows = nullptr;    // [m, max_rows]; -1: no key
  const int32_t* counts = nullptr;  // [m], 0 .. max_rows
  int32_t max_rows = 0;
  // [m] the first so many keys are of earlier steps and their rows plan data, so that both may be
  // read that early, too. Null: none.
  const int32_t* ready_counts = nullptr;
};

// SparseAttentionArgs on a GPU, everything in device memory. Queries come as `q`, or without it, in
// launches of up to KernelInfo::max_sum_rows tokens, as their product left them: each head is then
// rms-normed without weight and rotated first, as DeviceQueriesArgs says. Results are the heads'
// outputs rotated back, in every form asked for; of rows without KernelInfo::gives_forms in bf16
// alone and as they are.
//   q: [m, H, d] bf16; sink: [H] f32; out: [m, H * d]
struct DeviceSparseAttentionArgs {
  const void* q = nullptr;
  DeviceSums q_sums;  // [splits, m, H * d]; without q
  float eps = 0;      // of their norm
  DeviceKeyRows window;
  DeviceKeyRows entries;
  DType kv_dtype = DType::kBf16;  // kF32, kBf16, or kF8E4m3: quant::Fp8KeyLayout
  const float* sink = nullptr;
  float scale = 0;
  const int32_t* positions = nullptr;  // [m] plan data; with q_sums or rotation
  DeviceRotation rotation;             // of q_sums, and inverse of out; without frequencies neither
  ActivationForms out;
  int32_t m = 0;
  int32_t heads = 0;
  int32_t head_dim = 512;
  int32_t num_rotary = 64;    // of keys in kF8E4m3
  int32_t num_units = 0;      // streaming multiprocessors
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
};

// The heads' outputs rotated back, in every form asked for, behind attention that leaves this open.
//   x: [m, H, d] bf16; y: [m, H * d]
struct DeviceAttendedArgs {
  const void* x = nullptr;
  DeviceTokens tokens;
  int32_t heads = 0;
  int32_t head_dim = 0;
  DeviceRotation rotation;
  ActivationForms y;
  bool is_dependent = false;
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

// The selection behind scores in the same launch, where KernelInfo::selects has room for it:
// launches of up to `rows` tokens and `columns` scores. As DeviceTopKArgs with pages and
// skips_short_rows would select.
struct DeviceSelection {
  int32_t k = 0;                // 0: none; else DeviceIndexerScoreArgs::unscored_count
  int32_t* indices = nullptr;   // [m, k] pool rows
  int32_t* counters = nullptr;  // [m] zeros before the first launch; launches leave them so
};

// IndexerScoreArgs on a GPU, everything in device memory. Queries and the weights of their heads
// come as `q` and `head_weights`, or without them, in launches of up to KernelInfo::max_sum_rows
// tokens, as products left them: see DeviceQueriesArgs. Those also make attention's of all tokens
// if `beside` asks for them.
//   q: [m, Hi, width] bf16; head_weights: [m, Hi] f32; scores: [m, columns] f32
struct DeviceIndexerScoreArgs {
  const void* q = nullptr;
  const float* head_weights = nullptr;
  DeviceSums q_sums;  // [splits, m, Hi * width]
  DeviceHeadWeights weights;
  const int32_t* positions = nullptr;  // [m] plan data; with q_sums
  DeviceRotation rotation;             // of both
  DeviceHeadQueries beside;
  DevicePagedRows keys;
  float* scores = nullptr;
  int64_t columns = 0;  // at least every count
  int32_t m = 0;
  int32_t heads = 0;
  int32_t width = 128;
  DType key_dtype = DType::kBf16;  // kF32, kBf16, or kF8E4m3: quant::fp8_index_key rows
  int32_t unscored_count = 0;  // tokens with at most so many entries keep all: nothing is written
  DeviceSelection selection;
  int32_t num_units = 0;      // streaming multiprocessors
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
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
  // Rows of at most k scores are not written: their plan did (DevicePlanArgs::selected).
  bool skips_short_rows = false;
  bool is_dependent = false;  // launch as a programmatic dependent of the stream's last kernel
};

// --- between the products of the experts ---

// Rows in every form asked for.   x: [m, k] bf16 or sums [splits, m, k]
struct DeviceQuantizeArgs {
  const void* x_bf16 = nullptr;
  DeviceSums x_sums;  // without x_bf16
  int32_t m = 0;
  int64_t k = 0;
  ActivationForms y;
  bool is_dependent = false;
};

// --- MTP, head and sampling ---

// y = rms_norm(x) * gamma in every form asked for.   x: [m, k] f32
struct DeviceRmsNormArgs {
  const float* x = nullptr;
  int32_t m = 0;
  int64_t k = 0;
  const float* gamma = nullptr;  // null: 1
  float eps = 0;
  ActivationForms y;
  bool is_dependent = false;
};

// streams[t, c, :] = embedded[t, :] + projected[t * M + c, :].
struct DeviceJoinMtpArgs {
  DeviceSums embedded;   // [splits, m, D]
  DeviceSums projected;  // [splits, m * M, D]
  int32_t m = 0;
  int64_t hidden = 0;
  int32_t hc_mult = 0;
  float* streams = nullptr;  // [m, M * D]
  bool is_dependent = false;
};

// One token per row of logits: steps 4 to 9 of engine/sampler.h. A row with a temperature below
// 1e-5 takes the largest logit, the lowest id on ties.
struct DeviceSampleArgs {
  static constexpr int32_t kNotFinite = -1;
  static constexpr int32_t kAllEqual = -2;

  DeviceSums logits;  // [splits, m, V]
  int32_t m = 0;
  int64_t vocab = 0;
  const float* temperatures = nullptr;  // [m]; null: 0
  const int32_t* top_k = nullptr;       // [m] 0: all; null: all
  const float* top_p = nullptr;         // [m]; null: 1
  const float* min_p = nullptr;         // [m]; null: 0
  const uint64_t* seeds = nullptr;      // [m]; with temperatures
  const uint64_t* draws = nullptr;      // [m] position in the output; with temperatures
  int32_t* ids = nullptr;               // [m] inside the vocabulary, whatever the logits are
  // [m] the id; kNotFinite or kAllEqual where the logits are so; null: not wanted
  int32_t* outcomes = nullptr;
  // sample_workspace_bytes(m, vocab), zeros before the first launch; launches leave it reusable.
  std::byte* workspace = nullptr;
  bool is_dependent = false;
};
int64_t sample_workspace_bytes(int32_t m, int64_t vocab);

}  // namespace nibble::kernels
