// Rows of values as the reference of GPU ops handles them: partial sums, norms and rotations,
// stored keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device_args.h"

namespace nibble::kernels::reference {

// Row `row` of a product: its partial sums, added in order.   sums: [splits, m, width]
std::vector<float> sum_row(const DeviceSums& sums, int64_t m, int64_t width, int64_t row);

// x / sqrt(mean(x^2) + eps) * gamma, in place; gamma null: 1.
void normalise(std::span<float> x, const float* gamma, float eps);

// Rotates the end of one head in place.
void rotate(std::span<float> head, const DeviceRotation& rotation, int32_t position, bool inverse);

// Bytes of a stored row of `width` values. kF8E4m3: quant::Fp8KeyLayout with `num_rotary` at the
// end, or with num_rotary 0 an indexer's key, quant::fp8_index_key_bytes().
int64_t key_row_bytes(DType dtype, int64_t width, int64_t num_rotary);
void store_key(std::span<const float> key, DType dtype, int64_t num_rotary, std::byte* row);

}  // namespace nibble::kernels::reference
