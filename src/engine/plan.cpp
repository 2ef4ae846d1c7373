#include "engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "checkpoint/config_reader.h"
#include "engine/plan_parts.h"
#include "models/deepseek_v4/key_rows.h"
#include "models/deepseek_v4/tensor_names.h"

namespace nibble::engine {
namespace {

using models::deepseek_v4::Config;
using quant::Severity;

constexpr size_t kMaxShown = 8;
constexpr int32_t kDefaultContext = 32768;
constexpr int32_t kDefaultPassTokens = 512;

void add(Plan& plan, Severity severity, std::string_view code, std::string message) {
  plan.diagnostics.push_back(
      {.severity = severity, .code = std::string(code), .message = std::move(message)});
}

PlanOptions completed(PlanOptions options) {
  options.num_devices = std::max(options.num_devices, 1);
  if (options.tp == 0) options.tp = options.num_devices;
  options.ep = std::max(options.ep, 1);
  if (options.concurrency == 0) options.concurrency = options.goal == Goal::kLatency ? 1 : 64;
  if (options.pass_tokens == 0) options.pass_tokens = kDefaultPassTokens;
  return options;
}

// The modules by the names that the inventory uses.
class ModuleIndex final {
 public:
  ModuleIndex(const quant::Detection& detection, const checkpoint::ModelDescription& description) {
    for (const quant::DetectedModule& module : detection.modules) {
      modules_.emplace(models::deepseek_v4::original_name(module.name), &module);
      if (const auto fused = models::deepseek_v4::parse_fused_experts(module.name)) {
        fused_layers_.insert(fused->layer);
      }
    }
    for (const TensorMeta& tensor : description.tensors) {
      tensors_.insert(models::deepseek_v4::original_name(tensor.name));
    }
  }
  const quant::DetectedModule* find(const std::string& name) const {
    const auto it = modules_.find(name);
    return it == modules_.end() ? nullptr : it->second;
  }
  // A parameter that belongs to another module (a bias), or an expert inside a fused tensor.
  bool holds(const std::string& name, int32_t layer) const {
    const bool is_expert = name.find(".ffn.experts.") != std::string::npos;
    return tensors_.contains(name) || (is_expert && fused_layers_.contains(layer));
  }

