// Bytes: what a device holds, what a decode step reads, and the bound that follows.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/checked_math.h"
#include "engine/plan_parts.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/state.h"
#include "models/deepseek_v4/workspace.h"

namespace nibble::engine::internal {
namespace {

using models::deepseek_v4::Config;
using models::deepseek_v4::DraftKind;
using models::deepseek_v4::StateBytes;
using quant::DetectedModule;
using quant::ModuleClass;

// Driver context, graphs and communication buffers of a GPU; the rest of the system on a host.
constexpr int64_t kGpuReserved = 1'500'000'000;
constexpr int64_t kHostReserved = 1'000'000'000;
constexpr int32_t kPrefillTokens = 512;  // of one pass; sizes the workspace

bool is_cpu(const Plan& plan) { return plan.options.device.kind == device::DeviceKind::kCpu; }

int32_t num_draft_layers(DraftKind draft) {
  if (draft == DraftKind::kNone) return 0;
  return draft == DraftKind::kMtp ? 1 : 3;
}

// The CPU model stores plain BF16 rows; serving loads no draft there.
StateBytes state_of(const Config& config, DraftKind draft, const Plan& plan) {
  if (is_cpu(plan)) {
    return models::deepseek_v4::state_bytes(
        config, models::deepseek_v4::numerics_of(models::Precision::kDefault), false);
  }
  return models::deepseek_v4::quantised_state_bytes(
      config, num_draft_layers(draft), draft != DraftKind::kNone);
}

bool is_draft_class(std::string_view name) { return name.rfind("draft_", 0) == 0; }

// Whether a decode step reads all of a module: not tables, of which it takes single rows, and no
// draft.
bool is_read_every_step(const DetectedModule& module) {
  return !module.role.is_draft && module.role.module_class != ModuleClass::kEmbedding &&
         module.role.module_class != ModuleClass::kRoutedExperts &&
         module.scheme.kind != quant::SchemeKind::kIndex;
}

// Cache bytes that one token of a sequence of `context` tokens reads (spec "deepseek-v4" 6.3).
double kv_bytes_per_token(const Config& config, const StateBytes& state, int64_t context) {
  const double pages = static_cast<double>(context) / models::deepseek_v4::kPageSize;
  const double all_4 = pages * static_cast<double>(state.entries_4);
  const double visible = std::min(1.0, 4.0 * config.index_topk / static_cast<double>(context));
  return static_cast<double>(state.windows) + all_4 * visible +
         pages * static_cast<double>(state.index_entries + state.entries_128);
}

}  // namespace

void plan_memory(const Config& config, const quant::Detection& detection, Plan& plan) {
  const PlanOptions& options = plan.options;
  const DraftKind draft = draft_kind(detection);
  const StateBytes state = state_of(config, draft, plan);
  const int64_t sequences = options.concurrency;
  const int64_t pages = ceil_div(options.context, models::deepseek_v4::kPageSize);

  PlanMemory memory;
  memory.capacity = options.device.memory_bytes;
  memory.reserved = is_cpu(plan) ? kHostReserved : kGpuReserved;
  for (const PlannedModule& module : plan.modules) {
    const bool is_draft = is_draft_class(module.module_class);
    if (is_draft && is_cpu(plan)) continue;
    memory.weights += module.bytes_per_device;
    if (is_draft) memory.draft_weights += module.bytes_per_device;
  }
  memory.windows = sequences * state.windows;
  memory.compressor_state = sequences * state.compressors;
  memory.draft_state = sequences * state.streams;
  memory.snapshots = sequences * state.snapshot;
  memory.entries_4 = sequences * pages * state.entries_4;
  memory.index_entries = sequences * pages * state.index_entries;
  memory.entries_128 = sequences * pages * state.entries_128;
  memory.workspace = models::deepseek_v4::Workspace::num_bytes(
      config,
      !is_cpu(plan) && draft == DraftKind::kMtp,
      {.num_slots = options.concurrency,
       .num_pages = static_cast<int32_t>(pages),
       .max_context = options.context,
       .max_tokens_per_pass = std::max(kPrefillTokens, options.concurrency)});
  memory.per_sequence = state.per_slot() + state.snapshot;
  memory.per_page = state.per_page();

  const int64_t free = memory.capacity - memory.reserved - memory.weights - memory.workspace;
  const int64_t one = memory.per_sequence + pages * memory.per_page;
  memory.max_concurrency = std::max<int64_t>(free / std::max<int64_t>(one, 1), 0);
  const int64_t for_pages = free - sequences * memory.per_sequence;
  const int64_t max_pages =
      for_pages <= 0 ? 0 : for_pages / std::max<int64_t>(memory.per_page * sequences, 1);
  memory.max_context =
      std::min<int64_t>(max_pages * models::deepseek_v4::kPageSize, config.max_position_embeddings);
  plan.memory = memory;
  if (!memory.fits()) {
    plan.diagnostics.push_back(
        {.severity = quant::Severity::kWarning,
         .code = "Q-M1",
         .message = fmt::format(
             "{:.1f} GB are needed on each {}, which has {:.1f}: it does not fit. Fix: use more "
             "devices, a shorter --context or a lower --concurrency.",
             static_cast<double>(memory.total()) / 1e9,
             options.device.name,
             static_cast<double>(memory.capacity) / 1e9)});
  }
}

void plan_performance(const Config& config, const quant::Detection& detection, Plan& plan) {
  const PlanOptions& options = plan.options;
  const StateBytes state = state_of(config, draft_kind(detection), plan);
  double whole = 0;
  double per_device = 0;
  double all_experts = 0;
  for (const DetectedModule& module : detection.modules) {
    const auto bytes = static_cast<double>(module.num_bytes);
    if (module.role.module_class == ModuleClass::kRoutedExperts && !module.role.is_draft) {
      all_experts += bytes;
    }
    if (!is_read_every_step(module)) continue;
    whole += bytes;
    per_device += bytes / num_shares(spread_of(module), options);
  }
  const double kv = kv_bytes_per_token(config, state, options.context);
  const int32_t devices = std::max(options.tp, options.ep);
  const double all_reduce = all_reduce_seconds(options.device.link, devices);

  PlanPerformance performance;
  for (const int32_t batch : {1, 16, 64, 256}) {
    PlanBatch step{.batch = batch};
    step.distinct_experts =
        expected_distinct_experts(config.n_routed_experts, config.num_experts_per_tok, batch);
    const double experts =
        all_experts * step.distinct_experts / std::max(config.n_routed_experts, 1);
    step.kv_bytes = kv * batch;
    step.weight_bytes = whole + experts;
    step.bytes_per_device =
        per_device + experts / num_shares(Spread::kExperts, options) + step.kv_bytes;
    step.exchange_seconds = 2.0 * config.num_hidden_layers * all_reduce;
    if (options.device.read_bytes_per_s > 0) {
      step.bound_seconds =
          step.bytes_per_device / options.device.read_bytes_per_s + step.exchange_seconds;
    }
    performance.batches.push_back(step);
  }
  const bool runs = is_cpu(plan);
  performance.low_share = runs ? 0.5 : 0.45;
  performance.high_share = runs ? 0.9 : 0.8;
  performance.assumption = fmt::format(
      "{:.0f} to {:.0f}% of the bandwidth bound ({}); bound: weights and cache read once per step "
      "at {} per device ({}){}, experts chosen independently, no drafts",
      performance.low_share * 100,
      performance.high_share * 100,
      runs ? "kernels measured at 90% of the read stream, whole steps less"
           : "a goal: these kernels are planned and not measured",
      read_rate_text(options.device),
      options.device.note,
      all_reduce > 0
          ? fmt::format(
                " and {} all-reduces of {:.1f} us", 2 * config.num_hidden_layers, all_reduce * 1e6)
          : "");
  plan.performance = std::move(performance);
}

}  // namespace nibble::engine::internal
