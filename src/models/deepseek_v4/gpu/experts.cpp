// Mixture of experts (spec 4): gate, choice, shared expert, routed experts grouped by expert.
#include <array>

#include "models/deepseek_v4/gpu/pass.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

using kernels::ActivationForm;
using kernels::DeviceSums;
using layers::FormSet;

// The choice of experts, and the shared expert between its products.
//   sums: of the shared expert's first product and of the router
kernels::DeviceSelectExpertsArgs choice_args(const Pass& pass,
                                             const MoeWeights& weights,
                                             const Rows& rows,
                                             const std::array<DeviceSums, 2>& sums) {
  const Workspace& ws = pass.ws;
  FormSet forms;
  forms.add(weights.shared_w2.form(rows.m()));
  return {.logits = sums[1],
          .tokens = rows.lists.tokens,
          .num_experts = pass.config.n_routed_experts,
          .choices = pass.config.num_experts_per_tok,
          .bias = weights.bias.data(),
          .token_to_experts = weights.token_to_experts.data(),
          .routed_scaling_factor = static_cast<float>(pass.config.routed_scaling_factor),
          .ids = ws.expert_ids,
          .weights = ws.expert_weights,
          .shared = {.x = sums[0],
                     .m = rows.m(),
                     .n = weights.shared_w2.k(),
                     .limit = static_cast<float>(pass.config.swiglu_limit),
                     .y = forms.select(ws.shared)},
          .is_dependent = true};
}

Result<void> choose_experts(const Pass& pass,
                            kernels::DeviceSelectExpertsArgs args,
                            int32_t layer,
                            const Rows& rows) {
  if (pass.has_decisions()) {
    kernels::DeviceSelectExpertsArgs ids_only = args;
    ids_only.shared = {};
    ids_only.slots = {};
    TRY(pass.ops.select_experts.launch(ids_only, pass.stream()));
    TRY_ASSIGN(args.reuse_ids, settle_experts(pass, layer, rows, pass.ws.expert_ids));
  }
  return pass.ops.select_experts.launch(args, pass.stream());
}

// The choices grouped into slots of `rows`; of one row none are made, see slots_of().
kernels::DeviceMakeSlotsArgs slot_args(const Pass& pass,
                                       int32_t rows,
                                       int32_t m,
                                       const Workspace::Slots& list) {
  return {.ids = pass.ws.expert_ids,
          .num_pairs = m * pass.config.num_experts_per_tok,
          .num_experts = pass.config.n_routed_experts,
          .rows = rows,
          .count = list.count,
          .experts = list.experts,
          .pairs = list.pairs,
          .is_dependent = true};
}
// The same as products take them. In slots of one row choices are slots as they are.
kernels::ExpertSlots slots_of(const kernels::DeviceMakeSlotsArgs& args) {
  if (args.rows == 1) {
    return {.rows = 1, .experts = args.ids, .max_slots = args.num_pairs};
  }
  return {.rows = args.rows,
          .count = args.count,
          .experts = args.experts,
          .pairs = args.pairs,
          .max_slots = kernels::max_slots(args.num_pairs, args.num_experts, args.rows)};
}

kernels::DeviceGroupedMatMulArgs up_args(const Pass& pass, const kernels::ExpertSlots& slots) {
  return {.x = pass.ws.x,
          .pairs_per_row = pass.config.num_experts_per_tok,
          .slots = slots,
          .swiglu = true,
          .limit = static_cast<float>(pass.config.swiglu_limit),
          .pair_weights = pass.ws.expert_weights,
          .y = pass.ws.activated.bf16};
}

// Rows of all choices through their experts into ws.pairs, already weighted, in one launch, and the
// shared expert's second product: in the same one if that makes the choice, which is one token's.
Result<DeviceSums> run_joined(const Pass& pass,
                              const MoeWeights& weights,
                              int32_t m,
                              const kernels::ExpertSlots& slots,
                              const kernels::DeviceSelectExpertsArgs* choice) {
  const Workspace& ws = pass.ws;
  kernels::DeviceGroupedMatMulArgs args = up_args(pass, slots);
  args.down = {.weight = &weights.w2.weight(), .y = ws.pairs, .counters = ws.expert_counters};
  DeviceSums shared;
  if (choice != nullptr) {
    args.choice = *choice;
    args.beside = weights.shared_w2.product(ws.shared, m, ws.shared_y);
    shared = {.data = ws.shared_y, .splits = args.beside.splits};
  } else {
    TRY_ASSIGN(shared, weights.shared_w2.launch(ws.shared, m, ws.shared_y, pass.stream()));
  }
  TRY(weights.w13.launch(args, m, pass.stream()));
  return shared;
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
  const bool quantizes = weights.w2.quantizes(m) && !pass.records_roundings();
  TRY(weights.w13.launch(up_args(pass, up_slots), m, pass.stream()));
  FormSet forms;
  forms.add(quantizes ? ActivationForm::kBf16 : weights.w2.form(m));
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
  return weights.w2.launch({.x = forms.select(ws.activated),
                            .slots = down_slots,
                            .slots_are_ready = up_slots.rows == 1 && down_slots.rows == 1,
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
  TRY_ASSIGN(const auto sums,
             weights.shared_w13.launch_pair(weights.gate,
                                            pass.ops.pair(),
                                            pass.ws.x,
                                            m,
                                            {pass.ws.shared_sums, pass.ws.router},
                                            pass.stream()));
  kernels::DeviceSelectExpertsArgs choice = choice_args(pass, weights, rows, sums);
  const kernels::DeviceMakeSlotsArgs up = slot_args(pass, up_rows, m, pass.ws.slots[0]);
  const bool makes_slots = up_rows > 1 && m <= kernels::kMaxSlotTokens;
  if (makes_slots) {
    choice.slots = up;
    choice.arrivals = pass.ws.slot_arrivals;
  }
  const bool is_joined = weights.w13.joins(weights.w2, m, up_rows) && !pass.records_roundings();
  const bool chooses =
      is_joined && !pass.has_decisions() && weights.w13.takes_beside(weights.shared_w2, m);
  if (!chooses) TRY(choose_experts(pass, choice, layer, rows));
  if (is_joined) return run_joined(pass, weights, m, slots_of(up), chooses ? &choice : nullptr);
  if (up_rows > 1 && !makes_slots) TRY(pass.ops.make_slots.launch(up, pass.stream()));
  kernels::DeviceMakeSlotsArgs down = up;
  if (down_rows != up_rows) {
    down = slot_args(pass, down_rows, m, pass.ws.slots[1]);
    if (down_rows > 1) TRY(pass.ops.make_slots.launch(down, pass.stream()));
  }
  TRY(record_roundings(
      pass,
      layer,
      RoundedInput::kActivated,
      rows,
      {.x = pass.ws.shared, .form = weights.shared_w2.form(m), .width = weights.shared_w2.k()}));
  TRY_ASSIGN(const DeviceSums shared,
             weights.shared_w2.launch(pass.ws.shared, m, pass.ws.shared_y, pass.stream()));
  TRY(run_routed(pass, weights, layer, rows, slots_of(up), slots_of(down)));
  return shared;
}

}  // namespace nibble::models::deepseek_v4::gpu
