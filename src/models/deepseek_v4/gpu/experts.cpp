// Mixture of experts (spec 4): gate, choice, shared expert, routed experts grouped by expert.
#include <algorithm>

#include "models/deepseek_v4/gpu/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::ActivationForm;
using kernels::DeviceSums;
using layers::FormSet;

// The choice of experts, and the shared expert up to its second product.
Result<void> choose_experts(const Pass& pass,
                            const MoeWeights& weights,
                            int32_t layer,
                            const Rows& rows) {
  const Workspace& ws = pass.ws;
  const int32_t m = rows.m();
  TRY_ASSIGN(
      const auto sums,
      weights.shared_w13.launch_pair(
          weights.gate, pass.ops.pair(), ws.x, m, {ws.shared_sums, ws.router}, pass.stream()));
  const auto& [gate_up, logits] = sums;
  kernels::DeviceSelectExpertsArgs args{
      .logits = logits,
      .tokens = rows.lists.tokens,
      .num_experts = pass.config.n_routed_experts,
      .choices = pass.config.num_experts_per_tok,
      .bias = weights.bias.data(),
      .token_to_experts = weights.token_to_experts.data(),
      .routed_scaling_factor = static_cast<float>(pass.config.routed_scaling_factor),
      .ids = ws.expert_ids,
      .weights = ws.expert_weights,
      .is_dependent = true};
  if (pass.has_decisions()) {
    TRY(pass.ops.select_experts.launch(args, pass.stream()));
    TRY_ASSIGN(args.reuse_ids, settle_experts(pass, layer, rows, ws.expert_ids));
  }
  FormSet forms;
  forms.add(weights.shared_w2.form(m));
  args.shared = {.x = gate_up,
                 .m = m,
                 .n = weights.shared_w2.k(),
                 .limit = static_cast<float>(pass.config.swiglu_limit),
                 .y = forms.select(ws.shared)};
  return pass.ops.select_experts.launch(args, pass.stream());
}

// The choices grouped as `experts` want them. One token's are slots as they are.
Result<kernels::ExpertSlots> make_slots(const Pass& pass,
                                        int32_t rows_per_slot,
                                        int32_t m,
                                        const Workspace::Slots& list) {
  const int32_t num_pairs = m * pass.config.num_experts_per_tok;
  const int32_t num_experts = pass.config.n_routed_experts;
  if (rows_per_slot == 1) {
    return kernels::ExpertSlots{.rows = 1, .experts = pass.ws.expert_ids, .max_slots = num_pairs};
  }
  TRY(pass.ops.make_slots.launch(kernels::DeviceMakeSlotsArgs{.ids = pass.ws.expert_ids,
                                                              .num_pairs = num_pairs,
                                                              .num_experts = num_experts,
                                                              .rows = rows_per_slot,
                                                              .count = list.count,
                                                              .experts = list.experts,
                                                              .pairs = list.pairs,
                                                              .is_dependent = true},
                                 pass.stream()));
  return kernels::ExpertSlots{
      .rows = rows_per_slot,
      .count = list.count,
      .experts = list.experts,
      .pairs = list.pairs,
      .max_slots = kernels::max_slots(num_pairs, num_experts, rows_per_slot)};
}

// Rows of all choices through their experts into ws.pairs, already weighted.
Result<void> run_routed(const Pass& pass,
                        const MoeWeights& weights,
                        int32_t layer,
                        const Rows& rows,
                        const kernels::ExpertSlots& up_slots,
                        const kernels::ExpertSlots& down_slots) {
  const Workspace& ws = pass.ws;
  const int32_t m = rows.m();
  const int32_t choices = pass.config.num_experts_per_tok;
  kernels::DeviceGroupedMatMulArgs up{.x = ws.x,
                                      .pairs_per_row = choices,
                                      .slots = up_slots,
                                      .swiglu = true,
                                      .limit = static_cast<float>(pass.config.swiglu_limit),
                                      .pair_weights = ws.expert_weights,
                                      .y = ws.activated.bf16};
  if (weights.w13.joins(weights.w2, m, up_slots.rows) && !pass.records_roundings()) {
    up.down = {.weight = &weights.w2.weight(), .y = ws.pairs, .counters = ws.expert_counters};
    return weights.w13.launch(up, m, pass.stream());
  }
  TRY(weights.w13.launch(up, m, pass.stream()));
  FormSet forms;
  forms.add(weights.w2.form(m));
  if (!forms.has(ActivationForm::kBf16)) {
    TRY(pass.ops.quantize.launch(kernels::DeviceQuantizeArgs{.x_bf16 = ws.activated.bf16,
                                                             .m = m * choices,
                                                             .k = weights.w2.k(),
                                                             .y = forms.select(ws.activated),
                                                             .is_dependent = true},
                                 pass.stream()));
  }
  TRY(record_roundings(pass,
                       layer,
                       RoundedInput::kPairs,
                       rows,
                       {.x = ws.activated,
                        .form = weights.w2.form(m),
                        .width = weights.w2.k(),
                        .per_token = choices}));
  return weights.w2.launch({.x = ws.activated,
                            .slots = down_slots,
                            .slots_are_ready = down_slots.rows == 1,
                            .y = ws.pairs},
                           m,
                           pass.stream());
}

}  // namespace

layers::FormSet input_forms(const MoeWeights& weights, int32_t m) {
  FormSet forms;
  forms.add(weights.gate.form(m));
  forms.add(weights.shared_w13.form(m));
  forms.add(weights.w13.form(m));
  return forms;
}

Result<DeviceSums> run_experts(const Pass& pass,
                               const MoeWeights& weights,
                               int32_t layer,
                               const Rows& rows) {
  const int32_t m = rows.m();
  const int32_t choices = pass.config.num_experts_per_tok;
  const int32_t up_rows = weights.w13.slot_rows(m, choices);
  const int32_t down_rows = weights.w2.slot_rows(m, choices);
  TRY(record_roundings(
      pass,
      layer,
      RoundedInput::kExperts,
      rows,
      {.x = pass.ws.x, .form = weights.w13.form(m), .width = pass.config.hidden_size}));
  TRY(record_roundings(
      pass,
      layer,
      RoundedInput::kShared,
      rows,
      {.x = pass.ws.x, .form = weights.shared_w13.form(m), .width = pass.config.hidden_size}));
  TRY(choose_experts(pass, weights, layer, rows));
  TRY_ASSIGN(const kernels::ExpertSlots up, make_slots(pass, up_rows, m, pass.ws.slots[0]));
  kernels::ExpertSlots down = up;
  if (down_rows != up_rows) {
    TRY_ASSIGN(down, make_slots(pass, down_rows, m, pass.ws.slots[1]));
  }
  TRY(record_roundings(
      pass,
      layer,
      RoundedInput::kActivated,
      rows,
      {.x = pass.ws.shared, .form = weights.shared_w2.form(m), .width = weights.shared_w2.k()}));
  TRY_ASSIGN(const DeviceSums shared,
             weights.shared_w2.launch(pass.ws.shared, m, pass.ws.shared_y, pass.stream()));
  TRY(run_routed(pass, weights, layer, rows, up, down));
  return shared;
}

}  // namespace nibble::models::deepseek_v4::gpu
