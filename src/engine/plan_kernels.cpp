// Which kernel each module class gets, and why not a better one.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/utf8.h"
#include "engine/plan_parts.h"
#include "kernels/planned/targets.h"
#include "models/deepseek_v4/gpu/ops.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/ops.h"
#include "quant/shard.h"

namespace nibble::engine::internal {
namespace {

using kernels::Activation;
using kernels::KernelInfo;
using kernels::Op;
using kernels::Problem;
using quant::DetectedModule;
using quant::ModuleClass;
using quant::SchemeKind;
using quant::Severity;

void add(Plan& plan, Severity severity, std::string_view code, std::string message) {
  plan.diagnostics.push_back(
      {.severity = severity, .code = std::string(code), .message = std::move(message)});
}

// A vector, a bias or a table: part of a module, not a matrix to multiply with.
bool is_parameter(const DetectedModule& module) {
  const ModuleClass c = module.role.module_class;
  if (c == ModuleClass::kNorm || c == ModuleClass::kHyperConnection) return false;
  const std::string_view leaf = leaf_of(module.name);
  return module.n == 1 || module.scheme.kind == SchemeKind::kIndex || leaf == "ape" ||
         leaf == "position_bias";
}

Op op_of(const DetectedModule& module, bool is_gpu) {
  switch (module.role.module_class) {
    case ModuleClass::kEmbedding:
      return Op::kEmbed;
    case ModuleClass::kNorm:
      return Op::kRmsNorm;
    case ModuleClass::kHyperConnection:
      return is_gpu ? Op::kStreamUpdate : Op::kHyperPre;
    case ModuleClass::kRoutedExperts:
      return Op::kGroupedMatMul;
    default:
      // One matrix per output group (spec "deepseek-v4" 3.4); one launch on a GPU.
      if (is_gpu) return Op::kMatMul;
      return leaf_of(module.name) == "wo_a" || leaf_of(module.name) == "o_a_proj"
                 ? Op::kGroupedMatMul
                 : Op::kMatMul;
  }
}

// The coarsest activations that keep the model's accuracy (spec "deepseek-v4" 7.4): selections and
// long sums stay f32, quantised weights take what they were calibrated with.
Activation activation_of(const DetectedModule& module,
                         std::string_view evidence,
                         const PlanOptions& options) {
  const ModuleClass c = module.role.module_class;
  const bool is_dense = !module.scheme.is_quantized();
  const bool is_selection = c == ModuleClass::kRouter || c == ModuleClass::kCompressor ||
                            (c == ModuleClass::kIndexer && leaf_of(module.name) != "wq_b");
  if (is_dense && (is_selection || module.scheme.kind == SchemeKind::kF32)) {
    return Activation::kF32;
  }
  if (options.device.kind == device::DeviceKind::kCpu) {
    const auto numerics = numerics_of(options);
    return c == ModuleClass::kLmHead ? numerics.head_activation : numerics.activation;
  }
  if (numerics_of(options).activation == Activation::kBf16) return Activation::kBf16;
  switch (module.scheme.kind) {
    case SchemeKind::kFp8Tensor:
    case SchemeKind::kFp8Channel:
    case SchemeKind::kFp8Block:
    case SchemeKind::kMxfp8:
    case SchemeKind::kMxfp4:
      return Activation::kFp8;
    case SchemeKind::kNvfp4:
      if (evidence.find("W4A8_NVFP4_FP8") != std::string_view::npos) return Activation::kFp8;
      return module.scheme.has_input_scale ? Activation::kNvfp4 : Activation::kBf16;
    case SchemeKind::kInt8:
      return Activation::kInt8;
    default:
      return Activation::kBf16;
  }
}

bool is_on_target(const KernelInfo& kernel, const device::DeviceInfo& device) {
  if (kernel.target.kind != device.kind) return false;
  if (device.kind == device::DeviceKind::kCpu) return (kernel.target.isa & ~device.isa) == 0;
  return device.sm >= kernel.target.sm_min && device.sm <= kernel.target.sm_max;
}

// Why a kernel for every generation, where others have rows of their own; else empty.
std::string portable_note(const kernels::Route& route, const device::DeviceInfo& device) {
  const kernels::Target& target = route.kernel->target;
  const bool is_portable =
      target.kind == device::DeviceKind::kCuda &&
      kernels::generation_of(target.sm_min) != kernels::generation_of(target.sm_max);
  const bool is_chosen =
      std::any_of(route.refused.begin(), route.refused.end(), [](const kernels::Refusal& refusal) {
        return refusal.cause == kernels::Cause::kOption;
      });
  if (!is_portable || is_chosen || route.refused.empty()) return "";
  return fmt::format(
      "no row of its own for sm_{} takes it: portable {}",
      device.sm,
      route.kernel->unit == kernels::ComputeUnit::kTensorCore ? "mma.sync" : "CUDA cores");
}

const KernelInfo* find_kernel(std::string_view name) {
  for (const KernelInfo* kernel : kernels::all_kernels()) {
    if (kernel->name == name) return kernel;
  }
  return nullptr;
}

// Refusals of records for this very device that were about the problem's size: what a better shape
// would have had. Records for other numerics are no alternative.
std::vector<kernels::Refusal> better_refusals(const kernels::Route& route,
                                              const device::DeviceInfo& device) {
  std::vector<kernels::Refusal> better;
  for (const kernels::Refusal& refusal : route.refused) {
    const KernelInfo* kernel = find_kernel(refusal.kernel);
    const bool is_numerics = refusal.reason.rfind("activation", 0) == 0;
    const bool is_bounded = refusal.reason.rfind("m ", 0) == 0;  // a variant for small batches
    if (kernel != nullptr && is_on_target(*kernel, device) && !is_numerics && !is_bounded) {
      better.push_back(refusal);
    }
  }
  return better;
}

// What a 4- or 8-bit weight is multiplied in where its own activations are not available. Source of
// which GPUs have which cores: spec "quantization" 3.1.
std::string widened_note(const KernelInfo& kernel, Activation wanted, SchemeKind kind, int32_t sm) {
  const bool is_wide = wanted <= Activation::kBf16;
  if (kernel.target.kind == device::DeviceKind::kCpu || !kernel.has_weight || is_wide ||
      kernel.activation >= wanted) {
    return "";
  }
  const bool is_4_bit = kind == SchemeKind::kMxfp4 || kind == SchemeKind::kNvfp4;
  const bool wants_fp4 = wanted == Activation::kNvfp4;
  const bool has_cores = sm >= (wants_fp4 ? 100 : 89);
  return fmt::format("W{}A{}: {} {}; more precise, not faster",
                     is_4_bit ? 4 : 8,
                     kernel.activation == Activation::kFp8 ? 8 : 16,
                     has_cores ? "no kernel for this GPU multiplies activations in"
                               : "this GPU has no tensor cores for",
                     wants_fp4 ? "FP4" : "FP8");
}

// One kernel choice: for a class, a format and a matrix shape.
class ModulePlanner final {
 public:
  ModulePlanner(const quant::Detection& detection, Plan& plan)
      : detection_(detection),
        plan_(plan),
        device_(plan.options.device.info()),
        routing_(routing_of(plan.options)) {}

