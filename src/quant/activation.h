// The activation quantisers that DeepSeek-V4 was trained with, and the Hadamard transform of its
// indexer. All work on F32 spans; where the model keeps BF16, the simulated values are exact in
// BF16.
#pragma once

#include <cstdint>
#include <span>

namespace nibble::quant {

// Power-of-two scale of an FP8 block with largest magnitude `amax`: 2^ceil(log2(max(amax, 1e-4) /
// 448)), the exponent taken from the float bits of amax * (1 / 448), as the model's reference code
// does.
float fp8_activation_scale(float amax);

// act_quant: encodes each run of `block` values as E4M3 times one power-of-two scale.
//   x: [blocks * block]   codes: same size   scales: [blocks]
// The model uses block 128 before its FP8 and FP4 linears.
void quantize_fp8(std::span<const float> x,
                  int64_t block,
                  std::span<uint8_t> codes,
                  std::span<float> scales);

// quantize_fp8 followed by decoding, in place. Block 128 is act_quant before linears; block 64 on
// the non-rotary dimensions is FP8SIM_64 of KV vectors.
void simulate_fp8(std::span<float> x, int64_t block);

// FP4SIM of the indexer, in place: E2M1 with scale 2^ceil(log2(amax / 6)) per `block` values (32 in
// the model).
void simulate_fp4(std::span<float> x, int64_t block);

// Orthonormal Walsh-Hadamard transform in Sylvester order, in place: x <- n^-0.5 * S * x with
// S[i][j] = (-1)^popcount(i & j). n = x.size() must be a power of two. Its own inverse.
void hadamard_transform(std::span<float> x);

}  // namespace nibble::quant
