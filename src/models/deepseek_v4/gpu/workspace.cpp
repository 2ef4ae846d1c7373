#include "models/deepseek_v4/gpu/workspace.h"

#include <algorithm>
#include <array>

#include "base/checked_math.h"
#include "models/deepseek_v4/slot_table.h"
#include "models/deepseek_v4/state.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::ActivationForm;
using layers::DeviceExperts;
using layers::DeviceLinear;
using layers::FormSet;

// Indexer scores of one launch; steps with more candidates than fit are scored some rows at a time.
constexpr int64_t kScoreBytes = int64_t{256} << 20;

// Rows of the largest step: a decode bucket may have more rows than a pass has tokens.
int64_t max_rows(const StateOptions& options) {
  return std::max(options.max_tokens_per_pass, 2 * options.num_slots);
}

// Calls visit(block) for every block, that of the MTP layer too.
template <class Visit>
void for_each_block(const Weights& weights, Visit&& visit) {
  for (const BlockWeights& block : weights.layers) visit(block);
  if (weights.mtp) visit(weights.mtp->block);
}

// Forms whose rows lie in blocks.
constexpr std::array kBlockForms = {
    ActivationForm::kFp8Blocks, ActivationForm::kBf16Blocks, ActivationForm::kBf16Terms};

// What the readers of one matrix of activations need.
struct Readers {
  FormSet forms;
  std::array<int64_t, 3> block_rows = {};  // as kBlockForms

  void add(const DeviceLinear& linear, int64_t rows) {
    if (linear.routes().empty()) return;
    forms.add(linear.forms(rows));
    for (size_t i = 0; i < block_rows.size(); ++i) {
      block_rows[i] = std::max(block_rows[i], linear.max_rows_in(kBlockForms[i], rows));
    }
  }
  void add(const DeviceExperts& experts, int64_t tokens) { forms.add(experts.forms(tokens)); }
};

// f32 values of the sums of one product in all layers.
void add_sums(int64_t& sums, const DeviceLinear& linear, int64_t rows) {
  if (!linear.routes().empty()) sums = std::max(sums, linear.max_sums(rows));
}

void add_pair_sums(const std::array<int64_t*, 2>& sums,
                   const DeviceLinear& first,
                   const DeviceLinear& second,
                   const kernels::Route* pair,
                   int64_t rows) {
  const std::array<int64_t, 2> needed = first.max_pair_sums(second, pair, rows);
  for (size_t i = 0; i < needed.size(); ++i) *sums[i] = std::max(*sums[i], needed[i]);
}

// Candidates of the parts of long rows: enough for every kernel.
int64_t top_k_bytes(int64_t rows, int64_t k, int64_t columns) {
  constexpr int64_t kMaxParts = 16;
  constexpr int64_t kShortRow = 16384;
  return columns <= kShortRow ? 256 : rows * kMaxParts * k * 8;
}

}  // namespace

// What the products ask for, of one layer or another.
struct Workspace::Needs {
  bool has_mtp = false;
  Readers x, q_latent, heads, z, shared, activated, hidden, mtp_normed;
  int64_t qr_kv = 0, projections = 0, q = 0, index_q = 0, z_sums = 0, y = 0;
  int64_t router = 0, shared_w13 = 0, shared_y = 0, logits = 0, mtp_e = 0, mtp_h = 0;
  int64_t slot_rows = 1;  // pairs per slot, at most

  static Needs of(const Config& config,
                  const Weights& weights,
                  const Ops& ops,
                  const StateOptions& options) {
    const int64_t rows = max_rows(options);
    Needs needs;
    needs.has_mtp = weights.mtp.has_value();
    needs.activated.forms.add(ActivationForm::kBf16);
    for_each_block(weights, [&](const BlockWeights& block) {
      needs.add(block.attention, ops, rows);
      needs.add(block.moe, ops, rows);
    });
    needs.hidden.add(weights.lm_head, head_rows(options));
    add_sums(needs.logits, weights.lm_head, head_rows(options));
    if (!weights.mtp) return needs;
    needs.x.add(weights.mtp->e_proj, rows);
    add_sums(needs.mtp_e, weights.mtp->e_proj, rows);
    needs.mtp_normed.add(weights.mtp->h_proj, rows * config.hc_mult);
    add_sums(needs.mtp_h, weights.mtp->h_proj, rows * config.hc_mult);
    return needs;
  }