  void run() {
    for (const DetectedModule& module : detection_.modules) place(module);
    std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.order != b.order ? a.order < b.order : a.planned.bytes > b.planned.bytes;
    });
    for (Entry& entry : entries_) finish(entry);
    report_slow();
  }

 private:
  struct Entry {
    PlannedModule planned;
    std::set<int32_t> layers;
    std::map<std::string, int64_t> evidence;  // by how often
    std::map<std::tuple<std::string, int64_t, int64_t>, int64_t> parts;
    Activation activation = Activation::kF32;
    SchemeKind kind = SchemeKind::kUnknown;
    std::pair<bool, ModuleClass> order;  // as a reader expects them
  };
  struct Choice {
    const KernelInfo* kernel = nullptr;
    std::vector<const KernelInfo*> by_rows;
    std::vector<kernels::Refusal> refused;
    std::vector<kernels::Refusal> better;
    const KernelInfo* unforced = nullptr;
    std::string note;
  };
  using ChoiceKey = std::tuple<Op, std::string, Activation, int64_t, int64_t>;

  void place(const DetectedModule& module) {
    const std::string role = quant::role_name(module.role);
    if (!module.is_sound) {
      leave_sizes_unknown(plan_, fmt::format("the stored form of {} has faults", role));
    }
    const std::string format = quant::scheme_name(module.scheme);
    if (is_parameter(module)) {
      parameter_bytes_[role] += module.num_bytes;
      parameter_device_bytes_[role] += device_bytes(module, nullptr);
      return;
    }
    check_sharding(module);
    const std::string& evidence = detection_.evidence_of(module);
    const Activation activation = activation_of(module, evidence, plan_.options);
    const Choice& choice = choose(module, activation);
    if (choice.kernel == nullptr) {
      leave_sizes_unknown(plan_, fmt::format("no kernel takes {} ({})", role, format));
    }
    Entry& entry = entry_for(role, format, choice.kernel);
    entry.activation = activation;
    entry.kind = module.scheme.kind;
    entry.order = {module.role.is_draft, module.role.module_class};
    if (module.role.layer >= 0) entry.layers.insert(module.role.layer);
    ++entry.evidence[evidence];
    entry.parts[{std::string(leaf_of(module.name)), module.n, module.k}] += module.num_matrices;
    entry.planned.bytes += module.num_bytes;
    entry.planned.bytes_per_device += device_bytes(module, choice.kernel);
    entry.planned.unforced_bytes_per_device += device_bytes(module, choice.unforced);
    for (const KernelInfo* kernel : choice.by_rows) {
      std::vector<const KernelInfo*>& known = entry.planned.by_rows;
      if (std::find(known.begin(), known.end(), kernel) == known.end()) known.push_back(kernel);
    }
    if (entry.planned.refused.empty()) {
      entry.planned.refused = choice.refused;
      entry.planned.better = choice.better;
      entry.planned.unforced = choice.unforced;
      entry.planned.why = choice.note;
    }
  }

