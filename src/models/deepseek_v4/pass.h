// What every part of a forward pass works with. Lives for one pass; owns nothing.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "device/device.h"
#include "models/deepseek_v4/batch.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/decisions.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/ops.h"
#include "models/deepseek_v4/simulate.h"
#include "models/deepseek_v4/state.h"
#include "models/deepseek_v4/weights.h"
#include "models/deepseek_v4/workspace.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

// Rotary frequencies per layer kind (spec 8): plain for ratio 0, YaRN where the config has it for
// the others.
struct RopeFrequencies {
  std::vector<float> window_only;
  std::vector<float> compressed;

  std::span<const float> of(int32_t compress_ratio) const {
    return compress_ratio == 0 ? window_only : compressed;
  }
};
RopeFrequencies make_rope_frequencies(const Config& config);

struct Pass {
  const Config& config;
  const Numerics& numerics;
  const Weights& weights;
  const Ops& ops;
  const RopeFrequencies& frequencies;
  DecodingState& state;
  Workspace& workspace;
  device::Stream& stream;
  Decisions* record = nullptr;
  const Decisions* replay = nullptr;
  bool check_finite = false;

  float norm_eps() const { return static_cast<float>(config.rms_norm_eps); }
  bool has_roundings() const { return replay != nullptr && !replay->roundings.empty(); }

  // Where a replay of roundings records what the values themselves would be rounded to.
  DecisionTable<float>* own_roundings() const {
    return record != nullptr && record->with_roundings ? &record->roundings : nullptr;
  }

  // BF16 where the faithful mode keeps BF16; nothing in the other modes.
  void round(const TensorView& x) const {
    if (numerics.is_simulated) round_bf16(x, stream);
  }

  // Where the checkpoint quantises a linear's input (7.1: linears with FP8 or FP4 weights), the
  // faithful mode does so, and a replay of roundings imposes them: in place or in a copy that lives
  // until the next one. Elsewhere x stays as it is.
  template <class Layer>
  void quantize_input(const Layer& layer, const TensorView& x, const RoundingSite& site) const {
    if (has_roundings()) {
      impose_roundings(x, site, replay->roundings, own_roundings(), stream);
    } else if (numerics.is_simulated && layer.is_quantized()) {
      simulate_activation(x, stream);
    }
  }
  template <class Layer>
  TensorView quantized_copy(const Layer& layer,
                            const TensorView& x,
                            const RoundingSite& site) const {
    if (!has_roundings() && (!numerics.is_simulated || !layer.is_quantized())) return x;
    const TensorView copy = workspace.x_quantized.rows(0, x.num_rows());
    std::memcpy(copy.data, x.data, static_cast<size_t>(x.num_bytes()));
    quantize_input(layer, copy, site);
    return copy;
  }
};

// One decoder block (spec 3.1): attention and experts, each between a read and a write of the
// residual streams.
//   streams: [batch.num_tokens(), M * D], updated in place
// `layer` selects state and decisions; num_hidden_layers is the MTP layer.
Result<void> run_block(Pass& pass,
                       const BlockWeights& weights,
                       int32_t layer,
                       const Batch& batch,
                       const TensorView& streams);

// y = attention(x) (spec 3.4 to 3.6); stores the keys and entries of the batch's tokens.   x, y:
// [m, D]
Result<void> run_attention(Pass& pass,
                           const AttentionWeights& weights,
                           int32_t layer,
                           const Batch& batch,
                           const TensorView& x,
                           const TensorView& y);

// y = shared(x) + routed experts (spec 4).   x, y: [m, D]
Result<void> run_experts(Pass& pass,
                         const MoeWeights& weights,
                         int32_t layer,
                         const Batch& batch,
                         const TensorView& x,
                         const TensorView& y);

// logits = lm_head(norm(hyper_head(streams))).   streams: [m, M * D], hidden: [m, D] scratch,
// logits: [m, V]
Result<void> run_head(Pass& pass,
                      const HeadWeights& weights,
                      const TensorView& streams,
                      const TensorView& hidden,
                      const TensorView& logits);

// Keeps the last stream states of every sequence for the next pass's MTP layer.
void store_streams(Pass& pass, const Batch& batch, const TensorView& streams);

// The MTP layer (spec 5.1) over `batch` (Batch::assign_mtp), whose rows belong to `main` with
// stream states `streams`.
//   logits: [batch.num_tokens(), V]
Result<void> run_mtp(Pass& pass,
                     const Batch& main,
                     const TensorView& streams,
                     const Batch& batch,
                     const TensorView& logits);

}  // namespace nibble::models::deepseek_v4
