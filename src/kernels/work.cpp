#include "kernels/work.h"

#include <algorithm>
#include <set>

#include "quant/fp8_key.h"

namespace nibble::kernels {
namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

Work work(int64_t bytes, int64_t flops) { return {as_double(bytes), as_double(flops)}; }

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

// `keys`: key rows of all tokens together, none shared. `q_bytes`: of one number of q or out.
Work attention(
    int64_t m, int64_t heads, int64_t width, int64_t q_bytes, int64_t keys, int64_t row_bytes) {
  return work(2 * m * heads * width * q_bytes + keys * row_bytes, 4 * keys * heads * width);
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

}  // namespace

Work work_of(const MatMulArgs& args, const ReadInts& /*read*/) {
  const PackedWeight& weight = *args.weight;
  return work(args.x.num_bytes() + weight_bytes(weight) + args.y.num_bytes(),
              2 * args.x.num_rows() * weight.n * weight.k);
}

Work work_of(const GroupedMatMulArgs& args, const ReadInts& /*read*/) {
  if (args.weights.empty()) return {};
  int64_t used = 0;
  for (size_t g = 0; g < args.weights.size(); ++g) {
    if (args.group_offsets[g + 1] > args.group_offsets[g]) used += weight_bytes(args.weights[g]);
  }
  const PackedWeight& first = args.weights.front();
  const int64_t pairs = args.group_offsets.back() - args.group_offsets.front();
  return work(used + pairs * (first.k + first.n) * 4, 2 * pairs * first.n * first.k);
}

Work work_of(const DeviceMatMulArgs& args, const ReadInts& /*read*/) {
  const PackedWeight& weight = *args.weight;
  const int64_t in = args.groups * weight.k / 128 * fp8_block_bytes(args.m);
  const int64_t out = args.y_fp8 != nullptr ? weight.n / 128 * fp8_block_bytes(args.m)
                                            : args.splits * args.m * weight.n * 4;
  return work(in + weight_bytes(weight) + out, 2 * args.m * weight.n * weight.k);
}

Work work_of(const DeviceGroupedMatMulArgs& args, const ReadInts& read) {
  const PackedWeight& weight = *args.weight;
  const Routed routed = routed_of(args.slots, read);
  const int64_t in = weight.k * (args.x.bf16 != nullptr ? 2 : 1);
  const int64_t out = args.swiglu ? weight.n : weight.n * 4;  // n / 2 of bf16, or n of f32
  return work(routed.experts * weight_bytes(weight) + routed.pairs * (in + out),
              2 * routed.pairs * weight.n * weight.k);
}

Work work_of(const SparseAttentionArgs& args, const ReadInts& /*read*/) {
  int64_t keys = 0;
  for (const KeySet& set : args.keys) {
    keys += static_cast<int64_t>(set.window_rows.size() + set.entry_rows.size());
  }
  const int64_t heads = args.q.shape[1], width = args.q.shape[2];
  return attention(
      args.q.num_rows(), heads, width, 4, keys, key_bytes(args.kv_dtype, width, args.num_rotary));
}

Work work_of(const DeviceSparseAttentionArgs& args, const ReadInts& read) {
  const int64_t keys = sum_of(args.window.counts, args.m, args.window.max_rows, read) +
                       sum_of(args.entries.counts, args.m, args.entries.max_rows, read);
  return attention(args.m,
                   args.heads,
                   args.head_dim,
                   2,
                   keys,
                   key_bytes(args.kv_dtype, args.head_dim, args.num_rotary));
}

// Tokens of one sequence see the same entries: what they share is counted once where that is known.
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

Work work_of(const DeviceIndexerScoreArgs& args, const ReadInts& read) {
  constexpr int64_t kWidth = 128;
  const int64_t scores = sum_of(args.keys.counts, args.m, args.columns, read);
  return work(args.m * args.heads * (kWidth * 2 + 4) + scores * (kWidth * 2 + 4),
              2 * scores * args.heads * kWidth);
}

Work work_of(const TopKArgs& args, const ReadInts& /*read*/) {
  int64_t scores = 0;
  for (const int32_t count : args.counts) scores += count;
  return work(scores * 4 + args.indices.num_bytes(), scores);
}

Work work_of(const DeviceTopKArgs& args, const ReadInts& read) {
  const int64_t scores = sum_of(args.counts, args.m, args.columns, read);
  return work(scores * 4 + int64_t{args.m} * args.k * 4, scores);
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

}  // namespace nibble::kernels
