// Inputs for every op without weights: random and edge shapes, each runnable on any row and on any
// range of its items, so that rows can be compared with each other and with themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/kernel.h"

namespace nibble::kernels {

struct OpOutput {
  std::vector<float> values;  // item-major
  bool is_exact = false;      // indices and copies: every row gives the same
};

struct OpCase {
  std::string name;
  int64_t num_items = 0;  // tokens, rows or entries
  int64_t k = 0;          // terms of the longest sum
  KeyForm keys = KeyForm::kPlain;
  // Launches `row` on items [begin, end) of the case's inputs.
  std::function<std::vector<OpOutput>(
      const KernelInfo& row, device::Stream& stream, int64_t begin, int64_t end)>
      run;
};

// Empty for ops with weights.
std::vector<OpCase> op_cases(Op op);

// The largest difference between two rows in one output, relative to its largest magnitude: both
// round each of k terms and some elementary functions in f32.
double op_tolerance(int64_t k);

// Expects that `kernel` agrees with `reference` on every case of its op and keys.
void compare_op(const KernelInfo& kernel, const KernelInfo& reference);

}  // namespace nibble::kernels
