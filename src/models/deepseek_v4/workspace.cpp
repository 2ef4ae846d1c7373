#include "models/deepseek_v4/workspace.h"

#include <algorithm>

#include "base/checked_math.h"
#include "models/deepseek_v4/state.h"

namespace nibble::models::deepseek_v4 {
namespace {

// Indexer scores of one launch; passes with more candidates than fit are scored some tokens at a
// time.
constexpr int64_t kScoreBytes = int64_t{16} << 20;

}  // namespace

// Hands out views one after the other. Without memory it only measures.
class Workspace::Arena final {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  TensorView take(DType dtype, Shape shape) {
    const TensorView view =
        TensorView::contiguous(base_ == nullptr ? nullptr : base_ + used_, dtype, shape);
    used_ += round_up(view.num_bytes(), 64);
    peak_ = std::max(peak_, used_);
    return view;
  }
  TensorView f32(int64_t rows, int64_t columns) { return take(DType::kF32, {rows, columns}); }

  int64_t mark() const { return used_; }
  // What was taken since `mark` may be overlaid by what comes next.
  void rewind(int64_t mark) { used_ = mark; }
  int64_t peak() const { return peak_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

Result<Workspace> Workspace::make(const Config& config,
                                  bool has_mtp,
                                  const StateOptions& options,
                                  device::Device& device) {
  Workspace workspace;
  TRY_ASSIGN(workspace.storage, reserve(device, num_bytes(config, has_mtp, options), options));
  Arena arena(workspace.storage.data());
  workspace.lay_out(config, has_mtp, options, arena);
  workspace.reserve_lists(config, options);
  return workspace;
}

int64_t Workspace::num_bytes(const Config& config, bool has_mtp, const StateOptions& options) {
  Workspace workspace;
  Arena measure(nullptr);
  workspace.lay_out(config, has_mtp, options, measure);
  return measure.peak();
}

void Workspace::lay_out(const Config& config,
                        bool has_mtp,
                        const StateOptions& options,
                        Arena& arena) {
  const int64_t tokens = options.max_tokens_per_pass;
  const int64_t hidden = config.hidden_size;
  const int64_t width = hidden * config.hc_mult;
  streams = arena.f32(tokens, width);
  x = arena.f32(tokens, hidden);
  x_quantized = arena.f32(tokens, hidden);
  y = arena.f32(tokens, hidden);
  post = arena.f32(tokens, config.hc_mult);
  comb = arena.f32(tokens, int64_t{config.hc_mult} * config.hc_mult);
  head_streams = arena.f32(tokens, width);
  head_hidden = arena.f32(tokens, hidden);
  logits = arena.f32(tokens, config.vocab_size);
  if (has_mtp) {
    mtp_streams = arena.f32(tokens, width);
    mtp_hidden = arena.f32(tokens, hidden);
    mtp_projected = arena.f32(tokens * config.hc_mult, hidden);
    mtp_logits = arena.f32(tokens, config.vocab_size);
  }

  const int64_t block = arena.mark();
  const int64_t head = config.head_dim;
  const int64_t candidates = std::max<int64_t>(options.max_context / 4, 1);
  const int64_t score_rows =
      std::clamp<int64_t>(kScoreBytes / (candidates * int64_t{sizeof(float)}), 1, tokens);
  qr_kv = arena.f32(tokens, config.q_lora_rank + head);
  q = arena.f32(tokens, config.num_attention_heads * head);
  attended = arena.f32(tokens, config.num_attention_heads * head);
  z = arena.f32(tokens, int64_t{config.o_groups} * config.o_lora_rank);
  projections = arena.f32(tokens,
                          std::max(compressor_row_width(config, 4) + config.index_n_heads,
                                   compressor_row_width(config, 128)));
  new_entries =
      arena.f32(tokens / 4 + options.num_slots, std::max<int64_t>(head, config.index_head_dim));
  index_q = arena.f32(tokens, int64_t{config.index_n_heads} * config.index_head_dim);
  index_scores = arena.f32(score_rows, candidates);
  selected = arena.take(DType::kI32, {tokens, config.index_topk});

  arena.rewind(block);
  const int64_t slots = tokens * config.num_experts_per_tok;
  const int64_t intermediate = config.moe_intermediate_size;
  const int64_t shared = intermediate * config.n_shared_experts;
  router_logits = arena.f32(tokens, config.n_routed_experts);
  expert_ids = arena.take(DType::kI32, {tokens, config.num_experts_per_tok});
  expert_weights = arena.f32(tokens, config.num_experts_per_tok);
  gate_up = arena.f32(slots, 2 * intermediate);
  activated = arena.f32(slots, intermediate);
  expert_out = arena.f32(slots, hidden);
  shared_gate_up = arena.f32(tokens, 2 * shared);
  shared_activated = arena.f32(tokens, shared);
}

void Workspace::reserve_lists(const Config& config, const StateOptions& options) {
  const auto tokens = static_cast<size_t>(options.max_tokens_per_pass);
  const auto sequences = static_cast<size_t>(options.num_slots);
  const auto experts = static_cast<size_t>(config.n_routed_experts);
  const size_t slots = tokens * static_cast<size_t>(config.num_experts_per_tok);
  key_sets.resize(tokens);
  paged_rows.resize(tokens);
  candidate_counts.resize(tokens);
  num_selected.resize(tokens);
  score_selected.resize(tokens);
  // An entry of ratio 4 has 8 slots and one of ratio 128 has 128: both at most 2 per token, plus
  // one entry per sequence.
  const size_t pointers = 2 * tokens + 128 * sequences;
  compress_values.reserve(pointers);
  compress_gates.reserve(pointers);
  entry_positions.reserve(tokens / 4 + sequences);
  expert_offsets.resize(experts + 1);
  expert_in_rows.resize(slots);
  expert_slots.resize(slots);

  const int32_t capacity = config.sliding_window + kMaxAttentionChunk;
  window_rows.resize(2 * static_cast<size_t>(capacity));
  for (size_t i = 0; i < window_rows.size(); ++i) {
    window_rows[i] = static_cast<int32_t>(i) % capacity;
  }
}

}  // namespace nibble::models::deepseek_v4
