// The rounding that the checkpoint's own inference code applies between its steps (spec 7), on f32
// host tensors. The faithful mode calls these, and replays of roundings.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "models/deepseek_v4/decisions.h"
#include "tensor/tensor_view.h"

namespace nibble::models::deepseek_v4 {

// All work in place on x: [m, width] f32; rows may be spaced.

// To the nearest BF16.
void round_bf16(const TensorView& x, device::Stream& stream);
// act_quant: FP8 with one scale per 128 columns (7.1).
void simulate_activation(const TensorView& x, device::Stream& stream);
// FP8SIM_64 on the first `columns` columns, the rest untouched (7.2).
void simulate_kv(const TensorView& x, int64_t columns, device::Stream& stream);
// Takes the values that a device rounded x to, as far as each is one of the two FP8 numbers around
// the value of x; others are rounded as simulate_activation() does. Rows without any stay as they
// are.   x: [site.positions.size() * n, width], n rows per position
//   own: gets what simulate_activation() gives for the same rows; may be null
void impose_roundings(const TensorView& x,
                      const RoundingSite& site,
                      const DecisionTable<float>& roundings,
                      DecisionTable<float>* own,
                      device::Stream& stream);
// Hadamard, BF16, then FP4SIM_32, on each run of `head_dim` columns (3.7, 7.3).
void simulate_index(const TensorView& x, int64_t head_dim, device::Stream& stream);

}  // namespace nibble::models::deepseek_v4
