#include "models/deepseek_v4/gpu/step_plan.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/checked_math.h"

namespace nibble::models::deepseek_v4::gpu {
namespace {

// Offsets of one set of rows, in elements.
struct RowOffsets {
  int64_t ids = 0;
  int64_t positions = 0;
  int64_t sequences = 0;
  int64_t ring_rows = 0;
  int64_t slots = 0;
  int64_t row_begin = 0;
  int64_t num_tokens = 0;
  int64_t position_begin = 0;
  int64_t window_begin = 0;
};

void fill_rows(
    const RowOffsets& at, int32_t room, const PassRows& rows, const State& state, int32_t* out) {
  const int32_t capacity = state.window_capacity();
  for (int32_t r = 0; r < room; ++r) {
    const bool is_padding = r >= rows.num_tokens();
    const auto i = static_cast<size_t>(r);
    out[at.ids + r] = is_padding ? 0 : rows.token_ids[i];
    out[at.positions + r] = is_padding ? 0 : rows.positions[i];
    out[at.sequences + r] = is_padding ? -1 : rows.sequence_of_row[i];
    out[at.ring_rows + r] = -1;
  }
  for (size_t s = 0; s < rows.sequences.size(); ++s) {
    const SequenceSpan& sequence = rows.sequences[s];
    const auto i = static_cast<int64_t>(s);
    out[at.slots + i] = sequence.slot.value;
    out[at.row_begin + i] = sequence.row_begin;
    out[at.num_tokens + i] = sequence.num_tokens;
    out[at.position_begin + i] = sequence.position_begin;
    out[at.window_begin + i] = sequence.window_begin;
    if (sequence.num_tokens <= kDirectTokens) continue;
    const int32_t end = sequence.position_end();
    for (int32_t p = std::max(sequence.position_begin, end - capacity); p < end; ++p) {
      out[at.ring_rows + sequence.row_of(p)] = sequence.slot.value * capacity + p % capacity;
    }
  }
}

RowLists row_lists(const RowOffsets& at, int32_t rows, const int32_t* base) {
  return {.tokens = {.ids = base + at.ids,
                     .positions = base + at.positions,
                     .sequences = base + at.sequences,
                     .m = rows},
          .sequences = {.slots = base + at.slots,
                        .row_begin = base + at.row_begin,
                        .num_tokens = base + at.num_tokens,
                        .position_begin = base + at.position_begin,
                        .window_begin = base + at.window_begin},
          .ring_rows = base + at.ring_rows};
}

}  // namespace

struct StepPlan::Layout {
  RowOffsets main;
  RowOffsets mtp;
  int64_t logits_rows = 0;
  int64_t stream_rows = 0;
  int64_t mtp_from_rows = 0;
  int64_t mtp_from_ring = 0;
  // 64-bit values first, so that they are aligned; then 32-bit ones.
  int64_t seeds = 0;
  int64_t draws = 0;
  int64_t temperatures = 0;
  int64_t top_k = 0;
  int64_t top_p = 0;
  int64_t min_p = 0;
  int64_t from_rows = 0;
  int64_t pages = 0;
  int64_t end = 0;

