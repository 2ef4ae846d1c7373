// Decoding state: per slot the rings that every layer needs to continue (spec 3.8), per page the
// compressed entries. Owner: the executor thread. Entry c of a layer with ratio r lives in page
// block_table[c * r / kPageSize].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked_math.h"
#include "base/ids.h"
#include "base/result.h"
#include "device/buffer.h"
#include "device/device.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/key_rows.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/slot_table.h"
#include "models/model.h"

namespace nibble::models::deepseek_v4 {

// Tokens of one sequence that one attention launch takes at most: the window ring is this much
// longer than the window, so that writing their keys leaves what their first query sees.
inline constexpr int32_t kMaxAttentionChunk = 128;

// Elements per token of the compressor projections that later tokens need: u and g of the
// compressor, C each, and for ratio 4 those of the indexer's compressor.
int64_t compressor_row_width(const Config& config, int32_t compress_ratio);

// Bytes of decoding state, for plans.
struct StateBytes {
  // Per slot (sequence).
  int64_t windows = 0;
  int64_t compressors = 0;
  int64_t streams = 0;  // what the MTP layer reads
  // Per page of kPageSize tokens.
  int64_t entries_4 = 0;  // layers with ratio 4
  int64_t index_entries = 0;
  int64_t entries_128 = 0;
  // One snapshot of a slot at a page boundary.
  int64_t snapshot = 0;

  // Adds a layer of either backend, whose rings begin at multiples of `alignment`.
  template <class Layer>
  void add(const Layer& layer, int64_t alignment) {
    windows += round_up(layer.window.capacity * layer.window.row_bytes, alignment);
    compressors += round_up(layer.compressor.capacity * layer.compressor.row_bytes, alignment);
    snapshot += layer.window.saved_rows * layer.window.row_bytes +
                layer.compressor.saved_rows * layer.compressor.row_bytes;
    if (layer.compress_ratio == 0) return;
    const int64_t entries = layer.entries_per_page() * layer.entries.row_bytes;
    (layer.compress_ratio == 4 ? entries_4 : entries_128) += entries;
    index_entries += layer.entries_per_page() * layer.index_entries.row_bytes;
  }

  int64_t per_slot() const { return windows + compressors + streams; }
  int64_t per_page() const { return entries_4 + index_entries + entries_128; }
};

// Rows before a page boundary that the next entry reads: the overlap of ratio 4; nothing for 128.
constexpr int32_t rows_before_boundary(int32_t compress_ratio) {
  return compress_ratio == 4 ? 4 : 0;
}
// Rows of a compressor ring, 16 and 256: a power of two above the oldest row still needed (p - 7,
// p - 127) plus kMaxRollback (spec 3.8).
constexpr int32_t compressor_ring_rows(int32_t compress_ratio) {
  return compress_ratio == 4 ? 16 : 256;
}
// Stream states reach back to the token before the oldest position that truncate() may leave.
inline constexpr int32_t kStreamRing = 16;
static_assert(kStreamRing > kMaxRollback);

// What DecodingState::make() allocates.
StateBytes state_bytes(const Config& config, const Numerics& numerics, bool has_mtp);

// Rows by position: position p lies in row p mod capacity.
struct Ring {
  std::byte* data = nullptr;
  int32_t capacity = 0;
  int64_t row_bytes = 0;

  int32_t row_index(int32_t position) const { return position % capacity; }
  std::byte* row(int32_t position) const { return data + row_index(position) * row_bytes; }
};

// Where a ring lies inside a slot. A snapshot at a page boundary holds its last `saved_rows`
// positions.
struct RingSpec {
  int64_t offset = 0;
  int32_t capacity = 0;  // 0: the layer has no such ring
  int64_t row_bytes = 0;
  int32_t saved_rows = 0;
};

// Compressed entries of one layer in all pages: [num_pages * entries_per_page] rows of `form`.
struct EntryPool {
  device::Buffer storage = {};
  KeyRowForm form = {};
  int64_t row_bytes = 0;

  std::byte* row(int64_t index) const { return storage.data() + index * row_bytes; }
};

struct LayerState {
  int32_t compress_ratio = 0;
  RingSpec window = {};  // key vectors
  RingSpec compressor =
      {};  // f32 rows of the compressor projections without the indexer's head weights
  EntryPool entries = {};        // key vectors
  EntryPool index_entries = {};  // keys of the indexer; ratio 4

  int32_t entries_per_page() const { return kPageSize / compress_ratio; }
};

// Memory of decoding state, resident where `options` ask for it.
Result<device::Buffer> reserve(device::Device& device,
                               int64_t num_bytes,
                               const StateOptions& options);

class DecodingState final {
 public:
  // `options` has no zeros left. kExhausted names what does not fit.
  static Result<DecodingState> make(const Config& config,
                                    const Numerics& numerics,
                                    bool has_mtp,
                                    const StateOptions& options,
                                    device::Device& device);

  const StateOptions& options() const { return slots_.options(); }
  int64_t num_bytes() const;

  SlotTable& slots() { return slots_; }
  const SlotTable& slots() const { return slots_; }
  SlotStatus& status(SlotId slot) { return slots_.status(slot); }
  const SlotStatus& status(SlotId slot) const { return slots_.status(slot); }
  const KeyRowForm& key_vectors() const { return key_vectors_; }  // of windows and entries

  Ring ring(SlotId slot, const RingSpec& spec) const;
  // Layers of the model; the MTP layer follows the last one.
  const LayerState& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  // Stream states after the last layer, [M * D] f32: what the MTP layer reads.
  const RingSpec& streams() const { return streams_; }

  // The entries of a page, layer by layer.   out, entries: [StateBytes::per_page()]
  void save_page(PageId page, std::span<std::byte> out) const;
  void restore_page(PageId page, std::span<const std::byte> entries);

  Result<std::vector<std::byte>> save(SlotId slot, uint64_t fingerprint) const;
  Result<void> restore(SlotId slot, std::span<const std::byte> snapshot, uint64_t fingerprint);

 private:
  template <class Visit>
  void for_each_entry_run(PageId page, Visit&& visit) const;
  template <class Visit>
  void for_each_saved_row(int32_t length, Visit&& visit) const;
  int64_t snapshot_payload_bytes(int32_t length) const;

  SlotTable slots_;
  KeyRowForm key_vectors_;
  std::vector<LayerState> layers_;
  RingSpec streams_;
  int64_t slot_bytes_ = 0;
  device::Buffer rings_;  // of all slots
};

}  // namespace nibble::models::deepseek_v4
