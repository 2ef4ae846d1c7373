// Products, attention and selection over the arguments of GPU kernels, for the emulated GPU: each
// weight row is decoded to f32, sums are in double and rounded once. The oracle of tests/cuda.
#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "device/emulated_gpu.h"
#include "kernels/reference/device_ops_launchers.h"
#include "kernels/reference/device_rows.h"
#include "kernels/reference/dot.h"
#include "kernels/reference/forms.h"
#include "kernels/reference/ops_launchers.h"
#include "kernels/registry.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using reference::read_form;
using reference::write_forms;

// Tokens up to which some emulated dense products have a kernel of their own, that reads blocks or
// terms and splits k: as the fast ones of real GPUs do.
constexpr int64_t kMaxDecodeTokens = 16;

float dot(std::span<const float> w, std::span<const float> x) {
  return static_cast<float>(reference::dot(w.data(), x.data(), static_cast<int64_t>(w.size())));
}

// The inputs that one group multiplies, row by row.
std::vector<float> read_columns(const ActivationForms& x,
                                ActivationForm form,
                                int64_t m,
                                int64_t k,
                                int64_t column,
                                int64_t n) {
  std::vector<float> values(static_cast<size_t>(m * n));
  for (int64_t t = 0; t < m; ++t) {
    read_form(x,
              form,
              m,
              k,
              t,
              column,
              std::span(values).subspan(static_cast<size_t>(t * n), static_cast<size_t>(n)));
  }
  return values;
}

// y[s, t, row] for all rows of one group.
void multiply_group(const DeviceMatMulArgs& args,
                    int64_t group,
                    ActivationForm form,
                    device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  const int64_t rows = weight.n / args.groups;
  const auto k = static_cast<size_t>(weight.k);
  const auto part = k / static_cast<size_t>(args.splits);
  const std::vector<float> x =
      read_columns(args.x, form, args.m, args.groups * weight.k, group * weight.k, weight.k);
  stream.pool->parallel_for(rows, [&](int64_t i) {
    const int64_t row = group * rows + i;
    std::vector<float> w(k);
    unpack_row(weight, row, w);
    for (int64_t s = 0; s < args.splits; ++s) {
      const size_t begin = static_cast<size_t>(s) * part;
      for (int64_t t = 0; t < args.m; ++t) {
        args.y[(s * args.m + t) * weight.n + row] =
            dot(std::span(w).subspan(begin, part),
                std::span(x).subspan(static_cast<size_t>(t) * k + begin, part));
      }
    }
  });
}

template <ActivationForm kForm>
Result<void> matmul(const DeviceMatMulArgs& args, device::Stream& stream) {
  const PackedWeight& weight = *args.weight;
  DCHECK(weight.layout == PackedLayout::kRowMajor);
  DeviceMatMulArgs sums = args;
  std::vector<float> scratch;
  if (args.y_fp8 != nullptr) {
    scratch.resize(static_cast<size_t>(args.m * weight.n));
    sums.y = scratch.data();
  }
  for (int64_t group = 0; group < args.groups; ++group) multiply_group(sums, group, kForm, stream);
  if (args.y_fp8 == nullptr) return {};
  const auto n = static_cast<size_t>(weight.n);
  for (int64_t t = 0; t < args.m; ++t) {
    write_forms({.fp8_blocks = args.y_fp8},
                args.m,
                t,
                std::span(scratch).subspan(static_cast<size_t>(t) * n, n));
  }
  return {};
}

// A product of a pair: FP8 weights or BF16 ones.
Result<void> matmul_part(const DeviceMatMulArgs& args, device::Stream& stream) {
  return args.weight->format == Format::kBf16 ? matmul<ActivationForm::kBf16Terms>(args, stream)
                                              : matmul<ActivationForm::kFp8Blocks>(args, stream);
}

Result<void> matmul_pair(const DeviceMatMulPairArgs& args, device::Stream& stream) {
  TRY(matmul_part(args.first, stream));
  return matmul_part(args.second, stream);
}