 private:
  std::unordered_map<std::string, const quant::DetectedModule*> modules_;
  std::unordered_set<std::string> tensors_;
  std::unordered_set<int32_t> fused_layers_;
};

int32_t layer_in(const std::string& name) {
  return name.rfind("layers.", 0) == 0 ? std::atoi(name.c_str() + 7) : -1;
}

bool has_shape(const quant::DetectedModule& module, const Shape& shape) {
  if (!module.is_sound) return true;  // reported already
  if (shape.rank() == 1) return module.n * module.k == shape[0];
  return module.n == shape[0] && module.k == shape[1];
}

// Two FP4 codes share a byte along k.
bool must_be_even(const quant::DetectedModule& module, const Shape& shape) {
  const bool is_fp4 = module.scheme.kind == quant::SchemeKind::kMxfp4 ||
                      module.scheme.kind == quant::SchemeKind::kNvfp4;
  return is_fp4 && module.is_sound && shape.rank() == 2 && shape[1] % 2 != 0;
}

constexpr std::string_view kConfigContradicts = "config.json and shards disagree about shapes";

// P2: sizes in config.json that no file can store.
void report_odd(const std::vector<std::string>& odd, Plan& plan) {
  if (odd.empty()) return;
  internal::leave_sizes_unknown(plan, std::string(kConfigContradicts));
  add(plan,
      Severity::kError,
      "Q-P2",
      fmt::format(
          "{} ({} modules): config.json makes k odd, but two 4-bit codes share a byte along "
          "k; expected an even k. Fix: correct hidden_size or moe_intermediate_size in "
          "config.json.",
          escape_for_display(odd.front()),
          odd.size()));
}

// C1b for what is missing, D2 for shapes that config.json contradicts, P2 for odd ones.
void check_inventory(const Config& config,
                     const quant::Detection& detection,
                     const checkpoint::ModelDescription& description,
                     Plan& plan) {
  const ModuleIndex index(detection, description);
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  std::vector<std::string> odd;
  for (const auto& [name, shape] :
       models::deepseek_v4::expected_modules(config, internal::draft_kind(detection))) {
    const quant::DetectedModule* module = index.find(name);
    if (module == nullptr) {
      if (!index.holds(name, layer_in(name))) missing.push_back(name);
    } else if (must_be_even(*module, shape)) {
      odd.push_back(name);
    } else if (!has_shape(*module, shape)) {
      wrong.push_back(fmt::format("{}: stored as [{}, {}]; expected {} by config.json",
                                  escape_for_display(module->name),
                                  module->n,
                                  module->k,
                                  shape.to_string()));
    }
  }
  if (!missing.empty()) {
    const size_t count = missing.size();
    plan.is_complete = false;
    internal::leave_sizes_unknown(
        plan, fmt::format("{} modules that config.json calls for are missing", count));
    missing.resize(std::min(count, kMaxShown));
    add(plan,
        Severity::kError,
        "Q-C1b",
        fmt::format("{} modules that config.json calls for are missing: {}{}; expected them in a "
                    "shard. Fix: the checkpoint is incomplete; fetch it again.",
                    count,
                    fmt::join(missing, ", "),
                    count > kMaxShown ? ", ..." : ""));
  }
  report_odd(odd, plan);
  if (!wrong.empty()) internal::leave_sizes_unknown(plan, std::string(kConfigContradicts));
  for (size_t i = 0; i < std::min(wrong.size(), kMaxShown); ++i) {
    add(plan,
        Severity::kError,
        "Q-D2",
        wrong[i] + ". Fix: config.json and shards are of different models; fetch both again.");
  }
  if (wrong.size() > kMaxShown) {
    add(plan,
        Severity::kError,
        "Q-D2",
        fmt::format("{} more modules with shapes that config.json contradicts.",
                    wrong.size() - kMaxShown));
  }
}

void add_faults(const checkpoint::ModelDescription& description, Plan& plan) {
  for (const Error& fault : description.faults) {
    add(plan, Severity::kError, fault.reason.empty() ? "Q-F2" : fault.reason, fault.message);
    plan.is_complete = false;
    internal::leave_sizes_unknown(plan, "files are missing or damaged");
  }
  for (const std::string& warning : description.warnings) {
    add(plan, Severity::kWarning, "Q-F3", warning);
  }
}

// Whether a weight or a scale that others need is in no shard.
bool lacks_tensors(const quant::Detection& detection) {
  return std::any_of(
      detection.diagnostics.begin(), detection.diagnostics.end(), [](const auto& diagnostic) {
        return diagnostic.code == "Q-S1" || diagnostic.code == "Q-C1b";
      });
}

std::optional<Config> read_v4_config(const checkpoint::ModelDescription& description, Plan& plan) {
  const checkpoint::ConfigFile* file = description.find_config("config.json");
  if (file == nullptr) {
    add(plan,
        Severity::kError,
        "Q-F3",
        "config.json is missing; expected it beside the shards. Fix: fetch it.");
    return std::nullopt;
  }
  const auto reader = checkpoint::ConfigReader::parse(file->text, file->file_name);
  if (!reader.ok()) return std::nullopt;  // detection reports it
  Result<Config> config = models::deepseek_v4::parse_config(*reader);
  if (config.ok()) return std::move(config).value();
  add(plan, Severity::kError, "Q-D1", config.error().message);
  return std::nullopt;
}

// The original inference config of DeepSeek-V4 names no type.
bool is_v4(const quant::Detection& detection) {
  if (!detection.model_type.empty()) return detection.model_type == "deepseek_v4";
  return std::any_of(detection.modules.begin(), detection.modules.end(), [](const auto& module) {
    return module.name.rfind("layers.0.attn.", 0) == 0;
  });
}

// M2. kLongestContext is resolved together with the memory.
void check_context(const Config& config, Plan& plan) {
  int32_t& context = plan.options.context;
  const int32_t limit = config.max_position_embeddings;
  if (context == 0) context = std::min(kDefaultContext, limit);
  if (context <= limit) return;
  add(plan,
      Severity::kError,
      "Q-M2",
      fmt::format("a context of {} tokens was asked for; expected at most {}, by "
                  "max_position_embeddings in config.json. Fix: ask for a shorter one.",
                  context,
                  limit));
}

// P4: FP8 keys have a scale per 64 dimensions.
void check_kv_form(const Config& config, Plan& plan) {
  if (plan.options.kv_dtype != models::KvDtype::kFp8) return;
  const Result<void> fits = models::deepseek_v4::check_fp8_key_sizes(config);
  if (fits.ok()) return;
  add(plan, Severity::kError, "Q-P4", fits.error().message);
  internal::leave_sizes_unknown(plan, "keys of these sizes have no FP8 form");
}

void check_parallelism(Plan& plan) {
  const PlanOptions& o = plan.options;
  if (o.tp > o.num_devices || o.ep > o.num_devices) {
    add(plan,
        Severity::kError,
        "Q-P3",
        fmt::format("tp {} and ep {} on {} devices; expected at most {} each. Fix: pass --gpu "
                    "{}x{}.",
                    o.tp,
                    o.ep,
                    o.num_devices,
                    o.num_devices,
                    o.device.name,
                    std::max(o.tp, o.ep)));
  }
}

// Names of what `wanted` holds for: modules, then ops without weights.
template <class Wanted>
std::vector<std::string> classes_with(const Plan& plan, const Wanted& wanted) {
  std::vector<std::string> names;
  const auto take = [&](const std::string& name, const kernels::KernelInfo* kernel) {
    if (kernel == nullptr || !wanted(*kernel)) return;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const PlannedModule& module : plan.modules) {
    take(module.module_class, module.kernel);
    for (const kernels::KernelInfo* kernel : module.by_rows) take(module.module_class, kernel);
  }
  for (const PlannedOp& op : plan.ops) take(op.name, op.kernel);
  return names;
}

template <class Wanted>
const kernels::KernelInfo* first_with(const Plan& plan, const Wanted& wanted) {
  for (const PlannedModule& module : plan.modules) {
    if (module.kernel != nullptr && wanted(*module.kernel)) return module.kernel;
    for (const kernels::KernelInfo* kernel : module.by_rows) {
      if (wanted(*kernel)) return kernel;
    }
  }
  for (const PlannedOp& op : plan.ops) {
    if (op.kernel != nullptr && wanted(*op.kernel)) return op.kernel;
  }
  return nullptr;
}

// The last record that refused in favour of the reference: the one that asks least.
std::string refusal_before_reference(const Plan& plan) {
  const auto text = [](const std::vector<kernels::Refusal>& refused) {
    return refused.empty() ? std::string("no other record exists")
                           : fmt::format("{}: {}", refused.back().kernel, refused.back().reason);
  };
  for (const PlannedModule& module : plan.modules) {
    if (module.kernel != nullptr && is_reference(*module.kernel)) return text(module.refused);
  }
  for (const PlannedOp& op : plan.ops) {
    if (op.kernel != nullptr && is_reference(*op.kernel)) return text(op.refused);
  }
  return "";
}

// K7 for invariant 15: nothing falls back to the scalar reference unasked.
void check_reference(Plan& plan) {
  std::vector<std::string> classes = classes_with(plan, kernels::is_reference);
  if (classes.empty()) return;
  const size_t num_classes = classes.size();
  classes.resize(std::min(num_classes, kMaxShown));
  const bool is_allowed = plan.options.allow_reference;
  add(plan,
      is_allowed ? Severity::kWarning : Severity::kError,
      "Q-K7",
      fmt::format(
          "{}{}: only the scalar reference takes {} on {} ({}). {}",
          fmt::join(classes, ", "),
          num_classes > kMaxShown ? fmt::format(" and {} more", num_classes - kMaxShown) : "",
          num_classes == 1 ? "it" : "them",
          plan.options.device.title,
          refusal_before_reference(plan),
          is_allowed ? "It is the oracle of tests, ten to a hundred times slower: do not "
                       "serve on it."
                     : "Fix: use a CPU with AVX2, or pass --allow-reference to run very "
                       "slowly."));
}

std::string why_not_runnable(const Plan& plan, bool has_architecture) {
  if (plan.has_errors()) return "the plan has errors";
  if (!has_architecture) return "only deepseek_v4 models run in this version";
  const auto missing = [](const kernels::KernelInfo& kernel) {
    return kernel.status != kernels::Status::kRuns;
  };
  const std::vector<std::string> classes = classes_with(plan, missing);
  if (!classes.empty()) {
    return fmt::format(
        "its kernels for {} are not in it (planned or of another build): {} has no launcher for {}",
        plan.options.device.name,
        first_with(plan, missing)->name,
        classes.front());
  }
  if (plan.options.tp > 1 || plan.options.ep > 1) return "this version runs on one device";
  return plan.why_no_sizes;
}

// Of a type that this version does not run.
void plan_other_model(Plan& plan) {
  add(plan,
      Severity::kWarning,
      "Q-K1",
      fmt::format("model_type {}: its formats are detected, but this version runs deepseek_v4 "
                  "only; the kernels shown are those of its matrix products.",
                  plan.model_type.empty() ? "(none)" : escape_for_display(plan.model_type)));
  internal::leave_sizes_unknown(plan, "this version plans those of deepseek_v4 only");
}

void plan_v4(const checkpoint::ModelDescription& description,
             const quant::Detection& detection,
             Plan& plan) {
  plan.model_type = "deepseek_v4";
  const std::optional<Config> config = read_v4_config(description, plan);
  if (!config) {
    return internal::leave_sizes_unknown(plan, "config.json does not describe the model");
  }
  plan.num_hidden_layers = config->num_hidden_layers;
  plan.max_position_embeddings = config->max_position_embeddings;
  check_context(*config, plan);
  if (description.faults.empty()) check_inventory(*config, detection, description, plan);
  check_kv_form(*config, plan);
  internal::plan_ops(*config, plan);
  internal::plan_memory_and_speed(*config, detection, plan);
}

}  // namespace

double expected_distinct_experts(double n, double k, double batch) {
  if (n <= 0) return 0;
  return n * (1 - std::pow(1 - k / n, batch));
}

std::vector<quant::ConfigText> config_texts(const checkpoint::ModelDescription& description) {
  std::vector<quant::ConfigText> texts;
  for (const checkpoint::ConfigFile& config : description.configs) {
    texts.push_back({.file_name = config.file_name, .text = config.text});
  }
  return texts;
}

Plan make_plan(const checkpoint::ModelDescription& description,
               const quant::ReadTensorBytes& read,
               const PlanOptions& options) {
  Plan plan;
  plan.target = description.name;
  plan.options = completed(options);
  plan.num_tensors = static_cast<int64_t>(description.tensors.size());
  plan.num_shards = static_cast<int64_t>(description.shards.size());
  plan.download_bytes = description.shard_bytes() + description.other_bytes;
  add_faults(description, plan);
  check_parallelism(plan);

  const std::vector<quant::ConfigText> configs = config_texts(description);
  // Values of damaged shards mean nothing.
  const quant::ReadTensorBytes reader =
      description.faults.empty() ? read : quant::ReadTensorBytes();
  const quant::Detection detection = quant::detect({.configs = configs,
                                                    .tensors = description.tensors,
                                                    .read = reader,
                                                    .block_types = description.block_types,
                                                    .architecture = description.architecture},
                                                   plan.options.detection);
  plan.model_type = detection.model_type;
  plan.method = detection.method;
  plan.diagnostics.insert(
      plan.diagnostics.end(), detection.diagnostics.begin(), detection.diagnostics.end());
  if (lacks_tensors(detection)) plan.is_complete = false;
  internal::plan_modules(detection, plan);

  const bool has_architecture = is_v4(detection);
  if (has_architecture) {
    plan_v4(description, detection, plan);
  } else {
    plan_other_model(plan);
  }
  if (plan.options.context <= 0) plan.options.context = kDefaultContext;  // nothing resolved it
  check_reference(plan);
  plan.not_runnable = why_not_runnable(plan, has_architecture);
  return plan;
}

models::StateOptions planned_state(const Plan& plan) {
  CHECK(plan.memory.has_value());
  return {.num_slots = plan.options.concurrency,
          .num_pages = static_cast<int32_t>(
              std::min<int64_t>(plan.memory->num_pages, std::numeric_limits<int32_t>::max())),
          .max_context = plan.options.context,
          .max_tokens_per_pass = std::max(plan.options.pass_tokens, plan.options.concurrency)};
}

Result<void> check_executed(const Plan& plan, const std::vector<models::RoutedModule>& loaded) {
  for (const models::RoutedModule& module : loaded) {
    const auto is_same = [&](const PlannedModule& planned) {
      return planned.kernel == module.route.kernel ||
             std::find(planned.by_rows.begin(), planned.by_rows.end(), module.route.kernel) !=
                 planned.by_rows.end();
    };
    if (std::any_of(plan.modules.begin(), plan.modules.end(), is_same)) continue;
    return internal_error(fmt::format("{}: loading took {}, which the plan names for no module",
                                      module.module,
                                      module.route.kernel->name));
  }
  return {};
}

}  // namespace nibble::engine
