#include "models/deepseek_v4/gpu/workspace.h"

#include <algorithm>

#include "base/checked_math.h"
#include "models/deepseek_v4/slot_table.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using layers::DeviceExperts;
using layers::DeviceLinear;
using layers::FormSet;

// Indexer scores of one launch; steps with more candidates than fit are scored some rows at a time.
constexpr int64_t kScoreBytes = int64_t{256} << 20;

// Calls visit(block) for every block, that of the MTP layer too.
template <class Visit>
void for_each_block(const Weights& weights, Visit&& visit) {
  for (const BlockWeights& block : weights.layers) visit(block);
  if (weights.mtp) visit(weights.mtp->block);
}

// What the readers of one matrix of activations need.
struct Readers {
  FormSet forms;
  int64_t block_rows = 0;

  void add(const DeviceLinear& linear, int64_t rows) {
    if (linear.routes().empty()) return;
    forms.add(linear.forms(rows));
    block_rows = std::max(block_rows, linear.max_block_rows(rows));
  }
  void add(const DeviceExperts& experts, int64_t tokens) { forms.add(experts.forms(tokens)); }
};

int64_t sums_of(const DeviceLinear& linear, int64_t rows) {
  return linear.routes().empty() ? 0 : linear.max_sums(rows);
}

// The most that one of the layers' linears needs.
template <class Pick>
int64_t most_sums(const Weights& weights, int64_t rows, Pick&& pick) {
  int64_t most = 0;
  for_each_block(weights, [&](const BlockWeights& block) {
    most = std::max(most, sums_of(pick(block), rows));
  });
  return most;
}

// Candidates of the parts of long rows: enough for every kernel.
int64_t top_k_bytes(int64_t rows, int64_t k, int64_t columns) {
  constexpr int64_t kMaxParts = 16;
  constexpr int64_t kShortRow = 16384;
  return columns <= kShortRow ? 256 : rows * kMaxParts * k * 8;
}

// Pairs in all slots, the unused places of each expert's last one too.
int64_t max_slot_pairs(const Config& config, const Weights& weights, int64_t pairs) {
  int64_t rows = 1;
  for_each_block(weights, [&](const BlockWeights& block) {
    rows = std::max<int64_t>({rows, block.moe.w13.max_slot_rows(), block.moe.w2.max_slot_rows()});
  });
  return std::min<int64_t>(pairs, config.n_routed_experts) * rows + pairs;
}

}  // namespace

int32_t head_rows(const StateOptions& options) {
  return std::max(std::min(options.max_tokens_per_pass, 64), 2 * options.num_slots);
}

int32_t mixer_parts(const Config& config) {
  return static_cast<int32_t>(std::clamp<int64_t>(config.hidden_size / 64, 1, 64));
}

// Hands out memory piece by piece. Without memory it only measures.
class Workspace::Arena final {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(bytes(count * int64_t{sizeof(T)}));
  }
  void* bf16(int64_t count) { return bytes(count * 2); }
  void* bytes(int64_t count) {
    constexpr int64_t kAlignment = 256;
    const int64_t begin = used_;
    used_ += round_up(count, kAlignment);
    peak_ = std::max(peak_, used_);
    return base_ == nullptr ? nullptr : base_ + begin;
  }
  kernels::ActivationForms forms(const Readers& readers, int64_t rows, int64_t k) {
    using kernels::ActivationForm;
    kernels::ActivationForms forms;
    if (readers.forms.has(ActivationForm::kF32)) forms.f32 = take<float>(rows * k);
    if (readers.forms.has(ActivationForm::kBf16)) forms.bf16 = bf16(rows * k);
    if (readers.forms.has(ActivationForm::kFp8Rows)) {
      forms.fp8 = take<std::byte>(rows * k);
      forms.fp8_scales = take<float>(rows * (k / 128));
    }
    if (readers.forms.has(ActivationForm::kFp8Blocks)) {
      forms.fp8_blocks = take<std::byte>(k / 128 * kernels::fp8_block_bytes(readers.block_rows));
    }
    return forms;
  }

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
                                  const Weights& weights,
                                  const StateOptions& options,
                                  device::Device& device) {
  Workspace workspace;
  Arena measure(nullptr);
  workspace.lay_out(config, weights, options, measure);
  TRY_ASSIGN(workspace.storage, device.allocate(measure.peak()));
  Arena arena(workspace.storage.data());
  workspace.lay_out(config, weights, options, arena);
  return workspace;
}

namespace {

// Rows of the largest step: a decode bucket may have more rows than a pass has tokens.
int64_t max_rows(const StateOptions& options) {
  return std::max(options.max_tokens_per_pass, 2 * options.num_slots);
}

}  // namespace

