// What forcing a kernel costs, before anybody waits for it.
#include <algorithm>
#include <optional>

#include "engine/plan.h"

namespace nibble::engine {
namespace {

using kernels::ComputeUnit;
using kernels::KernelInfo;

// A multiprocessor's and a core's lanes of f32 multiply-adds, and their clock: planning values that
// only have to tell a factor of ten from none.
constexpr double kGpuLanes = 128, kGpuClock = 1.7e9;
constexpr double kCpuScalarLanes = 1, kCpuClock = 3e9;
// Instructions that turn a stored code into a number.
constexpr double kDecodeCost = 2;

// Rows that each weight of a module meets in a step.
double rows_per_weight(const Plan& plan, const PlannedModule& module, double batch) {
  const PlanPerformance& performance = *plan.performance;
  if (module.module_class != "routed_experts" || performance.num_experts == 0) return batch;
  const double distinct =
      expected_distinct_experts(performance.num_experts, performance.choices, batch);
  return batch * performance.choices / std::max(distinct, 1.0);
}

// The share of a module's weights that a step touches.
double touched_share(const Plan& plan, const PlannedModule& module, double batch) {
  const PlanPerformance& performance = *plan.performance;
  if (module.module_class != "routed_experts" || performance.num_experts == 0) return 1;
  return expected_distinct_experts(performance.num_experts, performance.choices, batch) /
         performance.num_experts;
}

// Weights that one device multiplies by in a step.
double touched_weights(const Plan& plan, const PlannedModule& module, double batch) {
  double weights = 0;
  for (const PlannedPart& part : module.parts) {
    weights +=
        static_cast<double>(part.n) * static_cast<double>(part.k) * static_cast<double>(part.count);
  }
  const double on_device = module.bytes > 0 ? static_cast<double>(module.bytes_per_device) /
                                                  static_cast<double>(module.bytes)
                                            : 1;
  return weights * touched_share(plan, module, batch) * std::min(on_device, 1.0);
}

// `bytes`: of the module in the kernel's layout.
double estimated_us(const Plan& plan,
                    const PlannedModule& module,
                    const KernelInfo& kernel,
                    int64_t bytes,
                    double batch) {
  const DeviceSheet& device = plan.options.device;
  const std::optional<double> timed = kernels::timed_share(kernel, device.info(), batch);
  const double reading = static_cast<double>(bytes) * touched_share(plan, module, batch) /
                         (device.read_bytes_per_s * timed.value_or(plan.performance->high_share)) *
                         1e6;
  const bool has_products =
      kernel.unit == ComputeUnit::kTensorCore || kernel.unit == ComputeUnit::kSimd;
  if (timed || has_products) return reading;
  const bool is_gpu = device.kind == device::DeviceKind::kCuda;
  const double rate =
      device.num_units * (is_gpu ? kGpuLanes * kGpuClock : kCpuScalarLanes * kCpuClock);
  const double instructions =
      touched_weights(plan, module, batch) * (kDecodeCost + rows_per_weight(plan, module, batch));
  return std::max(reading, instructions / rate * 1e6);
}

// Read in every step, with a kernel that multiplies by it.
bool is_counted(const PlannedModule& module) {
  return module.kernel != nullptr && module.kernel->has_weight &&
         module.module_class.rfind("draft_", 0) != 0;
}

}  // namespace

ForcedCost forced_cost(const Plan& plan) {
  ForcedCost cost{.batch = plan.options.concurrency};
  if (!plan.performance || plan.options.device.read_bytes_per_s <= 0) return cost;
  const double batch = cost.batch;
  for (const PlannedModule& module : plan.modules) {
    if (!is_counted(module)) continue;
    const KernelInfo& kernel = *module.kernel;
    const double us = estimated_us(plan, module, kernel, module.bytes_per_device, batch);
    const double unforced_us =
        module.unforced == nullptr
            ? us
            : estimated_us(plan, module, *module.unforced, module.unforced_bytes_per_device, batch);
    cost.step_us += us;
    cost.unforced_step_us += unforced_us;
    if (module.unforced == nullptr) continue;
    const double read_us = static_cast<double>(module.bytes_per_device) *
                           touched_share(plan, module, batch) /
                           plan.options.device.read_bytes_per_s * 1e6;
    const bool is_timed =
        kernels::timed_share(kernel, plan.options.device.info(), batch).has_value();
    cost.modules.push_back({.module = &module,
                            .timed_on = is_timed ? kernel.timed.on.where : "",
                            .us = us,
                            .unforced_us = unforced_us,
                            .share = us > 0 ? read_us / us : 0});
  }
  return cost;
}

}  // namespace nibble::engine
