// Scratch tensors of one pass, carved from one buffer that is sized for the largest pass. Views are
// for the maximum; a pass uses their first rows.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/buffer.h"
#include "device/device.h"
#include "kernels/op_args.h"
#include "models/deepseek_v4/config.h"
#include "models/model.h"
#include "tensor/tensor_view.h"

namespace nibble::models::deepseek_v4 {

// Letters: T max_tokens_per_pass, D hidden_size, M hc_mult, H heads, d head_dim, Hi and di of the
// indexer, k experts per token, I moe_intermediate_size. All f32 unless noted.
struct Workspace {
  // One block.
  TensorView streams;      // [T, M * D] the residual streams
  TensorView x;            // [T, D] input of a sub-block, normalised
  TensorView x_quantized;  // [T, D] x after act_quant; faithful mode, and replays of roundings
  TensorView y;            // [T, D] output of a sub-block
  TensorView post;         // [T, M]
  TensorView comb;         // [T, M * M]

  // Attention. Shares memory with the experts.
  TensorView qr_kv;         // [T, q_lora_rank + d]
  TensorView q;             // [T, H * d]
  TensorView attended;      // [T, H * d]
  TensorView z;             // [T, o_groups * o_lora_rank]
  TensorView projections;   // [T, compressor row + Hi]
  TensorView new_entries;   // [T / 4 + sequences, max(d, di)]
  TensorView index_q;       // [T, Hi * di]
  TensorView index_scores;  // [score_rows, max_context / 4]
  TensorView selected;      // [T, index_topk] i32

  // Experts.
  TensorView router_logits;     // [T, N]
  TensorView expert_ids;        // [T, k] i32
  TensorView expert_weights;    // [T, k]
  TensorView gate_up;           // [T * k, 2 I]
  TensorView activated;         // [T * k, I]
  TensorView expert_out;        // [T * k, D]
  TensorView shared_gate_up;    // [T, 2 Is]
  TensorView shared_activated;  // [T, Is]

  // Heads. head_streams and mtp_streams live across blocks.
  TensorView head_streams;   // [T, M * D] rows whose logits are wanted
  TensorView head_hidden;    // [T, D]
  TensorView logits;         // [T, V]
  TensorView mtp_streams;    // [T, M * D]
  TensorView mtp_hidden;     // [T, D]
  TensorView mtp_projected;  // [T * M, D]
  TensorView mtp_logits;     // [T, V]

  // Host lists.
  std::vector<kernels::KeySet> key_sets;       // [T]
  std::vector<kernels::PagedRows> paged_rows;  // [T]
  std::vector<int32_t> candidate_counts;       // [T]
  std::vector<int32_t> num_selected;           // [T]; kAllEntries: every candidate is visible
  std::vector<int32_t> score_selected;         // [T]; what top-k returned
  std::vector<int32_t> window_rows;  // 2 * ring capacity: row indices of consecutive positions
  std::vector<const float*> compress_values;
  std::vector<const float*> compress_gates;
  std::vector<int32_t> entry_positions;  // first position of each new entry
  std::vector<int32_t> expert_offsets;   // [N + 1]
  std::vector<int32_t> expert_in_rows;   // [T * k]
  std::vector<int32_t> expert_slots;     // [T * k]

  device::Buffer storage;

  static Result<Workspace> make(const Config& config,
                                bool has_mtp,
                                const StateOptions& options,
                                device::Device& device);

  // What make() allocates on the device, for plans.
  static int64_t num_bytes(const Config& config, bool has_mtp, const StateOptions& options);

 private:
  class Arena;
  void lay_out(const Config& config, bool has_mtp, const StateOptions& options, Arena& arena);
  void reserve_lists(const Config& config, const StateOptions& options);
};

inline constexpr int32_t kAllEntries = -1;

}  // namespace nibble::models::deepseek_v4
