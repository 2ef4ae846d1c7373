// What forcing a kernel costs, before anybody waits for it.
#include <algorithm>

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

// Weights and bytes of a module that a step touches, on one device.
struct Touched {
  double weights = 0;
  double bytes = 0;
};
Touched touched(const Plan& plan, const PlannedModule& module, double batch) {
  double weights = 0;
  for (const PlannedPart& part : module.parts) {
    weights +=
        static_cast<double>(part.n) * static_cast<double>(part.k) * static_cast<double>(part.count);
  }
  double share = 1;
  const PlanPerformance& performance = *plan.performance;
  if (module.module_class == "routed_experts" && performance.num_experts > 0) {
    share = expected_distinct_experts(performance.num_experts, performance.choices, batch) /
            performance.num_experts;
  }
  const double on_device = module.bytes > 0 ? static_cast<double>(module.bytes_per_device) /
                                                  static_cast<double>(module.bytes)
                                            : 1;
  return {.weights = weights * share * std::min(on_device, 1.0),
          .bytes = static_cast<double>(module.bytes_per_device) * share};
}

double estimated_us(const Plan& plan,
                    const PlannedModule& module,
                    const KernelInfo& kernel,
                    double batch) {
  const DeviceSheet& device = plan.options.device;
  const Touched use = touched(plan, module, batch);
  const double reading = use.bytes / (device.read_bytes_per_s * plan.performance->high_share);
  if (kernel.unit == ComputeUnit::kTensorCore || kernel.unit == ComputeUnit::kSimd) {
    return reading * 1e6;
  }
  const bool is_gpu = device.kind == device::DeviceKind::kCuda;
  const double rate =
      device.num_units * (is_gpu ? kGpuLanes * kGpuClock : kCpuScalarLanes * kCpuClock);
  const double instructions = use.weights * (kDecodeCost + rows_per_weight(plan, module, batch));
  return std::max(reading, instructions / rate) * 1e6;
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
    const double us = estimated_us(plan, module, *module.kernel, batch);
    const KernelInfo& other = module.unforced == nullptr ? *module.kernel : *module.unforced;
    const double unforced_us = estimated_us(plan, module, other, batch);
    cost.step_us += us;
    cost.unforced_step_us += unforced_us;
    if (module.unforced == nullptr) continue;
    const double read_us =
        touched(plan, module, batch).bytes / plan.options.device.read_bytes_per_s * 1e6;
    cost.modules.push_back({.module = &module,
                            .us = us,
                            .unforced_us = unforced_us,
                            .share = us > 0 ? read_us / us : 0});
  }
  return cost;
}

}  // namespace nibble::engine
