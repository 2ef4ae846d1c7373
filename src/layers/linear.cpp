#include "layers/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nibble::layers {
namespace {

int64_t num_rows(std::span<const kernels::WeightRows> sources) {
  int64_t rows = 0;
  for (const kernels::WeightRows& source : sources) rows += source.row_end - source.row_begin;
  return rows;
}

Result<kernels::Route> route_weight(kernels::Op op,
                                    std::span<const kernels::WeightRows> sources,
                                    const LinearOptions& options) {
  return kernels::route({.op = op,
                         .has_weight = true,
                         .weight = sources.front().weight.format,
                         .activation = options.activation,
                         .n = num_rows(sources),
                         .k = sources.front().weight.k},
                        options.device,
                        options.routing);
}

bool can_stack(const quant::WeightView& a, const quant::WeightView& b) {
  return a.format == b.format && a.scales.dtype == b.scales.dtype;
}

// How many leading sources can be packed into one weight.
size_t leading_run(std::span<const kernels::WeightRows> sources) {
  size_t count = 1;
  while (count < sources.size() && can_stack(sources[0].weight, sources[count].weight)) ++count;
  return count;
}

int64_t weight_bytes(const kernels::PackedWeight& weight) { return weight.storage.num_bytes(); }

}  // namespace

Result<Linear> Linear::make(std::span<const kernels::WeightRows> sources,
                            const LinearOptions& options) {
  Linear linear;
  while (!sources.empty()) {
    const auto run = sources.first(leading_run(sources));
    sources = sources.subspan(run.size());
    TRY_ASSIGN(kernels::Route route, route_weight(kernels::Op::kMatMul, run, options));
    TRY_ASSIGN(kernels::PackedWeight weight, kernels::pack_weight(run, route.kernel->layout));
    CHECK(linear.parts_.empty() || weight.k == linear.k()) << weight.k << " and " << linear.k();
    linear.n_ += weight.n;
    linear.parts_.push_back({.weight = std::move(weight), .route = std::move(route)});
  }
  return linear;
}

Result<void> Linear::forward(const TensorView& x,
                             const TensorView& y,
                             device::Stream& stream) const {
  int64_t column = 0;
  for (const RoutedWeight& part : parts_) {
    TRY(part.route.launch(
        kernels::MatMulArgs{.x = x, .weight = &part.weight, .y = y.columns(column, part.weight.n)},
        stream));
    column += part.weight.n;
  }
  return {};
}

int64_t Linear::num_bytes() const {
  int64_t bytes = 0;
  for (const RoutedWeight& part : parts_) bytes += weight_bytes(part.weight);
  return bytes;
}

bool Linear::is_quantized() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const RoutedWeight& part) {
    return quant::format_info(part.weight.format).has_scales();
  });
}

Result<GroupedLinear> GroupedLinear::make(std::span<const std::vector<kernels::WeightRows>> sources,
                                          const LinearOptions& options) {
  GroupedLinear linear;
  TRY_ASSIGN(linear.route_, route_weight(kernels::Op::kGroupedMatMul, sources.front(), options));
  linear.weights_.reserve(sources.size());
  const quant::Format format = sources.front().front().weight.format;
  for (const std::vector<kernels::WeightRows>& group : sources) {
    for (const kernels::WeightRows& rows : group) {
      if (rows.weight.format == format) continue;
      return data_loss(fmt::format("group {}: format {}, expected {} as in group 0",
                                   linear.weights_.size(),
                                   quant::format_name(rows.weight.format),
                                   quant::format_name(format)));
    }
    TRY_ASSIGN(kernels::PackedWeight weight,
               kernels::pack_weight(group, linear.route_.kernel->layout));
    linear.weights_.push_back(std::move(weight));
  }
  return linear;
}

Result<void> GroupedLinear::forward(const TensorView& x,
                                    const Rows& rows,
                                    const TensorView& y,
                                    device::Stream& stream) const {
  return route_.launch(kernels::GroupedMatMulArgs{.x = x,
                                                  .weights = weights_,
                                                  .group_offsets = rows.group_offsets,
                                                  .in_rows = rows.in_rows,
                                                  .out_rows = rows.out_rows,
                                                  .y = y},
                       stream);
}

int64_t GroupedLinear::num_bytes() const {
  int64_t bytes = 0;
  for (const kernels::PackedWeight& weight : weights_) bytes += weight_bytes(weight);
  return bytes;
}

kernels::WeightRows tensor_parallel_rows(const kernels::WeightRows& weight,
                                         int32_t rank,
                                         int32_t size) {
  const int64_t rows = weight.row_end - weight.row_begin;
  CHECK(size > 0 && rank >= 0 && rank < size && rows % size == 0)
      << rank << " of " << size << ", rows " << rows;
  const int64_t share = rows / size;
  const int64_t begin = weight.row_begin + rank * share;
  return {.weight = weight.weight, .row_begin = begin, .row_end = begin + share};
}

}  // namespace nibble::layers
