#include "kernels/work.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "quant/fp8_key.h"

namespace nibble::kernels {
namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

Work work(int64_t bytes, int64_t flops) {
  return {.bytes = as_double(bytes), .flops = as_double(flops)};
}

Work product(int64_t bytes, int64_t rows, const PackedWeight& weight) {
  return {.bytes = as_double(bytes),
          .flops = as_double(2 * rows * weight.n * weight.k),
          .n = weight.n,
          .k = weight.k};
}

int64_t weight_bytes(const PackedWeight& weight) {
  return packed_weight_bytes(weight.format, weight.n, weight.k, weight.scale_dtype, weight.layout);
}

// The sum of `count` counts in the device's memory, each at most `most`.
int64_t sum_of(const int32_t* counts, int64_t count, int64_t most, const ReadInts& read) {
  if (!read || counts == nullptr) return count * most;
  int64_t sum = 0;
  for (const int32_t value : read(counts, count)) sum += value;
  return sum;
}

int64_t key_bytes(DType dtype, int64_t width, int64_t num_rotary) {
  if (dtype != DType::kF8E4m3) return width * dtype_size(dtype);
  return quant::Fp8KeyLayout{.num_codes = width - num_rotary, .num_rotary = num_rotary}.row_bytes();
}

int64_t index_key_bytes(DType dtype, int64_t width) {
  return dtype == DType::kF8E4m3 ? quant::fp8_index_key_bytes(width) : width * dtype_size(dtype);
}

// `seen`: keys of all tokens together; row: of all heads; bytes: of q, of keys that differ and of
// what comes out.
Work attention(int64_t seen, int64_t row, int64_t bytes) { return work(bytes, 4 * seen * row); }

// Key rows of several tokens, which may share them.
class Keys final {
 public:
  void add(std::span<const int32_t> rows) { rows_.insert(rows_.end(), rows.begin(), rows.end()); }
  void add_unknown(int64_t count) { unknown_ += count; }

  int64_t count() const { return static_cast<int64_t>(rows_.size()) + unknown_; }
  int64_t distinct() const {
    std::vector<int32_t> sorted = rows_;
    std::sort(sorted.begin(), sorted.end());
    const auto end = std::unique(sorted.begin(), sorted.end());
    return end - sorted.begin() + unknown_;
  }

