#include "models/deepseek_v4/weights.h"

#include <utility>

#include "models/deepseek_v4/weight_loader-inl.h"

namespace nibble::models::deepseek_v4 {
namespace {

// Layers of the CPU, which multiply in place what was packed.
class HostMaker final {
 public:
  using Kit = HostKit;

  HostMaker(const device::DeviceInfo& device, const kernels::RouteOptions& routing)
      : device_(device), routing_(routing) {}

  template <class Visit>
  static void for_each_route(const layers::Linear& linear, Visit&& visit) {
    for (const layers::RoutedWeight& part : linear.parts()) visit(part.weight.n, part.route);
  }
  template <class Visit>
  static void for_each_route(const layers::GroupedLinear& linear, Visit&& visit) {
    visit(linear.n(), linear.route());
  }

  Result<layers::Linear> linear(std::string_view /*name*/,
                                std::span<const WeightRows> sources,
                                Activation activation) const {
    return layers::Linear::make(sources, options(activation));
  }
  Result<layers::GroupedLinear> output_groups(std::string_view /*name*/,
                                              const WeightRows& rows,
                                              int32_t groups,
                                              Activation activation) const {
    const int64_t rank = (rows.row_end - rows.row_begin) / groups;
    std::vector<std::vector<WeightRows>> sources;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = rows.row_begin + g * rank;
      sources.push_back({{.weight = rows.weight, .row_begin = begin, .row_end = begin + rank}});
    }
    return layers::GroupedLinear::make(sources, options(activation));
  }
  Result<layers::GroupedLinear> experts(std::string_view /*name*/,
                                        std::span<const std::vector<WeightRows>> sources,
                                        Activation activation,
                                        bool /*is_gate_up*/) const {
    return layers::GroupedLinear::make(sources, options(activation));
  }
  Result<Parameter> parameter(device::Buffer storage) const {
    return Parameter(std::move(storage));
  }
  Result<WeightMap::Table> table(const TensorView& stored) const { return WeightMap::copy(stored); }
  Result<std::vector<int32_t>> ids(std::vector<int32_t> ids) const { return ids; }

 private:
  layers::LinearOptions options(Activation activation) const {
    return {.activation = activation, .device = device_, .routing = routing_};
  }

  const device::DeviceInfo& device_;
  const kernels::RouteOptions& routing_;
};

}  // namespace

Result<Weights> load_weights(const checkpoint::Checkpoint& checkpoint,
                             const Config& config,
                             const Numerics& numerics,
                             const device::DeviceInfo& device,
                             const LoadOptions& options) {
  TRY_ASSIGN(WeightMap map, WeightMap::build(checkpoint));
  HostMaker maker(device, options.routing);
  return WeightLoader<HostMaker>(checkpoint, map, config, numerics, maker, options).load();
}

}  // namespace nibble::models::deepseek_v4
