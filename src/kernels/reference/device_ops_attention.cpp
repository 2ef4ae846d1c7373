// What lies between the products of attention in a GPU step (specification 3.4 to 3.6).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/reference/device_ops_launchers.h"
#include "kernels/reference/device_rows.h"
#include "kernels/reference/forms.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

void write_bf16(std::span<const float> values, void* out, int64_t first) {
  auto* const bits = static_cast<uint16_t*>(out) + first;
  for (size_t i = 0; i < values.size(); ++i) bits[i] = quant::f32_to_bf16(values[i]);
}

// --- compressors ---

int32_t channels_of(const DeviceLatentsArgs& args, const DeviceCompressor& part) {
  return args.compression.ratio == 4 ? 2 * part.width : part.width;
}

// The projections of one token as the ring keeps them: gates with their position bias.
std::vector<float> biased_row(const DeviceLatentsArgs& args, int64_t t) {
  std::vector<float> row =
      sum_row(args.compression.projections, args.tokens.m, args.compression.row_width, t);
  for (int32_t i = 0; i < args.compression.num_parts; ++i) {
    const DeviceCompressor& part = args.compression.parts[i];
    const int32_t channels = channels_of(args, part);
    const float* const bias =
        part.ape + int64_t{args.tokens.positions[t] % args.compression.ratio} * channels;
    for (int32_t a = 0; a < channels; ++a)
      row[static_cast<size_t>(part.gate_column) + static_cast<size_t>(a)] += bias[a];
  }
  return row;
}

int64_t ring_row(const DeviceLatentsArgs& args, int32_t s, int32_t position) {
  const int64_t row =
      int64_t{args.compression.sequences.slots[s]} * args.compression.ring_capacity +
      position % args.compression.ring_capacity;
  return row * args.compression.ring_width;
}

// The row of an earlier or equal position of sequence `s`.
std::vector<float> row_at(const DeviceLatentsArgs& args, int32_t s, int32_t position) {
  const int32_t begin = args.compression.sequences.position_begin[s];
  if (position >= begin)
    return biased_row(args, args.compression.sequences.row_begin[s] + position - begin);
  const float* const row = args.compression.ring + ring_row(args, s, position);
  return {row, row + args.compression.ring_width};
}

// One token's share in an entry: where its channels begin in its row.
struct Slot {
  std::vector<float> row;
  int32_t first_channel = 0;
};

// Ratio 4: the previous block's first halves (absent for entry 0), then this block's second halves.
// Ratio 128: the block's tokens.
std::vector<Slot> slots_of(const DeviceLatentsArgs& args,
                           const DeviceCompressor& part,
                           int32_t s,
                           int32_t entry) {
  std::vector<Slot> slots;
  const int32_t begin = entry * args.compression.ratio;
  const bool overlaps = args.compression.ratio == 4;
  if (overlaps && entry > 0) {
    for (int32_t i = 0; i < args.compression.ratio; ++i) {
      slots.push_back({.row = row_at(args, s, begin - args.compression.ratio + i)});
    }
  }
  for (int32_t i = 0; i < args.compression.ratio; ++i) {
    slots.push_back(
        {.row = row_at(args, s, begin + i), .first_channel = overlaps ? part.width : 0});
  }
  return slots;
}

// The softmax of the slots' gates over their values, channel by channel.
std::vector<float> pool(const DeviceCompressor& part, const std::vector<Slot>& slots) {
  std::vector<float> entry;
  for (int32_t a = 0; a < part.width; ++a) {
    const auto gate = [&](const Slot& slot) {
      return double{
          slot.row[static_cast<size_t>(int64_t{part.gate_column} + slot.first_channel + a)]};
    };
    double max = gate(slots.front());
    for (const Slot& slot : slots) max = std::max(max, gate(slot));
    double denominator = 0;
    double sum = 0;
    for (const Slot& slot : slots) {
      const double weight = std::exp(gate(slot) - max);
      denominator += weight;
      sum += weight *
             slot.row[static_cast<size_t>(int64_t{part.value_column} + slot.first_channel + a)];
    }
    entry.push_back(static_cast<float>(sum / denominator));
  }
  return entry;
}

void form_entry(const DeviceLatentsArgs& args,
                const DeviceCompressor& part,
                int32_t s,
                int32_t entry) {
  std::vector<float> key = pool(part, slots_of(args, part, s, entry));
  normalise(key, part.gamma, args.eps);
  rotate(key, args.rotation, entry * args.compression.ratio, false);
  const int32_t per_page = args.compression.page_tokens / args.compression.ratio;
  const int32_t* const pages =
      args.compression.sequences.pages + int64_t{s} * args.compression.sequences.max_pages;
  const int64_t row = int64_t{pages[entry / per_page]} * per_page + entry % per_page;
  const int64_t num_rotary = part.is_index ? 0 : args.rotation.num_rotary;
  store_key(key,
            part.entry_dtype,
            num_rotary,
            part.entries + row * key_row_bytes(part.entry_dtype, part.width, num_rotary));
}

