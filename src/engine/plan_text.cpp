#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "engine/plan_render.h"

namespace nibble::engine {
namespace {

std::string gb(double bytes) {
  if (bytes >= 1e8) return fmt::format("{:.1f} GB", bytes / 1e9);
  if (bytes >= 1e5) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.1f} kB", bytes / 1e3);
}
std::string gb(int64_t bytes) { return gb(static_cast<double>(bytes)); }

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

// "0-2,4,6": ascending layers.
std::string ranges(const std::vector<int32_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i;
    while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
    if (!text.empty()) text += ",";
    text += j > i ? fmt::format("{}-{}", layers[i], layers[j]) : fmt::format("{}", layers[i]);
    i = j + 1;
  }
  constexpr size_t kShown = 24;
  return text.size() <= kShown ? text : fmt::format("{} layers", layers.size());
}

std::string machine(const PlanOptions& o) {
  const std::string count = o.num_devices > 1 ? fmt::format("{}x ", o.num_devices) : "";
  const std::string target =
      o.device.sm > 0 ? fmt::format("sm_{}", o.device.sm) : device::isa_set_name(o.device.isa);
  const std::string rate = o.device.read_bytes_per_s > 0 ? ", " + read_rate_text(o.device) : "";
  return fmt::format(
      "{}{} ({}, {}{})", count, o.device.title, target, gb(o.device.memory_bytes), rate);
}

void append_summary(std::string& out, const Plan& plan) {
  const PlanOptions& o = plan.options;
  out += fmt::format(
      "{}: {}{}, {} in {} shards, {} tensors\n",
      escape_for_display(plan.target),
      plan.model_type.empty() ? "no model_type" : escape_for_display(plan.model_type),
      plan.num_hidden_layers > 0 ? fmt::format(", {} layers", plan.num_hidden_layers) : "",
      gb(plan.download_bytes),
      plan.num_shards,
      plan.num_tensors);
  out += fmt::format("on {}, tp {}, ep {}, context {}, {} sequence{}, for {}\n",
                     machine(o),
                     o.tp,
                     o.ep,
                     o.context,
                     o.concurrency,
                     o.concurrency == 1 ? "" : "s",
                     o.goal == Goal::kLatency ? "latency" : "throughput");
  out += plan.is_runnable() ? "this build runs it\n"
                            : fmt::format("this build does not run it: {}\n", plan.not_runnable);
}

void append_diagnostics(std::string& out, const Plan& plan) {
  for (const quant::Severity severity :
       {quant::Severity::kError, quant::Severity::kWarning, quant::Severity::kInfo}) {
    for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
      if (diagnostic.severity == severity) out += quant::to_text(diagnostic) + "\n";
    }
  }
}

std::string kernel_status(const kernels::KernelInfo& kernel, const Plan& plan) {
  const std::string mark = kernels::hardware_mark(kernel, plan.options.device.info());
  return fmt::format("{}, {}, {}",
                     kernels::unit_name(kernel.unit),
                     kernels::status_name(kernel.status),
                     mark.empty() ? fmt::format("verified on {}", kernel.verified.where) : mark);
}

// "wq_a [1024, 4096] x 43, wkv [512, 4096] x 43"
std::string shapes(const PlannedModule& module) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(module.parts.size(), kShown); ++i) {
    const PlannedPart& part = module.parts[i];
    text += fmt::format("{}{} [{}, {}]", i == 0 ? "" : ", ", part.name, part.n, part.k);
    if (part.count > 1) text += fmt::format(" x {}", part.count);
  }
  if (module.parts.size() > kShown) text += ", ...";
  return escape_for_display(text);
}