 private:
  std::vector<int32_t> rows_;
  int64_t unknown_ = 0;
};

Keys keys_of(const DeviceKeyRows& args, int64_t m, const ReadInts& read) {
  Keys keys;
  if (args.counts == nullptr || args.max_rows == 0) return keys;
  if (!read) {
    keys.add_unknown(m * args.max_rows);
    return keys;
  }
  const std::vector<int32_t> counts = read(args.counts, m);
  const std::vector<int32_t> rows = read(args.rows, m * args.max_rows);
  for (size_t t = 0; t < counts.size(); ++t) {
    const auto most = static_cast<size_t>(args.max_rows);
    keys.add(std::span(rows).subspan(t * most, static_cast<size_t>(std::max(counts[t], 0))));
  }
  return keys;
}

struct Entries {
  int64_t scores = 0;
  int64_t distinct = 0;
};
// Tokens of one sequence see the same pages; each sees the first of them.
Entries entries_of(const DeviceIndexerScoreArgs& args, const ReadInts& read) {
  if (!read) return {args.m * args.columns, args.m * args.columns};
  const std::vector<int32_t> counts = read(args.keys.counts, args.m);
  const std::vector<int32_t> pages = read(args.keys.pages, int64_t{args.m} * args.keys.max_pages);
  std::map<int32_t, int64_t> most;  // by first page
  Entries entries;
  for (size_t t = 0; t < counts.size(); ++t) {
    if (counts[t] <= args.unscored_count) continue;
    entries.scores += counts[t];
    int64_t& known = most[pages[t * static_cast<size_t>(args.keys.max_pages)]];
    known = std::max<int64_t>(known, counts[t]);
  }
  for (const auto& [page, count] : most) entries.distinct += count;
  return entries;
}

int64_t sum_bytes(int64_t splits, int64_t m, int64_t n) { return splits * m * n * 4; }

// Of every form that is written.
int64_t form_bytes(const ActivationForms& forms, int64_t m, int64_t k) {
  int64_t bytes = 0;
  if (forms.f32 != nullptr) bytes += m * k * 4;
  if (forms.bf16 != nullptr) bytes += m * k * 2;
  if (forms.fp8 != nullptr) bytes += m * k + m * k / 32;
  if (forms.fp8_blocks != nullptr) bytes += k / 128 * fp8_block_bytes(m);
  if (forms.bf16_blocks != nullptr) bytes += bf16_blocks_bytes(m, k, 1);
  if (forms.bf16_terms != nullptr) bytes += bf16_blocks_bytes(m, k, kBf16Terms);
  return bytes;
}

// Of one form that is read, the smallest.
int64_t read_form_bytes(const ActivationForms& forms, int64_t m, int64_t k) {
  if (forms.fp8_blocks != nullptr) return form_bytes({.fp8_blocks = forms.fp8_blocks}, m, k);
  if (forms.fp8 != nullptr) return form_bytes({.fp8 = forms.fp8}, m, k);
  if (forms.bf16 != nullptr) return form_bytes({.bf16 = forms.bf16}, m, k);
  if (forms.bf16_blocks != nullptr) return bf16_blocks_bytes(m, k, 1);
  if (forms.f32 != nullptr) return form_bytes({.f32 = forms.f32}, m, k);
  return form_bytes({.bf16_terms = forms.bf16_terms}, m, k);
}

struct Routed {
  int64_t experts = 0;  // distinct
  int64_t pairs = 0;
};

Routed routed_of(const ExpertSlots& slots, const ReadInts& read) {
  const int64_t most = slots.max_slots;
  if (!read) return {most, most * slots.rows};
  Routed routed;
  const int64_t count =
      slots.rows == 1 ? most : std::min<int64_t>(read(slots.count, 1).front(), most);
  std::set<int32_t> distinct;
  const std::vector<int32_t> experts = read(slots.experts, count);
  for (const int32_t expert : experts) {
    if (expert >= 0) distinct.insert(expert);
  }
  routed.experts = static_cast<int64_t>(distinct.size());
  const std::vector<int32_t> rows =
      slots.rows == 1 ? experts : read(slots.pairs, count * slots.rows);
  routed.pairs = std::count_if(rows.begin(), rows.end(), [](int32_t id) { return id >= 0; });
  return routed;
}

// Rows of the ring go out with every token and come back where they close a block.
Work work_of_compression(const DeviceCompression& compression, int64_t m) {
  if (compression.num_parts == 0) return {};
  const int64_t row = compression.ring_width;
  int64_t bytes = sum_bytes(compression.projections.splits, m, row);
  if (compression.stores_rows) bytes += m * row * 4;
  return work(bytes, compression.forms_entries ? 6 * m * row : 0);
}

}  // namespace

Work work_of(const MatMulArgs& args, const ReadInts& /*read*/) {
  return product(args.x.num_bytes() + weight_bytes(*args.weight) + args.y.num_bytes(),
                 args.x.num_rows(),
                 *args.weight);
}

Work work_of(const GroupedMatMulArgs& args, const ReadInts& /*read*/) {
  if (args.weights.empty()) return {};
  int64_t used = 0;
  for (size_t g = 0; g < args.weights.size(); ++g) {
    if (args.group_offsets[g + 1] > args.group_offsets[g]) used += weight_bytes(args.weights[g]);
  }
  const PackedWeight& first = args.weights.front();
  const int64_t pairs = args.group_offsets.back() - args.group_offsets.front();
  return product(used + pairs * (first.k + first.n) * 4, pairs, first);
}

Work work_of(const SparseAttentionArgs& args, const ReadInts& /*read*/) {
  Keys window, entries;
  for (const KeySet& set : args.keys) {
    window.add(set.window_rows);
    entries.add(set.entry_rows);
  }
  const int64_t heads = args.q.shape[1], width = args.q.shape[2];
  return attention(window.count() + entries.count(),
                   heads * width,
                   2 * args.q.num_rows() * heads * width * 4 +
                       (window.distinct() + entries.distinct()) *
                           key_bytes(args.kv_dtype, width, args.num_rotary));
}