  Entry& entry_for(const std::string& role, const std::string& format, const KernelInfo* kernel) {
    for (Entry& entry : entries_) {
      if (entry.planned.module_class == role && entry.planned.format == format &&
          entry.planned.kernel == kernel) {
        return entry;
      }
    }
    Entry entry;
    entry.planned.module_class = role;
    entry.planned.format = format;
    entry.planned.kernel = kernel;
    entries_.push_back(std::move(entry));
    return entries_.back();
  }

  const Choice& choose(const DetectedModule& module, Activation activation) {
    const bool is_gpu = device_.kind == device::DeviceKind::kCuda;
    const Op op = op_of(module, is_gpu);
    const bool has_weight = op == Op::kMatMul || op == Op::kGroupedMatMul;
    const std::string format = has_weight ? quant::scheme_name(module.scheme) : "";
    const bool is_norm = op == Op::kRmsNorm;
    // Norms are routed by their width; the mixers' kernels by the streams, which few records bound.
    const int64_t n = is_norm                                          ? module.k
                      : op == Op::kHyperPre || op == Op::kStreamUpdate ? 0
                                                                       : module.n;
    const ChoiceKey key{op, format, activation, n, module.k};
    const auto known = choices_.find(key);
    if (known != choices_.end()) return known->second;
    Choice choice;
    const std::optional<quant::Format> weight = quant::format_of(module.scheme);
    if (has_weight && !weight) {
      if (module.is_sound) report_unknown_format(module);
      return choices_.emplace(key, std::move(choice)).first->second;
    }
    const bool is_small = plan_.options.goal == Goal::kLatency;
    const Problem problem = {.op = op,
                             .has_weight = has_weight,
                             .weight = weight.value_or(quant::Format::kF32),
                             .activation = has_weight ? activation : Activation::kBf16,
                             .m_max = is_small ? plan_.options.concurrency : 0,
                             .n = n,
                             .k = op == Op::kStreamUpdate ? 0 : module.k};
    const Result<std::vector<kernels::RangedRoute>> routes = routes_of(problem, routing_);
    if (!routes.ok()) {
      report_no_kernel(module, routes.error());
    } else {
      const kernels::Route& route = shown_route(*routes, problem);
      choice.kernel = route.kernel;
      choice.better = better_refusals(route, device_);
      choice.refused = route.refused;
      choice.note = portable_note(route, device_);
      choice.unforced = unforced_kernel(problem, *choice.kernel);
      for (const kernels::RangedRoute& ranged : *routes) {
        choice.by_rows.push_back(ranged.route.kernel);
      }
    }
    return choices_.emplace(key, std::move(choice)).first->second;
  }

