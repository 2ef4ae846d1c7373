#include "models/deepseek_v4/gpu/state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "models/deepseek_v4/snapshot.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

constexpr int64_t kF32Bytes = sizeof(float);

// The rings of a layer and the forms of its entries, without memory.
LayerState lay_out_layer(const Config& config, int32_t ratio, const Numerics& numerics) {
  const KeyRowForm vectors = key_vector_form(config, numerics);
  LayerState layer{.compress_ratio = ratio};
  layer.window = {.capacity = config.sliding_window + kWindowSlack,
                  .row_bytes = vectors.row_bytes(),
                  .saved_rows = config.sliding_window};
  if (ratio != 0) {
    layer.compressor = {.capacity = compressor_ring_rows(ratio),
                        .row_bytes = compressor_row_width(config, ratio) * kF32Bytes,
                        .saved_rows = rows_before_boundary(ratio)};
    layer.entries = {.form = vectors, .row_bytes = vectors.row_bytes()};
  }
  if (ratio == 4) {
    const KeyRowForm index_keys = index_key_form(config, numerics);
    layer.index_entries = {.form = index_keys, .row_bytes = index_keys.row_bytes()};
  }
  return layer;
}

RingPool lay_out_streams(const Config& config) {
  return {.capacity = kStreamRing,
          .row_bytes = int64_t{config.hc_mult} * config.hidden_size * kF32Bytes,
          .saved_rows = 1};
}

int32_t num_layers(const Config& config, bool has_mtp) {
  return config.num_hidden_layers + (has_mtp ? 1 : 0);
}

Result<void> allocate_ring(RingPool& pool,
                           int32_t num_slots,
                           int32_t scratch_rows,
                           device::Device& device) {
  if (pool.capacity == 0) return {};
  const int64_t rows = int64_t{num_slots} * pool.capacity + scratch_rows;
  TRY_ASSIGN(pool.storage, device.allocate(rows * pool.row_bytes));
  return {};
}

}  // namespace

StateBytes state_bytes(const Config& config, const Numerics& numerics, bool has_mtp) {
  StateBytes bytes;
  for (int32_t l = 0; l < num_layers(config, has_mtp); ++l) {
    bytes.add(lay_out_layer(config, config.compress_ratio(l), numerics), 1);
  }
  if (has_mtp) {
    const RingPool streams = lay_out_streams(config);
    bytes.streams = streams.capacity * streams.row_bytes;
    bytes.snapshot += streams.saved_rows * streams.row_bytes;
  }
  bytes.snapshot += snapshot_header_bytes();
  return bytes;
}

int64_t scratch_bytes(const Config& config,
                      const Numerics& numerics,
                      bool has_mtp,
                      int32_t max_tokens_per_pass) {
  return int64_t{num_layers(config, has_mtp)} * max_tokens_per_pass *
         key_vector_form(config, numerics).row_bytes();
}

Result<State> State::make(const Config& config,
                          const Numerics& numerics,
                          bool has_mtp,
                          const StateOptions& options,
                          device::Device& device) {
  State state;
  state.slots_ = SlotTable(options);
  state.device_ = &device;
  for (int32_t l = 0; l < num_layers(config, has_mtp); ++l) {
    LayerState layer = lay_out_layer(config, config.compress_ratio(l), numerics);
    TRY(allocate_ring(layer.window, options.num_slots, options.max_tokens_per_pass, device));
    TRY(allocate_ring(layer.compressor, options.num_slots, 0, device));
    for (EntryPool* pool : {&layer.entries, &layer.index_entries}) {
      if (pool->row_bytes == 0) continue;
      const int64_t rows = int64_t{options.num_pages} * layer.entries_per_page();
      TRY_ASSIGN(pool->storage, device.allocate(rows * pool->row_bytes));
    }
    state.layers_.push_back(std::move(layer));
  }
  if (has_mtp) {
    state.streams_ = lay_out_streams(config);
    TRY(allocate_ring(state.streams_, options.num_slots, 0, device));
  }
  return state;
}

int64_t State::num_bytes() const {
  int64_t bytes = streams_.storage.num_bytes();
  for (const LayerState& layer : layers_) {
    bytes += layer.window.storage.num_bytes() + layer.compressor.storage.num_bytes() +
             layer.entries.storage.num_bytes() + layer.index_entries.storage.num_bytes();
  }
  return bytes;
}

