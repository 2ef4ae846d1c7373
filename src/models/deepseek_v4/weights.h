// The weights of a DeepSeek-V4 model, packed for the kernels that were chosen for them. Immutable
// after loading.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "device/buffer.h"
#include "device/device.h"
#include "layers/linear.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/weight_map.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

// f32 parameters on the device.
class Parameter final {
 public:
  Parameter() = default;
  explicit Parameter(device::Buffer storage) : storage_(std::move(storage)) {}
  // Null where the model has none.
  const float* data() const { return reinterpret_cast<const float*>(storage_.data()); }
  int64_t num_bytes() const { return storage_.num_bytes(); }

 private:
  device::Buffer storage_;
};

// The types of a backend's layers: here those of the CPU, in gpu/weights.h those of a GPU.
struct HostKit {
  using Linear = layers::Linear;
  using OutputGroups = layers::GroupedLinear;  // one weight per group
  using Experts = layers::GroupedLinear;       // one weight per expert
  using Table = WeightMap::Table;
  using Ids = std::vector<int32_t>;
};

// fn: [rows, M * D], base: [rows], scale: [1 or 3]; rows = 2 M + M * M for a sub-block, M for a
// head.
struct HyperConnectionWeights {
  Parameter fn;
  Parameter base;
  Parameter scale;
};

// What follows the compressor's projections. width: channels of an entry.
struct CompressorWeights {
  Parameter ape;   // [ratio, C], C = 2 * width for ratio 4, else width
  Parameter norm;  // [width]
};

template <class Kit>
struct AttentionWeightsOf {
  int32_t compress_ratio = 0;    // 0, 4 or 128
  typename Kit::Linear wqa_wkv;  // [q_lora_rank + head_dim, D]
  Parameter q_norm;
  Parameter kv_norm;
  typename Kit::Linear wq_b;        // [H * d, q_lora_rank]
  typename Kit::OutputGroups wo_a;  // o_groups weights of [o_lora_rank, H * d / o_groups]
  typename Kit::Linear wo_b;        // [D, o_groups * o_lora_rank]
  Parameter sink;                   // [H]

  // compress_ratio != 0. Rows: compressor wkv and wgate, C each; for ratio 4 then the indexer's wkv
  // and wgate, Ci each, and its weights_proj, Hi.
  typename Kit::Linear compressor_projections;
  CompressorWeights compressor;
  // compress_ratio == 4
  CompressorWeights index_compressor;
  typename Kit::Linear index_wq_b;  // [Hi * di, q_lora_rank]
};

template <class Kit>
struct MoeWeightsOf {
  typename Kit::Linear gate;           // [N, D]
  Parameter bias;                      // [N]; score layers
  typename Kit::Ids token_to_experts;  // [vocab_size, k]; hash layers, else empty
  typename Kit::Experts w13;           // N weights of [2 I, D]: w1 (gate) over w3 (up)
  typename Kit::Experts w2;            // N weights of [D, I]
  typename Kit::Linear shared_w13;
  typename Kit::Linear shared_w2;
};

template <class Kit>
struct BlockWeightsOf {
  HyperConnectionWeights attention_hc;
  Parameter attention_norm;
  AttentionWeightsOf<Kit> attention;
  HyperConnectionWeights ffn_hc;
  Parameter ffn_norm;
  MoeWeightsOf<Kit> moe;
};

struct HeadWeights {
  HyperConnectionWeights hc;
  Parameter norm;
};

template <class Kit>
struct MtpWeightsOf {
  Parameter enorm;
  Parameter hnorm;
  typename Kit::Linear e_proj;
  typename Kit::Linear h_proj;
  BlockWeightsOf<Kit> block;
  HeadWeights head;
};

template <class Kit>
struct WeightsOf {
  typename Kit::Table embed;  // [vocab_size, D]
  std::vector<BlockWeightsOf<Kit>> layers;
  HeadWeights head;
  typename Kit::Linear lm_head;  // shared with the MTP layer
  std::optional<MtpWeightsOf<Kit>> mtp;

  std::vector<RoutedModule> modules;  // one per module class and kernel
  int64_t num_bytes = 0;
  uint64_t fingerprint =
      0;  // of the unquantised parameters: tells models of one architecture apart
};

using AttentionWeights = AttentionWeightsOf<HostKit>;
using MoeWeights = MoeWeightsOf<HostKit>;
using BlockWeights = BlockWeightsOf<HostKit>;
using MtpWeights = MtpWeightsOf<HostKit>;
using Weights = WeightsOf<HostKit>;

// Reads and packs every weight that the config calls for. Mapped pages of the checkpoint are
// dropped layer by layer, so that resident memory stays near the packed size. Unknown tensors are
// logged. Errors as WeightMap; kUnsupported where no kernel takes a weight or the precision does
// not fit the model's sizes.
Result<Weights> load_weights(const checkpoint::Checkpoint& checkpoint,
                             const Config& config,
                             const Numerics& numerics,
                             const device::DeviceInfo& device,
                             const LoadOptions& options);

}  // namespace nibble::models::deepseek_v4