// The weight of one expert among packages that follow each other.
PackedWeight expert_of(const PackedWeight& all, int32_t expert) {
  PackedWeight one;
  one.format = all.format;
  one.layout = all.layout;
  one.n = all.n;
  one.k = all.k;
  const int64_t codes = all.n * all.k * quant::format_info(all.format).bits_per_weight / 8;
  one.codes = all.codes + expert * codes;
  if (all.scales != nullptr) {
    const int64_t groups = ceil_div(all.k, group_size(all.format, all.k));
    one.scales = all.scales + expert * all.n * groups * 4;
  }
  one.scale_dtype = all.scale_dtype;
  return one;
}

float activate(float gate, float up, float limit) {
  if (limit > 0) {
    gate = std::min(gate, limit);
    up = std::clamp(up, -limit, limit);
  }
  return static_cast<float>(static_cast<double>(gate) / (1 + std::exp(-double{gate})) * up);
}

// One pair through one expert.   out: [n]
void multiply_pair(const DeviceGroupedMatMulArgs& args,
                   const std::vector<float>& weight,
                   int32_t pair,
                   std::span<const float> x) {
  const int64_t n = args.weight->n;
  std::vector<float> y(static_cast<size_t>(n));
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = dot(std::span(weight).subspan(i * x.size(), x.size()), x);
  }
  if (!args.swiglu) {
    std::copy(y.begin(), y.end(), static_cast<float*>(args.y) + pair * n);
    return;
  }
  const int64_t half = n / 2;
  auto* const out = static_cast<uint16_t*>(args.y) + pair * half;
  const float factor = args.pair_weights == nullptr ? 1.0f : args.pair_weights[pair];
  for (int64_t i = 0; i < half; ++i) {
    const float value =
        activate(y[static_cast<size_t>(i)], y[static_cast<size_t>(half + i)], args.limit);
    out[i] = quant::f32_to_bf16(value * factor);
  }
}

// Row `r` of bf16 rows in the form that a product reads.
std::vector<float> form_of_bf16(const void* rows, ActivationForm form, size_t k, int64_t r) {
  const auto* const from = static_cast<const uint16_t*>(rows) + static_cast<size_t>(r) * k;
  std::vector<float> row(k);
  std::transform(from, from + k, row.begin(), quant::bf16_to_f32);
  if (form != ActivationForm::kFp8Rows) return row;
  std::vector<std::byte> codes(k);
  std::vector<float> scales(k / 128);
  const ActivationForms fp8{.fp8 = codes.data(), .fp8_scales = scales.data()};
  write_forms(fp8, 1, 0, row);
  read_form(fp8, form, 1, static_cast<int64_t>(k), 0, 0, row);
  return row;
}

// DeviceGroupedMatMulArgs::down after the first product; slots are pairs.
void multiply_down(const DeviceGroupedMatMulArgs& args,
                   ActivationForm form,
                   device::Stream& stream) {
  DeviceGroupedMatMulArgs down = args;
  down.weight = args.down.weight;
  down.swiglu = false;
  down.y = args.down.y;
  stream.pool->parallel_for(args.slots.max_slots, [&](int64_t slot) {
    const int32_t expert = args.slots.experts[slot];
    if (expert < 0) return;
    std::vector<float> weight(static_cast<size_t>(down.weight->n * down.weight->k));
    unpack_weight(expert_of(*down.weight, expert), weight);
    const auto pair = static_cast<int32_t>(slot);
    const auto k = static_cast<size_t>(down.weight->k);
    multiply_pair(down, weight, pair, form_of_bf16(args.y, form, k, pair));
  });
}

