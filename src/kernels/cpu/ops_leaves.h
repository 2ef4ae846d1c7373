// The inner routines of the ops without weights: raw pointers, one thread, one instruction set.
// Each wide instruction set fills one OpLeaves; ops_launch.h turns it into launchers by checking
// nothing, cutting the work into tasks and handing them to the pool.
//
// Every output element depends only on its own inputs and on the instruction set: which tokens,
// heads or channels share a call changes no bit.
#pragma once

#include <cstdint>

namespace nibble::kernels::cpu {

// How a key row becomes f32.
enum class KeyStorage : uint8_t { kF32, kBf16, kFp8Key, kFp8IndexKey };
struct KeyRows {
  KeyStorage storage = KeyStorage::kF32;
  int64_t row_bytes = 0;
  int64_t num_codes = 0;  // kFp8Key: quant::Fp8KeyLayout
};

// Query heads of one token that attend over one list of keys: window rows first, then entries.
struct AttentionTask {
  const float* q = nullptr;     // [heads, d]
  const float* sink = nullptr;  // [heads]
  int64_t heads = 0;
  int64_t d = 0;  // at most kMaxKeyWidth
  float scale = 0;
  KeyRows key_rows = {};  // of both pools
  const void* window = nullptr;
  const int32_t* window_rows = nullptr;
  int64_t num_window = 0;
  const void* entries = nullptr;
  const int32_t* entry_rows = nullptr;
  int64_t num_entries = 0;
  float* out = nullptr;  // [heads, d]
};

// Scores of one token for the entries [begin, end) of a sequence.
struct IndexerTask {
  const float* q = nullptr;             // [heads, d]
  const float* head_weights = nullptr;  // [heads]
  int64_t heads = 0;
  int64_t d = 0;  // at most kMaxKeyWidth
  const void* base = nullptr;
  KeyRows key_rows = {};
  const int32_t* pages = nullptr;
  int64_t entries_per_page = 0;
  int64_t begin = 0;  // a multiple of kEntryAlignment
  int64_t end = 0;
  float* scores = nullptr;  // indexed by entry
};

// Rotation of the last 2 * num_freqs elements of each head of one token.
struct RopeTask {
  float* x = nullptr;  // [heads, d]
  int64_t heads = 0;
  int64_t d = 0;
  float position = 0;
  const float* freqs = nullptr;
  int64_t num_freqs = 0;
  bool inverse = false;
};

// mix[t, j] = state[t, :] . fn[j, :] for j in [row_begin, row_end).
struct HyperMixTask {
  const float* state = nullptr;
  int64_t state_stride = 0;
  int64_t num_tokens = 0;
  const float* fn = nullptr;
  int64_t width = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  float* mix = nullptr;
  int64_t mix_stride = 0;
};

// What turns the mixing products of one token into its stream weights.
struct HyperSplit {
  const float* base = nullptr;
  const float* scale = nullptr;
  int64_t mult = 0;  // at most kMaxHyperStreams
  int32_t sinkhorn_iters = 0;
  float hc_eps = 0;
  float norm_eps = 0;
  int64_t d = 0;
};

struct OpLeaves {
  void (*attend)(const AttentionTask& task);
  void (*indexer_scores)(const IndexerTask& task);
  // The k best of `count` scores, k < count, ascending indices.
  void (*top_k)(const float* scores, int64_t count, int64_t k, int32_t* indices);
  void (*rms_norm)(const float* x, const float* gamma, float eps, int64_t k, float* y);
  void (*rope)(const RopeTask& task);
  void (*hyper_mix)(const HyperMixTask& task);
  // mix: as hyper_mix left it, [(2 + mult) * mult].   x: [d]; post: [mult]; comb: [mult, mult]
  void (*hyper_pre)(const HyperSplit& split,
                    const float* state,
                    const float* mix,
                    float* x,
                    float* post,
                    float* comb);
  void (*hyper_post)(
      const float* y, const float* post, const float* comb, int64_t mult, int64_t d, float* state);
  // mix: [mult]
  void (*hyper_head)(const HyperSplit& split, const float* state, const float* mix, float* x);
  // Channels [begin, end) of one entry; null rows are skipped.
  void (*compress)(const float* const* values,
                   const float* const* gates,
                   int64_t num_slots,
                   int64_t begin,
                   int64_t end,
                   float* out);
  // scores[e] = sqrt(softplus(logits[e])).
  void (*expert_scores)(const float* logits, int64_t n, float* scores);
  // x: [2 * width]; limit > 0, possibly infinite.
  void (*swiglu)(const float* x, int64_t width, float limit, float weight, float* y);
  // y[i] = shared[i] + sum_j experts[j * stride + i], in order of j.
  void (*combine)(const float* shared,
                  const float* experts,
                  int64_t stride,
                  int64_t count,
                  int64_t width,
                  float* y);
  void (*widen_bf16)(const uint16_t* x, int64_t n, float* y);
  void (*widen_f16)(const uint16_t* x, int64_t n, float* y);
};

// Width of a key that fits the stack scratch into which keys are widened.
inline constexpr int64_t kMaxKeyWidth = 1024;
// Streams of hyper-connections, and their mixing rows 2 M + M^2, that fit the stack scratch.
inline constexpr int64_t kMaxHyperStreams = 8;
inline constexpr int64_t kMaxMixRows = (2 + kMaxHyperStreams) * kMaxHyperStreams;
// Experts whose scores fit the stack scratch.
inline constexpr int64_t kMaxExperts = 1024;
// Indexer tasks start at multiples of this, so that the blocks of keys are the same for every
// split.
inline constexpr int64_t kEntryAlignment = 16;

}  // namespace nibble::kernels::cpu
