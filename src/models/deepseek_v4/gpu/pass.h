// What every part of a step on a GPU works with. All of it only launches; nothing waits for the
// device except where decisions are recorded or replayed. Lives for one step; owns nothing.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/device.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/decisions.h"
#include "models/deepseek_v4/gpu/ops.h"
#include "models/deepseek_v4/gpu/state.h"
#include "models/deepseek_v4/gpu/step_plan.h"
#include "models/deepseek_v4/gpu/weights.h"
#include "models/deepseek_v4/gpu/workspace.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/pass_rows.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4::gpu {

// Rotary frequencies in device memory, per layer kind (spec 8).
struct Frequencies {
  device::Buffer window_only;
  device::Buffer compressed;
  int32_t num_rotary = 0;

  static Result<Frequencies> make(const Config& config, device::Device& device);
  kernels::DeviceRotation of(int32_t compress_ratio) const;
};

// The rows that a run of layers works on: those of the main model, or of the MTP layer.
struct Rows {
  RowLists lists;                  // device
  const PassRows* host = nullptr;  // null in graphs
  bool is_direct = true;           // is_direct() of the host's rows
  float* streams = nullptr;        // [m, M * D]

  int32_t m() const { return lists.tokens.m; }
};

struct Pass {
  const Config& config;
  const Numerics& numerics;
  const Weights& weights;
  const Ops& ops;
  const Frequencies& frequencies;
  const State& state;
  const Workspace& ws;
  device::Device& device;
  int32_t num_units = 1;
  Decisions* record = nullptr;
  const Decisions* replay = nullptr;

  device::Stream& stream() const { return device.stream(); }
  float norm_eps() const { return static_cast<float>(config.rms_norm_eps); }
  int32_t half_layer_mix() const { return 2 * config.hc_mult + config.hc_mult * config.hc_mult; }
  bool has_decisions() const { return record != nullptr || replay != nullptr; }
  bool records_roundings() const { return record != nullptr && record->with_roundings; }
};

// A read of the streams, which the write of the half layer before it begins: it makes the dots of
// the mixer, and x where there is a norm.
struct StreamRead {
  const HyperConnectionWeights* hc = nullptr;
  int32_t num_mix = 0;
  const Parameter* norm = nullptr;  // null: run_head() reads
  const int32_t* rows = nullptr;    // [count] of the head, as kernels::DeviceStreamMixArgs
  int32_t count = 0;
  kernels::ActivationForms x;
};
StreamRead attention_read(const Pass& pass, const BlockWeights& weights, int32_t m);
// Of the head: only the dots, or all of it, after which project_head() gives the logits.
StreamRead head_dots(const Pass& pass, const HeadWeights& weights);
StreamRead head_read(const Pass& pass,
                     const HeadWeights& weights,
                     const int32_t* logits_rows,
                     int32_t count);

// The index lists of `rows` (kernels::DevicePlanArgs) into the workspace.
Result<void> plan_rows(const Pass& pass, const Rows& rows);

// The read of the first block, of streams as they are.
Result<void> begin_streams(const Pass& pass, const Rows& rows, const BlockWeights& first);

// One decoder block (spec 3.1), whose input has been read, up to the read of what follows;
// rows.streams are updated in place. `layer` selects state and decisions; num_hidden_layers is the
// MTP layer.
Result<void> run_block(const Pass& pass,
                       const BlockWeights& weights,
                       int32_t layer,
                       const Rows& rows,
                       const StreamRead& next);

// Sums of the half layer's output; the second also adds the experts' pairs.
Result<kernels::DeviceSums> run_attention(const Pass& pass,
                                          const AttentionWeights& weights,
                                          int32_t layer,
                                          const Rows& rows);
Result<kernels::DeviceSums> run_experts(const Pass& pass,
                                        const MoeWeights& weights,
                                        int32_t layer,
                                        const Rows& rows);

// The forms of the half layer's input that its products read.
layers::FormSet input_forms(const AttentionWeights& weights, int32_t m);
layers::FormSet input_forms(const MoeWeights& weights, int32_t m);

// Logits of the rows that have been read. Returns device memory, [count, V].
Result<const float*> project_head(const Pass& pass, int32_t count);
// Logits of `count` rows from `first` on: output row i is of stream row logits_rows[first + i], or
// without logits_rows of row first + i.
//   returns device memory, [count, V]
Result<const float*> run_head(const Pass& pass,
                              const HeadWeights& weights,
                              const float* streams,
                              const int32_t* logits_rows,
                              int32_t first,
                              int32_t count);

// From tokens to the streams after the last layer and their read by the head.
Result<void> run_layers(const Pass& pass, const Rows& rows, const StreamRead& head);
// A decode step of a bucket up to its logits: the same launches every time.
Result<void> run_decode_step(const Pass& pass, const StepLists& lists, int32_t bucket);

// Tokens that the step before chose take the places of those uploaded.
Result<void> take_chosen(const Pass& pass, const SampleLists& lists, int32_t rows);
// The next token of every row of logits, into the workspace.
Result<void> choose_tokens(const Pass& pass,
                           const SampleLists& lists,
                           const float* logits,
                           int32_t rows);

// The MTP layer up to its streams (spec 5.1), from this step's streams and the ring.
Result<void> run_mtp(const Pass& pass, const StepLists& lists, const Rows& main, const Rows& mtp);

// Keeps the last streams of every sequence for the MTP layer of later steps.
Result<void> store_streams(const Pass& pass, const StepLists& lists, const Rows& main);

// Overwrites what the device chose with replayed decisions, and records what is then chosen.
// Both wait for the device.
//   ids: [m, k]; returns whether there were any replayed
Result<bool> settle_experts(const Pass& pass, int32_t layer, const Rows& rows, int32_t* ids);
//   selected: [m, index_topk] pool rows; returns the counts to use, [m] in device memory
Result<const int32_t*> settle_selection(const Pass& pass, int32_t layer, const Rows& rows);

// Records what the input of a product was rounded to, where roundings are recorded and the product
// reads it in FP8. Waits for the device.
//   x: [n rows of `rows`, width], n rows per token
struct RoundedRows {
  const kernels::ActivationForms& x;
  kernels::ActivationForm form;  // that the product reads
  int64_t width = 0;
  int32_t per_token = 1;
};
Result<void> record_roundings(const Pass& pass,
                              int32_t layer,
                              RoundedInput input,
                              const Rows& rows,
                              const RoundedRows& rounded);

}  // namespace nibble::models::deepseek_v4::gpu
