// Bytes: what a device holds, what a decode step reads, and the bound that follows.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/checked_math.h"
#include "engine/plan_parts.h"
#include "models/deepseek_v4/gpu/ops.h"
#include "models/deepseek_v4/gpu/planned_step.h"
#include "models/deepseek_v4/gpu/state.h"
#include "models/deepseek_v4/gpu/step_plan.h"
#include "models/deepseek_v4/gpu/weights.h"
#include "models/deepseek_v4/gpu/workspace.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/state.h"
#include "models/deepseek_v4/tensor_names.h"
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
// Larger sums of bytes are cut off here: far beyond any machine, and far from overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 58;

int64_t times(int64_t a, int64_t b) {
  return std::min(checked_mul(a, b).value_or(kMaxBytes), kMaxBytes);
}

bool is_cpu(const Plan& plan) { return plan.options.device.kind == device::DeviceKind::kCpu; }

bool holds_draft(const Plan& plan) { return !is_cpu(plan) || plan.options.loads_draft; }

// Whether decoding state has the rings of an MTP layer.
bool has_mtp(DraftKind draft, const Plan& plan) {
  return draft == DraftKind::kMtp && holds_draft(plan);
}

StateBytes state_of(const Config& config,
                    DraftKind draft,
                    const Plan& plan,
                    models::KvDtype kv_dtype) {
  namespace v4 = models::deepseek_v4;
  const v4::Numerics numerics = numerics_of(plan.options, kv_dtype);
  return is_cpu(plan) ? v4::state_bytes(config, numerics, has_mtp(draft, plan))
                      : v4::gpu::state_bytes(config, numerics, has_mtp(draft, plan));
}

StateBytes state_of(const Config& config, DraftKind draft, const Plan& plan) {
  return state_of(config, draft, plan, plan.options.kv_dtype);
}

std::string_view form_name(const Plan& plan, models::KvDtype kv_dtype) {
  switch (numerics_of(plan.options, kv_dtype).kv_dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    default:
      return "fp8";
  }
}

// The formats of the detected matrices by original name; of experts those of the first.
std::map<std::string, quant::Format> matrix_formats(const quant::Detection& detection) {
  namespace v4 = models::deepseek_v4;
  std::map<std::string, quant::Format> formats;
  for (const DetectedModule& module : detection.modules) {
    const std::optional<quant::Format> format = quant::format_of(module.scheme);
    if (!format) continue;
    if (const std::optional<v4::FusedExperts> fused = v4::parse_fused_experts(module.name)) {
      const std::string expert = fmt::format("layers.{}.ffn.experts.0.", fused->layer);
      if (fused->part == v4::FusedExperts::Part::kDown) {
        formats.emplace(expert + "w2", *format);
      } else {
        formats.emplace(expert + "w1", *format);
        formats.emplace(expert + "w3", *format);
      }
      continue;
    }
    if (module.role.module_class == ModuleClass::kRoutedExperts &&
        module.name.find(".experts.0.") == std::string::npos) {
      continue;
    }
    std::string name = v4::original_name(module.name + ".weight");
    name.resize(name.size() - std::string_view(".weight").size());
    formats.emplace(std::move(name), *format);
  }
  return formats;
}

// What load() would make for a GPU, without weights.
struct GpuParts {
  models::deepseek_v4::Numerics numerics;
  models::deepseek_v4::gpu::Weights weights;
  models::deepseek_v4::gpu::Ops ops;
};

// kUnsupported on a CPU, and where a matrix or an op has only a planned kernel: such a plan does
// not run.
Result<GpuParts> gpu_parts(const Config& config,
                           const quant::Detection& detection,
                           const Plan& plan) {
  namespace v4 = models::deepseek_v4;
  if (is_cpu(plan)) return unsupported("on the CPU");
  const auto formats = matrix_formats(detection);
  const auto format_of = [&](const std::string& name) -> std::optional<quant::Format> {
    const auto found = formats.find(name);
    return found == formats.end() ? std::nullopt : std::optional(found->second);
  };
  const device::DeviceInfo device = plan.options.device.info();
  const kernels::RouteOptions routing = routing_of(plan.options);
  GpuParts parts{.numerics = numerics_of(plan.options), .weights = {}, .ops = {}};
  TRY_ASSIGN(parts.weights,
             v4::gpu::plan_weights(config,
                                   parts.numerics,
                                   has_mtp(draft_kind(detection), plan),
                                   format_of,
                                   device,
                                   routing));
  TRY_ASSIGN(parts.ops, v4::gpu::route_ops(config, parts.numerics, device, routing));
  return parts;
}

