// Linear layers of a GPU: a weight packed and uploaded once, in the layout that its kernels for
// every number of rows share, and the launches over kernels/device_args.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "kernels/packed_weight.h"
#include "kernels/weight_upload.h"

namespace nibble::layers {

struct DeviceLinearOptions {
  kernels::Activation activation = kernels::Activation::kF32;  // the coarsest that is allowed
  device::Device* device = nullptr;
  kernels::WeightUploader* uploader = nullptr;
  std::string_view name = {};  // of the module, for messages
  // deterministic: one kernel for any number of rows, so that results do not depend on it.
  kernels::RouteOptions routing;
};

// A weight as plans know it: n rows in all, of one format; see DeviceLinear about groups.
struct LayerShape {
  quant::Format format = quant::Format::kF32;
  int64_t n = 0;
  int64_t k = 0;
  int32_t groups = 1;
};

// The forms of one matrix that its readers want.
class FormSet final {
 public:
  FormSet& add(kernels::ActivationForm form) {
    bits_ |= 1U << static_cast<uint32_t>(form);
    return *this;
  }
  FormSet& add(const FormSet& other) {
    bits_ |= other.bits_;
    return *this;
  }
  bool has(kernels::ActivationForm form) const {
    return (bits_ >> static_cast<uint32_t>(form) & 1) != 0;
  }
  // `all` without the forms that nobody wants.
  kernels::ActivationForms select(const kernels::ActivationForms& all) const;

 private:
  uint32_t bits_ = 0;
};

// y = W x. Sources are stacked; they must share k, and a format unless all are without scales.
// With groups, rows g * n / groups and on of W see columns g * k and on of x.
class DeviceLinear final {
 public:
  DeviceLinear() = default;
  // kUnsupported when no kernel takes the weight, kExhausted without memory.
  static Result<DeviceLinear> make(std::span<const kernels::WeightRows> sources,
                                   int32_t groups,
                                   const DeviceLinearOptions& options);
  // What make() gives for such weights, without them: it tells what launches would need.
  static Result<DeviceLinear> plan(const LayerShape& shape,
                                   kernels::Activation activation,
                                   const device::DeviceInfo& device,
                                   const kernels::RouteOptions& routing);

  // The form in which the kernel for m rows reads x.
  kernels::ActivationForm form(int64_t m) const { return kernel(m).x_form; }
  // The forms for any number of rows up to m_max.
  FormSet forms(int64_t m_max) const;
  // Rows up to which x is wanted in that form, of at most m_max.
  int64_t max_rows_in(kernels::ActivationForm form, int64_t m_max) const;
  // Partial sums that the kernel for m rows gives.
  int32_t num_splits(int64_t m) const { return splits(kernel(m)); }
  // f32 values that the sums of up to m_max rows take.
  int64_t max_sums(int64_t m_max) const;

  // Sums [splits, m, n] into `out`, which has room for max_sums(m).
  //   x: [m, groups * k] in form(m)
  Result<kernels::DeviceSums> launch(const kernels::ActivationForms& x,
                                     int32_t m,
                                     float* out,
                                     device::Stream& stream) const;
  // launch() as other launches make it beside their own products.
  kernels::DeviceMatMulArgs product(const kernels::ActivationForms& x, int32_t m, float* out) const;
  // Whether a launch of `pair` gives for m rows what this layer and `second` give alone.
  bool makes_pair(const DeviceLinear& second, const kernels::Route* pair, int64_t m) const;
  // f32 values that the sums of each of the two take in a pair for up to m_max rows; zeros where
  // there is none.
  std::array<int64_t, 2> max_pair_sums(const DeviceLinear& second,
                                       const kernels::Route* pair,
                                       int64_t m_max) const;
  // launch() of this layer and of `second` over the same rows, in one launch where there is one.
  Result<std::array<kernels::DeviceSums, 2>> launch_pair(const DeviceLinear& second,
                                                         const kernels::Route* pair,
                                                         const kernels::ActivationForms& x,
                                                         int32_t m,
                                                         const std::array<float*, 2>& out,
                                                         device::Stream& stream) const;
  // Whether launch_blocks() may take the place of launch() for m rows.
  bool gives_blocks(int64_t m) const;
  // FP8 blocks of y for the next product.   out: n / 128 blocks of fp8_block_bytes(m)
  Result<void> launch_blocks(const kernels::ActivationForms& x,
                             int32_t m,
                             std::byte* out,
                             device::Stream& stream) const;