// Calls visit(data, num_bytes) for the rows of the page in every pool, in a fixed order.
template <class Visit>
Result<void> State::for_each_entry_run(PageId page, Visit&& visit) const {
  for (const LayerState& layer : layers_) {
    if (layer.compress_ratio == 0) continue;
    const int64_t rows = layer.entries_per_page();
    for (const EntryPool* pool : {&layer.entries, &layer.index_entries}) {
      if (pool->row_bytes == 0) continue;
      TRY(visit(pool->row(page.value * rows), rows * pool->row_bytes));
    }
  }
  return {};
}

Result<void> State::save_page(PageId page, std::span<std::byte> out) const {
  std::byte* next = out.data();
  TRY(for_each_entry_run(page, [&](const std::byte* data, int64_t num_bytes) {
    std::byte* const to = std::exchange(next, next + num_bytes);
    return device_->copy_out(to, data, num_bytes);
  }));
  CHECK(next == out.data() + out.size());
  return device_->synchronize();
}

Result<void> State::restore_page(PageId page, std::span<const std::byte> entries) {
  const std::byte* next = entries.data();
  TRY(for_each_entry_run(page, [&](std::byte* data, int64_t num_bytes) {
    const std::byte* const from = std::exchange(next, next + num_bytes);
    return device_->copy_in(data, from, num_bytes);
  }));
  CHECK(next == entries.data() + entries.size());
  return device_->synchronize();
}

// Calls visit(data, num_bytes) for the rows of a snapshot at `length`, ascending by position within
// each ring: one run, or two where it wraps.
template <class Visit>
Result<void> State::for_each_saved_run(SlotId slot, int32_t length, Visit&& visit) const {
  const auto visit_ring = [&](const RingPool& ring) -> Result<void> {
    int32_t position = std::max(0, length - ring.saved_rows);
    while (position < length) {
      const int32_t left = ring.capacity - position % ring.capacity;
      const int32_t count = std::min(left, length - position);
      TRY(visit(ring.row(ring.row_index(slot, position)), count * ring.row_bytes));
      position += count;
    }
    return {};
  };
  for (const LayerState& layer : layers_) {
    TRY(visit_ring(layer.window));
    TRY(visit_ring(layer.compressor));
  }
  return visit_ring(streams_);
}

int64_t State::snapshot_payload_bytes(int32_t length) const {
  int64_t bytes = 0;
  const Result<void> counted = for_each_saved_run(
      SlotId{0}, length, [&](const std::byte*, int64_t num_bytes) -> Result<void> {
        bytes += num_bytes;
        return {};
      });
  CHECK(counted.ok());
  return bytes;
}

Result<std::vector<std::byte>> State::save(SlotId slot, uint64_t fingerprint) const {
  const SlotStatus& current = slots_.status(slot);
  return make_snapshot(
      slot,
      current,
      fingerprint,
      snapshot_payload_bytes(current.length),
      [&](std::span<std::byte> payload) -> Result<void> {
        std::byte* next = payload.data();
        TRY(for_each_saved_run(slot, current.length, [&](const std::byte* data, int64_t num_bytes) {
          std::byte* const to = std::exchange(next, next + num_bytes);
          return device_->copy_out(to, data, num_bytes);
        }));
        return device_->synchronize();
      });
}

Result<void> State::restore(SlotId slot,
                            std::span<const std::byte> snapshot,
                            uint64_t fingerprint) {
  TRY_ASSIGN(const OpenSnapshot opened,
             open_snapshot(snapshot, fingerprint, options().max_context, [&](int32_t length) {
               return snapshot_payload_bytes(length);
             }));
  const std::byte* next = opened.payload.data();
  TRY(for_each_saved_run(slot, opened.status.length, [&](std::byte* data, int64_t num_bytes) {
    const std::byte* const from = std::exchange(next, next + num_bytes);
    return device_->copy_in(data, from, num_bytes);
  }));
  TRY(device_->synchronize());
  slots_.status(slot) = opened.status;
  return {};
}

}  // namespace nibble::models::deepseek_v4::gpu
