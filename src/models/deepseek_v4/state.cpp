#include "models/deepseek_v4/state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "models/deepseek_v4/snapshot.h"

namespace nibble::models::deepseek_v4 {
namespace {

constexpr int64_t kRingAlignment = 64;  // of rings inside a slot: a cache line

// Lays rings out one after the other inside a slot, each on a cache line.
class SlotLayout final {
 public:
  RingSpec add(int32_t capacity, int64_t row_bytes, int32_t saved_rows) {
    const RingSpec spec{.offset = num_bytes_,
                        .capacity = capacity,
                        .row_bytes = row_bytes,
                        .saved_rows = saved_rows};
    num_bytes_ += round_up(capacity * row_bytes, kRingAlignment);
    return spec;
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  int64_t num_bytes_ = 0;
};

constexpr int64_t kF32Bytes = sizeof(float);

// The rings of a layer, and the forms of its entries.
LayerState lay_out_layer(const Config& config,
                         int32_t ratio,
                         const Numerics& numerics,
                         SlotLayout& layout) {
  const KeyRowForm vectors = key_vector_form(config, numerics);
  LayerState layer{.compress_ratio = ratio};
  layer.window = layout.add(
      config.sliding_window + kMaxAttentionChunk, vectors.row_bytes(), config.sliding_window);
  if (ratio != 0) {
    layer.compressor = layout.add(compressor_ring_rows(ratio),
                                  compressor_row_width(config, ratio) * kF32Bytes,
                                  rows_before_boundary(ratio));
    layer.entries = {.form = vectors, .row_bytes = vectors.row_bytes()};
  }
  if (ratio == 4) {
    const KeyRowForm index_keys = index_key_form(config, numerics);
    layer.index_entries = {.form = index_keys, .row_bytes = index_keys.row_bytes()};
  }
  return layer;
}

}  // namespace

int64_t compressor_row_width(const Config& config, int32_t compress_ratio) {
  const int64_t width = config.head_dim;
  if (compress_ratio == 128) return 2 * width;
  return 4 * (width + config.index_head_dim);  // both compressors overlap: twice the channels
}

StateBytes state_bytes(const Config& config, const Numerics& numerics, bool has_mtp) {
  StateBytes bytes;
  SlotLayout layout;
  for (int32_t l = 0; l < config.num_hidden_layers + (has_mtp ? 1 : 0); ++l) {
    bytes.add(lay_out_layer(config, config.compress_ratio(l), numerics, layout), kRingAlignment);
  }
  if (has_mtp) {
    const int64_t row = int64_t{config.hc_mult} * config.hidden_size * kF32Bytes;
    bytes.streams = round_up(kStreamRing * row, kRingAlignment);
    bytes.snapshot += row;
  }
  bytes.snapshot += snapshot_header_bytes();
  return bytes;
}

Result<device::Buffer> reserve(device::Device& device,
                               int64_t num_bytes,
                               const StateOptions& options) {
  TRY_ASSIGN(device::Buffer buffer, device.allocate(num_bytes));
  if (options.is_resident) TRY(buffer.make_resident());
  return buffer;
}

Result<DecodingState> DecodingState::make(const Config& config,
                                          const Numerics& numerics,
                                          bool has_mtp,
                                          const StateOptions& options,
                                          device::Device& device) {
  DecodingState state;
  state.slots_ = SlotTable(options);
  state.key_vectors_ = key_vector_form(config, numerics);
  SlotLayout layout;
  const int32_t num_layers = config.num_hidden_layers + (has_mtp ? 1 : 0);
  for (int32_t l = 0; l < num_layers; ++l) {
    const int32_t ratio = l < config.num_hidden_layers ? config.compress_ratio(l) : 0;
    LayerState layer = lay_out_layer(config, ratio, numerics, layout);
    for (EntryPool* pool : {&layer.entries, &layer.index_entries}) {
      if (pool->row_bytes == 0) continue;
      const int64_t rows = int64_t{options.num_pages} * layer.entries_per_page();
      TRY_ASSIGN(pool->storage, reserve(device, rows * pool->row_bytes, options));
    }
    state.layers_.push_back(std::move(layer));
  }
  if (has_mtp) {
    state.streams_ =
        layout.add(kStreamRing, int64_t{config.hc_mult} * config.hidden_size * kF32Bytes, 1);
  }
  state.slot_bytes_ = layout.num_bytes();
  TRY_ASSIGN(state.rings_, reserve(device, state.slot_bytes_ * options.num_slots, options));
  return state;
}

int64_t DecodingState::num_bytes() const {
  int64_t bytes = rings_.num_bytes();
  for (const LayerState& layer : layers_) {
    bytes += layer.entries.storage.num_bytes() + layer.index_entries.storage.num_bytes();
  }
  return bytes;
}

Ring DecodingState::ring(SlotId slot, const RingSpec& spec) const {
  return {.data = rings_.data() + slot.value * slot_bytes_ + spec.offset,
          .capacity = spec.capacity,
          .row_bytes = spec.row_bytes};
}

// Calls visit(data, num_bytes) for the rows of the page in every pool, in a fixed order.
template <class Visit>
void DecodingState::for_each_entry_run(PageId page, Visit&& visit) const {
  for (const LayerState& layer : layers_) {
    if (layer.compress_ratio == 0) continue;
    const int64_t rows = layer.entries_per_page();
    for (const EntryPool* pool : {&layer.entries, &layer.index_entries}) {
      if (pool->row_bytes == 0) continue;
      visit(pool->row(page.value * rows), static_cast<size_t>(rows * pool->row_bytes));
    }
  }
}

void DecodingState::save_page(PageId page, std::span<std::byte> out) const {
  size_t done = 0;
  for_each_entry_run(page, [&](const std::byte* data, size_t num_bytes) {
    CHECK(num_bytes <= out.size() - done);
    std::memcpy(out.data() + done, data, num_bytes);
    done += num_bytes;
  });
  CHECK(done == out.size()) << done;
}

void DecodingState::restore_page(PageId page, std::span<const std::byte> entries) {
  size_t done = 0;
  for_each_entry_run(page, [&](std::byte* data, size_t num_bytes) {
    CHECK(num_bytes <= entries.size() - done);
    std::memcpy(data, entries.data() + done, num_bytes);
    done += num_bytes;
  });
  CHECK(done == entries.size()) << done;
}

// Calls visit(spec, position) for every row of a snapshot at `length`, in a fixed order.
template <class Visit>
void DecodingState::for_each_saved_row(int32_t length, Visit&& visit) const {
  const auto visit_ring = [&](const RingSpec& spec) {
    for (int32_t p = std::max(0, length - spec.saved_rows); p < length; ++p) visit(spec, p);
  };
  for (const LayerState& layer : layers_) {
    visit_ring(layer.window);
    visit_ring(layer.compressor);
  }
  visit_ring(streams_);
}

int64_t DecodingState::snapshot_payload_bytes(int32_t length) const {
  int64_t bytes = 0;
  for_each_saved_row(length, [&](const RingSpec& spec, int32_t) { bytes += spec.row_bytes; });
  return bytes;
}

Result<std::vector<std::byte>> DecodingState::save(SlotId slot, uint64_t fingerprint) const {
  const SlotStatus& current = status(slot);
  return make_snapshot(
      slot,
      current,
      fingerprint,
      snapshot_payload_bytes(current.length),
      [&](std::span<std::byte> payload) -> Result<void> {
        std::byte* out = payload.data();
        for_each_saved_row(current.length, [&](const RingSpec& spec, int32_t position) {
          std::memcpy(out, ring(slot, spec).row(position), static_cast<size_t>(spec.row_bytes));
          out += spec.row_bytes;
        });
        return {};
      });
}

Result<void> DecodingState::restore(SlotId slot,
                                    std::span<const std::byte> snapshot,
                                    uint64_t fingerprint) {
  TRY_ASSIGN(const OpenSnapshot opened,
             open_snapshot(snapshot, fingerprint, options().max_context, [&](int32_t length) {
               return snapshot_payload_bytes(length);
             }));
  const std::byte* in = opened.payload.data();
  for_each_saved_row(opened.status.length, [&](const RingSpec& spec, int32_t position) {
    std::memcpy(ring(slot, spec).row(position), in, static_cast<size_t>(spec.row_bytes));
    in += spec.row_bytes;
  });
  status(slot) = opened.status;
  return {};
}

}  // namespace nibble::models::deepseek_v4