  // None where --kernel and --without-kernel change nothing.
  const KernelInfo* unforced_kernel(const Problem& problem, const KernelInfo& forced) const {
    if (routing_.only.empty() && routing_.without.empty()) return nullptr;
    kernels::RouteOptions routing = routing_;
    routing.only = {};
    routing.without = {};
    const auto routes = routes_of(problem, routing);
    if (!routes.ok()) return nullptr;
    const KernelInfo* const taken = shown_route(*routes, problem).kernel;
    return taken == &forced ? nullptr : taken;
  }

  // As layers/device_linear.h: on a GPU a weight has one layout for the kernels of all numbers of
  // rows; with deterministic kernels one for any number.
  Result<std::vector<kernels::RangedRoute>> routes_of(const Problem& problem,
                                                      const kernels::RouteOptions& routing) const {
    const bool is_gpu_weight = device_.kind == device::DeviceKind::kCuda && problem.has_weight;
    if (is_gpu_weight && !routing.deterministic) {
      return kernels::route_by_rows(problem, device_, routing);
    }
    Problem one = problem;
    if (is_gpu_weight) one.m_max = 0;
    TRY_ASSIGN(kernels::Route route, kernels::route(one, device_, routing));
    std::vector<kernels::RangedRoute> routes;
    routes.push_back({.m_max = 0, .route = std::move(route)});
    return routes;
  }

  // That for most rows, or with few sequences theirs.
  static const kernels::Route& shown_route(const std::vector<kernels::RangedRoute>& routes,
                                           const Problem& problem) {
    return problem.m_max == 0 ? routes.back().route : kernels::route_for(routes, problem.m_max);
  }

  void report_unknown_format(const DetectedModule& module) {
    add(plan_,
        Severity::kError,
        "Q-K1",
        fmt::format("{} ({}): {} in the layout of {} has no kernel in any backend; expected one of "
                    "the formats in docs/kernel-table.md. Fix: convert the checkpoint.",
                    escape_for_display(quant::without_numbers(module.name)),
                    quant::role_name(module.role),
                    quant::scheme_name(module.scheme),
                    quant::carrier_name(module.scheme.carrier)));
  }

  void report_no_kernel(const DetectedModule& module, const Error& fault) {
    const std::string_view fix =
        !routing_.only.empty() ? "drop --kernel, as another kernel is not taken in its place"
        : !routing_.without.empty()
            ? "drop --without-kernel, use another device or convert the checkpoint"
            : "use another device or convert the checkpoint";
    const DeviceSheet& sheet = plan_.options.device;
    add(plan_,
        Severity::kError,
        fault.reason,
        fmt::format("{} {} on {}{}: {}. Fix: {}.",
                    quant::scheme_name(module.scheme),
                    quant::role_name(module.role),
                    sheet.name,
                    sheet.sm > 0 ? fmt::format(" (sm_{})", sheet.sm) : "",
                    fault.message,
                    fix));
  }

