// Static scales of an NVFP4 expert's input (`input_scale`), found without running the model: bounds
// that no input can pass. Files in ModelOpt's form carry them, and kernels that compute in FP4 need
// them. A calibrated scale would lie below; as group scales are E4M3 numbers, which keep their
// precision over 2^15, that would gain nothing. Source: spec "quantization" 1.5, "deepseek-v4" 5.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/deepseek_v4/config.h"
#include "tensor/tensor_view.h"
#include "tools/output/job.h"

namespace nibble::tools {

// For w1 and w3, whose input is a row of RMSNorm times gamma: no element of a normalised row is
// above sqrt(hidden_size).   gamma_amax: the largest |gamma| of the layer's ffn_norm
float gate_input_scale(const models::deepseek_v4::Config& config, float gamma_amax);

// For w2, whose input is silu(g) * u, both at most swiglu_limit, times the weight of the expert,
// which is at most routed_scaling_factor. nullopt without a limit.
std::optional<float> down_input_scale(const models::deepseek_v4::Config& config);

// The largest |value| of a vector in BF16, F16 or F32. kDataLoss when one is no finite number,
// kUnsupported for other dtypes.
Result<float> vector_amax(const TensorView& vector, const std::string& name);

// "layers.3.ffn_norm.weight" of "layers.3.ffn.experts.7.w1".
std::string input_norm_of_expert(const std::string& module);

// What follows the tensors of NVFP4 weights in a piece: M.input_scale for each of `modules`.
void append_input_scales(std::span<const std::string> modules, std::vector<TensorMeta>& tensors);
Result<void> write_input_scales(float scale, size_t first, size_t count, const WriteBytes& write);

}  // namespace nibble::tools
