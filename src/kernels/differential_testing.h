// The parts of the differential test for ops with weights: functions that run a kernel and the op's
// reference row on the same random and edge cases and compare. Ops without weights:
// ops_cases_testing.h.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace nibble::kernels {

using Comparison = void (*)(const KernelInfo& kernel, const KernelInfo& reference);

void compare_matmul(const KernelInfo& kernel, const KernelInfo& reference);
void compare_grouped_matmul(const KernelInfo& kernel, const KernelInfo& reference);

// Bound of |y - y_reference| / sum_j |w_j x_j| for one output, when both see the same activations
// (rounded to bf16 for kernels that multiply in bf16): each addition in f32 rounds by 2^-24, along
// k within a group, then over groups; the scales, the decoded weight and the result round a few
// times more. Twice that, because the fused pair product of bf16 units may round each of its two
// additions.
double matmul_tolerance(quant::Format format, int64_t k);

}  // namespace nibble::kernels