// Tokens of one sequence follow each other and see the same entries.
Work work_of(const IndexerScoreArgs& args, const ReadInts& /*read*/) {
  const int64_t heads = args.q.shape[1], width = args.q.shape[2];
  int64_t scores = 0, entries = 0;
  const PagedRows* previous = nullptr;
  for (const PagedRows& rows : args.keys) {
    const bool is_same = previous != nullptr && previous->pages.data() == rows.pages.data();
    entries += is_same ? std::max(0, rows.count - previous->count) : rows.count;
    scores += rows.count;
    previous = &rows;
  }
  return work(args.q.num_bytes() + entries * index_key_bytes(args.key_dtype, width) + scores * 4,
              2 * scores * heads * width);
}

Work work_of(const TopKArgs& args, const ReadInts& /*read*/) {
  int64_t scores = 0;
  for (const int32_t count : args.counts) scores += count;
  return work(scores * 4 + args.indices.num_bytes(), scores);
}

Work work_of(const RmsNormArgs& args, const ReadInts& /*read*/) {
  return work(args.x.num_bytes() + args.y.num_bytes(), 4 * args.x.shape.num_elements());
}

Work work_of(const RopeArgs& args, const ReadInts& /*read*/) {
  const int64_t pairs =
      args.x.num_rows() * args.x.shape[1] * static_cast<int64_t>(args.freqs.size());
  return work(pairs * 16, pairs * 6);
}

Work work_of(const HyperPreArgs& args, const ReadInts& /*read*/) {
  const int64_t m = args.state.num_rows(), width = args.state.shape[1], streams = args.hc_mult;
  const int64_t rows = (2 + streams) * streams;
  return work(args.state.num_bytes() + rows * width * 4 + args.x.num_bytes(),
              2 * m * width * (rows + 2));
}

Work work_of(const HyperPostArgs& args, const ReadInts& /*read*/) {
  return work(2 * args.state.num_bytes() + args.y.num_bytes(),
              2 * args.state.shape.num_elements() * (args.hc_mult + 1));
}

Work work_of(const HyperHeadArgs& args, const ReadInts& /*read*/) {
  const int64_t width = args.state.shape[1], rows = args.hc_mult;
  return work(args.state.num_bytes() + rows * width * 4 + args.x.num_bytes(),
              2 * args.state.num_rows() * width * (rows + 2));
}

Work work_of(const CompressArgs& args, const ReadInts& /*read*/) {
  const int64_t width = args.out.shape[1];
  const auto rows = static_cast<int64_t>(args.values.size());
  return work(2 * rows * width * 4 + args.out.num_bytes(), 4 * rows * width);
}

Work work_of(const SelectExpertsArgs& args, const ReadInts& /*read*/) {
  return work(args.logits.num_bytes() + args.ids.num_bytes() + args.weights.num_bytes(),
              4 * args.logits.shape.num_elements());
}

Work work_of(const SwigluArgs& args, const ReadInts& /*read*/) {
  return work(args.x.num_bytes() + args.y.num_bytes(), 6 * args.y.shape.num_elements());
}

Work work_of(const CombineExpertsArgs& args, const ReadInts& /*read*/) {
  return work(args.experts.num_bytes() + args.shared.num_bytes() + args.y.num_bytes(),
              args.experts.shape.num_elements());
}

Work work_of(const EmbedArgs& args, const ReadInts& /*read*/) {
  const auto tokens = static_cast<int64_t>(args.ids.size());
  return work(tokens * args.table.shape[1] * dtype_size(args.table.dtype) + args.out.num_bytes(),
              0);
}

// --- on a GPU ---

Work work_of(const DeviceMatMulArgs& args, const ReadInts& /*read*/) {
  const PackedWeight& weight = *args.weight;
  const int64_t out = args.y_fp8 != nullptr
                          ? form_bytes({.fp8_blocks = args.y_fp8}, args.m, weight.n)
                          : sum_bytes(args.splits, args.m, weight.n);
  return product(
      read_form_bytes(args.x, args.m, args.groups * weight.k) + weight_bytes(weight) + out,
      args.m,
      weight);
}

Work work_of(const DeviceMatMulPairArgs& args, const ReadInts& read) {
  const Work first = work_of(args.first, read), second = work_of(args.second, read);
  return {.bytes = first.bytes + second.bytes,
          .flops = first.flops + second.flops,
          .n = first.n + second.n,
          .k = first.k};
}