template <ActivationForm kForm>
Result<void> grouped_matmul(const DeviceGroupedMatMulArgs& args, device::Stream& stream) {
  const int64_t k = args.weight->k;
  const bool is_one = args.slots.rows == 1;
  DCHECK(args.choice.slots.count == nullptr && !args.choice.reuse_ids);
  if (args.choice.tokens.m != 0) TRY(reference::device_select_experts(args.choice, stream));
  stream.pool->parallel_for(is_one ? args.slots.max_slots : *args.slots.count, [&](int64_t slot) {
    const int32_t expert = args.slots.experts[slot];
    if (expert < 0) return;
    std::vector<float> weight(static_cast<size_t>(args.weight->n * k));
    unpack_weight(expert_of(*args.weight, expert), weight);
    for (int64_t i = 0; i < args.slots.rows; ++i) {
      const int32_t pair =
          is_one ? static_cast<int32_t>(slot) : args.slots.pairs[slot * args.slots.rows + i];
      if (pair < 0) continue;
      std::vector<float> x(static_cast<size_t>(k));
      const int32_t row = pair / args.pairs_per_row;
      if (kForm == ActivationForm::kFp8Rows && args.x.fp8 == nullptr) {
        x = form_of_bf16(args.x.bf16, kForm, x.size(), row);
      } else {
        // Rows of FP8 and BF16 forms do not depend on how many there are.
        read_form(args.x, kForm, 0, k, row, 0, x);
      }
      multiply_pair(args, weight, pair, x);
    }
  });
  if (args.down.weight != nullptr) multiply_down(args, kForm, stream);
  if (args.beside.weight == nullptr) return {};
  return matmul<ActivationForm::kFp8Blocks>(args.beside, stream);
}

// The rows that a token sees, without the places that hold none.
std::vector<int32_t> visible_rows(const DeviceKeyRows& keys, int64_t t) {
  std::vector<int32_t> rows;
  if (keys.counts == nullptr) return rows;
  for (int32_t i = 0; i < keys.counts[t]; ++i) {
    const int32_t row = keys.rows[t * keys.max_rows + i];
    if (row >= 0) rows.push_back(row);
  }
  return rows;
}

std::vector<float> widened(const void* bf16, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const auto* const from = static_cast<const uint16_t*>(bf16) + first;
  std::transform(from, from + count, values.begin(), quant::bf16_to_f32);
  return values;
}
void round_to_bf16(std::span<float> values) {
  for (float& value : values) value = quant::bf16_to_f32(quant::f32_to_bf16(value));
}

// A token's queries, which are bf16 either way: [H * d].
std::vector<float> queries_of(const DeviceSparseAttentionArgs& args, int64_t t) {
  const int64_t width = args.heads * int64_t{args.head_dim};
  if (args.q != nullptr) return widened(args.q, t * width, width);
  std::vector<float> q = reference::sum_row(args.q_sums, args.m, width, t);
  const auto head_dim = static_cast<size_t>(args.head_dim);
  for (size_t first = 0; first < q.size(); first += head_dim) {
    const std::span<float> head = std::span(q).subspan(first, head_dim);
    reference::normalise(head, nullptr, args.eps);
    reference::rotate(head, args.rotation, args.positions[t], false);
  }
  round_to_bf16(q);
  return q;
}

Result<void> sparse_attention(const DeviceSparseAttentionArgs& args, device::Stream& stream) {
  const int64_t width = args.heads * int64_t{args.head_dim};
  stream.pool->parallel_for(args.m, [&](int64_t t) {
    std::vector<float> q = queries_of(args, t), out(static_cast<size_t>(width));
    const std::vector<int32_t> window = visible_rows(args.window, t);
    const std::vector<int32_t> entries = visible_rows(args.entries, t);
    const KeySet keys{.window = args.window.pool,
                      .window_rows = window,
                      .entries = args.entries.pool,
                      .entry_rows = entries};
    const Shape shape{1, args.heads, args.head_dim};
    device::Stream serial;
    const Result<void> done =
        reference::sparse_attention({.q = TensorView::contiguous(q.data(), DType::kF32, shape),
                                     .keys = std::span(&keys, 1),
                                     .kv_dtype = args.kv_dtype,
                                     .num_rotary = args.num_rotary,
                                     .sink = args.sink,
                                     .scale = args.scale,
                                     .out = TensorView::contiguous(out.data(), DType::kF32, shape)},
                                    serial);
    CHECK(done.ok());
    round_to_bf16(out);  // as it is where another launch turns it back
    for (size_t first = 0; args.rotation.num_rotary > 0 && first < out.size();
         first += static_cast<size_t>(args.head_dim)) {
      reference::rotate(std::span(out).subspan(first, static_cast<size_t>(args.head_dim)),
                        args.rotation,
                        args.positions[t],
                        true);
    }
    write_forms(args.out, args.m, t, out);
  });
  return {};
}

