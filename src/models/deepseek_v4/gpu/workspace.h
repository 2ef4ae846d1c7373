// Scratch memory of a step on a GPU, carved from one buffer that is sized for the largest step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "device/buffer.h"
#include "device/device.h"
#include "kernels/device_args.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/gpu/ops.h"
#include "models/deepseek_v4/gpu/weights.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4::gpu {

// Rows of logits that are computed at a time.
int32_t head_rows(const StateOptions& options);
// Ranges of D that the mixers' dots are split into. Of the model alone.
int32_t mixer_parts(const Config& config);

// Letters: T rows, D hidden_size, M hc_mult, H heads, d head_dim, Hi and di of the indexer, k
// experts per token, I moe_intermediate_size. Sums have room for the splits of every kernel.
struct Workspace {
  // Index lists that all layers share: the outputs of kernels::DevicePlanArgs.
  int32_t* key_rows = nullptr;
  int32_t* window_rows = nullptr;
  int32_t* window_counts = nullptr;
  int32_t* window_ready = nullptr;
  int32_t* token_pages = nullptr;
  int32_t* counts_4 = nullptr;
  int32_t* selected_counts = nullptr;
  int32_t* selected = nullptr;  // where more are seen, layers overwrite it
  int32_t* ready_4 = nullptr;
  int32_t* counts_128 = nullptr;
  int32_t* ready_128 = nullptr;
  int32_t* rows_128 = nullptr;
  int32_t max_rows_128 = 0;
  const int32_t* no_counts = nullptr;  // [T] zeros: layers without entries

  float* streams = nullptr;            // [T, M * D]
  float* partials = nullptr;           // [T, parts, 2 M + M * M + 1]
  float* post = nullptr;               // [T, M]
  float* comb = nullptr;               // [T, M * M]
  kernels::ActivationForms x;          // [T, D]
  int32_t* expert_counters = nullptr;  // [kMaxRowSlots + 1] of kernels::DeviceDownProduct
  int32_t* slot_arrivals = nullptr;    // [1] of kernels::DeviceSelectExpertsArgs
  int32_t* select_counters = nullptr;  // [T] of kernels::DeviceSelection

  // Attention. Shares memory with the experts.
  float* qr_kv = nullptr;             // sums of q_lora_rank + d
  kernels::ActivationForms q_latent;  // [T, q_lora_rank]
  float* projections = nullptr;       // sums of the compressor row and Hi
  float* q_sums = nullptr;            // sums of H * d
  void* q = nullptr;                  // [T, H, d] bf16
  float* index_sums = nullptr;        // sums of Hi * di
  void* index_q = nullptr;            // [T, Hi, di] bf16
  float* head_weights = nullptr;      // [T, Hi]
  float* scores = nullptr;            // [score_rows, score_columns]
  int32_t score_rows = 0;
  int64_t score_columns = 0;
  int32_t* imposed_counts = nullptr;  // [T] of replayed selections
  std::byte* top_k = nullptr;
  void* attended = nullptr;        // [T, H, d] bf16
  kernels::ActivationForms heads;  // [T, H * d]
  float* z_sums = nullptr;         // sums of o_groups * o_lora_rank
  kernels::ActivationForms z;      // [T, o_groups * o_lora_rank]
  float* y = nullptr;              // sums of D

  // Experts.
  float* router = nullptr;          // sums of N
  int32_t* expert_ids = nullptr;    // [T, k]
  float* expert_weights = nullptr;  // [T, k]
  struct Slots {
    int32_t* count = nullptr;
    int32_t* experts = nullptr;
    int32_t* pairs = nullptr;
  };
  Slots slots[2];                      // of w13 and w2, where they differ
  float* shared_sums = nullptr;        // sums of 2 Is
  kernels::ActivationForms shared;     // [T, Is]
  float* shared_y = nullptr;           // sums of D
  kernels::ActivationForms activated;  // [T * k, I]; bf16 always
  float* pairs = nullptr;              // [T * k, D]

  // Head.
  kernels::ActivationForms hidden;  // [head_rows, D]
  float* logit_sums = nullptr;      // sums of V
  float* logits = nullptr;          // [head_rows, V]; null where sums have one split
  int32_t* sampled = nullptr;       // [head_rows]
  int32_t* outcomes = nullptr;      // [head_rows] of sampling
  std::byte* sample = nullptr;      // of the sampling kernel

  // MTP; absent without.
  float* mtp_streams = nullptr;         // [T, M * D]
  float* mtp_embedded = nullptr;        // [T, D]
  kernels::ActivationForms mtp_normed;  // [T * M, D]
  float* mtp_e_sums = nullptr;          // sums of D
  float* mtp_h_sums = nullptr;          // sums of T * M rows of D

  device::Buffer storage;

  static Result<Workspace> make(const Config& config,
                                const Weights& weights,
                                const Ops& ops,
                                const StateOptions& options,
                                device::Device& device);
  // What make() allocates. `weights` may be those of plan_weights().
  static int64_t num_bytes(const Config& config,
                           const Weights& weights,
                           const Ops& ops,
                           const StateOptions& options);

 private:
  class Arena;
  struct Needs;
  void lay_out(const Config& config, const StateOptions& options, const Needs& needs, Arena& arena);
  void lay_out_attention(const Config& config,
                         const StateOptions& options,
                         const Needs& needs,
                         Arena& arena);
  void lay_out_experts(const Config& config,
                       const StateOptions& options,
                       const Needs& needs,
                       Arena& arena);
};

}  // namespace nibble::models::deepseek_v4::gpu