  int64_t n() const { return weight_.n; }
  int64_t k() const { return weight_.k; }
  int64_t num_bytes() const { return weight_.num_bytes(); }
  bool is_quantized() const { return quant::format_info(weight_.format).has_scales(); }
  std::span<const kernels::RangedRoute> routes() const { return routes_; }
  const kernels::PackedWeight& weight() const { return weight_; }

 private:
  const kernels::Route& route(int64_t m) const { return kernels::route_for(routes_, m); }
  const kernels::KernelInfo& kernel(int64_t m) const { return *route(m).kernel; }
  int32_t splits(const kernels::KernelInfo& kernel) const;
  kernels::MatMulPairPlan plan_pair(const DeviceLinear& second, int64_t m) const;
  kernels::DeviceMatMulArgs args(const kernels::ActivationForms& x, int32_t m) const;

  kernels::PackedWeight weight_;  // device memory
  std::vector<kernels::RangedRoute> routes_;
  int32_t groups_ = 1;
  int32_t num_units_ = 0;
};

// One weight per expert, all of one format and shape.
class DeviceExperts final {
 public:
  DeviceExperts() = default;
  // sources[e]: the rows stacked into expert e's weight; gate rows over up rows where is_gate_up.
  // kDataLoss when the experts' formats differ.
  static Result<DeviceExperts> make(std::span<const std::vector<kernels::WeightRows>> sources,
                                    bool is_gate_up,
                                    const DeviceLinearOptions& options);
  // As DeviceLinear::plan().   shape: of one of the experts
  static Result<DeviceExperts> plan(const LayerShape& shape,
                                    int32_t num_experts,
                                    kernels::Activation activation,
                                    const device::DeviceInfo& device,
                                    const kernels::RouteOptions& routing);

  // Of the kernel for that many tokens.
  kernels::ActivationForm form(int64_t num_tokens) const { return kernel(num_tokens).x_form; }
  FormSet forms(int64_t max_tokens) const;
  // Pairs per slot that the kernel for that many tokens wants, and the most for any number.
  int32_t slot_rows(int64_t num_tokens, int32_t choices) const;
  int32_t max_slot_rows() const;

  // Whether rows of bf16 alone do for that many tokens.
  bool quantizes(int64_t num_tokens) const { return kernel(num_tokens).quantizes; }
  // Whether a launch for that many tokens, in slots of `slot_rows`, may go on with `down`.
  bool joins(const DeviceExperts& down, int64_t num_tokens, int32_t slot_rows) const;
  // Whether that launch also chooses the experts and makes the product of `beside`.
  bool takes_beside(const DeviceLinear& beside, int64_t num_tokens) const;

  // Fills in weight and device; the rest of `args` is the caller's. Of args.x only form(num_tokens)
  // is read, or bf16 where it is alone: other forms may hold what an earlier producer left.
  Result<void> launch(kernels::DeviceGroupedMatMulArgs args,
                      int64_t num_tokens,
                      device::Stream& stream) const;

  int64_t n() const { return weight_.n; }
  int64_t k() const { return weight_.k; }
  int64_t num_bytes() const { return weight_.num_bytes(); }
  bool is_quantized() const { return quant::format_info(weight_.format).has_scales(); }
  std::span<const kernels::RangedRoute> routes() const { return routes_; }
  const kernels::PackedWeight& weight() const { return weight_; }

 private:
  const kernels::Route& route(int64_t m) const { return kernels::route_for(routes_, m); }
  const kernels::KernelInfo& kernel(int64_t m) const { return *route(m).kernel; }

  kernels::PackedWeight weight_;  // device memory: packages one by one; n and k of one expert
  std::vector<kernels::RangedRoute> routes_;
  int32_t num_experts_ = 0;
  int32_t num_units_ = 0;
};

}  // namespace nibble::layers