Work work_of(const DeviceGroupedMatMulArgs& args, const ReadInts& read) {
  const PackedWeight& weight = *args.weight;
  const Routed routed = routed_of(args.slots, read);
  const int64_t in = read_form_bytes(args.x, routed.pairs / args.pairs_per_row, weight.k);
  const int64_t out = routed.pairs * (args.swiglu ? weight.n : weight.n * 4);  // bf16 of n / 2
  Work work = product(routed.experts * weight_bytes(weight) + in + out, routed.pairs, weight);
  if (args.down.weight == nullptr) return work;
  const PackedWeight& down = *args.down.weight;
  const int64_t down_out = routed.pairs * down.n * 4;
  const Work second =
      product(routed.experts * weight_bytes(down) + out + down_out, routed.pairs, down);
  work.bytes += second.bytes;
  work.flops += second.flops;
  if (args.beside.weight == nullptr) return work;
  for (const Work& other : {work_of(args.choice, read), work_of(args.beside, read)}) {
    work.bytes += other.bytes;
    work.flops += other.flops;
  }
  return work;
}

Work work_of(const DeviceEmbedArgs& args, const ReadInts& /*read*/) {
  const int64_t numbers = args.tokens.m * args.hidden;
  return work(numbers * (dtype_size(args.table_dtype) + int64_t{args.copies} * 4), 0);
}

Work work_of(const DeviceStreamUpdateArgs& args, const ReadInts& /*read*/) {
  const int64_t width = args.hc_mult * args.hidden, numbers = args.m * width;
  const bool writes = args.post != nullptr, mixes = args.fn != nullptr;
  int64_t bytes = numbers * 4, flops = 0;
  if (writes) {
    const int64_t pairs = args.pairs != nullptr ? args.choices : 0;
    bytes += numbers * 4 + sum_bytes(args.y.splits + pairs, args.m, args.hidden);
    flops += 2 * numbers * (args.hc_mult + 1);
  }
  if (mixes) {
    bytes += args.num_mix * width * 4 + int64_t{args.m} * args.parts * (args.num_mix + 1) * 4;
    flops += 2 * numbers * (args.num_mix + 1);
  }
  return work(bytes, flops);
}

Work work_of(const DeviceStreamMixArgs& args, const ReadInts& /*read*/) {
  const int64_t numbers = args.m * args.hidden;
  return work(numbers * args.hc_mult * 4 + int64_t{args.m} * args.parts * (args.num_mix + 1) * 4 +
                  form_bytes(args.x, args.m, args.hidden),
              2 * numbers * (args.hc_mult + 2));
}

Work work_of(const DeviceStreamTurnArgs& args, const ReadInts& read) {
  const DeviceStreamUpdateArgs& update = args.update;
  const int64_t partials = int64_t{update.m} * update.parts * (update.num_mix + 1) * 4;
  Work sum = work_of(update, read);
  sum.bytes += static_cast<double>(form_bytes(args.mix.x, args.mix.m, update.hidden) - partials);
  sum.flops += work_of(args.mix, read).flops;
  return sum;
}

Work work_of(const DeviceLatentsArgs& args, const ReadInts& /*read*/) {
  const int64_t m = args.tokens.m, width = args.q_rank + args.head_dim;
  Work sum = work_of_compression(args.compression, m);
  if (args.qr_kv.data == nullptr) return sum;
  const Work latents =
      work(sum_bytes(args.qr_kv.splits, m, width) + form_bytes(args.q, m, args.q_rank) +
               m * key_bytes(args.key_dtype, args.head_dim, args.rotation.num_rotary),
           4 * m * width);
  sum.bytes += latents.bytes;
  sum.flops += latents.flops;
  return sum;
}

Work work_of(const DeviceQueriesArgs& args, const ReadInts& /*read*/) {
  const int64_t m = args.tokens.m, width = int64_t{args.heads} * args.head_dim;
  const int64_t index =
      args.index_sums.data == nullptr ? 0 : int64_t{args.index_heads} * args.index_width;
  const int64_t index_splits = index == 0 ? 0 : args.index_sums.splits;
  return work(sum_bytes(args.q_sums.splits, m, width) + m * width * 2 +
                  sum_bytes(index_splits, m, index) + m * index * 2,
              6 * m * (width + index));
}

