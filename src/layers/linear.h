// Linear layers: packed weights with the kernel that was chosen for them at load. forward() only
// launches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "kernels/packed_weight.h"
#include "tensor/tensor_view.h"

namespace nibble::layers {

// How a layer's kernel is chosen.
struct LinearOptions {
  kernels::Activation activation = kernels::Activation::kF32;  // the coarsest that is allowed
  device::DeviceInfo device;
  kernels::RouteOptions routing;
};

// A packed weight and its kernel.
struct RoutedWeight {
  kernels::PackedWeight weight;
  kernels::Route route;
};

// y[t, :] = concat(W_0 x[t, :], W_1 x[t, :], ...): projections that read the same input. Sources
// that follow each other with one format are packed into one weight, so that they cost one launch.
class Linear final {
 public:
  Linear() = default;
  // Sources must share k. kUnsupported when no kernel takes a weight, kExhausted without memory.
  static Result<Linear> make(std::span<const kernels::WeightRows> sources,
                             const LinearOptions& options);

  // x: [m, k] f32, y: [m, n] f32; must not overlap. Rows of both may be spaced.
  Result<void> forward(const TensorView& x, const TensorView& y, device::Stream& stream) const;

  int64_t n() const { return n_; }
  int64_t k() const { return parts_.empty() ? 0 : parts_.front().weight.k; }
  int64_t num_bytes() const;
  // Whether a part's format has scales.
  bool is_quantized() const;
  std::span<const RoutedWeight> parts() const { return parts_; }

 private:
  std::vector<RoutedWeight> parts_;
  int64_t n_ = 0;
};

// One weight per group, all of one format and shape: routed experts, the grouped output projection.
class GroupedLinear final {
 public:
  GroupedLinear() = default;
  // sources[g]: the rows stacked into group g's weight. kDataLoss when the groups' formats differ.
  static Result<GroupedLinear> make(std::span<const std::vector<kernels::WeightRows>> sources,
                                    const LinearOptions& options);

  // Which rows go through which group, as in kernels::GroupedMatMulArgs.
  struct Rows {
    std::span<const int32_t> group_offsets;
    std::span<const int32_t> in_rows;
    std::span<const int32_t> out_rows;
  };
  // x: [rows, k] f32, y: [rows, n] f32; must not overlap.
  Result<void> forward(const TensorView& x,
                       const Rows& rows,
                       const TensorView& y,
                       device::Stream& stream) const;

  int64_t num_groups() const { return static_cast<int64_t>(weights_.size()); }
  int64_t n() const { return weights_.empty() ? 0 : weights_.front().n; }
  int64_t k() const { return weights_.empty() ? 0 : weights_.front().k; }
  quant::Format format() const { return weights_.front().format; }
  int64_t num_bytes() const;
  bool is_quantized() const { return quant::format_info(format()).has_scales(); }
  const kernels::Route& route() const { return route_; }

 private:
  std::vector<kernels::PackedWeight> weights_;
  kernels::Route route_;
};

// The rows of `weight` that rank `rank` of `size` computes; the row count must be divisible. For
// layers whose outputs are split between ranks.
kernels::WeightRows tensor_parallel_rows(const kernels::WeightRows& weight,
                                         int32_t rank,
                                         int32_t size);

}  // namespace nibble::layers
