// A model: weights, routes and decoding state behind one interface. Knows tokens, positions, slots
// and pages; knows nothing of requests, queues or text. Owner: the executor thread of its device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "tensor/tensor_view.h"

namespace nibble::models {

enum class Precision {
  kReference,  // f32 activations and KV, nothing quantised that the checkpoint does not store
               // quantised
  kDefault,    // what is fast within the accuracy that docs/testing.md states
  kFaithful,   // the checkpoint's own simulation: FP8 activations, FP8 KV, FP4 indexer
};

// How keys are cached.
enum class KvDtype : uint8_t {
  kAuto,  // as the precision says: f32 in kReference, else BF16
  kBf16,
  kFp8,  // about half the bytes; rotary dimensions stay BF16
};

struct ModelInfo {
  std::string architecture;  // "deepseek_v4"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t num_hidden_layers = 0;
  int32_t max_position_embeddings = 0;
  bool has_mtp = false;
  int32_t page_size = 0;     // tokens per page; save and restore happen at multiples of it
  int32_t max_rollback = 0;  // tokens that truncate() may take back
  uint64_t fingerprint = 0;  // of weights, config, precision and KV form: whose state fits whose
  // What decoding state takes.
  int64_t slot_bytes = 0;
  int64_t page_bytes = 0;
  int64_t snapshot_bytes = 0;  // at most, of save_slot()
};

// The discrete decisions of a pass, for experiments that must not be disturbed by near-ties: expert
// ids of every MoE layer and the indexer's selection of every ratio-4 layer, by position. One
// sequence only.
struct Decisions {
  // layer -> position -> ids. The MTP layer has index num_hidden_layers. Absent positions are
  // empty.
  std::vector<std::vector<std::vector<int32_t>>> expert_ids;
  std::vector<std::vector<std::vector<int32_t>>> selected_entries;
  // Recorded where a device multiplies FP8 activations, if asked for: what the inputs of quantised
  // linears were rounded to; where they are replayed on a CPU, to what it would round them itself.
  // site -> position -> values; deepseek_v4/decisions.h names the sites.
  bool with_roundings = false;  // 4 bytes a value
  std::vector<std::vector<std::vector<float>>> roundings;
};

// One pass over tokens of several sequences, flattened. All spans outlive the call.
struct ForwardInput {
  std::span<const int32_t> token_ids;  // [num_tokens]
  std::span<const int32_t>
      positions;  // [num_tokens]; consecutive within a sequence, from its current length on
  std::span<const int32_t> cu_seqlens;  // [num_sequences + 1]
  std::span<const SlotId> slots;        // [num_sequences], distinct
  std::span<const std::span<const PageId>>
      block_tables;                      // [num_sequences]; covers all positions of the pass
  std::span<const int32_t> logits_rows;  // token rows whose logits are wanted, ascending
  // Also run the MTP layer. In a pass over positions [s, e) it covers positions [max(s, 1) - 1, e -
  // 1): those whose next token is known, with the stream state of s - 1 kept from the pass before.
  bool compute_mtp = false;
  int32_t tp_rank = 0;
  int32_t tp_size = 1;
  comm::Communicator* communicator = nullptr;
  Decisions* record = nullptr;        // filled when set
  const Decisions* replay = nullptr;  // imposed when set
};

struct ForwardOutput {
  TensorView logits;      // [logits_rows.size(), vocab_size] f32
  TensorView mtp_logits;  // [MTP rows of the pass, vocab_size] f32; may be empty although
                          // compute_mtp is set
};

// How a device chooses the next token of a sequence: steps 4 to 9 of engine/sampler.h.
struct DeviceSampling {
  float temperature = 0;  // 0: the most probable
  int32_t top_k = 0;      // 0: all
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
  uint64_t draw = 0;  // position in the output
};

// A decode step, one token of each sequence, that leaves the choice of the next ones to the device.
struct DecodeInput {
  std::span<const SlotId> slots;  // distinct
  std::span<const std::span<const PageId>> block_tables;
  // [slots.size()]; kChosenBefore: what the step queued before chose for that slot
  std::span<const int32_t> token_ids;
  std::span<const DeviceSampling> sampling;  // [slots.size()]

