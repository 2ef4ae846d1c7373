// Products of some rows of a stored weight on every kernel that a GPU takes for it: what the
// start-up self-test holds against the scalar reference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "kernels/weight_upload.h"

namespace nibble::models::deepseek_v4 {

struct RowProduct {
  std::string_view kernel;
  std::vector<float> y;  // [m, n] of the rows given
};

struct RowProblem {
  kernels::WeightRows all;   // the weight whose kernels are chosen
  kernels::WeightRows rows;  // some of its rows, cut at multiples of 128
  bool is_expert = false;    // of a grouped product
  kernels::Activation activation = kernels::Activation::kFp8;
};

class RowMultiplier final {
 public:
  // `device`: a GPU; it must outlive this.
  static Result<RowMultiplier> create(device::Device& device, const kernels::RouteOptions& routing);

  // x: [m, k], m at most 16, of values that FP8 activations hold (quant::simulate_fp8), so that
  // all forms of it are equal. A kernel for more rows gets as many as a step would give it, x over
  // and over. kUnsupported when no kernel takes the weight.
  Result<std::vector<RowProduct>> multiply(const RowProblem& problem, std::span<const float> x);

 private:
  RowMultiplier(device::Device& device,
                const kernels::RouteOptions& routing,
                kernels::WeightUploader uploader)
      : device_(&device), routing_(routing), uploader_(std::move(uploader)) {}

  struct Input;
  Result<Input> upload_input(std::span<const float> x, int64_t k, int32_t m);
  template <class T>
  Result<device::Buffer> upload(std::span<const T> values) {
    return uploader_.upload(std::as_bytes(values));
  }
  Result<std::vector<float>> read(const device::Buffer& sums, int64_t splits, int64_t count);
  Result<std::vector<float>> multiply_dense(const kernels::Route& route,
                                            const kernels::PackedWeight& weight,
                                            const Input& input);
  Result<std::vector<float>> multiply_expert(const kernels::Route& route,
                                             int32_t slot_rows,
                                             const kernels::PackedWeight& weight,
                                             const Input& input);

  device::Device* device_;
  kernels::RouteOptions routing_;
  kernels::WeightUploader uploader_;
};

}  // namespace nibble::models::deepseek_v4
