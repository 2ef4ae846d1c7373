#include "layers/device_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quant/reference.h"

namespace nibble::layers {
namespace {

using kernels::ActivationForm;
using kernels::WeightRows;

int64_t num_rows(std::span<const WeightRows> sources) {
  int64_t rows = 0;
  for (const WeightRows& source : sources) rows += source.row_end - source.row_begin;
  return rows;
}

// A group's rows are a product of their own: tiles do not reach over its end.
Result<std::vector<kernels::RangedRoute>> route_weight(kernels::Op op,
                                                       const LayerShape& shape,
                                                       kernels::Activation activation,
                                                       const device::DeviceInfo& device,
                                                       const kernels::RouteOptions& routing) {
  const kernels::Problem problem{.op = op,
                                 .has_weight = true,
                                 .weight = shape.format,
                                 .activation = activation,
                                 .n = shape.n / shape.groups,
                                 .k = shape.k};
  if (!routing.deterministic) return kernels::route_by_rows(problem, device, routing);
  TRY_ASSIGN(kernels::Route route, kernels::route(problem, device, routing));
  std::vector<kernels::RangedRoute> routes;
  routes.push_back({.m_max = 0, .route = std::move(route)});
  return routes;
}

// Sources of several formats without scales, decoded so that they can be stacked.
class UnscaledStack final {
 public:
  explicit UnscaledStack(std::span<const WeightRows> sources) {
    values_.reserve(sources.size());
    for (const WeightRows& source : sources) {
      const int64_t k = source.weight.k;
      const int64_t rows = source.row_end - source.row_begin;
      std::vector<float>& values = values_.emplace_back(static_cast<size_t>(rows * k));
      for (int64_t row = 0; row < rows; ++row) {
        quant::dequantize_row(
            source.weight,
            source.row_begin + row,
            std::span(values).subspan(static_cast<size_t>(row * k), static_cast<size_t>(k)));
      }
      rows_.push_back(
          {.weight = {.format = quant::Format::kF32,
                      .n = rows,
                      .k = k,
                      .codes = TensorView::contiguous(values.data(), DType::kF32, {rows, k})},
           .row_begin = 0,
           .row_end = rows});
    }
  }
  std::span<const WeightRows> rows() const { return rows_; }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<WeightRows> rows_;
};

bool have_one_format(std::span<const WeightRows> sources) {
  const quant::WeightView& first = sources.front().weight;
  return std::all_of(sources.begin(), sources.end(), [&](const WeightRows& source) {
    return source.weight.format == first.format && source.weight.scales.dtype == first.scales.dtype;
  });
}

bool have_scales(std::span<const WeightRows> sources) {
  return std::any_of(sources.begin(), sources.end(), [](const WeightRows& source) {
    return quant::format_info(source.weight.format).has_scales();
  });
}

int64_t rows_of(const kernels::RangedRoute& ranged, int64_t m_max) {
  return ranged.m_max == 0 ? m_max : std::min(ranged.m_max, m_max);
}

// The forms of the routes that up to m_max rows take.
FormSet forms_of(std::span<const kernels::RangedRoute> routes, int64_t m_max) {
  FormSet forms;
  for (const kernels::RangedRoute& ranged : routes) {
    forms.add(ranged.route.kernel->x_form);
    if (ranged.m_max == 0 || ranged.m_max >= m_max) break;
  }
  return forms;
}

}  // namespace

kernels::ActivationForms FormSet::select(const kernels::ActivationForms& all) const {
  kernels::ActivationForms wanted;
  if (has(ActivationForm::kF32)) wanted.f32 = all.f32;
  if (has(ActivationForm::kBf16)) wanted.bf16 = all.bf16;
  if (has(ActivationForm::kFp8Rows)) {
    wanted.fp8 = all.fp8;
    wanted.fp8_scales = all.fp8_scales;
  }
  if (has(ActivationForm::kFp8Blocks)) wanted.fp8_blocks = all.fp8_blocks;
  if (has(ActivationForm::kBf16Blocks)) wanted.bf16_blocks = all.bf16_blocks;
  if (has(ActivationForm::kBf16Terms)) wanted.bf16_terms = all.bf16_terms;
  return wanted;
}

Result<DeviceLinear> DeviceLinear::make(std::span<const WeightRows> sources,
                                        int32_t groups,
                                        const DeviceLinearOptions& options) {
  if (!have_one_format(sources) && !have_scales(sources)) {
    return make(UnscaledStack(sources).rows(), groups, options);
  }
  const quant::WeightView& first = sources.front().weight;
  TRY_ASSIGN(DeviceLinear linear,
             plan({.format = first.format, .n = num_rows(sources), .k = first.k, .groups = groups},
                  options.activation,
                  options.device->info(),
                  options.routing));
  TRY_ASSIGN(
      linear.weight_,
      options.uploader->pack(options.name, sources, linear.routes_.front().route.kernel->layout));
  return linear;
}

Result<DeviceLinear> DeviceLinear::plan(const LayerShape& shape,
                                        kernels::Activation activation,
                                        const device::DeviceInfo& device,
                                        const kernels::RouteOptions& routing) {
  DeviceLinear linear;
  linear.groups_ = shape.groups;
  linear.num_units_ = device.num_units;
  TRY_ASSIGN(linear.routes_,
             route_weight(kernels::Op::kMatMul, shape, activation, device, routing));
  linear.weight_.format = shape.format;
  linear.weight_.layout = linear.routes_.front().route.kernel->layout;
  linear.weight_.n = shape.n;
  linear.weight_.k = shape.k;
  return linear;
}

FormSet DeviceLinear::forms(int64_t m_max) const { return forms_of(routes_, m_max); }

int64_t DeviceLinear::max_rows_in(ActivationForm form, int64_t m_max) const {
  int64_t rows = 0;
  for (const kernels::RangedRoute& ranged : routes_) {
    if (ranged.route.kernel->x_form == form) rows = rows_of(ranged, m_max);
  }
  return rows;
}

int32_t DeviceLinear::splits(const kernels::KernelInfo& kernel) const {
  return kernels::num_splits(kernel, n(), k(), num_units_);
}

int64_t DeviceLinear::max_sums(int64_t m_max) const {
  int64_t sums = 0;
  for (const kernels::RangedRoute& ranged : routes_) {
    sums = std::max(sums, splits(*ranged.route.kernel) * rows_of(ranged, m_max) * n());
  }
  return sums;
}

kernels::DeviceMatMulArgs DeviceLinear::args(const kernels::ActivationForms& x, int32_t m) const {
  return {.x = FormSet().add(form(m)).select(x),
          .m = m,
          .weight = &weight_,
          .groups = groups_,
          .num_units = num_units_,
          .is_dependent = true};
}

Result<kernels::DeviceSums> DeviceLinear::launch(const kernels::ActivationForms& x,
                                                 int32_t m,
                                                 float* out,
                                                 device::Stream& stream) const {
  const kernels::DeviceMatMulArgs launched = product(x, m, out);
  TRY(route(m).launch(launched, stream));
  return kernels::DeviceSums{.data = out, .splits = launched.splits};
}

kernels::DeviceMatMulArgs DeviceLinear::product(const kernels::ActivationForms& x,
                                                int32_t m,
                                                float* out) const {
  kernels::DeviceMatMulArgs product = args(x, m);
  product.splits = splits(kernel(m));
  product.y = out;
  return product;
}

bool DeviceLinear::makes_pair(const DeviceLinear& second,
                              const kernels::Route* pair,
                              int64_t m) const {
  if (pair == nullptr || groups_ != 1 || second.groups_ != 1) return false;
  const auto& rows = pair->kernel->pair;
  const std::string_view other = second.kernel(m).name;
  return kernel(m).name == rows[0] && (other == rows[0] || other == rows[1]);
}

kernels::MatMulPairPlan DeviceLinear::plan_pair(const DeviceLinear& second, int64_t m) const {
  return kernels::plan_matmul_pair(
      {&kernel(m), &second.kernel(m)}, {&weight_, &second.weight_}, num_units_);
}

std::array<int64_t, 2> DeviceLinear::max_pair_sums(const DeviceLinear& second,
                                                   const kernels::Route* pair,
                                                   int64_t m_max) const {
  if (routes_.empty() || second.routes_.empty() || !makes_pair(second, pair, 1)) return {};
  const int64_t rows = std::min(m_max, pair->kernel->limits.m_max);
  const kernels::MatMulPairPlan plan = plan_pair(second, 1);
  return {plan.splits[0] * rows * n(), plan.splits[1] * rows * second.n()};
}

Result<std::array<kernels::DeviceSums, 2>> DeviceLinear::launch_pair(
    const DeviceLinear& second,
    const kernels::Route* pair,
    const kernels::ActivationForms& x,
    int32_t m,
    const std::array<float*, 2>& out,
    device::Stream& stream) const {
  if (!makes_pair(second, pair, m)) {
    TRY_ASSIGN(const kernels::DeviceSums own, launch(x, m, out[0], stream));
    TRY_ASSIGN(const kernels::DeviceSums others, second.launch(x, m, out[1], stream));
    return std::array{own, others};
  }
  const kernels::MatMulPairPlan plan = plan_pair(second, m);
  kernels::DeviceMatMulPairArgs launched{
      .first = args(x, m), .second = second.args(x, m), .first_blocks = plan.first_blocks};
  launched.first.splits = plan.splits[0];
  launched.first.y = out[0];
  launched.second.splits = plan.splits[1];
  launched.second.y = out[1];
  TRY(pair->launch(launched, stream));
  return std::array{kernels::DeviceSums{.data = out[0], .splits = plan.splits[0]},
                    kernels::DeviceSums{.data = out[1], .splits = plan.splits[1]}};
}

bool DeviceLinear::gives_blocks(int64_t m) const {
  const kernels::KernelInfo& info = kernel(m);
  return info.gives_fp8 && splits(info) == 1 && n() / groups_ % 128 == 0;
}

Result<void> DeviceLinear::launch_blocks(const kernels::ActivationForms& x,
                                         int32_t m,
                                         std::byte* out,
                                         device::Stream& stream) const {
  kernels::DeviceMatMulArgs launched = args(x, m);
  launched.y_fp8 = out;
  return route(m).launch(launched, stream);
}

Result<DeviceExperts> DeviceExperts::make(std::span<const std::vector<WeightRows>> sources,
                                          bool is_gate_up,
                                          const DeviceLinearOptions& options) {
  const quant::WeightView& first = sources.front().front().weight;
  for (size_t e = 0; e < sources.size(); ++e) {
    for (const WeightRows& rows : sources[e]) {
      if (rows.weight.format == first.format) continue;
      return data_loss(fmt::format("group {}: format {}, expected {} as in group 0",
                                   e,
                                   quant::format_name(rows.weight.format),
                                   quant::format_name(first.format)));
    }
  }
  TRY_ASSIGN(DeviceExperts experts,
             plan({.format = first.format, .n = num_rows(sources.front()), .k = first.k},
                  static_cast<int32_t>(sources.size()),
                  options.activation,
                  options.device->info(),
                  options.routing));
  TRY_ASSIGN(experts.weight_,
             options.uploader->pack_groups(
                 options.name,
                 sources,
                 experts.routes_.front().route.kernel->layout,
                 is_gate_up ? kernels::PanelOrder::kGateUp : kernels::PanelOrder::kNatural));
  return experts;
}

Result<DeviceExperts> DeviceExperts::plan(const LayerShape& shape,
                                          int32_t num_experts,
                                          kernels::Activation activation,
                                          const device::DeviceInfo& device,
                                          const kernels::RouteOptions& routing) {
  DeviceExperts experts;
  experts.num_experts_ = num_experts;
  experts.num_units_ = device.num_units;
  TRY_ASSIGN(experts.routes_,
             route_weight(kernels::Op::kGroupedMatMul, shape, activation, device, routing));
  return experts;
}

FormSet DeviceExperts::forms(int64_t max_tokens) const { return forms_of(routes_, max_tokens); }

int32_t DeviceExperts::slot_rows(int64_t num_tokens, int32_t choices) const {
  return kernels::choose_slot_rows(kernel(num_tokens), num_tokens, choices, num_experts_);
}

int32_t DeviceExperts::max_slot_rows() const {
  int32_t most = 0;
  for (const kernels::RangedRoute& ranged : routes_) {
    for (const int32_t rows : ranged.route.kernel->slot_rows) most = std::max(most, rows);
  }
  return most;
}

bool DeviceExperts::joins(const DeviceExperts& down, int64_t num_tokens, int32_t slot_rows) const {
  const kernels::KernelInfo& info = kernel(num_tokens);
  return info.joins_down && slot_rows == 1 && &info == &down.kernel(num_tokens);
}

bool DeviceExperts::takes_beside(const DeviceLinear& beside, int64_t num_tokens) const {
  return num_tokens == 1 &&
         kernel(num_tokens).beside == kernels::route_for(beside.routes(), 1).kernel->name &&
         beside.num_splits(1) == kernels::kBesideSplits;
}

Result<void> DeviceExperts::launch(kernels::DeviceGroupedMatMulArgs args,
                                   int64_t num_tokens,
                                   device::Stream& stream) const {
  const bool is_quantized = !quantizes(num_tokens) || args.x.fp8 != nullptr;
  args.x = FormSet()
               .add(is_quantized ? form(num_tokens) : kernels::ActivationForm::kBf16)
               .select(args.x);
  args.weight = &weight_;
  args.num_units = num_units_;
  args.is_dependent = true;
  return route(num_tokens).launch(args, stream);
}

}  // namespace nibble::layers
