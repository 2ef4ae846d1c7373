// The weights of a DeepSeek-V4 model in a GPU's memory.
#pragma once

#include <cstdint>
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

// `num_bytes` of host memory at `data`, in the device's.
Result<device::Buffer> upload(device::Device& device, const void* data, int64_t num_bytes);

}  // namespace nibble::models::deepseek_v4::gpu
