// Compares the kernels that loading takes with the scalar reference, on sampled rows of the stored
// weights: the whole path of a weight (dtypes, scales, packing, kernel) at a cost that does not
// grow with the model. The check of spec "quantization" 3.7.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

// What rows of one module class (numbers as *) gave on one kernel.
struct RowComparison {
  std::string module;
  std::string_view kernel;
  int32_t num_modules = 0;
  int64_t num_rows = 0;
  double cosine = 1;  // the least of the modules
};

// Weights are multiplied in f32 or BF16 (W?A16).
inline constexpr double kMinRowCosine = 0.999;

// Cosine of two results for the same inputs. kDataLoss when `found` is not finite, all zero while
// `expected` is not, or below kMinRowCosine; the message lacks the module's name.
Result<double> compare_rows(std::span<const float> expected, std::span<const float> found);

inline constexpr int32_t kCheckedModules = 3;  // first, middle and last

// So many modules of every class, 64 rows of each, on a GPU up to 256, random inputs. On a GPU,
// every kernel that a number of rows may lead to. The checkpoint must hold a DeepSeek-V4 model.
// kDataLoss names module and kernel.
Result<std::vector<RowComparison>> check_rows(const checkpoint::Checkpoint& checkpoint,
                                              device::Device& device,
                                              const LoadOptions& options,
                                              int32_t modules_per_class = kCheckedModules);

}  // namespace nibble::models::deepseek_v4