// What --kernel or --without-kernel costs, in one line of its own for each module that it moves to
// another kernel. What nobody timed on such a GPU is what it costs at least.
void append_forced(std::string& out, const Plan& plan) {
  const ForcedCost cost = forced_cost(plan);
  if (cost.modules.empty()) return;
  const std::string_view flag = plan.options.only_kernel.empty() ? "--without-kernel" : "--kernel";
  const bool is_gpu = plan.options.device.kind == device::DeviceKind::kCuda;
  const auto is_bound = [&](const ForcedModule& forced) {
    return is_gpu && forced.timed_on.empty();
  };
  for (const ForcedModule& forced : cost.modules) {
    out += fmt::format(
        "  {}: {} on {} ({}): {} {:.0f} us a step, {:.0f}% of the read rate{}; {:.1f} times the "
        "{:.0f} us of {} ({})\n",
        flag,
        forced.module->module_class,
        forced.module->kernel->name,
        kernels::unit_name(forced.module->kernel->unit),
        is_bound(forced) ? "at least" : "about",
        forced.us,
        100 * forced.share,
        forced.timed_on.empty() ? "" : fmt::format(", as timed on {}", forced.timed_on),
        forced.us / forced.unforced_us,
        forced.unforced_us,
        forced.module->unforced->name,
        kernels::unit_name(forced.module->unforced->unit));
  }
  const bool has_bounds = std::any_of(cost.modules.begin(), cost.modules.end(), is_bound);
  out += fmt::format(
      "  {}: in all {} {:.0f} tok/s at batch {} instead of {:.0f} (what was not timed: bytes at "
      "{:.0f}% of the read rate, or one multiply-add per lane, clock, weight and token{})\n",
      flag,
      has_bounds ? "at most" : "about",
      cost.batch / cost.step_us * 1e6,
      cost.batch,
      cost.batch / cost.unforced_step_us * 1e6,
      100 * plan.performance->high_share,
      has_bounds ? "; bounds, not measurements" : "");
}

// The kernels for other numbers of rows.
void append_other_ranges(std::string& out, const PlannedModule& module, const Plan& plan) {
  for (const kernels::KernelInfo* kernel : module.by_rows) {
    if (kernel == module.kernel) continue;
    const int64_t m_max = kernel->limits.m_max;
    out += fmt::format("       {}: {} ({})\n",
                       m_max == 0 ? "more tokens" : fmt::format("up to {} tokens", m_max),
                       kernel->name,
                       kernel_status(*kernel, plan));
  }
}

// Records for this very device that refused; the JSON also has those for other devices.
void append_refused(std::string& out, const PlannedModule& module) {
  for (const kernels::Refusal& refusal : module.better) {
    out += fmt::format("    refused: {}: {}\n", refusal.kernel, refusal.reason);
  }
}

void append_modules(std::string& out, const Plan& plan) {
  out += "\nFormats and kernels\n";
  for (const PlannedModule& module : plan.modules) {
    const std::string layers =
        module.layers.empty() ? "" : fmt::format(" [{}]", ranges(module.layers));
    out += fmt::format(
        "  {:<44} {:<17} {:>9}\n", module.module_class + layers, module.format, gb(module.bytes));
    if (module.kernel != nullptr && module.kernel->has_weight) {
      out += fmt::format("    {}\n", shapes(module));
    }
    out += fmt::format("    {}\n", escape_for_display(module.evidence));
    if (module.kernel != nullptr) {
      out +=
          fmt::format("    -> {} ({})\n", module.kernel->name, kernel_status(*module.kernel, plan));
      append_other_ranges(out, module, plan);
    }
    out += fmt::format("    why: {}\n", module.why);
    append_refused(out, module);
  }
  if (plan.ops.empty()) return;
  out += "\nOther kernels\n";
  for (const PlannedOp& op : plan.ops) {
    out += op.kernel == nullptr ? fmt::format("  {:<20} none\n", op.name)
                                : fmt::format("  {:<20} {} ({}){}\n",
                                              op.name,
                                              op.kernel->name,
                                              kernel_status(*op.kernel, plan),
                                              op.why.empty() ? "" : ": " + op.why);
  }
}

// What a token of context costs by layer kind, in the form in use and in the others.
void append_kv_forms(std::string& out, const PlanMemory& memory) {
  out += fmt::format("\nKV bytes per token      {:>9}  {:>10}  {:>9}  {:>9}  {:>20}\n",
                     "ratio 4",
                     "index keys",
                     "ratio 128",
                     "all",
                     "windows per sequence");
  for (const PlanKvForm& form : memory.kv_forms) {
    const bool is_used = &form == &memory.kv_forms.front();
    out += fmt::format("  {:<21} {:>9.1f}  {:>10.1f}  {:>9.1f}  {:>9.1f}  {:>20}\n",
                       form.name + (is_used ? " *" : ""),
                       form.entries_4,
                       form.index_entries,
                       form.entries_128,
                       form.per_token(),
                       form.windows);
  }
  out += "  * in use; --kv-cache-dtype chooses\n";
}