  // Resident bytes on one device: GPUs keep what is stored, but rows have a scale in f32 per group.
  int64_t device_bytes(const DetectedModule& module, const KernelInfo* kernel) const {
    const bool is_host = plan_.options.device.kind == device::DeviceKind::kCpu;
    const bool has_rows = kernel != nullptr && kernel->layout == kernels::PackedLayout::kRowMajor;
    const int64_t bytes = is_host || has_rows ? packed_bytes(module, kernel) : module.num_bytes;
    const int32_t shares = num_shares(spread_of(module), plan_.options);
    return (bytes + shares - 1) / shares;
  }

  // Weights in the layout that the kernel names; parameters become f32, expert tables i32.
  static int64_t packed_bytes(const DetectedModule& module, const KernelInfo* kernel) {
    const std::optional<quant::Format> format = quant::format_of(module.scheme);
    if (kernel != nullptr && kernel->has_weight && format) {
      const DType scale = quant::format_info(*format).has_scales()
                              ? quant::format_info(*format).scale_dtypes.dtypes[0]
                              : DType::kF32;
      return module.num_matrices *
             kernels::packed_weight_bytes(*format, module.n, module.k, scale, kernel->layout);
    }
    if (module.role.module_class == ModuleClass::kEmbedding) return module.num_bytes;
    return module.num_matrices * module.n * module.k * 4;
  }

  // P3, P5, P6: shards keep blocks and groups whole, and their scales beside them.
  void check_sharding(const DetectedModule& module) {
    const int32_t tp = plan_.options.tp;
    const bool is_split = spread_of(module) == Spread::kTensorParallel ||
                          (spread_of(module) == Spread::kExperts && plan_.options.ep == 1);
    if (tp <= 1 || !is_split || !module.is_sound) return;
    const std::string_view leaf = leaf_of(module.name);
    const bool is_row_parallel =
        leaf == "w2" || leaf == "wo_b" || leaf == "down_proj" || leaf == "o_proj";
    quant::ShardRequest request = {
        .scheme = module.scheme,
        .n = module.n,
        .k = module.k,
        .axis = is_row_parallel ? quant::ShardAxis::kK : quant::ShardAxis::kN,
        .parts = tp};
    const Result<quant::Shard> shard = quant::shard_of(request);
    if (shard.ok()) return;
    const std::string general = quant::without_numbers(module.name);
    if (!reported_shards_.insert(general).second) return;
    request.may_cut_blocks = plan_.options.pads_fp8_blocks;
    add(plan_,
        quant::shard_of(request).ok() ? Severity::kWarning : Severity::kError,
        shard.error().reason,
        fmt::format("{}: {}", escape_for_display(general), shard.error().message));
  }