// The same of the indexer, [Hi * width], and the weights of its heads, [Hi].
std::vector<float> index_queries_of(const DeviceIndexerScoreArgs& args, int64_t t) {
  const int64_t width = args.heads * int64_t{args.width};
  if (args.q != nullptr) return widened(args.q, t * width, width);
  std::vector<float> q = reference::sum_row(args.q_sums, args.m, width, t);
  const auto head_width = static_cast<size_t>(args.width);
  for (size_t first = 0; first < q.size(); first += head_width) {
    reference::rotate(
        std::span(q).subspan(first, head_width), args.rotation, args.positions[t], false);
  }
  round_to_bf16(q);
  return q;
}
std::vector<float> index_weights_of(const DeviceIndexerScoreArgs& args, int64_t t) {
  if (args.q != nullptr) {
    const float* const weights = args.head_weights + t * args.heads;
    return {weights, weights + args.heads};
  }
  const DeviceHeadWeights& from = args.weights;
  const std::vector<float> row = reference::sum_row(from.projections, args.m, from.row_width, t);
  std::vector<float> weights(row.begin() + from.column, row.begin() + from.column + args.heads);
  for (float& weight : weights) weight *= from.scale;
  return weights;
}

Result<void> score_entries(const DeviceIndexerScoreArgs& args, device::Stream& stream) {
  stream.pool->parallel_for(args.m, [&](int64_t t) {
    const int32_t count = args.keys.counts[t];
    if (count <= args.unscored_count) return;
    std::vector<float> q = index_queries_of(args, t);
    const std::vector<float> weights = index_weights_of(args, t);
    std::vector<PageId> pages;
    for (int32_t c = 0; c < count; c += args.keys.entries_per_page) {
      pages.push_back(
          PageId{args.keys.pages[t * args.keys.max_pages + c / args.keys.entries_per_page]});
    }
    const PagedRows keys{.base = args.keys.pool,
                         .pages = pages,
                         .entries_per_page = args.keys.entries_per_page,
                         .count = count};
    device::Stream serial;
    const Result<void> done = reference::indexer_score(
        {.q = TensorView::contiguous(q.data(), DType::kF32, {1, args.heads, args.width}),
         .head_weights = TensorView::contiguous(
             const_cast<float*>(weights.data()), DType::kF32, {1, args.heads}),
         .keys = std::span(&keys, 1),
         .key_dtype = args.key_dtype,
         .scores = TensorView::contiguous(
             args.scores + t * args.columns, DType::kF32, {1, args.columns})},
        serial);
    CHECK(done.ok());
  });
  return {};
}

int32_t pool_row(const DeviceTopKArgs& args, int64_t t, int32_t entry) {
  if (args.pages == nullptr) return entry;
  const int32_t page = args.pages[t * args.max_pages + entry / args.entries_per_page];
  return page * args.entries_per_page + entry % args.entries_per_page;
}

