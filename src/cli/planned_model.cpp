#include "cli/planned_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/json.h"
#include "checkpoint/model_description.h"
#include "cli/console.h"
#include "engine/plan_render.h"
#include "tools/measure/roofs.h"

namespace nibble::cli {
namespace {

// Dummy weights have no files: their tensors, and the configuration that they were made from.
Result<checkpoint::ModelDescription> describe_memory(const checkpoint::Checkpoint& checkpoint) {
  TRY_ASSIGN(const checkpoint::ConfigReader config, checkpoint.read_config());
  checkpoint::ModelDescription description;
  description.name = checkpoint.dir().string();
  description.configs = {{.file_name = "config.json",
                          .text = json::dump(json::Value(config.root()), json::Style::kPython)}};
  description.shards = {{.file_name = "memory", .file_bytes = checkpoint.data_bytes()}};
  description.data_bytes = checkpoint.data_bytes();
  description.tensors.assign(checkpoint.tensors().begin(), checkpoint.tensors().end());
  description.shard_of.assign(description.tensors.size(), 0);
  description.data_begin.assign(description.tensors.size(), 0);
  return description;
}

// Bytes of a described tensor, from the checkpoint.
quant::ReadTensorBytes reader_of(const checkpoint::Checkpoint& checkpoint,
                                 const checkpoint::ModelDescription& description) {
  return [&](size_t index, int64_t begin, int64_t count) -> Result<std::vector<std::byte>> {
    TRY_ASSIGN(const TensorView view, checkpoint.tensor(description.tensors[index].name));
    if (begin < 0 || count < 0 || count > view.num_bytes() - begin) {
      return data_loss(fmt::format("{}: bytes {} to {} of a tensor of {}",
                                   description.tensors[index].name,
                                   begin,
                                   begin + count,
                                   view.num_bytes()));
    }
    const auto* first = static_cast<const std::byte*>(view.data) + begin;
    return std::vector<std::byte>(first, first + count);
  };
}

// Of a CPU, and only for plans that say what a choice of kernels costs: measuring takes a tenth of
// a second.
double read_rate_of(const device::DeviceInfo& device, const ModelFlags& flags) {
  if (flags.kernel.empty() && flags.checks.without_kernel.empty()) return 0;
  if (device.kind == device::DeviceKind::kCuda) return 0;
  const auto host = device::make_host_device({.num_threads = flags.threads, .isa = flags.isa});
  return host.ok() ? tools::host_read_rate(**host) : 0;
}

engine::PlanOptions options_of(const device::DeviceInfo& device,
                               const ModelFlags& flags,
                               const ModelWork& work) {
  engine::PlanOptions options = plan_options(flags.checks, flags.kernel, flags.kv_dtype);
  options.device = engine::local_sheet(device, read_rate_of(device, flags));
  options.context = work.context > 0 ? work.context : engine::kLongestContext;
  options.concurrency = work.concurrency;
  options.pass_tokens = work.pass_tokens;
  options.precision = flags.precision;
  options.deterministic = flags.deterministic;
  options.kv = work.kv;
  options.loads_draft = work.needs_draft;
  return options;
}

Error error_of(Errc code, const quant::Diagnostic& diagnostic) {
  return {code, diagnostic.message, diagnostic.code, {}};
}

Error does_not_fit(const engine::Plan& plan) {
  for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
    if (diagnostic.code == "Q-M1") return error_of(Errc::kExhausted, diagnostic);
  }
  return exhausted(fmt::format("{}: does not fit the device", plan.target));
}

Result<void> refuse(const engine::Plan& plan) {
  TRY(refuse_errors(std::span(&plan, 1)));
  if (!plan.is_runnable()) {
    return unsupported(
        fmt::format("{}: this build does not run it: {}", plan.target, plan.not_runnable));
  }
  if (!plan.memory->fits()) return does_not_fit(plan);
  return {};
}

}  // namespace

Result<engine::Plan> plan_model(const checkpoint::Checkpoint& checkpoint,
                                const device::DeviceInfo& device,
                                const ModelFlags& flags,
                                const ModelWork& work) {
  checkpoint::ModelDescription description;
  if (flags.load_format == LoadFormat::kDummy) {
    TRY_ASSIGN(description, describe_memory(checkpoint));
  } else {
    TRY_ASSIGN(checkpoint::LocalModel local, checkpoint::describe_directory(checkpoint.dir()));
    description = std::move(local.description);
  }
  engine::Plan plan = engine::make_plan(
      description, reader_of(checkpoint, description), options_of(device, flags, work));
  TRY(refuse(plan));
  return plan;
}

void print_plan(const engine::Plan& plan) {
  const std::string text = engine::short_plan_text(plan);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    print_note(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
}

Result<void> refuse_errors(std::span<const engine::Plan> plans) {
  int64_t count = 0;
  Error first;
  for (const engine::Plan& plan : plans) {
    for (const quant::Diagnostic& diagnostic : plan.diagnostics) {
      if (diagnostic.severity != quant::Severity::kError) continue;
      if (count++ == 0) first = error_of(Errc::kUnsupported, diagnostic);
    }
  }
  if (count == 0) return {};
  if (count > 1) first.message += fmt::format(" (and {} more)", count - 1);
  return first;
}

engine::PlanOptions plan_options(const PlanChecks& checks,
                                 const std::string& only_kernel,
                                 models::KvDtype kv_dtype) {
  return {.kv_dtype = kv_dtype,
          .detection = {.is_strict = checks.strict,
                        .trusts_headers = checks.trust_headers,
                        .ignores_input_scales = checks.dynamic_activation_scales,
                        .expert_dtype = checks.expert_dtype},
          .allow_slow = checks.allow_slow,
          .only_kernel = only_kernel,
          .without_kernel = checks.without_kernel,
          .allow_reference = checks.allow_reference};
}

}  // namespace nibble::cli