  void finish(Entry& entry) {
    PlannedModule& planned = entry.planned;
    planned.layers.assign(entry.layers.begin(), entry.layers.end());
    for (const auto& [key, count] : entry.parts) {
      planned.parts.push_back(
          {.name = std::get<0>(key), .n = std::get<1>(key), .k = std::get<2>(key), .count = count});
    }
    const auto most = std::max_element(
        entry.evidence.begin(), entry.evidence.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        });
    planned.evidence = most->first;
    if (entry.evidence.size() > 1) {
      const size_t others = entry.evidence.size() - 1;
      planned.evidence += fmt::format(" (and {} other form{})", others, others == 1 ? "" : "s");
    }
    // Biases and tables count with the first entry of their class.
    const auto bytes = parameter_bytes_.find(planned.module_class);
    if (bytes != parameter_bytes_.end()) {
      planned.bytes += bytes->second;
      planned.bytes_per_device += parameter_device_bytes_[planned.module_class];
      planned.unforced_bytes_per_device += parameter_device_bytes_[planned.module_class];
      parameter_bytes_.erase(bytes);
    }
    if (planned.kernel == nullptr) {
      planned.why = "no kernel takes it";
    } else {
      if (planned.why.empty()) {
        planned.why = fmt::format("first record for {} that takes it",
                                  kernels::target_name(planned.kernel->target));
      }
      const std::string note =
          widened_note(*planned.kernel, entry.activation, entry.kind, device_.sm);
      if (!note.empty()) planned.why += "; " + note;
    }
    plan_.modules.push_back(planned);
  }

  // K7: a weaker unit than the best record for this device has.
  void report_slow() {
    for (PlannedModule& planned : plan_.modules) {
      if (planned.kernel == nullptr) continue;
      for (const kernels::Refusal& refusal : planned.better) {
        const KernelInfo* best = find_kernel(refusal.kernel);
        if (best->unit <= planned.kernel->unit) continue;
        planned.why += fmt::format("; SLOW: {} unavailable because {}", best->name, refusal.reason);
        const std::vector<std::string>& allowed = plan_.options.allow_slow;
        const bool is_allowed =
            std::find(allowed.begin(), allowed.end(), planned.module_class) != allowed.end();
        add(plan_,
            is_allowed ? Severity::kWarning : Severity::kError,
            "Q-K7",
            fmt::format("{} ({}): runs on {} units only, as {} refuses: {}. Fix: pass --allow-slow "
                        "{} to accept it.",
                        planned.module_class,
                        planned.format,
                        kernels::unit_name(planned.kernel->unit),
                        best->name,
                        refusal.reason,
                        planned.module_class));
        break;
      }
    }
  }

  const quant::Detection& detection_;
  Plan& plan_;
  const device::DeviceInfo device_;
  const kernels::RouteOptions routing_;
  std::vector<Entry> entries_;
  std::map<ChoiceKey, Choice> choices_;
  std::map<std::string, int64_t> parameter_bytes_;
  std::map<std::string, int64_t> parameter_device_bytes_;
  std::set<std::string> reported_shards_;
};

}  // namespace

std::string_view leaf_of(std::string_view module) {
  const size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? module : module.substr(dot + 1);
}

Spread spread_of(const DetectedModule& module) {
  const std::string_view leaf = leaf_of(module.name);
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), leaf) != names.end();
  };
  switch (module.role.module_class) {
    case ModuleClass::kRoutedExperts:
      return Spread::kExperts;
    case ModuleClass::kEmbedding:
    case ModuleClass::kSharedExperts:
    case ModuleClass::kDenseMlp:
    case ModuleClass::kProjection:
    case ModuleClass::kLmHead:
      return Spread::kTensorParallel;
    case ModuleClass::kAttention:
      // Latents are shared by all heads (spec "deepseek-v4" 3.9).
      return is_one_of({"wq_a", "wkv", "q_a_proj", "kv_proj", "kv_a_proj_with_mqa"})
                 ? Spread::kReplicated
                 : Spread::kTensorParallel;
    case ModuleClass::kIndexer:
      return is_one_of({"wq_b", "q_b_proj"}) ? Spread::kTensorParallel : Spread::kReplicated;
    default:
      return Spread::kReplicated;
  }
}

int32_t num_shares(Spread spread, const PlanOptions& options) {
  switch (spread) {
    case Spread::kReplicated:
      return 1;
    case Spread::kTensorParallel:
      return options.tp;
    case Spread::kExperts:
      return std::max(options.tp, options.ep);
  }
  return 1;
}