Result<void> top_k(const DeviceTopKArgs& args, device::Stream& stream) {
  stream.pool->parallel_for(args.m, [&](int64_t t) {
    const int32_t count = args.counts[t];
    if (args.skips_short_rows && count <= args.k) return;
    std::vector<int32_t> chosen(static_cast<size_t>(args.k), -1);
    int32_t num_selected = std::min(count, args.k);
    if (count <= args.k) {  // all of them, whatever their scores
      for (int32_t i = 0; i < count; ++i) chosen[static_cast<size_t>(i)] = i;
    } else {
      device::Stream serial;
      const Result<void> done = reference::top_k(
          {.scores = TensorView::contiguous(
               const_cast<float*>(args.scores + t * args.columns), DType::kF32, {1, args.columns}),
           .counts = std::span(&count, 1),
           .k = args.k,
           .indices = TensorView::contiguous(chosen.data(), DType::kI32, {1, args.k}),
           .num_selected = std::span(&num_selected, 1)},
          serial);
      CHECK(done.ok());
    }
    for (int32_t i = 0; i < args.k; ++i) {
      const int32_t entry = chosen[static_cast<size_t>(i)];
      args.indices[t * args.k + i] = entry < 0 ? -1 : pool_row(args, t, entry);
    }
    if (args.num_selected != nullptr) args.num_selected[t] = num_selected;
  });
  return {};
}

Result<void> indexer_score(const DeviceIndexerScoreArgs& args, device::Stream& stream) {
  if (const DeviceHeadQueries& own = args.beside; own.sums.data != nullptr) {
    TRY(reference::device_queries({.q_sums = own.sums,
                                   .tokens = {.positions = args.positions, .m = args.m},
                                   .heads = own.heads,
                                   .head_dim = own.head_dim,
                                   .eps = own.eps,
                                   .rotation = args.rotation,
                                   .q = own.q},
                                  stream));
  }
  TRY(score_entries(args, stream));
  if (args.selection.k == 0) return {};
  return top_k({.scores = args.scores,
                .counts = args.keys.counts,
                .columns = args.columns,
                .m = args.m,
                .k = args.selection.k,
                .pages = args.keys.pages,
                .max_pages = args.keys.max_pages,
                .entries_per_page = args.keys.entries_per_page,
                .indices = args.selection.indices,
                .skips_short_rows = true},
               stream);
}

KernelInfo emulated(std::string_view name, Op op, Launch launch) {
  KernelInfo info;
  info.name = name;
  info.op = op;
  info.target = {.kind = device::DeviceKind::kCuda,
                 .sm_min = device::kEmulatedSm,
                 .sm_max = device::kEmulatedSm};
  info.verified = kCpuVerified;
  info.launch = launch;
  return info;
}

// Rows of every format, with names that live as long as the table.
class ProductTable final {
 public:
  ProductTable() {
    for (int32_t f = 0; f < quant::kNumFormats; ++f) add_products(static_cast<Format>(f));
    constexpr std::string_view kFp8 = "matmul.fp8_block128x128.fp8.emulated.scalar.decode";
    constexpr std::string_view kBf16 = "matmul.bf16.f32.emulated.scalar.decode";
    KernelInfo pair = emulated("matmul_pair.emulated.scalar", Op::kMatMulPair, &matmul_pair);
    pair.limits = {.m_max = kMaxDecodeTokens};
    pair.pair = {kFp8, kBf16};
    rows_.push_back(pair);
  }
  std::span<const KernelInfo> rows() const { return rows_; }

