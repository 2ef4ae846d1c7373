// The GPU generations that CUDA kernels are planned for, and how a planned row is made. Each is an
// explicit range: a GPU outside of all of them is refused, never taken for the newest known. Source
// of what they multiply in: spec "quantization" 3.1 and 3.2, "kernels" 1.1.
#pragma once

#include "kernels/kernel.h"

namespace nibble::kernels {

// A100, RTX 30, Orin: BF16 and INT8 mma. FP8 and 4-bit weights are widened in registers.
inline constexpr Target kSm80 = {.kind = device::DeviceKind::kCuda, .sm_min = 80, .sm_max = 87};
// L4, L40, RTX 40: FP8 mma.
inline constexpr Target kSm89 = {.kind = device::DeviceKind::kCuda, .sm_min = 89, .sm_max = 89};
// H100, H200 (sm_90a): wgmma. FP4 codes are expanded to E4M3, exactly.
inline constexpr Target kSm90 = {.kind = device::DeviceKind::kCuda, .sm_min = 90, .sm_max = 90};
// B200, B300 (sm_100a, sm_103a): tcgen05 with block scales.
inline constexpr Target kSm100 = {.kind = device::DeviceKind::kCuda, .sm_min = 100, .sm_max = 103};
// Thor (sm_110a): tcgen05 as well.
inline constexpr Target kSm110 = {.kind = device::DeviceKind::kCuda, .sm_min = 110, .sm_max = 110};
// RTX 50, RTX PRO 6000, GB10 (sm_120f): mma.sync with block scales, 99 KiB of shared memory.
inline constexpr Target kSm120 = {.kind = device::DeviceKind::kCuda, .sm_min = 120, .sm_max = 121};

// Shared memory that a block gets on all of these, 99 KiB at least.
inline constexpr int64_t kLeastSharedBytes = 96 << 10;

// By its first member; 0: none of them.
constexpr int32_t generation_of(int32_t sm) {
  for (const Target& target : {kSm80, kSm89, kSm90, kSm100, kSm110, kSm120}) {
    if (sm >= target.sm_min && sm <= target.sm_max) return target.sm_min;
  }
  return 0;
}
constexpr bool is_known_generation(int32_t sm) { return generation_of(sm) != 0; }

// A row that is not written, of a product and unit that its name states.
constexpr KernelInfo planned(std::string_view name,
                             quant::Format weight,
                             Activation activation,
                             const Target& target,
                             const Limits& limits = {}) {
  return {.name = name,
          .op = name.starts_with("grouped_") ? Op::kGroupedMatMul : Op::kMatMul,
          .has_weight = true,
          .weight = weight,
          .activation = activation,
          .unit = name.ends_with(".simt") ? ComputeUnit::kSimt : ComputeUnit::kTensorCore,
          .target = target,
          .limits = limits,
          .status = Status::kPlanned};
}

}  // namespace nibble::kernels
