// Mixture of experts (spec 4): gate, choice, shared expert, routed experts grouped by expert.
#include <algorithm>
#include <span>

#include "models/deepseek_v4/decisions.h"
#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

// Overwrites the ids of positions that have replayed ones; true if there were any.
bool impose_replay(const Pass& pass, int32_t layer, const Batch& batch, const TensorView& ids) {
  if (pass.replay == nullptr) return false;
  bool any = false;
  for (int32_t row = 0; row < batch.num_tokens(); ++row) {
    const auto replayed =
        decision_at(pass.replay->expert_ids, layer, batch.positions[static_cast<size_t>(row)]);
    std::copy(replayed.begin(), replayed.end(), ids.row<int32_t>(row));
    any = any || !replayed.empty();
  }
  return any;
}

Result<void> choose_experts(Pass& pass,
                            const MoeWeights& weights,
                            int32_t layer,
                            const Batch& batch,
                            const TensorView& x,
                            const TensorView& ids,
                            const TensorView& expert_weights) {
  const TensorView logits = pass.workspace.router_logits.rows(0, batch.num_tokens());
  TRY(weights.gate.forward(x, logits, pass.stream));
  kernels::SelectExpertsArgs args{
      .logits = logits,
      .bias = weights.bias.data(),
      .token_to_experts =
          weights.token_to_experts.empty() ? nullptr : weights.token_to_experts.data(),
      .token_ids = batch.token_ids,
      .routed_scaling_factor = static_cast<float>(pass.config.routed_scaling_factor),
      .ids = ids,
      .weights = expert_weights};
  TRY(pass.ops.select_experts.launch(args, pass.stream));
  if (impose_replay(pass, layer, batch, ids)) {
    args.reuse_ids = true;
    TRY(pass.ops.select_experts.launch(args, pass.stream));
  }
  if (pass.record != nullptr) {
    for (int32_t row = 0; row < batch.num_tokens(); ++row) {
      record_decision(pass.record->expert_ids,
                      layer,
                      batch.positions[static_cast<size_t>(row)],
                      std::span(ids.row<int32_t>(row), static_cast<size_t>(ids.shape[1])));
    }
  }
  return {};
}

// Sorts the (token, choice) slots by expert: slot t * k + j reads token t's row.
struct ExpertRows {
  std::span<const int32_t> offsets;
  std::span<const int32_t> tokens;
  std::span<const int32_t> slots;
};
ExpertRows group_by_expert(const Pass& pass, std::span<const int32_t> ids) {
  Workspace& ws = pass.workspace;
  std::vector<int32_t>& offsets = ws.expert_offsets;
  std::fill(offsets.begin(), offsets.end(), 0);
  for (const int32_t id : ids) ++offsets[static_cast<size_t>(id) + 1];
  for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
  // Each expert's offset advances to its end while slots are placed; moving them up one place
  // restores the starts.
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const auto place = static_cast<size_t>(offsets[static_cast<size_t>(ids[slot])]++);
    ws.expert_slots[place] = static_cast<int32_t>(slot);
    ws.expert_in_rows[place] = static_cast<int32_t>(slot) / pass.config.num_experts_per_tok;
  }
  std::copy_backward(offsets.begin(), offsets.end() - 1, offsets.end());
  offsets.front() = 0;
  return {.offsets = offsets,
          .tokens = std::span(ws.expert_in_rows).first(ids.size()),
          .slots = std::span(ws.expert_slots).first(ids.size())};
}

Result<void> activate(Pass& pass,
                      const TensorView& gate_up,
                      const float* row_weights,
                      const TensorView& out) {
  pass.round(gate_up);
  TRY(pass.ops.swiglu.launch(
      kernels::SwigluArgs{.x = gate_up,
                          .limit = static_cast<float>(pass.config.swiglu_limit),
                          .row_weights = row_weights,
                          .y = out},
      pass.stream));
  pass.round(out);
  return {};
}

Result<void> run_shared(Pass& pass,
                        const MoeWeights& weights,
                        int32_t layer,
                        const Batch& batch,
                        const TensorView& x,
                        const TensorView& y) {
  const TensorView gate_up = pass.workspace.shared_gate_up.rows(0, x.num_rows());
  const TensorView activated = pass.workspace.shared_activated.rows(0, x.num_rows());
  const RoundingSite x_site{layer, RoundedInput::kShared, batch.positions};
  TRY(weights.shared_w13.forward(
      pass.quantized_copy(weights.shared_w13, x, x_site), gate_up, pass.stream));
  TRY(activate(pass, gate_up, nullptr, activated));
  pass.quantize_input(
      weights.shared_w2, activated, {layer, RoundedInput::kActivated, batch.positions});
  TRY(weights.shared_w2.forward(activated, y, pass.stream));
  pass.round(y);
  return {};
}

// out: [m * k, D], one row per slot, already weighted.
Result<void> run_routed(Pass& pass,
                        const MoeWeights& weights,
                        int32_t layer,
                        const Batch& batch,
                        const TensorView& x,
                        const TensorView& ids,
                        const TensorView& expert_weights,
                        const TensorView& out) {
  const int64_t slots = ids.shape.num_elements();
  const TensorView gate_up = pass.workspace.gate_up.rows(0, slots);
  const TensorView activated = pass.workspace.activated.rows(0, slots);
  const ExpertRows rows =
      group_by_expert(pass, std::span(ids.as<const int32_t>(), static_cast<size_t>(slots)));
  TRY(weights.w13.forward(
      pass.quantized_copy(weights.w13, x, {layer, RoundedInput::kExperts, batch.positions}),
      {.group_offsets = rows.offsets, .in_rows = rows.tokens, .out_rows = rows.slots},
      gate_up,
      pass.stream));
  TRY(activate(pass, gate_up, expert_weights.as<const float>(), activated));
  pass.quantize_input(weights.w2, activated, {layer, RoundedInput::kPairs, batch.positions});
  TRY(weights.w2.forward(
      activated,
      {.group_offsets = rows.offsets, .in_rows = rows.slots, .out_rows = rows.slots},
      out,
      pass.stream));
  pass.round(out);
  return {};
}

}  // namespace

Result<void> run_experts(Pass& pass,
                         const MoeWeights& weights,
                         int32_t layer,
                         const Batch& batch,
                         const TensorView& x,
                         const TensorView& y) {
  const int64_t tokens = batch.num_tokens();
  const int32_t k = pass.config.num_experts_per_tok;
  const TensorView ids = pass.workspace.expert_ids.rows(0, tokens);
  const TensorView expert_weights = pass.workspace.expert_weights.rows(0, tokens);
  const TensorView routed = pass.workspace.expert_out.rows(0, tokens * k);

  TRY(choose_experts(pass, weights, layer, batch, x, ids, expert_weights));
  TRY(run_shared(pass, weights, layer, batch, x, y));
  TRY(run_routed(pass, weights, layer, batch, x, ids, expert_weights, routed));
  TRY(pass.ops.combine_experts.launch(
      kernels::CombineExpertsArgs{.experts = routed, .shared = y, .experts_per_token = k, .y = y},
      pass.stream));
  pass.round(y);
  return {};
}

}  // namespace nibble::models::deepseek_v4