 private:
  void add(const AttentionWeights& weights, const Ops& ops, int64_t rows) {
    const kernels::Route* const pair = ops.pair();
    x.add(weights.wqa_wkv, rows);
    x.add(weights.compressor_projections, rows);
    q_latent.add(weights.wq_b, rows);
    q_latent.add(weights.index_wq_b, rows);
    heads.add(weights.wo_a, rows);
    z.add(weights.wo_b, rows);
    add_sums(qr_kv, weights.wqa_wkv, rows);
    add_sums(projections, weights.compressor_projections, rows);
    add_pair_sums(
        {&qr_kv, &projections}, weights.wqa_wkv, weights.compressor_projections, pair, rows);
    add_sums(q, weights.wq_b, rows);
    add_sums(index_q, weights.index_wq_b, rows);
    add_pair_sums({&q, &index_q}, weights.wq_b, weights.index_wq_b, pair, rows);
    add_sums(z_sums, weights.wo_a, rows);
    add_sums(y, weights.wo_b, rows);
  }
  void add(const MoeWeights& weights, const Ops& ops, int64_t rows) {
    x.add(weights.gate, rows);
    x.add(weights.shared_w13, rows);
    x.add(weights.w13, rows);
    shared.add(weights.shared_w2, rows);
    activated.add(weights.w2, rows);
    add_sums(router, weights.gate, rows);
    add_sums(shared_w13, weights.shared_w13, rows);
    add_pair_sums({&shared_w13, &router}, weights.shared_w13, weights.gate, ops.pair(), rows);
    add_sums(shared_y, weights.shared_w2, rows);
    slot_rows =
        std::max<int64_t>({slot_rows, weights.w13.max_slot_rows(), weights.w2.max_slot_rows()});
  }
};

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
    kernels::ActivationForms forms;
    if (readers.forms.has(ActivationForm::kF32)) forms.f32 = take<float>(rows * k);
    if (readers.forms.has(ActivationForm::kBf16)) forms.bf16 = bf16(rows * k);
    if (readers.forms.has(ActivationForm::kFp8Rows)) {
      forms.fp8 = take<std::byte>(rows * k);
      forms.fp8_scales = take<float>(rows * (k / 128));
    }
    if (readers.forms.has(ActivationForm::kFp8Blocks)) {
      forms.fp8_blocks = take<std::byte>(kernels::fp8_blocks_bytes(readers.block_rows[0], k));
    }
    if (readers.forms.has(ActivationForm::kBf16Blocks)) {
      forms.bf16_blocks = take<std::byte>(kernels::bf16_blocks_bytes(readers.block_rows[1], k, 1));
    }
    if (readers.forms.has(ActivationForm::kBf16Terms)) {
      forms.bf16_terms = take<std::byte>(
          kernels::bf16_blocks_bytes(readers.block_rows[2], k, kernels::kBf16Terms));
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
                                  const Ops& ops,
                                  const StateOptions& options,
                                  device::Device& device) {
  const Needs needs = Needs::of(config, weights, ops, options);
  Workspace workspace;
  Arena measure(nullptr);
  workspace.lay_out(config, options, needs, measure);
  TRY_ASSIGN(workspace.storage, device.allocate(measure.peak()));
  Arena arena(workspace.storage.data());
  workspace.lay_out(config, options, needs, arena);
  return workspace;
}

int64_t Workspace::num_bytes(const Config& config,
                             const Weights& weights,
                             const Ops& ops,
                             const StateOptions& options) {
  Workspace workspace;
  Arena measure(nullptr);
  workspace.lay_out(config, options, Needs::of(config, weights, ops, options), measure);
  return measure.peak();
}

