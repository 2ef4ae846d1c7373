// Choosing a kernel: the first record that accepts a problem, and why each record before it did
// not.
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "device/emulated_gpu.h"
#include "kernels/kernel.h"
#include "kernels/planned/targets.h"

namespace nibble::kernels {
namespace {

std::string describe_weight(bool has_weight, quant::Format format) {
  return has_weight ? std::string(quant::format_name(format)) : "none";
}

std::string describe(const Problem& problem) {
  std::string text(op_name(problem.op));
  if (problem.has_weight) text += "." + std::string(quant::format_name(problem.weight));
  if (problem.keys != KeyForm::kPlain) {
    text += "." + std::string(key_form_name(problem.keys)) + "_keys";
  }
  text += "." + std::string(activation_name(problem.activation));
  const std::string m = problem.m_max == 0 ? "any" : std::to_string(problem.m_max);
  return text + " (m " + m + ", n " + std::to_string(problem.n) + ", k " +
         std::to_string(problem.k) + ")";
}

// Each of these gives the reason of a refusal, or an empty string.

std::string check_target(const Target& target, const device::DeviceInfo& device) {
  if (target.kind != device.kind) {
    return target.kind == device::DeviceKind::kCpu ? "runs on a CPU" : "needs a CUDA device";
  }
  if (target.kind == device::DeviceKind::kCpu) {
    const device::IsaSet missing = target.isa & ~device.isa;
    return missing == 0 ? ""
                        : "needs " + device::isa_set_name(missing) + ", device has " +
                              device::isa_set_name(device.isa);
  }
  if (device.sm != device::kEmulatedSm && !is_known_generation(device.sm)) {
    return "no kernel is compiled for sm_" + std::to_string(device.sm);
  }
  if (device.sm < target.sm_min || device.sm > target.sm_max) {
    return "needs " + target_name(target) + ", device is sm_" + std::to_string(device.sm);
  }
  return "";
}

std::string check_multiple(std::string_view name, int64_t value, int64_t multiple) {
  if (multiple == 0 || value % multiple == 0) return "";
  return std::string(name) + " " + std::to_string(value) + ", needs a multiple of " +
         std::to_string(multiple);
}

std::string check_bounds(const Limits& limits, const Problem& problem) {
  if (limits.m_max != 0 && (problem.m_max == 0 || problem.m_max > limits.m_max)) {
    return "m " + (problem.m_max == 0 ? "unbounded" : std::to_string(problem.m_max)) +
           ", at most " + std::to_string(limits.m_max);
  }
  if (limits.n_max != 0 && problem.n > limits.n_max) {
    return "n " + std::to_string(problem.n) + ", at most " + std::to_string(limits.n_max);
  }
  if (limits.k_max != 0 && problem.k > limits.k_max) {
    return "k " + std::to_string(problem.k) + ", at most " + std::to_string(limits.k_max);
  }
  return "";
}

std::string check_alignment(const Limits& limits, const Problem& problem) {
  if (auto reason = check_multiple("n", problem.n, limits.n_multiple); !reason.empty())
    return reason;
  return check_multiple("k", problem.k, limits.k_multiple);
}

std::string check_shared_memory(const Limits& limits, const device::DeviceInfo& device) {
  if (device.shared_bytes == 0 || limits.shared_bytes <= device.shared_bytes) return "";
  return "needs " + std::to_string(limits.shared_bytes >> 10) +
         " KiB of shared memory, device has " + std::to_string(device.shared_bytes >> 10) + " KiB";
}

struct Reason {
  Cause cause = Cause::kProblem;
  std::string text;  // empty: the kernel takes it
};

Reason check_numerics(const KernelInfo& kernel, const Problem& problem) {
  if (kernel.op != problem.op) {
    return {
        Cause::kProblem,
        "op " + std::string(op_name(problem.op)) + ", computes " + std::string(op_name(kernel.op))};
  }
  if (kernel.has_weight != problem.has_weight ||
      (kernel.has_weight && kernel.weight != problem.weight)) {
    return {Cause::kProblem,
            "weight " + describe_weight(problem.has_weight, problem.weight) + ", takes " +
                describe_weight(kernel.has_weight, kernel.weight)};
  }
  if (kernel.keys != problem.keys) {
    return {Cause::kProblem,
            "keys " + std::string(key_form_name(problem.keys)) + ", reads " +
                std::string(key_form_name(kernel.keys))};
  }
  return {};
}

Reason check_activation(const KernelInfo& kernel, const Problem& problem) {
  if (kernel.activation <= problem.activation) return {};
  return {Cause::kProblem,
          "activation " + std::string(activation_name(problem.activation)) +
              " asked for, multiplies in " + std::string(activation_name(kernel.activation))};
}

Reason refusal_reason(const KernelInfo& kernel,
                      const Problem& problem,
                      const device::DeviceInfo& device,
                      bool for_plan) {
  if (Reason reason = check_numerics(kernel, problem); !reason.text.empty()) return reason;
  if (std::string text = check_target(kernel.target, device); !text.empty()) {
    return {Cause::kTarget, std::move(text)};
  }
  if (Reason reason = check_activation(kernel, problem); !reason.text.empty()) return reason;
  if (problem.needs_clamp && !kernel.has_clamp) {
    return {Cause::kClamp, "has no SwiGLU clamp (swiglu_limit)"};
  }
  if (std::string text = check_bounds(kernel.limits, problem); !text.empty()) {
    return {Cause::kSize, std::move(text)};
  }
  if (std::string text = check_alignment(kernel.limits, problem); !text.empty()) {
    return {Cause::kAlignment, std::move(text)};
  }
  if (std::string text = check_shared_memory(kernel.limits, device); !text.empty()) {
    return {Cause::kSharedMemory, std::move(text)};
  }
  if (for_plan) return {};
  if (kernel.status == Status::kPlanned) return {Cause::kNotBuilt, "planned, not written yet"};
  if (std::holds_alternative<std::monostate>(kernel.launch)) {
    return {Cause::kNotBuilt, "not in this build"};
  }
  return {};
}

// Refusals that come from the caller's options, not from the problem.
std::string options_reason(const KernelInfo& kernel, const RouteOptions& options) {
  if (is_reference(kernel) && !options.allow_reference) {
    return "the scalar reference, which --allow-reference admits";
  }
  if (options.deterministic && !kernel.is_batch_invariant) {
    return "deterministic asked for, results depend on the batch";
  }
  if (!options.without.empty() && kernel.name.find(options.without) != std::string_view::npos) {
    return "left out by --without-kernel";
  }
  if (!options.only.empty() && kernel.name.find(options.only) == std::string_view::npos) {
    return "restricted to names with \"" + std::string(options.only) + "\"";
  }
  return "";
}

bool is_telling(Cause cause) {
  return cause == Cause::kClamp || cause == Cause::kAlignment || cause == Cause::kSharedMemory ||
         cause == Cause::kNotBuilt;
}

// The code of "no kernel": the one telling cause that rows for this device share, if there is one.
std::string_view code_of(const std::vector<Refusal>& refused, const RouteOptions& options) {
  if (!options.only.empty()) return "Q-K4";
  std::optional<Cause> shared;
  for (const Refusal& refusal : refused) {
    if (!is_telling(refusal.cause)) continue;
    if (shared && *shared != refusal.cause) return "Q-K1";
    shared = refusal.cause;
  }
  if (!shared) return "Q-K1";
  switch (*shared) {
    case Cause::kClamp:
      return "Q-K5";
    case Cause::kAlignment:
      return "Q-P4";
    case Cause::kSharedMemory:
      return "Q-K6";
    case Cause::kNotBuilt:
      return "Q-K2";
    default:
      return "Q-K1";
  }
}

bool is_candidate(const KernelInfo& kernel,
                  const Problem& problem,
                  const device::DeviceInfo& device) {
  return kernel.target.kind == device.kind && kernel.op == problem.op &&
         kernel.keys == problem.keys && kernel.has_weight == problem.has_weight &&
         (!kernel.has_weight || kernel.weight == problem.weight);
}

// Without weights a restriction counts where a record has such a name: it is meant for products.
RouteOptions options_for(const Problem& problem,
                         const device::DeviceInfo& device,
                         RouteOptions options) {
  if (problem.has_weight || options.only.empty()) return options;
  for (const KernelInfo* kernel : all_kernels()) {
    const bool has_name = kernel->name.find(options.only) != std::string_view::npos;
    if (has_name && is_candidate(*kernel, problem, device)) return options;
  }
  options.only = {};
  return options;
}

}  // namespace

bool is_reference(const KernelInfo& kernel) { return kernel.unit == ComputeUnit::kScalar; }

std::optional<Refusal> check(const KernelInfo& kernel,
                             const Problem& problem,
                             const device::DeviceInfo& device,
                             bool for_plan) {
  Reason reason = refusal_reason(kernel, problem, device, for_plan);
  if (reason.text.empty()) return std::nullopt;
  return Refusal{.kernel = kernel.name, .reason = std::move(reason.text), .cause = reason.cause};
}

Result<Route> route(const Problem& problem,
                    const device::DeviceInfo& device,
                    const RouteOptions& all_options) {
  const RouteOptions options = options_for(problem, device, all_options);
  Route route;
  for (const KernelInfo* kernel : all_kernels()) {
    if (!is_candidate(*kernel, problem, device)) continue;
    Reason reason = {Cause::kOption, options_reason(*kernel, options)};
    if (reason.text.empty()) reason = refusal_reason(*kernel, problem, device, options.for_plan);
    if (reason.text.empty()) {
      route.kernel = kernel;
      return route;
    }
    route.refused.push_back(
        {.kernel = kernel->name, .reason = std::move(reason.text), .cause = reason.cause});
  }
  std::string message = "no kernel for " + describe(problem) + " on " + device.name;
  for (const Refusal& refusal : route.refused) {
    message += "; " + std::string(refusal.kernel) + ": " + refusal.reason;
  }
  Error error = unsupported(std::move(message));
  error.reason = code_of(route.refused, options);
  return error;
}

namespace {

// The rows of one layout, most specialised first, that take `problem` up to some number of rows;
// empty where they leave a gap.
std::vector<RangedRoute> cover_rows(std::span<const KernelInfo* const> kernels,
                                    PackedLayout layout) {
  std::vector<RangedRoute> routes;
  int64_t covered = 0;
  while (true) {
    const KernelInfo* next = nullptr;
    for (const KernelInfo* kernel : kernels) {
      const int64_t m_max = kernel->limits.m_max;
      if (kernel->layout != layout || (m_max != 0 && m_max <= covered)) continue;
      next = kernel;
      break;
    }
    if (next == nullptr) return {};
    covered = next->limits.m_max;
    routes.push_back({.m_max = covered, .route = {.kernel = next, .refused = {}}});
    if (covered == 0) return routes;
  }
}

}  // namespace

Result<std::vector<RangedRoute>> route_by_rows(const Problem& problem,
                                               const device::DeviceInfo& device,
                                               const RouteOptions& options) {
  Problem one_row = problem;
  one_row.m_max = 1;
  std::vector<const KernelInfo*> accepting;
  std::vector<Refusal> refused;
  for (const KernelInfo* kernel : all_kernels()) {
    if (!is_candidate(*kernel, problem, device)) continue;
    Reason reason = {Cause::kOption, options_reason(*kernel, options)};
    if (reason.text.empty()) reason = refusal_reason(*kernel, one_row, device, options.for_plan);
    if (reason.text.empty()) {
      accepting.push_back(kernel);
    } else {
      refused.push_back(
          {.kernel = kernel->name, .reason = std::move(reason.text), .cause = reason.cause});
    }
  }
  for (const KernelInfo* kernel : accepting) {
    std::vector<RangedRoute> routes = cover_rows(accepting, kernel->layout);
    if (routes.empty()) continue;
    for (RangedRoute& ranged : routes) ranged.route.refused = refused;
    return routes;
  }
  Problem any = problem;
  any.m_max = 0;
  return route(any, device, options).error();
}

const Route& route_for(std::span<const RangedRoute> routes, int64_t m) {
  for (const RangedRoute& ranged : routes) {
    if (ranged.m_max == 0 || m <= ranged.m_max) return ranged.route;
  }
  CHECK(false) << m << " rows, beyond every route";
  return routes.back().route;
}

int32_t num_splits(const KernelInfo& kernel, int64_t n, int64_t k, int32_t num_units) {
  const auto& [unit_rows, unit_k] = kernel.k_splits;
  if (unit_rows == 0) return 1;
  int32_t splits = 1;
  while (ceil_div(n, unit_rows) * splits * 2 <= num_units && k % (2 * unit_k * splits) == 0) {
    splits *= 2;
  }
  return splits;
}

namespace {

// Bytes that one block of `blocks` reads at most of `splits` parts of k of a weight's panels.
int64_t most_bytes(const PackedWeight& weight,
                   const KSplits& unit,
                   int32_t splits,
                   int32_t blocks) {
  const int64_t panels = ceil_div(weight.n, unit.rows);
  const int64_t bytes =
      packed_weight_bytes(weight.format, weight.n, weight.k, weight.scale_dtype, weight.layout);
  return ceil_div(panels * splits, int64_t{blocks}) * (bytes / panels / splits);
}

}  // namespace

MatMulPairPlan plan_matmul_pair(const std::array<const KernelInfo*, 2>& kernels,
                                const std::array<const PackedWeight*, 2>& weights,
                                int32_t num_units) {
  // What adding one more partial sum costs the next op, in bytes that memory gives meanwhile:
  // a third of a microsecond.
  constexpr int64_t kBytesPerSplit = 1'400'000;
  MatMulPairPlan best;
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto can_split = [&](size_t i, int32_t splits) {
    return weights[i]->k % (kernels[i]->k_splits.k * splits) == 0;
  };
  for (int32_t first = 1; can_split(0, first); first *= 2) {
    for (int32_t second = 1; can_split(1, second); second *= 2) {
      for (int32_t blocks = 1; blocks < num_units; ++blocks) {
        const int64_t busiest =
            std::max(most_bytes(*weights[0], kernels[0]->k_splits, first, blocks),
                     most_bytes(*weights[1], kernels[1]->k_splits, second, num_units - blocks));
        const int64_t cost = busiest * num_units + (first + second) * kBytesPerSplit;
        if (cost >= least) continue;
        least = cost;
        best = {.splits = {first, second}, .first_blocks = blocks};
      }
    }
  }
  return best;
}

int32_t choose_slot_rows(const KernelInfo& kernel,
                         int64_t num_tokens,
                         int32_t choices,
                         int32_t num_experts) {
  // If experts are chosen alike, few have more than the mean and two standard deviations: those
  // take a second slot. Of few tokens only one pair in twenty shares its expert with another: it
  // costs less to read that twice than to make slots, where one launch makes both products.
  const int64_t num_pairs = num_tokens * choices, mean = ceil_div(num_pairs, int64_t{num_experts});
  const bool are_few =
      kernel.joins_down && num_pairs <= kMaxRowSlots && num_pairs <= num_experts / 10;
  int32_t chosen = 0;
  for (const int32_t rows : kernel.slot_rows) {
    if (rows == 0) break;
    if (rows == 1 && num_tokens > 1 && !are_few) continue;
    chosen = rows;
    const int64_t more = rows - mean;
    if (rows == 1 || (more >= 0 && more * more >= 4 * mean)) break;
  }
  CHECK(chosen > 0) << kernel.name << " declares no slot_rows for " << num_tokens << " tokens";
  return chosen;
}

}  // namespace nibble::kernels