void store_ring_row(const DeviceLatentsArgs& args, int64_t t, int32_t s) {
  const int32_t position = args.tokens.positions[t];
  const int32_t end =
      args.compression.sequences.position_begin[s] + args.compression.sequences.num_tokens[s];
  if (position < end - args.compression.ring_capacity) return;
  const std::vector<float> row = biased_row(args, t);
  std::copy_n(row.begin(),
              args.compression.ring_width,
              args.compression.ring + ring_row(args, s, position));
}

void compress(const DeviceLatentsArgs& args) {
  const DeviceCompression& compression = args.compression;
  const DeviceTokens& tokens = args.tokens;
  for (int64_t t = 0; compression.forms_entries && t < tokens.m; ++t) {
    const int32_t s = tokens.sequences[t];
    const int32_t end = tokens.positions[t] + 1;
    if (s < 0 || end % compression.ratio != 0) continue;
    for (int32_t i = 0; i < compression.num_parts; ++i) {
      form_entry(args, compression.parts[i], s, end / compression.ratio - 1);
    }
  }
  for (int64_t t = 0; compression.stores_rows && t < tokens.m; ++t) {
    if (tokens.sequences[t] >= 0) store_ring_row(args, t, tokens.sequences[t]);
  }
}

void store_latents(const DeviceLatentsArgs& args) {
  const int64_t key_bytes = key_row_bytes(args.key_dtype, args.head_dim, args.rotation.num_rotary);
  for (int64_t t = 0; t < args.tokens.m; ++t) {
    std::vector<float> row =
        sum_row(args.qr_kv, args.tokens.m, int64_t{args.q_rank} + args.head_dim, t);
    const std::span<float> q = std::span(row).first(static_cast<size_t>(args.q_rank));
    const std::span<float> key = std::span(row).last(static_cast<size_t>(args.head_dim));
    normalise(q, args.q_gamma, args.eps);
    write_forms(args.q, args.tokens.m, t, q);
    if (args.key_rows[t] < 0) continue;
    normalise(key, args.kv_gamma, args.eps);
    rotate(key, args.rotation, args.tokens.positions[t], false);
    store_key(key,
              args.key_dtype,
              args.rotation.num_rotary,
              args.window_pool + args.key_rows[t] * key_bytes);
  }
}

}  // namespace

Result<void> device_latents(const DeviceLatentsArgs& args, device::Stream&) {
  if (args.qr_kv.data != nullptr) store_latents(args);
  if (args.compression.num_parts > 0) compress(args);
  return {};
}

Result<void> device_queries(const DeviceQueriesArgs& args, device::Stream&) {
  const auto width = static_cast<size_t>(args.head_dim);
  const auto index_width = static_cast<size_t>(args.index_width);
  for (int64_t t = 0; t < args.tokens.m; ++t) {
    const int32_t position = args.tokens.positions[t];
    const int64_t q_width = int64_t{args.heads} * args.head_dim;
    std::vector<float> q = sum_row(args.q_sums, args.tokens.m, q_width, t);
    for (size_t first = 0; first < q.size(); first += width) {
      const std::span<float> head = std::span(q).subspan(first, width);
      normalise(head, nullptr, args.eps);
      rotate(head, args.rotation, position, false);
    }
    write_bf16(q, args.q, t * q_width);
    if (args.index_sums.data == nullptr) continue;
    const int64_t index_q_width = int64_t{args.index_heads} * args.index_width;
    std::vector<float> index_q = sum_row(args.index_sums, args.tokens.m, index_q_width, t);
    for (size_t first = 0; first < index_q.size(); first += index_width) {
      rotate(std::span(index_q).subspan(first, index_width), args.rotation, position, false);
    }
    write_bf16(index_q, args.index_q, t * index_q_width);
    const DeviceHeadWeights& from = args.weights;
    const auto projections = sum_row(from.projections, args.tokens.m, from.row_width, t);
    for (int32_t h = 0; h < args.index_heads; ++h) {
      args.head_weights[t * args.index_heads + h] =
          projections[static_cast<size_t>(from.column) + static_cast<size_t>(h)] * from.scale;
    }
  }
  return {};
}

Result<void> device_attended(const DeviceAttendedArgs& args, device::Stream&) {
  const auto width = static_cast<size_t>(args.head_dim);
  const int64_t k = int64_t{args.heads} * args.head_dim;
  for (int64_t t = 0; t < args.tokens.m; ++t) {
    std::vector<float> y;
    for (int64_t i = t * k; i < (t + 1) * k; ++i) {
      y.push_back(quant::bf16_to_f32(static_cast<const uint16_t*>(args.x)[i]));
    }
    for (size_t first = 0; first < y.size(); first += width) {
      rotate(std::span(y).subspan(first, width), args.rotation, args.tokens.positions[t], true);
    }
    write_forms(args.y, args.tokens.m, t, y);
  }
  return {};
}

}  // namespace nibble::kernels::reference