void append_download(std::string& out, const Plan& plan) {
  if (!plan.is_complete) {
    out += fmt::format("\nOn disk {} of an incomplete model\n", gb(plan.download_bytes));
    return;
  }
  const double bits = static_cast<double>(plan.download_bytes) * 8;
  out += fmt::format("\nOn disk {}; download {} at 100 Mbit/s, {} at 1 Gbit/s, {} at 10 Gbit/s\n",
                     gb(plan.download_bytes),
                     duration(bits / 1e8),
                     duration(bits / 1e9),
                     duration(bits / 1e10));
}

void append_memory(std::string& out, const Plan& plan) {
  if (!plan.memory) {
    out += fmt::format("\nMemory and speed are not known: {}\n", plan.why_no_sizes);
    return;
  }
  const PlanMemory& m = *plan.memory;
  const PlanOptions& o = plan.options;
  out += fmt::format("\nMemory of each device ({})\n", m.fits() ? "it fits" : "IT DOES NOT FIT");
  const std::pair<const char*, int64_t> rows[] = {{"weights", m.weights - m.draft_weights},
                                                  {"draft weights", m.draft_weights},
                                                  {"KV windows", m.windows},
                                                  {"KV entries, ratio 4", m.entries_4},
                                                  {"KV index keys, ratio 4", m.index_entries},
                                                  {"KV entries, ratio 128", m.entries_128},
                                                  {"compressor state", m.compressor_state},
                                                  {"draft state", m.draft_state},
                                                  {"snapshots", m.snapshots},
                                                  {"workspace", m.workspace},
                                                  {"reserved", m.reserved},
                                                  {"total", m.total()},
                                                  {"of", m.capacity}};
  for (const auto& [name, bytes] : rows) {
    if (bytes != 0) out += fmt::format("  {:<24} {:>10}\n", name, gb(bytes));
  }
  out += fmt::format("  at most {} sequences of {} tokens, or {} tokens for {} sequence{}\n",
                     m.max_concurrency,
                     o.context,
                     m.max_context,
                     o.concurrency,
                     o.concurrency == 1 ? "" : "s");
  append_kv_forms(out, m);
}

void append_performance(std::string& out, const Plan& plan) {
  if (!plan.performance) return;
  const PlanPerformance& p = *plan.performance;
  out +=
      "\nDecode\n  batch  experts/layer  weights/step    cache/step   bytes/token    bound ms   "
      "bound tok/s   expected tok/s\n";
  for (const PlanBatch& step : p.batches) {
    out += fmt::format(
        "  {:>5}  {:>13.1f}  {:>12}  {:>12}  {:>12}  {:>10.2f}  {:>12.0f}   {:.0f} to {:.0f}\n",
        step.batch,
        step.distinct_experts,
        gb(step.weight_bytes),
        gb(step.kv_bytes),
        gb((step.weight_bytes + step.kv_bytes) / step.batch),
        step.bound_seconds * 1e3,
        step.bound_tok_s(),
        step.expected_tok_s(p.low_share),
        step.expected_tok_s(p.high_share));
  }
  out += "  expected: " + p.assumption + "\n";
}

// What the short form says in one line: weights of one format on one kernel.
struct WeightUse {
  std::string format;
  const kernels::KernelInfo* kernel = nullptr;
  std::string why;
  std::vector<std::string> classes;
};

// The largest first.
std::vector<WeightUse> weight_uses(const Plan& plan) {
  std::vector<const PlannedModule*> modules;
  for (const PlannedModule& module : plan.modules) {
    const bool has_weight = module.kernel != nullptr && module.kernel->has_weight;
    const bool is_left_out = module.module_class.rfind("draft_", 0) == 0 &&
                             plan.options.device.kind == device::DeviceKind::kCpu &&
                             !plan.options.loads_draft;
    if (has_weight && !is_left_out) modules.push_back(&module);
  }
  std::stable_sort(modules.begin(), modules.end(), [](const auto* a, const auto* b) {
    return a->bytes > b->bytes;
  });
  std::vector<WeightUse> uses;
  for (const PlannedModule* module : modules) {
    auto use = std::find_if(uses.begin(), uses.end(), [&](const WeightUse& known) {
      return known.format == module->format && known.kernel == module->kernel &&
             known.why == module->why;
    });
    if (use == uses.end()) {
      use = uses.insert(uses.end(),
                        {.format = module->format, .kernel = module->kernel, .why = module->why});
    }
    use->classes.push_back(module->module_class);
  }
  return uses;
}

