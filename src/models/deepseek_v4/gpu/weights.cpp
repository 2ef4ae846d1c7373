#include "models/deepseek_v4/gpu/weights.h"

#include <span>
#include <vector>

#include "base/log.h"
#include "models/deepseek_v4/weight_loader-inl.h"
#include "quant/numeric.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

class DeviceMaker final {
 public:
  using Kit = DeviceKit;

  DeviceMaker(device::Device& device,
              kernels::WeightUploader& uploader,
              const kernels::RouteOptions& routing)
      : device_(device), uploader_(uploader), routing_(routing) {}

  template <class Layer, class Visit>
  static void for_each_route(const Layer& layer, Visit&& visit) {
    for (const kernels::RangedRoute& ranged : layer.routes()) visit(layer.n(), ranged.route);
  }

  Result<layers::DeviceLinear> linear(std::string_view name,
                                      std::span<const WeightRows> sources,
                                      Activation activation) const {
    const Activation taken = gpu_activation(sources.front().weight.format, activation);
    return layers::DeviceLinear::make(sources, 1, options(name, taken));
  }
  Result<layers::DeviceLinear> output_groups(std::string_view name,
                                             const WeightRows& rows,
                                             int32_t groups,
                                             Activation activation) const {
    const Activation taken = gpu_activation(rows.weight.format, activation);
    return layers::DeviceLinear::make(std::span(&rows, 1), groups, options(name, taken));
  }
  Result<layers::DeviceExperts> experts(std::string_view name,
                                        std::span<const std::vector<WeightRows>> sources,
                                        Activation activation,
                                        bool is_gate_up) const {
    const Activation taken = gpu_activation(sources.front().front().weight.format, activation);
    return layers::DeviceExperts::make(sources, is_gate_up, options(name, taken));
  }
  Result<Parameter> parameter(const device::Buffer& host) const {
    TRY_ASSIGN(device::Buffer storage, upload(host.data(), host.num_bytes()));
    return Parameter(std::move(storage));
  }
  Result<DeviceTable> table(const TensorView& stored) const {
    DeviceTable table{.storage = {}, .dtype = stored.dtype};
    if (stored.dtype != DType::kF16) {
      TRY_ASSIGN(table.storage, upload(stored.data, stored.num_bytes()));
      return table;
    }
    const auto* const values = stored.as<const uint16_t>();
    std::vector<float> decoded(static_cast<size_t>(stored.shape.num_elements()));
    for (size_t i = 0; i < decoded.size(); ++i) decoded[i] = quant::f16_to_f32(values[i]);
    table.dtype = DType::kF32;
    TRY_ASSIGN(table.storage,
               upload(decoded.data(), static_cast<int64_t>(decoded.size() * sizeof(float))));
    return table;
  }
  Result<DeviceIds> ids(const std::vector<int32_t>& host) const {
    TRY_ASSIGN(device::Buffer storage,
               upload(host.data(), static_cast<int64_t>(host.size() * sizeof(int32_t))));
    return DeviceIds(std::move(storage));
  }

 private:
  Result<device::Buffer> upload(const void* data, int64_t num_bytes) const {
    return uploader_.upload({static_cast<const std::byte*>(data), static_cast<size_t>(num_bytes)});
  }
  layers::DeviceLinearOptions options(std::string_view name, Activation activation) const {
    return {.activation = activation,
            .device = &device_,
            .uploader = &uploader_,
            .name = name,
            .routing = routing_};
  }

  device::Device& device_;
  kernels::WeightUploader& uploader_;
  const kernels::RouteOptions& routing_;
};

}  // namespace

Result<Weights> load_weights(const checkpoint::Checkpoint& checkpoint,
                             const Config& config,
                             const Numerics& numerics,
                             device::Device& device,
                             const LoadOptions& options) {
  TRY_ASSIGN(WeightMap map, WeightMap::build(checkpoint));
  TRY_ASSIGN(kernels::WeightUploader uploader, kernels::WeightUploader::create(device));
  DeviceMaker maker(device, uploader, options.routing);
  TRY_ASSIGN(Weights weights,
             WeightLoader<DeviceMaker>(checkpoint, map, config, numerics, maker, options).load());
  TRY(uploader.finish());
  log_info("{}", kernels::upload_report(uploader.statistics()));
  return weights;
}

Result<device::Buffer> upload(device::Device& device, const void* data, int64_t num_bytes) {
  TRY_ASSIGN(device::Buffer storage, device.allocate(num_bytes));
  TRY(device.copy_in(storage.data(), data, num_bytes));
  TRY(device.synchronize());
  return storage;
}

}  // namespace nibble::models::deepseek_v4::gpu