  Layout(const StepSize& size, int32_t max_pages) {
    const auto take = [this](int64_t count) { return std::exchange(end, end + count); };
    const auto take_rows = [&](RowOffsets& at, int32_t rows) {
      for (int64_t* list : {&at.ids, &at.positions, &at.sequences, &at.ring_rows}) {
        *list = take(rows);
      }
      for (int64_t* list :
           {&at.slots, &at.row_begin, &at.num_tokens, &at.position_begin, &at.window_begin}) {
        *list = take(size.sequences);
      }
    };
    seeds = take(2 * int64_t{size.sampled_rows});
    draws = take(2 * int64_t{size.sampled_rows});
    for (int64_t* list : {&temperatures, &top_k, &top_p, &min_p, &from_rows}) {
      *list = take(size.sampled_rows);
    }
    take_rows(main, size.rows);
    take_rows(mtp, size.mtp_rows);
    logits_rows = take(size.rows);
    stream_rows = take(size.rows);
    mtp_from_rows = take(size.mtp_rows);
    mtp_from_ring = take(size.mtp_rows);
    pages = take(int64_t{size.sequences} * max_pages);
  }
};

bool is_direct(const PassRows& rows) {
  return std::all_of(rows.sequences.begin(), rows.sequences.end(), [](const SequenceSpan& s) {
    return s.num_tokens <= kDirectTokens;
  });
}

namespace {

int32_t pages_of(const StateOptions& options) {
  return static_cast<int32_t>(ceil_div(options.max_context, kPageSize));
}

StepSize largest(const StateOptions& options) {
  // A decode bucket may have more rows than there are slots.
  const int32_t decode_rows = 2 * options.num_slots;
  return {.rows = std::max(options.max_tokens_per_pass, decode_rows),
          .sequences = decode_rows,
          .mtp_rows = options.max_tokens_per_pass,
          .sampled_rows = decode_rows};
}

}  // namespace

int32_t bucket_of(int32_t rows) {
  const auto* const found = std::lower_bound(std::begin(kBuckets), std::end(kBuckets), rows);
  return found == std::end(kBuckets) ? 0 : *found;
}

StepPlan::Layout StepPlan::layout(const StepSize& size) const { return {size, max_pages_}; }

int64_t StepPlan::num_bytes(const StateOptions& options) {
  return Layout(largest(options), pages_of(options)).end * int64_t{sizeof(int32_t)};
}

Result<StepPlan> StepPlan::make(const StateOptions& options, device::Device& device) {
  StepPlan plan;
  plan.max_pages_ = pages_of(options);
  for (device::Buffer& staging : plan.staging_) {
    TRY_ASSIGN(staging, device.allocate_host(num_bytes(options)));
  }
  TRY_ASSIGN(plan.storage_, device.allocate(num_bytes(options)));
  return plan;
}

void StepPlan::fill(const StepSize& size,
                    const PassRows& rows,
                    const PassRows* mtp,
                    std::span<const int32_t> logits_rows,
                    const State& state) {
  const Layout at = layout(size);
  int32_t* const out = host();
  fill_rows(at.main, size.rows, rows, state, out);
  std::fill_n(out + at.logits_rows, size.rows, -1);
  std::copy(logits_rows.begin(), logits_rows.end(), out + at.logits_rows);
  std::fill_n(out + at.stream_rows, size.rows, -1);
  const RingPool& streams = state.streams();
  for (size_t s = 0; s < rows.sequences.size(); ++s) {
    const SequenceSpan& sequence = rows.sequences[s];
    int32_t* const pages = out + at.pages + static_cast<int64_t>(s) * max_pages_;
    const auto count = std::min(sequence.pages.size(), static_cast<size_t>(max_pages_));
    for (size_t i = 0; i < count; ++i) pages[i] = sequence.pages[i].value;
    std::fill(pages + count, pages + max_pages_, -1);
    if (streams.capacity == 0) continue;
    const int32_t end = sequence.position_end();
    for (int32_t p = std::max(sequence.position_begin, end - streams.capacity); p < end; ++p) {
      out[at.stream_rows + sequence.row_of(p)] =
          static_cast<int32_t>(streams.row_index(sequence.slot, p));
    }
  }
  used_bytes_ = (at.pages + static_cast<int64_t>(rows.sequences.size()) * max_pages_) *
                int64_t{sizeof(int32_t)};
  if (mtp == nullptr) return;

  fill_rows(at.mtp, size.mtp_rows, *mtp, state, out);
  size_t source = 0;
  for (const SequenceSpan& sequence : mtp->sequences) {
    while (rows.sequences[source].slot != sequence.slot) ++source;
    const SequenceSpan& main = rows.sequences[source];
    for (int32_t i = 0; i < sequence.num_tokens; ++i) {
      const int32_t position = sequence.position_begin + i;
      const int32_t row = sequence.row_begin + i;
      const bool is_old = position < main.position_begin;
      out[at.mtp_from_rows + row] = is_old ? -1 : main.row_of(position);
      out[at.mtp_from_ring + row] =
          is_old ? static_cast<int32_t>(streams.row_index(sequence.slot, position)) : -1;
    }
  }
}

void StepPlan::fill_sampling(const StepSize& size,
                             std::span<const DeviceSampling> sampling,
                             std::span<const int32_t> from_rows) {
  const Layout at = layout(size);
  int32_t* const out = host();
  const auto store = [out](int64_t offset, const auto& value) {
    std::memcpy(out + offset, &value, sizeof(value));
  };
  for (int32_t row = 0; row < size.sampled_rows; ++row) {
    const auto i = static_cast<size_t>(row);
    const bool is_padding = i >= sampling.size();
    const DeviceSampling chosen = is_padding ? DeviceSampling{} : sampling[i];
    store(at.temperatures + row, chosen.temperature);
    store(at.top_k + row, chosen.top_k);
    store(at.top_p + row, chosen.top_p);
    store(at.min_p + row, chosen.min_p);
    store(at.seeds + int64_t{2} * row, chosen.seed);
    store(at.draws + int64_t{2} * row, chosen.draw);
    store(at.from_rows + row, is_padding ? int32_t{-1} : from_rows[i]);
  }
}

Result<void> StepPlan::upload(device::Device& device) {
  TRY(device.copy_in(storage_.data(), host(), used_bytes_));
  turn_ = (turn_ + 1) % std::size(staging_);
  return {};
}

StepLists StepPlan::lists(const StepSize& size) const {
  const Layout at = layout(size);
  int32_t* const base = device();
  StepLists lists{.main = row_lists(at.main, size.rows, base),
                  .mtp = row_lists(at.mtp, size.mtp_rows, base),
                  .sample = {.temperatures = reinterpret_cast<const float*>(base + at.temperatures),
                             .top_k = base + at.top_k,
                             .top_p = reinterpret_cast<const float*>(base + at.top_p),
                             .min_p = reinterpret_cast<const float*>(base + at.min_p),
                             .seeds = reinterpret_cast<const uint64_t*>(base + at.seeds),
                             .draws = reinterpret_cast<const uint64_t*>(base + at.draws),
                             .from_rows = base + at.from_rows,
                             .ids = base + at.main.ids},
                  .logits_rows = base + at.logits_rows,
                  .stream_rows = base + at.stream_rows,
                  .mtp_from_rows = base + at.mtp_from_rows,
                  .mtp_from_ring = base + at.mtp_from_ring};
  // The MTP layer has no entries.
  lists.main.sequences.pages = base + at.pages;
  lists.main.sequences.max_pages = max_pages_;
  return lists;
}

}  // namespace nibble::models::deepseek_v4::gpu