Work work_of(const DeviceSparseAttentionArgs& args, const ReadInts& read) {
  const Keys window = keys_of(args.window, args.m, read);
  const Keys entries = keys_of(args.entries, args.m, read);
  const int64_t row = int64_t{args.heads} * args.head_dim;
  const int64_t q_bytes =
      args.q == nullptr ? sum_bytes(args.q_sums.splits, args.m, row) : args.m * row * 2;
  return attention(window.count() + entries.count(),
                   row,
                   q_bytes + form_bytes(args.out, args.m, row) +
                       (window.distinct() + entries.distinct()) *
                           key_bytes(args.kv_dtype, args.head_dim, args.num_rotary));
}

Work work_of(const DeviceAttendedArgs& args, const ReadInts& /*read*/) {
  const int64_t m = args.tokens.m, width = int64_t{args.heads} * args.head_dim;
  return work(m * width * 2 + form_bytes(args.y, m, width),
              6 * m * args.heads * args.rotation.num_rotary / 2);
}

Work work_of(const DeviceIndexerScoreArgs& args, const ReadInts& read) {
  const Entries seen = entries_of(args, read);
  const int64_t q = int64_t{args.m} * args.beside.heads * args.beside.head_dim;
  return work(int64_t{args.m} * args.heads * (int64_t{args.width} * 2 + 4) +
                  seen.distinct * index_key_bytes(args.key_dtype, args.width) + seen.scores * 4 +
                  q * (int64_t{args.beside.sums.splits} * 4 + 2),
              2 * seen.scores * args.heads * args.width + 6 * q);
}

Work work_of(const DeviceTopKArgs& args, const ReadInts& read) {
  const int64_t scores = sum_of(args.counts, args.m, args.columns, read);
  return work(scores * 4 + int64_t{args.m} * args.k * 4, scores);
}

Work work_of(const DeviceSelectExpertsArgs& args, const ReadInts& read) {
  const int64_t m = args.tokens.m;
  const DeviceSwiglu& shared = args.shared;
  const int64_t shared_bytes =
      sum_bytes(shared.x.splits, shared.m, 2 * shared.n) + form_bytes(shared.y, shared.m, shared.n);
  Work total =
      work(sum_bytes(args.logits.splits, m, args.num_experts) + m * args.choices * 8 + shared_bytes,
           4 * m * args.num_experts + int64_t{6} * shared.m * shared.n);
  if (args.slots.count != nullptr) total.bytes += work_of(args.slots, read).bytes;
  return total;
}

Work work_of(const DeviceMakeSlotsArgs& args, const ReadInts& /*read*/) {
  const int64_t slots = max_slots(args.num_pairs, args.num_experts, args.rows);
  return work(int64_t{args.num_pairs} * 4 + slots * (1 + args.rows) * 4, 0);
}

Work work_of(const DeviceQuantizeArgs& args, const ReadInts& /*read*/) {
  const int64_t in =
      args.x_bf16 != nullptr ? args.m * args.k * 2 : sum_bytes(args.x_sums.splits, args.m, args.k);
  return work(in + form_bytes(args.y, args.m, args.k), int64_t{2} * args.m * args.k);
}

Work work_of(const DeviceRmsNormArgs& args, const ReadInts& /*read*/) {
  return work(int64_t{args.m} * args.k * 4 + form_bytes(args.y, args.m, args.k),
              int64_t{4} * args.m * args.k);
}

Work work_of(const DeviceJoinMtpArgs& args, const ReadInts& /*read*/) {
  const int64_t numbers = args.m * args.hidden;
  return work(numbers * 4 * (args.embedded.splits + args.hc_mult * (args.projected.splits + 1)),
              numbers * args.hc_mult);
}

Work work_of(const DevicePlanArgs& args, const ReadInts& /*read*/) {
  const int64_t m = args.tokens.m;
  return work(m * (args.window + args.sequences.max_pages + args.max_rows_128) * 4, 0);
}

Work work_of(const DeviceCopyRowsArgs& args, const ReadInts& /*read*/) {
  return work(int64_t{2} * args.count * args.row_bytes, 0);
}

Work work_of(const DeviceSampleArgs& args, const ReadInts& /*read*/) {
  return work(sum_bytes(args.logits.splits, args.m, args.vocab), args.m * args.vocab);
}

}  // namespace nibble::kernels
