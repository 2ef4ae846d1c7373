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
  const float* data() const { return reinterpret_cast<const float*>(storage_.data()); }
  int64_t num_bytes() const { return storage_.num_bytes(); }

 private:
  device::Buffer storage_;
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

struct AttentionWeights {
  int32_t compress_ratio = 0;  // 0, 4 or 128
  layers::Linear wqa_wkv;      // [q_lora_rank + head_dim, D]
  Parameter q_norm;
  Parameter kv_norm;
  layers::Linear wq_b;         // [H * d, q_lora_rank]
  layers::GroupedLinear wo_a;  // o_groups weights of [o_lora_rank, H * d / o_groups]
  layers::Linear wo_b;         // [D, o_groups * o_lora_rank]
  Parameter sink;              // [H]

  // compress_ratio != 0. Rows: compressor wkv and wgate, C each; for ratio 4 then the indexer's wkv
  // and wgate, Ci each, and its weights_proj, Hi.
  layers::Linear compressor_projections;
  CompressorWeights compressor;
  // compress_ratio == 4
  CompressorWeights index_compressor;
  layers::Linear index_wq_b;  // [Hi * di, q_lora_rank]
};

struct MoeWeights {
  layers::Linear gate;                    // [N, D]
  Parameter bias;                         // [N]; score layers
  std::vector<int32_t> token_to_experts;  // [vocab_size, k]; hash layers, else empty
  layers::GroupedLinear w13;              // N weights of [2 I, D]: w1 (gate) over w3 (up)
  layers::GroupedLinear w2;               // N weights of [D, I]
  layers::Linear shared_w13;
  layers::Linear shared_w2;
};

struct BlockWeights {
  HyperConnectionWeights attention_hc;
  Parameter attention_norm;
  AttentionWeights attention;
  HyperConnectionWeights ffn_hc;
  Parameter ffn_norm;
  MoeWeights moe;
};

struct HeadWeights {
  HyperConnectionWeights hc;
  Parameter norm;
};

struct MtpWeights {
  Parameter enorm;
  Parameter hnorm;
  layers::Linear e_proj;
  layers::Linear h_proj;
  BlockWeights block;
  HeadWeights head;
};

struct Weights {
  WeightMap::Table embed;  // [vocab_size, D]
  std::vector<BlockWeights> layers;
  HeadWeights head;
  layers::Linear lm_head;  // shared with the MTP layer
  std::optional<MtpWeights> mtp;

  std::vector<RoutedModule> modules;  // one per module class and kernel
  int64_t num_bytes = 0;
  uint64_t fingerprint =
      0;  // of the unquantised parameters: tells models of one architecture apart
};

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
