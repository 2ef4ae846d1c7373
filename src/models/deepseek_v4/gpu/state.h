// Decoding state in a GPU's memory, layer by layer: rows of all slots lie in one pool per layer, so
// that a launch serves every sequence. Owner: the executor thread. Entry c of a layer with ratio r
// lies in page block_table[c * r / kPageSize].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "device/buffer.h"
#include "device/device.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/state.h"

namespace nibble::models::deepseek_v4::gpu {

// Sequences with at most so many tokens in a step write their rings at once; of the others rows
// wait in scratch until the step has read the old ones (kernels::DevicePlanArgs).
inline constexpr int32_t kDirectTokens = 8;
// Rows of a window ring beyond the window: neither the tokens of a direct step nor drafts that are
// taken back overwrite what a query still sees.
inline constexpr int32_t kWindowSlack = 16;
static_assert(kDirectTokens <= kWindowSlack + 1 && kMaxRollback <= kWindowSlack);
static_assert(kDirectTokens + 7 <= compressor_ring_rows(4));
static_assert(kDirectTokens + 127 <= compressor_ring_rows(128));

// A ring per slot: position p of slot s lies in row s * capacity + p % capacity.
struct RingPool {
  device::Buffer storage = {};
  int32_t capacity = 0;  // 0: the layer has no such ring
  int64_t row_bytes = 0;
  int32_t saved_rows = 0;  // positions that a snapshot holds

  int64_t row_index(SlotId slot, int32_t position) const {
    return int64_t{slot.value} * capacity + position % capacity;
  }
  std::byte* row(int64_t index) const { return storage.data() + index * row_bytes; }
};

struct LayerState {
  int32_t compress_ratio = 0;
  RingPool window = {};      // key vectors; then a scratch row per row of a step
  RingPool compressor = {};  // f32 rows of the projections without the indexer's head weights
  EntryPool entries = {};
  EntryPool index_entries = {};  // ratio 4

  int32_t entries_per_page() const { return kPageSize / compress_ratio; }
};

// What State::make() allocates, for plans.
StateBytes state_bytes(const Config& config, const Numerics& numerics, bool has_mtp);
// Scratch rows of all layers.
int64_t scratch_bytes(const Config& config,
                      const Numerics& numerics,
                      bool has_mtp,
                      int32_t max_tokens_per_pass);

class State final {
 public:
  // `options` has no zeros left. kExhausted names what does not fit.
  static Result<State> make(const Config& config,
                            const Numerics& numerics,
                            bool has_mtp,
                            const StateOptions& options,
                            device::Device& device);

  SlotTable& slots() { return slots_; }
  const SlotTable& slots() const { return slots_; }
  const StateOptions& options() const { return slots_.options(); }
  int64_t num_bytes() const;

  // Layers of the model; the MTP layer follows the last one.
  const LayerState& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  int32_t window_capacity() const { return layers_.front().window.capacity; }
  // Stream states after the last layer, [M * D] f32: what the MTP layer reads.
  const RingPool& streams() const { return streams_; }

  // As models::Model. They wait for the device.
  Result<void> save_page(PageId page, std::span<std::byte> out) const;
  Result<void> restore_page(PageId page, std::span<const std::byte> entries);
  Result<std::vector<std::byte>> save(SlotId slot, uint64_t fingerprint) const;
  Result<void> restore(SlotId slot, std::span<const std::byte> snapshot, uint64_t fingerprint);

 private:
  template <class Visit>
  Result<void> for_each_entry_run(PageId page, Visit&& visit) const;
  template <class Visit>
  Result<void> for_each_saved_run(SlotId slot, int32_t length, Visit&& visit) const;
  int64_t snapshot_payload_bytes(int32_t length) const;

  SlotTable slots_;
  std::vector<LayerState> layers_;
  RingPool streams_;
  device::Device* device_ = nullptr;
};

}  // namespace nibble::models::deepseek_v4::gpu