// The routed experts, which decide most.
const PlannedModule* experts_of(const Plan& plan) {
  for (const PlannedModule& module : plan.modules) {
    if (module.module_class == "routed_experts") return &module;
  }
  return nullptr;
}

// --- several plans ---

constexpr int32_t kComparedBatches[] = {1, 16, 64};

std::string display_name(const Plan& plan) {
  constexpr size_t kMaxWidth = 48;
  const std::string name = escape_for_display(plan.target);
  return name.size() <= kMaxWidth ? name : "..." + name.substr(name.size() - kMaxWidth + 3);
}

std::string machine_name(const PlanOptions& o) {
  return fmt::format("{}x {}", o.num_devices, o.device.name);
}

const PlanBatch* step_of(const Plan& plan, int32_t batch) {
  if (!plan.performance) return nullptr;
  for (const PlanBatch& step : plan.performance->batches) {
    if (step.batch == batch) return &step;
  }
  return nullptr;
}

void append_row(std::string& out, const Plan& plan, size_t width) {
  const PlannedModule* experts = experts_of(plan);
  out += fmt::format("{:<{}}  {:<17} {:<16} {:>9} {:>11} {:>4} {:>9}",
                     display_name(plan),
                     width,
                     machine_name(plan.options),
                     experts != nullptr ? experts->format : "-",
                     plan.is_complete ? gb(plan.download_bytes) : "-",
                     plan.memory ? gb(plan.memory->weights) : "-",
                     plan.memory ? (plan.memory->fits() ? "yes" : "NO") : "-",
                     plan.memory ? std::to_string(plan.memory->max_concurrency) : "-");
  for (const int32_t batch : kComparedBatches) {
    const PlanBatch* step = step_of(plan, batch);
    out += fmt::format(" {:>19}",
                       step == nullptr
                           ? "-"
                           : fmt::format("{:.0f}-{:.0f} of {:.0f}",
                                         step->expected_tok_s(plan.performance->low_share),
                                         step->expected_tok_s(plan.performance->high_share),
                                         step->bound_tok_s()));
  }
  out += "\n";
}

// "+3.5%"
std::string change(double from, double to) {
  return from > 0 ? fmt::format("{:+.1f}%", (to / from - 1) * 100) : "-";
}

void append_difference(std::string& out, const Plan& first, const Plan& plan) {
  std::vector<std::string> changes;
  for (const int32_t batch : kComparedBatches) {
    const PlanBatch* from = step_of(first, batch);
    const PlanBatch* to = step_of(plan, batch);
    if (from == nullptr || to == nullptr) continue;
    changes.push_back(
        fmt::format("batch {} {}", batch, change(from->bound_tok_s(), to->bound_tok_s())));
  }
  const auto compare = [&](const char* what, int64_t from, int64_t to) {
    changes.push_back(
        fmt::format("{} {}", what, change(static_cast<double>(from), static_cast<double>(to))));
  };
  if (first.is_complete && plan.is_complete) {
    compare("download", first.download_bytes, plan.download_bytes);
  }
  if (first.memory && plan.memory) compare("weights", first.memory->weights, plan.memory->weights);
  out += fmt::format("  {} on {}: {}\n",
                     display_name(plan),
                     machine_name(plan.options),
                     changes.empty() ? "not known" : fmt::format("{}", fmt::join(changes, ", ")));
}

void append_expert_kernel(std::string& out, const Plan& plan) {
  const PlannedModule* experts = experts_of(plan);
  out += fmt::format("  {} on {}: ", display_name(plan), machine_name(plan.options));
  if (experts == nullptr) {
    out += "none\n";
    return;
  }
  const std::string kernel =
      experts->kernel == nullptr
          ? "none"
          : fmt::format("{} ({})", experts->kernel->name, kernel_status(*experts->kernel, plan));
  out += fmt::format("{} -> {}: {}\n", experts->format, kernel, experts->why);
  append_refused(out, *experts);
}

