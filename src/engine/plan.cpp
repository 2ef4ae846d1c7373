#include "engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"
#include "checkpoint/config_reader.h"
#include "engine/plan_parts.h"
#include "models/deepseek_v4/tensor_names.h"

namespace nibble::engine {
namespace {

using models::deepseek_v4::Config;
using models::deepseek_v4::DraftKind;
using quant::Diagnostic;
using quant::Severity;

constexpr size_t kMaxShown = 8;

void add(Plan& plan, Severity severity, std::string_view code, std::string message) {
  plan.diagnostics.push_back(
      {.severity = severity, .code = std::string(code), .message = std::move(message)});
}

PlanOptions completed(PlanOptions options) {
  options.num_devices = std::max(options.num_devices, 1);
  if (options.tp == 0) options.tp = options.num_devices;
  options.ep = std::max(options.ep, 1);
  if (options.concurrency == 0) options.concurrency = options.goal == Goal::kLatency ? 1 : 64;
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

// C1b for what is missing, D2 for shapes that config.json contradicts.
void check_inventory(const Config& config,
                     const quant::Detection& detection,
                     const checkpoint::ModelDescription& description,
                     Plan& plan) {
  const ModuleIndex index(detection, description);
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  for (const auto& [name, shape] :
       models::deepseek_v4::expected_modules(config, internal::draft_kind(detection))) {
    const quant::DetectedModule* module = index.find(name);
    if (module == nullptr) {
      if (!index.holds(name, layer_in(name))) missing.push_back(name);
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
  }
  for (const std::string& warning : description.warnings) {
    add(plan, Severity::kWarning, "Q-F3", warning);
  }
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

bool all_kernels_run(const Plan& plan) {
  const auto runs = [](const kernels::KernelInfo* kernel) {
    return kernel != nullptr && kernel->status == kernels::Status::kRuns;
  };
  return std::all_of(plan.modules.begin(),
                     plan.modules.end(),
                     [&](const PlannedModule& module) { return runs(module.kernel); }) &&
         std::all_of(plan.ops.begin(), plan.ops.end(), [&](const PlannedOp& op) {
           return runs(op.kernel);
         });
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
  const quant::Detection detection = quant::detect(
      {.configs = configs, .tensors = description.tensors, .read = reader}, plan.options.detection);
  plan.model_type = detection.model_type;
  plan.method = detection.method;
  plan.diagnostics.insert(
      plan.diagnostics.end(), detection.diagnostics.begin(), detection.diagnostics.end());
  internal::plan_modules(detection, plan);

  if (!is_v4(detection)) {
    add(plan,
        Severity::kWarning,
        "Q-K1",
        fmt::format("model_type {}: its formats are detected, but this version runs deepseek_v4 "
                    "only; the kernels shown are those of its matrix products.",
                    plan.model_type.empty() ? "(none)" : escape_for_display(plan.model_type)));
    if (plan.options.context == 0) plan.options.context = 32768;
    return plan;
  }
  plan.model_type = "deepseek_v4";
  const std::optional<Config> config = read_v4_config(description, plan);
  if (!config) return plan;
  plan.num_hidden_layers = config->num_hidden_layers;
  plan.max_position_embeddings = config->max_position_embeddings;
  if (plan.options.context == 0) {
    plan.options.context = std::min(32768, config->max_position_embeddings);
  }
  if (description.faults.empty()) check_inventory(*config, detection, description, plan);
  internal::plan_ops(*config, plan);
  internal::plan_memory(*config, detection, plan);
  internal::plan_performance(*config, detection, plan);
  plan.is_runnable =
      !plan.has_errors() && all_kernels_run(plan) && plan.options.tp == 1 && plan.options.ep == 1;
  return plan;
}

}  // namespace nibble::engine
