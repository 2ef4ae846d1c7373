// docs/kernel-table.md, generated from the records so that it cannot disagree with them.
#include <string>

#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

void append_limit(std::string& text, std::string_view name, int64_t value) {
  if (value == 0) return;
  if (!text.empty()) text += ", ";
  text += std::string(name) + " " + std::to_string(value);
}

std::string limits_text(const Limits& limits) {
  std::string text;
  append_limit(text, "m <=", limits.m_max);
  append_limit(text, "n multiple of", limits.n_multiple);
  append_limit(text, "k multiple of", limits.k_multiple);
  append_limit(text, "k <=", limits.k_max);
  append_limit(text, "shared KiB", limits.shared_bytes >> 10);
  return text.empty() ? "none" : text;
}

// The same in every build: whether a CUDA kernel runs depends on the build.
std::string status_text(const KernelInfo& kernel) {
  if (kernel.target.kind == device::DeviceKind::kCuda && !is_reference(kernel) &&
      kernel.status != Status::kPlanned) {
    return "runs in CUDA builds";
  }
  return std::string(status_name(kernel.status));
}

// The format of what the kernel reads beside activations, or the rows that it takes together.
std::string weight_text(const KernelInfo& kernel) {
  if (!kernel.pair[0].empty()) {
    return "`" + std::string(kernel.pair[0]) + "`, `" + std::string(kernel.pair[1]) + "`";
  }
  if (kernel.has_weight) return std::string(quant::format_name(kernel.weight));
  return kernel.keys == KeyForm::kFp8 ? "fp8 keys" : "";
}

std::string table_row(const KernelInfo& kernel) {
  const std::string cells[] = {
      "`" + std::string(kernel.name) + "`",
      std::string(op_name(kernel.op)),
      weight_text(kernel),
      std::string(activation_name(kernel.activation)),
      std::string(unit_name(kernel.unit)),
      target_name(kernel.target),
      limits_text(kernel.limits),
      std::string(layout_name(kernel.layout)),
      status_text(kernel),
      kernel.verified.where.empty() ? "not run" : std::string(kernel.verified.where),
  };
  std::string row = "|";
  for (const std::string& cell : cells) row += " " + cell + " |";
  return row + "\n";
}

}  // namespace

std::string kernel_table_markdown() {
  std::string text =
      "# Kernel table\n"
      "\n"
      "Generated from the kernel records; do not edit. For each op and weight format the first "
      "row\n"
      "that accepts a problem is used; `nibble` names the refusals of the rows before it. How to "
      "add\n"
      "a row: [kernels.md](kernels.md).\n"
      "\n"
      "| name | op | weight | activation | unit | target | limits | layout | status | verified |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n";
  for (const KernelInfo* kernel : all_kernels()) text += table_row(*kernel);
  return text;
}

}  // namespace nibble::kernels
