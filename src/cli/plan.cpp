#include "engine/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/plan_target.h"
#include "cli/planned_model.h"
#include "device/device.h"
#include "engine/plan_render.h"
#include "kernels/registry.h"
#include "tools/measure/roofs.h"

namespace nibble::cli {
namespace {

struct Machine {
  engine::DeviceSheet sheet;
  int32_t count = 1;
};

Result<engine::DeviceSheet> sheet_of(std::string_view name, device::IsaLevel isa) {
  if (name != "local") return engine::find_device_sheet(name);
  TRY_ASSIGN(const std::unique_ptr<device::Device> host, device::make_host_device({.isa = isa}));
  return engine::local_sheet(host->info(), tools::host_read_rate(*host));
}

// "NAME" or "NAMExN".
Result<Machine> parse_machine(std::string_view text, device::IsaLevel isa) {
  Machine machine;
  const size_t x = text.rfind('x');
  std::string_view name = text;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (x != std::string_view::npos && x > 0 && x + 1 < text.size() && is_digit(text[x + 1])) {
    int32_t count = 0;
    const char* end = text.data() + text.size();
    const auto [stop, fault] = std::from_chars(text.data() + x + 1, end, count);
    if (fault == std::errc() && stop == end) {
      if (count < 1 || count > 1024) {
        return invalid_argument(fmt::format("--gpu {}: expected 1 to 1024 devices", text));
      }
      machine.count = count;
      name = text.substr(0, x);
    }
  }
  TRY_ASSIGN(machine.sheet, sheet_of(name, isa));
  return machine;
}

engine::PlanOptions options_of(const PlanFlags& flags, const Machine& machine) {
  engine::PlanOptions options = plan_options(flags.checks, flags.kernel, flags.kv_dtype);
  options.device = machine.sheet;
  options.num_devices = machine.count;
  options.tp = flags.tp;
  options.ep = flags.ep;
  options.context = flags.context;
  options.concurrency = flags.concurrency;
  options.goal = flags.goal;
  options.pads_fp8_blocks = flags.pad_fp8_blocks;
  return options;
}

// How keys are cached, and what reads them.
std::string keys_text(const engine::Plan& plan) {
  if (!plan.memory) return "";
  const engine::PlanKvForm& form = plan.memory->kv_forms.front();
  std::string text =
      fmt::format("keys      cached as {}, {:.0f} bytes per token\n", form.name, form.per_token());
  for (const engine::PlannedOp& op : plan.ops) {
    if (op.kernel == nullptr) continue;
    if (op.name != "sparse_attention" && op.name != "indexer_score") continue;
    text += fmt::format("keys      read by {}\n",
                        kernels::marked_name(*op.kernel, plan.options.device.info()));
  }
  return text;
}

// The evidence of one module, and the kernel of its class; of modules that make keys, their form.
Result<std::string> explanation(const PlanTarget& target,
                                const engine::Plan& plan,
                                const std::string& module) {
  const std::vector<quant::ConfigText> configs = engine::config_texts(target.model.description);
  const checkpoint::ModelDescription& description = target.model.description;
  const quant::DetectInput input = {.configs = configs,
                                    .tensors = description.tensors,
                                    .read = target.reader(),
                                    .block_types = description.block_types,
                                    .architecture = description.architecture};
  TRY_ASSIGN(const quant::Explanation explained,
             quant::explain(input, plan.options.detection, module));
  std::string text = explained.text;
  for (const engine::PlannedModule& planned : plan.modules) {
    if (planned.module_class != explained.role || planned.format != explained.format) continue;
    text += fmt::format("kernel    {}\nwhy       {}\n",
                        planned.kernel == nullptr
                            ? "none"
                            : kernels::marked_name(*planned.kernel, plan.options.device.info()),
                        planned.why);
    for (const kernels::Refusal& refusal : planned.refused) {
      text += fmt::format("refused   {}: {}\n", refusal.kernel, refusal.reason);
    }
  }
  const bool makes_keys = explained.role == "attention" || explained.role == "compressor" ||
                          explained.role == "indexer";
  return makes_keys ? text + keys_text(plan) : text;
}

Result<void> print_plans(const std::vector<engine::Plan>& plans, bool as_json) {
  if (as_json) {
    json::Array list;
    for (const engine::Plan& plan : plans) list.push_back(engine::plan_json(plan));
    const json::Value value = list.size() == 1
                                  ? std::move(list.front())
                                  : json::Value(json::make_object({{"plans", std::move(list)}}));
    return write_output(json::dump(value, json::Style::kPython) + "\n");
  }
  return write_output(plans.size() == 1 ? engine::plan_text(plans.front())
                                        : engine::comparison_text(plans));
}

}  // namespace

Result<void> run_plan(const PlanFlags& flags) {
  std::vector<Machine> machines;
  for (const std::string& text :
       flags.gpus.empty() ? std::vector<std::string>{"local"} : flags.gpus) {
    TRY_ASSIGN(Machine machine, parse_machine(text, flags.isa));
    machines.push_back(std::move(machine));
  }
  std::vector<engine::Plan> plans;
  for (const std::string& name : flags.targets) {
    TRY_ASSIGN(const PlanTarget target, open_plan_target(name, flags));
    for (const Machine& machine : machines) {
      plans.push_back(
          engine::make_plan(target.model.description, target.reader(), options_of(flags, machine)));
      if (!flags.explain) continue;
      TRY_ASSIGN(const std::string text, explanation(target, plans.back(), *flags.explain));
      TRY(write_output(text));
    }
  }
  if (!flags.explain) TRY(print_plans(plans, flags.json));
  return refuse_errors(plans);
}

Result<void> run_kernels(const KernelsFlags& flags) {
  if (flags.markdown) return write_output(kernels::kernel_table_markdown());
  std::string text;
  for (const kernels::KernelInfo* kernel : kernels::all_kernels()) {
    text += fmt::format(
        "{:<62} {:<9} {}\n",
        kernel->name,
        kernels::status_name(kernel->status),
        kernel->verified.where.empty() ? "not run on hardware" : kernel->verified.where);
  }
  return write_output(text);
}

}  // namespace nibble::cli