// On a GPU without that of the layers where there are no parts.
int64_t workspace_bytes(const Config& config,
                        const quant::Detection& detection,
                        const Plan& plan,
                        const Result<GpuParts>& parts,
                        int64_t pages) {
  namespace v4 = models::deepseek_v4;
  const PlanOptions& options = plan.options;
  const models::StateOptions state{
      .num_slots = options.concurrency,
      .num_pages = static_cast<int32_t>(pages),
      .max_context = options.context,
      .max_tokens_per_pass = std::max(options.pass_tokens, options.concurrency)};
  const bool mtp = has_mtp(draft_kind(detection), plan);
  if (is_cpu(plan)) return v4::Workspace::num_bytes(config, mtp, state);
  const int64_t of_layers =
      parts.ok() ? v4::gpu::Workspace::num_bytes(config, parts->weights, parts->ops, state) : 0;
  return of_layers + v4::gpu::StepPlan::num_bytes(state) +
         v4::gpu::scratch_bytes(
             config, numerics_of(options, options.kv_dtype), mtp, state.max_tokens_per_pass);
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

void add_weights(const Plan& plan, PlanMemory& memory) {
  for (const PlannedModule& module : plan.modules) {
    const bool is_draft = is_draft_class(module.module_class);
    if (is_draft && !holds_draft(plan)) continue;
    memory.weights += module.bytes_per_device;
    if (is_draft) memory.draft_weights += module.bytes_per_device;
  }
}

std::vector<PlanKvForm> kv_forms(const Config& config, DraftKind draft, const Plan& plan) {
  using models::KvDtype;
  constexpr double kTokens = models::deepseek_v4::kPageSize;
  std::vector<PlanKvForm> forms;
  for (const KvDtype kv_dtype : {plan.options.kv_dtype, KvDtype::kBf16, KvDtype::kFp8}) {
    const std::string_view name = form_name(plan, kv_dtype);
    const bool is_known = std::any_of(
        forms.begin(), forms.end(), [&](const PlanKvForm& form) { return form.name == name; });
    if (is_known) continue;
    const StateBytes state = state_of(config, draft, plan, kv_dtype);
    forms.push_back({.name = std::string(name),
                     .entries_4 = static_cast<double>(state.entries_4) / kTokens,
                     .index_entries = static_cast<double>(state.index_entries) / kTokens,
                     .entries_128 = static_cast<double>(state.entries_128) / kTokens,
                     .windows = state.windows});
  }
  return forms;
}

// What the planned sequences take.
void add_state(const Config& config,
               const quant::Detection& detection,
               const Plan& plan,
               const Result<GpuParts>& parts,
               PlanMemory& memory) {
  const PlanOptions& options = plan.options;
  const DraftKind draft = draft_kind(detection);
  const StateBytes state = state_of(config, draft, plan);
  const int64_t sequences = options.concurrency;
  const int64_t pages = ceil_div(options.context, models::deepseek_v4::kPageSize);
  memory.num_pages = plan.kv ? plan.kv->num_pages : sequences * pages;
  memory.windows = times(sequences, state.windows);
  memory.compressor_state = times(sequences, state.compressors);
  memory.draft_state = times(sequences, state.streams);
  memory.snapshots = plan.kv ? plan.kv->snapshots_bytes : times(sequences, state.snapshot);
  memory.entries_4 = times(memory.num_pages, state.entries_4);
  memory.index_entries = times(memory.num_pages, state.index_entries);
  memory.entries_128 = times(memory.num_pages, state.entries_128);
  memory.workspace = std::min(workspace_bytes(config, detection, plan, parts, pages), kMaxBytes);
  memory.per_sequence = state.per_slot() + state.snapshot;
  memory.per_page = state.per_page();
  memory.kv_forms = kv_forms(config, draft, plan);
}

void find_what_fits(const Config& config, const PlanOptions& options, PlanMemory& memory) {
  const int64_t sequences = options.concurrency;
  const int64_t pages = ceil_div(options.context, models::deepseek_v4::kPageSize);
  const int64_t free = memory.capacity - memory.reserved - memory.weights - memory.workspace;
  const int64_t one = memory.per_sequence + times(pages, memory.per_page);
  memory.max_concurrency = std::max<int64_t>(free / std::max<int64_t>(one, 1), 0);
  const int64_t for_pages = free - times(sequences, memory.per_sequence);
  const int64_t per_page = std::max<int64_t>(times(memory.per_page, sequences), 1);
  const int64_t max_pages = for_pages <= 0 ? 0 : for_pages / per_page;
  memory.max_context = std::min<int64_t>(times(max_pages, models::deepseek_v4::kPageSize),
                                         config.max_position_embeddings);
}

PlanMemory memory_of(const Config& config,
                     const quant::Detection& detection,
                     const Plan& plan,
                     const Result<GpuParts>& parts) {
  PlanMemory memory;
  memory.capacity = plan.options.device.memory_bytes;
  memory.reserved = is_cpu(plan) ? kHostReserved : kGpuReserved;
  add_weights(plan, memory);
  add_state(config, detection, plan, parts, memory);
  find_what_fits(config, plan.options, memory);
  return memory;
}

// Divides what an engine gets. Context and concurrency become what that gives.
Result<void> divide_kv(const Config& config, DraftKind draft, Plan& plan) {
  PlanOptions& options = plan.options;
  PlanMemory memory;
  add_weights(plan, memory);
  const StateBytes state = state_of(config, draft, plan);
  const models::ModelInfo info{.page_size = models::deepseek_v4::kPageSize,
                               .slot_bytes = state.per_slot(),
                               .page_bytes = state.per_page(),
                               .snapshot_bytes = state.snapshot};
  const KvDivision& wanted = *options.kv;
  const bool is_longest = options.context == kLongestContext;
  const int64_t usable =
      options.device.memory_bytes - (is_cpu(plan) ? kHostReserved : kGpuReserved);
  TRY_ASSIGN(
      plan.kv,
      plan_kv(info,
              {.budget_bytes = wanted.budget_bytes > 0
                                   ? wanted.budget_bytes
                                   : default_kv_bytes(options.device.kind, usable, memory.weights),
               .max_context = is_longest ? config.max_position_embeddings : options.context,
               .may_shorten = is_longest,
               .num_slots = wanted.num_slots,
               .num_pages = static_cast<int32_t>(
                   std::min<int64_t>(ceil_div(wanted.num_tokens, int64_t{info.page_size}),
                                     std::numeric_limits<int32_t>::max())),
               .has_prefix_cache = wanted.has_prefix_cache}));
  options.context = plan.kv->max_context;
  options.concurrency = plan.kv->num_slots;
  return {};
}

void add_memory(const Config& config,
                const quant::Detection& detection,
                const Result<GpuParts>& parts,
                Plan& plan) {
  PlanOptions& options = plan.options;
  const DraftKind draft = draft_kind(detection);
  std::string over_budget;
  if (options.kv) {
    const Result<void> divided = divide_kv(config, draft, plan);
    if (!divided.ok()) over_budget = divided.error().message;
  }
  const bool is_longest = options.context == kLongestContext;
  if (is_longest) options.context = config.max_position_embeddings;
  PlanMemory memory = memory_of(config, detection, plan, parts);
  memory.exceeds_kv_budget = !over_budget.empty();
  if (is_longest && !memory.fits() && memory.max_context > 0) {
    options.context = static_cast<int32_t>(memory.max_context);
    memory = memory_of(config, detection, plan, parts);
  }
  plan.memory = memory;
  if (memory.fits()) return;
  plan.diagnostics.push_back(
      {.severity = quant::Severity::kWarning,
       .code = "Q-M1",
       .message = !over_budget.empty()
                      ? over_budget
                      : fmt::format("{:.1f} GB are needed on each {}, which has {:.1f}: it does "
                                    "not fit. Fix: use more "
                                    "devices, a shorter --context or a lower --concurrency.",
                                    static_cast<double>(memory.total()) / 1e9,
                                    options.device.name,
                                    static_cast<double>(memory.capacity) / 1e9)});
}

// What a launch takes beside its bytes (spec "h200-facts" 1: dependent launches of one graph).
constexpr double kLaunchSeconds = 1e-6;

// Launches of a decode step of that many sequences; nullopt where they cannot be counted.
std::optional<int32_t> num_launches(const Config& config,
                                    const Plan& plan,
                                    const Result<GpuParts>& parts,
                                    int32_t batch) {
  if (!parts.ok()) return std::nullopt;
  const Result<int32_t> launches =
      models::deepseek_v4::gpu::count_decode_launches(config,
                                                      parts->numerics,
                                                      parts->weights,
                                                      parts->ops,
                                                      plan.options.device.info(),
                                                      batch,
                                                      plan.options.context);
  return launches.ok() ? std::optional(*launches) : std::nullopt;
}

// " and 89 to 171 launches of 1 us"; empty on a CPU.
std::string launches_text(const Plan& plan) {
  if (is_cpu(plan)) return "";
  std::vector<int32_t> counted;
  for (const PlanBatch& step : plan.performance->batches) {
    if (step.num_launches) counted.push_back(*step.num_launches);
  }
  if (counted.empty()) return ", launches not counted";
  const auto [fewest, most] = std::minmax_element(counted.begin(), counted.end());
  const bool has_all = counted.size() == plan.performance->batches.size();
  return fmt::format(" and {} to {} launches of {:.0f} us{}",
                     *fewest,
                     *most,
                     kLaunchSeconds * 1e6,
                     has_all ? "" : ", not counted for every batch");
}

std::string assumption_of(const Config& config, const Plan& plan, double all_reduce) {
  const PlanOptions& options = plan.options;
  const PlanPerformance& performance = *plan.performance;
  std::string text = fmt::format(
      "{:.0f} to {:.0f}% of the bandwidth bound ({})",
      performance.low_share * 100,
      performance.high_share * 100,
      is_cpu(plan) ? "kernels measured at 90% of the read stream, whole steps less"
                   : "as eight layers of V4-Flash on an H200 had it, whatever the model and "
                     "the GPU");
  text += launches_text(plan);
  text += fmt::format("; bound: weights and cache read once per step at {} per device ({})",
                      read_rate_text(options.device),
                      options.device.note);
  if (all_reduce > 0) {
    text += fmt::format(
        " and {} all-reduces of {:.1f} us", 2 * config.num_hidden_layers, all_reduce * 1e6);
  }
  return text + ", experts chosen independently, no drafts";
}

void add_performance(const Config& config,
                     const quant::Detection& detection,
                     const Result<GpuParts>& parts,
                     Plan& plan) {
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

  PlanPerformance performance{.num_experts = config.n_routed_experts,
                              .choices = config.num_experts_per_tok};
  std::set<int32_t> batches = {1, 16, 64, 256};
  batches.insert(options.concurrency);
  for (const int32_t batch : batches) {
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
    step.num_launches = num_launches(config, plan, parts, batch);
    step.launch_seconds = step.num_launches.value_or(0) * kLaunchSeconds;
    performance.batches.push_back(step);
  }
  performance.low_share = 0.5;
  performance.high_share = is_cpu(plan) ? 0.9 : 0.85;
  plan.performance = std::move(performance);
  plan.performance->assumption = assumption_of(config, plan, all_reduce);
}

}  // namespace

void plan_memory_and_speed(const Config& config, const quant::Detection& detection, Plan& plan) {
  if (!plan.why_no_sizes.empty()) return;
  const Result<GpuParts> parts = gpu_parts(config, detection, plan);
  add_memory(config, detection, parts, plan);
  add_performance(config, detection, parts, plan);
}

}  // namespace nibble::engine::internal
