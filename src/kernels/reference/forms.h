// ActivationForms on the host, row by row: what producers write and products read.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device_args.h"

namespace nibble::kernels::reference {

// Writes row `row` of an [m, k] matrix in every form that is not null.   values: [k]
void write_forms(const ActivationForms& forms,
                 int64_t m,
                 int64_t row,
                 std::span<const float> values);

// Columns [column, column + out.size()) of row `row` of an [m, k] matrix; FP8 forms need column
// and size at multiples of 128.
void read_form(const ActivationForms& forms,
               ActivationForm form,
               int64_t m,
               int64_t k,
               int64_t row,
               int64_t column,
               std::span<float> out);

}  // namespace nibble::kernels::reference
