// The weights of a DeepSeek-V4 model in a GPU's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/buffer.h"
#include "device/device.h"
#include "layers/device_linear.h"
#include "models/deepseek_v4/weights.h"

namespace nibble::models::deepseek_v4::gpu {

// The embedding table, [vocab_size, D].
struct DeviceTable {
  device::Buffer storage;
  DType dtype = DType::kBf16;  // kBf16 or kF32
};

class DeviceIds final {
 public:
  DeviceIds() = default;
  explicit DeviceIds(device::Buffer storage) : storage_(std::move(storage)) {}
  // Null where there are none.
  const int32_t* data() const { return reinterpret_cast<const int32_t*>(storage_.data()); }

 private:
  device::Buffer storage_;
};

struct DeviceKit {
  using Linear = layers::DeviceLinear;
  using OutputGroups = layers::DeviceLinear;
  using Experts = layers::DeviceExperts;
  using Table = DeviceTable;
  using Ids = DeviceIds;
};
using AttentionWeights = AttentionWeightsOf<DeviceKit>;
using MoeWeights = MoeWeightsOf<DeviceKit>;
using BlockWeights = BlockWeightsOf<DeviceKit>;
using MtpWeights = MtpWeightsOf<DeviceKit>;
using Weights = WeightsOf<DeviceKit>;

// As deepseek_v4::load_weights(), into the device's memory.
Result<Weights> load_weights(const checkpoint::Checkpoint& checkpoint,
                             const Config& config,
                             const Numerics& numerics,
                             device::Device& device,
                             const LoadOptions& options);

// The format of a matrix by its original name, "layers.3.attn.wq_a"; nullopt: not known.
using FormatOf = std::function<std::optional<quant::Format>(const std::string& name)>;

// The layers that load_weights() makes, without weights: which kernels they take, and so what
// scratch memory a step needs. kUnsupported when a format is not known or has no kernel.
Result<Weights> plan_weights(const Config& config,
                             const Numerics& numerics,
                             bool has_mtp,
                             const FormatOf& format_of,
                             const device::DeviceInfo& device,
                             const kernels::RouteOptions& routing);

// `num_bytes` of host memory at `data`, in the device's.
Result<device::Buffer> upload(device::Device& device, const void* data, int64_t num_bytes);

}  // namespace nibble::models::deepseek_v4::gpu