  static constexpr int32_t kChosenBefore = -1;
};

// What fetch_decoded() gives in place of a token: logits that no sound model has.
inline constexpr int32_t kLogitsNotFinite = -1;
inline constexpr int32_t kLogitsAllEqual = -2;

// Decode steps that were recorded by reserve_state(), to be launched as a whole ever after.
struct RecordedGraphs {
  int32_t count = 0;
  double seconds = 0;  // that recording took
};

// A module class and the kernel that it got: what `plan`, logs and the demo's last line show.
struct RoutedModule {
  std::string module;  // "layers.*.ffn.experts.w13"
  int64_t n = 0;
  int64_t k = 0;
  kernels::Route route;
};

struct StateOptions {
  int32_t num_slots = 1;    // sequences at a time
  int32_t num_pages = 0;    // shared by all sequences; 0: enough for one sequence of max_context
  int32_t max_context = 0;  // tokens; 0: max_position_embeddings
  int32_t max_tokens_per_pass = 512;
  bool is_resident = false;  // from the start, rather than page by page as memory is first written
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const std::vector<RoutedModule>& routed_modules() const = 0;
  virtual int64_t weights_bytes() const = 0;
  virtual int64_t state_bytes() const = 0;

  // Reserves KV pages, slots and workspace; the only allocation after loading. Must be called
  // before forward().
  virtual Result<void> reserve_state(const StateOptions& options) = 0;
  virtual RecordedGraphs graphs() const { return {}; }

  // Forgets the slot's sequence; its length becomes 0.
  virtual void reset_slot(SlotId slot) = 0;
  virtual int32_t length(SlotId slot) const = 0;
  // Takes back the last tokens, at most max_rollback of those computed so far. kInvalidArgument
  // beyond that.
  virtual Result<void> truncate(SlotId slot, int32_t length) = 0;
  // The fixed state (window rings, compressor rows, MTP ring and last stream state) of a sequence
  // whose length is a multiple of page_size. Entries live in the pages and are not part of it.
  virtual Result<std::vector<std::byte>> save_slot(SlotId slot) const = 0;
  // Makes `slot` continue where the snapshot was taken. kDataLoss for a snapshot of another model
  // or a damaged one.
  virtual Result<void> restore_slot(SlotId slot, std::span<const std::byte> snapshot) = 0;

  // The entries of a page in all layers, ModelInfo::page_bytes of them, for this model to read
  // back.
  virtual Result<void> save_page(PageId page, std::span<std::byte> out) const = 0;
  virtual Result<void> restore_page(PageId page, std::span<const std::byte> entries) = 0;

  // kInvalidArgument for ids outside the vocabulary, positions that do not continue a slot, a pass
  // larger than max_tokens_per_pass, or block tables that are too short; nothing is changed then.
  virtual Result<void> forward(const ForwardInput& input, ForwardOutput& output) = 0;

  // Decode steps that are queued before the last one ends. A step counts as done for length() and
  // truncate() as soon as it is queued; what a caller does not want of it is truncated away.
  virtual int32_t max_queued_steps() const { return 0; }  // 0: not on this device
  virtual int32_t max_queued_rows() const { return 0; }   // sequences of one such step
  // Errors of forward(); kInvalidArgument also for a step too many and a token that is not known.
  virtual Result<void> queue_decode(const DecodeInput& /*input*/) {
    return unsupported("this device has no queue of decode steps");
  }
  // Waits for the oldest queued step: the chosen tokens in the order of its slots, or what is wrong
  // with their logits; valid until the next call.
  virtual Result<std::span<const int32_t>> fetch_decoded() {
    return unsupported("this device has no queue of decode steps");
  }
};

struct LoadOptions {
  Precision precision = Precision::kDefault;
  KvDtype kv_dtype = KvDtype::kAuto;
  bool load_mtp = true;
  // Diagnosis of NaN logits: a pass fails with the first layer and part whose output is not finite.
  // Not on GPUs.
  bool check_finite = false;
  kernels::RouteOptions routing;
  std::function<void(int64_t done_bytes, int64_t total_bytes)>
      progress;  // called on the loading thread
};

// Reads config.json and builds the architecture that it names. The checkpoint is only needed during
// the call.
Result<std::unique_ptr<Model>> load_model(const checkpoint::Checkpoint& checkpoint,
                                          device::Device& device,
                                          const LoadOptions& options);

}  // namespace nibble::models