models::deepseek_v4::DraftKind draft_kind(const quant::Detection& detection) {
  using models::deepseek_v4::DraftKind;
  DraftKind kind = DraftKind::kNone;
  for (const DetectedModule& module : detection.modules) {
    if (module.name == "mtp.0.main_proj") return DraftKind::kDspark;
    if (module.name == "mtp.0.e_proj") kind = DraftKind::kMtp;
  }
  return kind;
}

models::deepseek_v4::Numerics numerics_of(const PlanOptions& options, models::KvDtype kv_dtype) {
  namespace v4 = models::deepseek_v4;
  if (options.device.kind == device::DeviceKind::kCpu) {
    return v4::numerics_of(options.precision, kv_dtype);
  }
  // A precision that GPUs lack is refused when the model is loaded.
  const Result<v4::Numerics> numerics = v4::gpu_numerics_of(options.precision, kv_dtype);
  return numerics.ok() ? *numerics
                       : v4::gpu_numerics_of(models::Precision::kDefault, kv_dtype).value();
}

models::deepseek_v4::Numerics numerics_of(const PlanOptions& options) {
  return numerics_of(options, options.kv_dtype);
}

void leave_sizes_unknown(Plan& plan, std::string why) {
  if (plan.why_no_sizes.empty()) plan.why_no_sizes = std::move(why);
}

void plan_modules(const quant::Detection& detection, Plan& plan) {
  ModulePlanner(detection, plan).run();
}

namespace {

void add_op(const kernels::Route& route, Plan& plan) {
  plan.ops.push_back({.name = std::string(kernels::op_name(route.kernel->op)),
                      .kernel = route.kernel,
                      .why = portable_note(route, plan.options.device.info()),
                      .refused = route.refused});
}

Result<void> plan_host_ops(const models::deepseek_v4::Config& config, Plan& plan) {
  TRY_ASSIGN(
      const models::deepseek_v4::Ops ops,
      models::deepseek_v4::route_ops(
          config, numerics_of(plan.options), plan.options.device.info(), routing_of(plan.options)));
  for (const kernels::Route* route : {&ops.attention,
                                      &ops.indexer_score,
                                      &ops.top_k,
                                      &ops.rope_head,
                                      &ops.hyper_post,
                                      &ops.hyper_head,
                                      &ops.compress_head,
                                      &ops.select_experts,
                                      &ops.swiglu,
                                      &ops.combine_experts}) {
    add_op(*route, plan);
  }
  return {};
}

Result<void> plan_gpu_ops(const models::deepseek_v4::Config& config, Plan& plan) {
  namespace gpu = models::deepseek_v4::gpu;
  TRY_ASSIGN(
      const gpu::Ops ops,
      gpu::route_ops(
          config, numerics_of(plan.options), plan.options.device.info(), routing_of(plan.options)));
  for (const gpu::OpProblem& op : gpu::op_problems(config, numerics_of(plan.options))) {
    add_op(ops.*op.route, plan);
  }
  for (const std::optional<kernels::Route>* joined : {&ops.matmul_pair, &ops.stream_turn}) {
    if (*joined) add_op(**joined, plan);
  }
  return {};
}

}  // namespace

// The reference is shown where nothing else takes a module; Q-K7 then says that it must be allowed.
kernels::RouteOptions routing_of(const PlanOptions& options) {
  return {.deterministic = options.deterministic,
          .only = options.only_kernel,
          .without = options.without_kernel,
          .for_plan = true,
          .allow_reference = true};
}

void plan_ops(const models::deepseek_v4::Config& config, Plan& plan) {
  const bool is_cpu = plan.options.device.kind == device::DeviceKind::kCpu;
  const Result<void> planned = is_cpu ? plan_host_ops(config, plan) : plan_gpu_ops(config, plan);
  if (planned.ok()) return;
  add(plan,
      Severity::kError,
      planned.error().reason,
      planned.error().message + ". Fix: use another device.");
  leave_sizes_unknown(plan, "no kernel takes an op of this model");
}

}  // namespace nibble::engine::internal