 private:
  void add_products(Format format) {
    // Where checkpoints quantise activations to E4M3 (specification 7.1).
    if (format == Format::kMxfp4 || format == Format::kFp8E4m3Block128x128) {
      KernelInfo& decode = add(Op::kMatMul,
                               format,
                               Activation::kFp8,
                               ActivationForm::kFp8Blocks,
                               ".decode",
                               &matmul<ActivationForm::kFp8Blocks>);
      decode.limits = {.m_max = kMaxDecodeTokens, .k_multiple = 128};
      decode.k_splits = {.rows = 64, .k = 256};
      decode.gives_fp8 = true;
      add(Op::kMatMul,
          format,
          Activation::kFp8,
          ActivationForm::kFp8Rows,
          "",
          &matmul<ActivationForm::kFp8Rows>)
          .limits = {.k_multiple = 128};
      add(Op::kGroupedMatMul,
          format,
          Activation::kFp8,
          ActivationForm::kFp8Rows,
          "",
          &grouped_matmul<ActivationForm::kFp8Rows>)
          .limits = {.k_multiple = 128};
    }
    add(Op::kMatMul,
        format,
        Activation::kBf16,
        ActivationForm::kBf16,
        "",
        &matmul<ActivationForm::kBf16>);
    if (format == Format::kBf16) {
      KernelInfo& decode = add(Op::kMatMul,
                               format,
                               Activation::kF32,
                               ActivationForm::kBf16Terms,
                               ".decode",
                               &matmul<ActivationForm::kBf16Terms>);
      decode.limits = {.m_max = kMaxDecodeTokens, .k_multiple = 128};
      decode.k_splits = {.rows = 64, .k = 128};
    }
    add(Op::kMatMul,
        format,
        Activation::kF32,
        ActivationForm::kF32,
        "",
        &matmul<ActivationForm::kF32>);
    add(Op::kGroupedMatMul,
        format,
        Activation::kBf16,
        ActivationForm::kBf16,
        "",
        &grouped_matmul<ActivationForm::kBf16>);
  }

  KernelInfo& add(Op op,
                  Format format,
                  Activation activation,
                  ActivationForm form,
                  std::string_view variant,
                  Launch launch) {
    std::string& name = names_.emplace_back(op_name(op));
    for (const std::string_view part : {quant::format_name(format), activation_name(activation)}) {
      name += ".";
      name += part;
    }
    name += ".emulated.scalar";
    name += variant;
    KernelInfo& info = rows_.emplace_back(emulated(name, op, launch));
    info.has_weight = true;
    info.weight = format;
    info.activation = activation;
    info.layout = PackedLayout::kRowMajor;
    info.x_form = form;
    if (op == Op::kGroupedMatMul) {
      info.slot_rows = {1, 8, 32};
      info.joins_down = true;
      info.quantizes = format == Format::kMxfp4;
      info.beside = "matmul.fp8_block128x128.fp8.emulated.scalar.decode";
    }
    return info;
  }

  std::deque<std::string> names_;
  std::vector<KernelInfo> rows_;
};

std::vector<KernelInfo> make_attention_rows() {
  constexpr int64_t kMaxSumRows = 2, kMaxScoreSumRows = 16;  // so that steps come in all ways
  constexpr SelectLimits kSelects{.rows = 2, .columns = 16384};
  std::vector<KernelInfo> rows;
  for (const KeyForm keys : {KeyForm::kPlain, KeyForm::kFp8}) {
    const bool is_fp8 = keys == KeyForm::kFp8;
    rows.push_back(emulated(
        is_fp8 ? "sparse_attention.fp8_keys.emulated.scalar" : "sparse_attention.emulated.scalar",
        Op::kSparseAttention,
        &sparse_attention));
    rows.back().keys = keys;
    rows.back().gives_forms = true;
    rows.back().max_sum_rows = kMaxSumRows;
    rows.push_back(emulated(
        is_fp8 ? "indexer_score.fp8_keys.emulated.scalar" : "indexer_score.emulated.scalar",
        Op::kIndexerScore,
        &indexer_score));
    rows.back().keys = keys;
    rows.back().max_sum_rows = kMaxScoreSumRows;
    rows.back().selects = kSelects;
  }
  rows.push_back(emulated("top_k.emulated.scalar", Op::kTopK, &top_k));
  return rows;
}

}  // namespace

std::span<const KernelInfo> reference_device_matmul_kernels() {
  static const ProductTable table;
  return table.rows();
}

std::span<const KernelInfo> reference_device_attention_kernels() {
  static const std::vector<KernelInfo> rows = make_attention_rows();
  return rows;
}

}  // namespace nibble::kernels