void append_all_diagnostics(std::string& out, std::span<const Plan> plans) {
  bool is_first = true;
  for (const quant::Severity severity :
       {quant::Severity::kError, quant::Severity::kWarning, quant::Severity::kInfo}) {
    for (const Plan& plan : plans) {
      for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
        if (diagnostic.severity != severity) continue;
        out += fmt::format("{}{} on {}: {}\n",
                           is_first ? "\n" : "",
                           display_name(plan),
                           machine_name(plan.options),
                           quant::to_text(diagnostic));
        is_first = false;
      }
    }
  }
}

}  // namespace

std::string plan_text(const Plan& plan) {
  std::string out;
  append_summary(out, plan);
  append_diagnostics(out, plan);
  append_modules(out, plan);
  append_forced(out, plan);
  append_download(out, plan);
  append_memory(out, plan);
  append_performance(out, plan);
  return out;
}

std::string short_plan_text(const Plan& plan) {
  const PlanOptions& o = plan.options;
  std::string out = fmt::format("plan: {}, {} layers on {}; context {}, {} sequence{}\n",
                                escape_for_display(plan.model_type),
                                plan.num_hidden_layers,
                                machine(o),
                                o.context,
                                o.concurrency,
                                o.concurrency == 1 ? "" : "s");
  for (const WeightUse& use : weight_uses(plan)) {
    const std::string mark = kernels::hardware_mark(*use.kernel, o.device.info());
    out += fmt::format("  {:<17} {} ({}{}: {}) for {}\n",
                       use.format,
                       use.kernel->name,
                       kernels::unit_name(use.kernel->unit),
                       mark.empty() ? "" : ", " + mark,
                       use.why,
                       fmt::join(use.classes, ", "));
  }
  append_forced(out, plan);
  if (plan.memory) {
    const PlanMemory& m = *plan.memory;
    out += fmt::format(
        "  memory {} of {}: weights {}, KV {} ({}, {:.0f} bytes per token), state {}, "
        "workspace {}, reserved {}\n",
        gb(m.total()),
        gb(m.capacity),
        gb(m.weights),
        gb(m.kv()),
        m.kv_forms.front().name,
        m.kv_forms.front().per_token(),
        gb(m.compressor_state + m.draft_state + m.snapshots),
        gb(m.workspace),
        gb(m.reserved));
  }
  for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
    if (diagnostic.severity == quant::Severity::kWarning) out += quant::to_text(diagnostic) + "\n";
  }
  return out;
}

std::string comparison_text(std::span<const Plan> plans) {
  if (plans.empty()) return "";
  size_t width = 6;
  for (const Plan& plan : plans) width = std::max(width, display_name(plan).size());
  std::string out = fmt::format("{:<{}}  {:<17} {:<16} {:>9} {:>11} {:>4} {:>9}",
                                "target",
                                width,
                                "machine",
                                "experts",
                                "size",
                                "weights/dev",
                                "fits",
                                "sequences");
  for (const int32_t batch : kComparedBatches) {
    out += fmt::format(" {:>19}", fmt::format("tok/s at {}", batch));
  }
  out += "\n";
  for (const Plan& plan : plans) append_row(out, plan, width);
  out += "tok/s: expected range of the bandwidth bound; sequences: of " +
         std::to_string(plans.front().options.context) + " tokens\n";
  for (const Plan& plan : plans) {
    if (plan.memory) continue;
    out += fmt::format("{} on {}: memory and speed are not known: {}\n",
                       display_name(plan),
                       machine_name(plan.options),
                       plan.why_no_sizes);
  }
  if (plans.size() > 1) {
    out +=
        fmt::format("\nBound of decoding, download and weights on each device, against {} on {}\n",
                    display_name(plans.front()),
                    machine_name(plans.front().options));
  }
  for (const Plan& plan : plans.subspan(1)) append_difference(out, plans.front(), plan);
  out += "\nExperts\n";
  for (const Plan& plan : plans) append_expert_kernel(out, plan);
  const auto known = std::find_if(
      plans.begin(), plans.end(), [](const Plan& plan) { return plan.performance.has_value(); });
  if (known != plans.end()) out += "\nexpected: " + known->performance->assumption + "\n";
  append_all_diagnostics(out, plans);
  return out;
}

}  // namespace nibble::engine