void Workspace::lay_out(const Config& config,
                        const StateOptions& options,
                        const Needs& needs,
                        Arena& arena) {
  const int64_t rows = max_rows(options);
  const int64_t width = config.hidden_size;
  const int64_t mult = config.hc_mult;
  const int64_t pages = ceil_div(options.max_context, kPageSize);
  max_rows_128 = static_cast<int32_t>(std::max(options.max_context / 128, 1));
  key_rows = arena.take<int32_t>(rows);
  window_rows = arena.take<int32_t>(rows * config.sliding_window);
  window_counts = arena.take<int32_t>(rows);
  window_ready = arena.take<int32_t>(rows);
  token_pages = arena.take<int32_t>(rows * pages);
  counts_4 = arena.take<int32_t>(rows);
  selected_counts = arena.take<int32_t>(rows);
  selected = arena.take<int32_t>(rows * config.index_topk);
  ready_4 = arena.take<int32_t>(rows);
  counts_128 = arena.take<int32_t>(rows);
  ready_128 = arena.take<int32_t>(rows);
  rows_128 = arena.take<int32_t>(rows * max_rows_128);
  no_counts = arena.take<int32_t>(rows);  // devices give zeros

  streams = arena.take<float>(rows * mult * width);
  partials = arena.take<float>(rows * mixer_parts(config) * (2 * mult + mult * mult + 1));
  post = arena.take<float>(rows * mult);
  comb = arena.take<float>(rows * mult * mult);
  x = arena.forms(needs.x, rows, width);
  expert_counters = arena.take<int32_t>(kernels::kMaxRowSlots + 1);  // devices give zeros
  slot_arrivals = arena.take<int32_t>(1);
  select_counters = arena.take<int32_t>(rows);  // devices give zeros

  const int64_t logit_rows = head_rows(options);
  hidden = arena.forms(needs.hidden, logit_rows, width);
  logit_sums = arena.take<float>(needs.logits);
  logits = arena.take<float>(logit_rows * config.vocab_size);
  sampled = arena.take<int32_t>(logit_rows);
  outcomes = arena.take<int32_t>(logit_rows);
  sample = arena.take<std::byte>(
      kernels::sample_workspace_bytes(static_cast<int32_t>(logit_rows), config.vocab_size));
  if (needs.has_mtp) {
    mtp_streams = arena.take<float>(rows * mult * width);
    mtp_embedded = arena.take<float>(rows * width);
    mtp_normed = arena.forms(needs.mtp_normed, rows * mult, width);
    mtp_e_sums = arena.take<float>(needs.mtp_e);
    mtp_h_sums = arena.take<float>(needs.mtp_h);
  }

  const int64_t block = arena.mark();
  lay_out_attention(config, options, needs, arena);
  arena.rewind(block);
  lay_out_experts(config, options, needs, arena);
}

void Workspace::lay_out_attention(const Config& config,
                                  const StateOptions& options,
                                  const Needs& needs,
                                  Arena& arena) {
  const int64_t rows = max_rows(options);
  const int64_t heads_width = int64_t{config.num_attention_heads} * config.head_dim;
  const int64_t index_width = int64_t{config.index_n_heads} * config.index_head_dim;
  qr_kv = arena.take<float>(needs.qr_kv);
  q_latent = arena.forms(needs.q_latent, rows, config.q_lora_rank);
  projections = arena.take<float>(needs.projections);
  q_sums = arena.take<float>(needs.q);
  q = arena.bf16(rows * heads_width);
  index_sums = arena.take<float>(needs.index_q);
  index_q = arena.bf16(rows * index_width);
  head_weights = arena.take<float>(rows * config.index_n_heads);
  score_columns = round_up(std::max<int64_t>(options.max_context / 4, 1), int64_t{64});
  score_rows = static_cast<int32_t>(
      std::clamp<int64_t>(kScoreBytes / (score_columns * int64_t{sizeof(float)}), 1, rows));
  scores = arena.take<float>(score_rows * score_columns);
  imposed_counts = arena.take<int32_t>(rows);
  top_k = arena.take<std::byte>(top_k_bytes(score_rows, config.index_topk, score_columns));
  attended = arena.bf16(rows * heads_width);
  heads = arena.forms(needs.heads, rows, heads_width);
  z_sums = arena.take<float>(needs.z_sums);
  z = arena.forms(needs.z, rows, int64_t{config.o_groups} * config.o_lora_rank);
  y = arena.take<float>(needs.y);
}

void Workspace::lay_out_experts(const Config& config,
                                const StateOptions& options,
                                const Needs& needs,
                                Arena& arena) {
  const int64_t rows = max_rows(options);
  const int64_t num_pairs = rows * config.num_experts_per_tok;
  const int64_t intermediate = config.moe_intermediate_size;
  // The last slot of every expert may have unused places.
  const int64_t slot_pairs =
      std::min<int64_t>(num_pairs, config.n_routed_experts) * needs.slot_rows + num_pairs;
  router = arena.take<float>(needs.router);
  expert_ids = arena.take<int32_t>(num_pairs);
  expert_weights = arena.take<float>(num_pairs);
  for (Slots& list : slots) {
    list.count = arena.take<int32_t>(1);
    list.experts = arena.take<int32_t>(num_pairs);
    list.pairs = arena.take<int32_t>(slot_pairs);
  }
  shared_sums = arena.take<float>(needs.shared_w13);
  shared = arena.forms(needs.shared, rows, intermediate * config.n_shared_experts);
  shared_y = arena.take<float>(needs.shared_y);
  activated = arena.forms(needs.activated, num_pairs, intermediate);
  pairs = arena.take<float>(num_pairs * config.hidden_size);
}

}  // namespace nibble::models::deepseek_v4::gpu
