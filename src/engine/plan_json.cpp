#include <cmath>
#include <utility>

#include "engine/plan_render.h"

namespace nibble::engine {
namespace {

using json::Array;
using json::make_object;
using json::Object;
using json::Value;

Value text(std::string_view s) { return Value(std::string(s)); }

Value diagnostics_json(const Plan& plan, quant::Severity severity) {
  Array list;
  for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
    if (diagnostic.severity != severity) continue;
    list.emplace_back(make_object({{"code", diagnostic.code}, {"message", diagnostic.message}}));
  }
  return list;
}

Value refused_json(const std::vector<kernels::Refusal>& refused) {
  Array list;
  for (const kernels::Refusal& refusal : refused) {
    list.emplace_back(make_object({{"kernel", text(refusal.kernel)}, {"reason", refusal.reason}}));
  }
  return list;
}

// kernel, unit, status and verified of a record; null where there is none.
void add_kernel(Object& object, const kernels::KernelInfo* kernel, const Plan& plan) {
  if (kernel == nullptr) {
    for (const char* key : {"kernel", "unit", "status", "verified"}) object.set(key, Value());
    return;
  }
  object.set("kernel", text(kernel->name));
  object.set("unit", text(kernels::unit_name(kernel->unit)));
  object.set("activation", text(kernels::activation_name(kernel->activation)));
  object.set("status", text(kernels::status_name(kernel->status)));
  const std::string mark = kernels::hardware_mark(*kernel, plan.options.device.info());
  object.set("verified", mark.empty() ? text(kernel->verified.where) : Value(mark));
}

Value module_json(const PlannedModule& module, const Plan& plan) {
  Object object = make_object({{"class", module.module_class}});
  Array layers;
  for (const int32_t layer : module.layers) layers.emplace_back(layer);
  object.set("layers", std::move(layers));
  object.set("format", module.format);
  object.set("evidence", module.evidence);
  add_kernel(object, module.kernel, plan);
  Array by_rows;
  for (const kernels::KernelInfo* kernel : module.by_rows) by_rows.emplace_back(text(kernel->name));
  object.set("kernels_by_rows", std::move(by_rows));
  object.set("why", module.why);
  object.set("unforced_kernel", module.unforced == nullptr ? Value() : text(module.unforced->name));
  object.set("refused", refused_json(module.refused));
  Array parts;
  for (const PlannedPart& part : module.parts) {
    parts.emplace_back(
        make_object({{"name", part.name}, {"n", part.n}, {"k", part.k}, {"count", part.count}}));
  }
  object.set("parts", std::move(parts));
  object.set("bytes", module.bytes);
  object.set("bytes_per_device", module.bytes_per_device);
  return object;
}

Array kv_forms_json(const PlanMemory& memory) {
  Array forms;
  for (const PlanKvForm& form : memory.kv_forms) {
    forms.emplace_back(make_object({{"name", form.name},
                                    {"in_use", &form == &memory.kv_forms.front()},
                                    {"ratio_4_bytes_per_token", form.entries_4},
                                    {"ratio_4_index_bytes_per_token", form.index_entries},
                                    {"ratio_128_bytes_per_token", form.entries_128},
                                    {"bytes_per_token", form.per_token()},
                                    {"window_bytes_per_sequence", form.windows}}));
  }
  return forms;
}

Value memory_json(const Plan& plan) {
  if (!plan.memory) return {};
  const PlanMemory& m = *plan.memory;
  Object kv = make_object({{"windows", m.windows},
                           {"ratio_4", m.entries_4},
                           {"ratio_4_index", m.index_entries},
                           {"ratio_128", m.entries_128},
                           {"total", m.kv()}});
  Object device = make_object({{"capacity", m.capacity},
                               {"reserved", m.reserved},
                               {"weights", m.weights},
                               {"draft_weights", m.draft_weights},
                               {"kv", std::move(kv)},
                               {"compressor_state", m.compressor_state},
                               {"draft_state", m.draft_state},
                               {"snapshots", m.snapshots},
                               {"workspace", m.workspace},
                               {"total", m.total()}});
  return make_object({{"devices", plan.options.num_devices},
                      {"per_device", std::move(device)},
                      {"fits", m.fits()},
                      {"bytes_per_sequence", m.per_sequence},
                      {"bytes_per_page_of_256_tokens", m.per_page},
                      {"kv_forms", kv_forms_json(m)},
                      {"max_concurrency", m.max_concurrency},
                      {"max_context", m.max_context}});
}

Value download_json(const Plan& plan) {
  const auto bytes = static_cast<double>(plan.download_bytes);
  const auto seconds = [&](double bits_per_s) {
    return plan.is_complete ? Value(std::round(bytes * 8 / bits_per_s)) : Value();
  };
  return make_object({{"bytes", plan.download_bytes},
                      {"complete", plan.is_complete},
                      {"shards", plan.num_shards},
                      {"tensors", plan.num_tensors},
                      {"seconds_at_100_mbit", seconds(1e8)},
                      {"seconds_at_1_gbit", seconds(1e9)},
                      {"seconds_at_10_gbit", seconds(1e10)}});
}

Value performance_json(const Plan& plan) {
  if (!plan.performance) return {};
  const PlanPerformance& p = *plan.performance;
  Array batches;
  for (const PlanBatch& step : p.batches) {
    const double bound = step.bound_tok_s();
    batches.emplace_back(make_object(
        {{"batch", step.batch},
         {"distinct_experts", step.distinct_experts},
         {"weight_bytes", std::round(step.weight_bytes)},
         {"kv_bytes", std::round(step.kv_bytes)},
         {"bytes_per_token", std::round((step.weight_bytes + step.kv_bytes) / step.batch)},
         {"bytes_per_device", std::round(step.bytes_per_device)},
         {"bound_ms", step.bound_seconds * 1e3},
         {"bound_tok_s", bound},
         {"launches", step.num_launches ? Value(*step.num_launches) : Value()},
         {"launch_ms", step.num_launches ? Value(step.launch_seconds * 1e3) : Value()},
         {"expected_tok_s",
          Array{Value(step.expected_tok_s(p.low_share)),
                Value(step.expected_tok_s(p.high_share))}}}));
  }
  return make_object({{"read_bytes_per_s", plan.options.device.read_bytes_per_s},
                      {"batches", std::move(batches)},
                      {"assumption", p.assumption}});
}

// What --kernel costs; null where it changes nothing.
Value forced_json(const Plan& plan) {
  const ForcedCost cost = forced_cost(plan);
  if (cost.modules.empty()) return {};
  Array modules;
  for (const ForcedModule& forced : cost.modules) {
    modules.emplace_back(
        make_object({{"class", forced.module->module_class},
                     {"kernel", text(forced.module->kernel->name)},
                     {"unforced_kernel", text(forced.module->unforced->name)},
                     {"us", forced.us},
                     {"unforced_us", forced.unforced_us},
                     {"timed_on", forced.timed_on.empty() ? Value() : text(forced.timed_on)},
                     {"share_of_read_rate", forced.share}}));
  }
  return make_object({{"batch", cost.batch},
                      {"modules", std::move(modules)},
                      {"tok_s", cost.batch / cost.step_us * 1e6},
                      {"unforced_tok_s", cost.batch / cost.unforced_step_us * 1e6}});
}

}  // namespace