void Workspace::lay_out(const Config& config,
                        const Weights& weights,
                        const StateOptions& options,
                        Arena& arena) {
  const int64_t rows = max_rows(options);
  const int64_t width = config.hidden_size;
  const int64_t mult = config.hc_mult;
  const int64_t pages = ceil_div(options.max_context, kPageSize);
  max_rows_128 = static_cast<int32_t>(std::max(options.max_context / 128, 1));
  key_rows = arena.take<int32_t>(rows);
  window_rows = arena.take<int32_t>(rows * config.sliding_window);
  window_counts = arena.take<int32_t>(rows);
  token_pages = arena.take<int32_t>(rows * pages);
  counts_4 = arena.take<int32_t>(rows);
  selected_counts = arena.take<int32_t>(rows);
  counts_128 = arena.take<int32_t>(rows);
  rows_128 = arena.take<int32_t>(rows * max_rows_128);

  streams = arena.take<float>(rows * mult * width);
  partials = arena.take<float>(rows * mixer_parts(config) * (2 * mult + mult * mult + 1));
  post = arena.take<float>(rows * mult);
  comb = arena.take<float>(rows * mult * mult);
  Readers of_x;
  for_each_block(weights, [&](const BlockWeights& block) {
    of_x.add(block.attention.wqa_wkv, rows);
    of_x.add(block.attention.compressor_projections, rows);
    of_x.add(block.moe.gate, rows);
    of_x.add(block.moe.shared_w13, rows);
    of_x.add(block.moe.w13, rows);
  });
  if (weights.mtp) of_x.add(weights.mtp->e_proj, rows);
  x = arena.forms(of_x, rows, width);

  const int64_t logit_rows = head_rows(options);
  Readers of_hidden;
  of_hidden.add(weights.lm_head, logit_rows);
  hidden = arena.forms(of_hidden, logit_rows, width);
  logit_sums = arena.take<float>(weights.lm_head.max_sums(logit_rows));
  logits = arena.take<float>(logit_rows * config.vocab_size);

  if (weights.mtp) {
    mtp_streams = arena.take<float>(rows * mult * width);
    mtp_embedded = arena.take<float>(rows * width);
    Readers of_streams;
    of_streams.add(weights.mtp->h_proj, rows * mult);
    mtp_normed = arena.forms(of_streams, rows * mult, width);
    mtp_e_sums = arena.take<float>(weights.mtp->e_proj.max_sums(rows));
    mtp_h_sums = arena.take<float>(weights.mtp->h_proj.max_sums(rows * mult));
  }

  const int64_t block = arena.mark();
  lay_out_attention(config, weights, options, arena);
  arena.rewind(block);
  lay_out_experts(config, weights, options, arena);
}

void Workspace::lay_out_attention(const Config& config,
                                  const Weights& weights,
                                  const StateOptions& options,
                                  Arena& arena) {
  const int64_t rows = max_rows(options);
  const int64_t heads_width = int64_t{config.num_attention_heads} * config.head_dim;
  const int64_t index_width = int64_t{config.index_n_heads} * config.index_head_dim;
  const int64_t z_width = int64_t{config.o_groups} * config.o_lora_rank;
  Readers of_latent, of_heads, of_z;
  for_each_block(weights, [&](const BlockWeights& block) {
    of_latent.add(block.attention.wq_b, rows);
    of_latent.add(block.attention.index_wq_b, rows);
    of_heads.add(block.attention.wo_a, rows);
    of_z.add(block.attention.wo_b, rows);
  });
  const auto sums = [&](auto&& pick) { return arena.take<float>(most_sums(weights, rows, pick)); };
  qr_kv = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.attention.wqa_wkv; });
  q_latent = arena.forms(of_latent, rows, config.q_lora_rank);
  projections = sums([](const BlockWeights& b) -> const DeviceLinear& {
    return b.attention.compressor_projections;
  });
  q_sums = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.attention.wq_b; });
  q = arena.bf16(rows * heads_width);
  index_sums =
      sums([](const BlockWeights& b) -> const DeviceLinear& { return b.attention.index_wq_b; });
  index_q = arena.bf16(rows * index_width);
  head_weights = arena.take<float>(rows * config.index_n_heads);
  score_columns = round_up(std::max<int64_t>(options.max_context / 4, 1), int64_t{64});
  score_rows = static_cast<int32_t>(
      std::clamp<int64_t>(kScoreBytes / (score_columns * int64_t{sizeof(float)}), 1, rows));
  scores = arena.take<float>(score_rows * score_columns);
  selected = arena.take<int32_t>(rows * config.index_topk);
  imposed_counts = arena.take<int32_t>(rows);
  top_k = arena.take<std::byte>(top_k_bytes(score_rows, config.index_topk, score_columns));
  attended = arena.bf16(rows * heads_width);
  heads = arena.forms(of_heads, rows, heads_width);
  z_sums = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.attention.wo_a; });
  z = arena.forms(of_z, rows, z_width);
  y = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.attention.wo_b; });
}

void Workspace::lay_out_experts(const Config& config,
                                const Weights& weights,
                                const StateOptions& options,
                                Arena& arena) {
  const int64_t rows = max_rows(options);
  const int64_t pairs_count = rows * config.num_experts_per_tok;
  const int64_t intermediate = config.moe_intermediate_size;
  Readers of_shared, of_activated;
  of_activated.forms.add(kernels::ActivationForm::kBf16);
  for_each_block(weights, [&](const BlockWeights& block) {
    of_shared.add(block.moe.shared_w2, rows);
    of_activated.add(block.moe.w2, rows);
  });
  const auto sums = [&](auto&& pick) { return arena.take<float>(most_sums(weights, rows, pick)); };
  router = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.moe.gate; });
  expert_ids = arena.take<int32_t>(pairs_count);
  expert_weights = arena.take<float>(pairs_count);
  for (Slots& list : slots) {
    list.count = arena.take<int32_t>(1);
    // At most a slot per pair, and then for its rows: max_slots() of every size.
    list.experts = arena.take<int32_t>(pairs_count);
    list.pairs = arena.take<int32_t>(max_slot_pairs(config, weights, pairs_count));
  }
  shared_sums = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.moe.shared_w13; });
  shared = arena.forms(of_shared, rows, intermediate * config.n_shared_experts);
  shared_y = sums([](const BlockWeights& b) -> const DeviceLinear& { return b.moe.shared_w2; });
  activated = arena.forms(of_activated, pairs_count, intermediate);
  pairs = arena.take<float>(pairs_count * config.hidden_size);
}

}  // namespace nibble::models::deepseek_v4::gpu