json::Value plan_json(const Plan& plan) {
  const PlanOptions& o = plan.options;
  Array modules;
  for (const PlannedModule& module : plan.modules) modules.push_back(module_json(module, plan));
  Array ops;
  for (const PlannedOp& op : plan.ops) {
    Object object = make_object({{"op", op.name}});
    add_kernel(object, op.kernel, plan);
    object.set("why", op.why);
    object.set("refused", refused_json(op.refused));
    ops.emplace_back(std::move(object));
  }
  return make_object(
      {{"target", plan.target},
       {"model_type", plan.model_type},
       {"quant_method", plan.method},
       {"runs_in_this_build", plan.is_runnable()},
       {"why_not", plan.is_runnable() ? Value() : Value(plan.not_runnable)},
       {"device",
        make_object({{"name", o.device.name},
                     {"title", o.device.title},
                     {"sm", o.device.sm},
                     {"count", o.num_devices},
                     {"memory_bytes", o.device.memory_bytes}})},
       {"options",
        make_object({{"tp", o.tp},
                     {"ep", o.ep},
                     {"context", o.context},
                     {"concurrency", o.concurrency},
                     {"goal", o.goal == Goal::kLatency ? "latency" : "throughput"}})},
       {"errors", diagnostics_json(plan, quant::Severity::kError)},
       {"warnings", diagnostics_json(plan, quant::Severity::kWarning)},
       {"notes", diagnostics_json(plan, quant::Severity::kInfo)},
       {"modules", std::move(modules)},
       {"ops", std::move(ops)},
       {"why_no_sizes", plan.memory ? Value() : Value(plan.why_no_sizes)},
       {"memory", memory_json(plan)},
       {"download", download_json(plan)},
       {"performance", performance_json(plan)},
       {"forced_kernel_cost", forced_json(plan)}});
}

}  // namespace nibble::engine
