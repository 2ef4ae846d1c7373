#include "kernels/ops_cases_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "kernels/ops_testing.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(engine_() >> 8) * 0x1p-24f;
  }
  int32_t below(int32_t limit) {
    return static_cast<int32_t>(engine_() % static_cast<uint32_t>(limit));
  }
  HostTensor<float> tensor(Shape shape, float magnitude = 1) {
    auto tensor = f32_zeros(shape);
    for (float& value : tensor.values) value = uniform(-magnitude, magnitude);
    return tensor;
  }
  std::vector<float> values(int64_t count, float magnitude = 1) {
    return tensor({count}, magnitude).values;
  }

 private:
  std::mt19937 engine_;
};

std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), quant::f32_to_bf16);
  return bits;
}

template <class T>
std::vector<float> to_floats(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

template <class Args>
void launch(const KernelInfo& row, const Args& args, device::Stream& stream) {
  std::get<Launcher<Args>>(row.launch)(args, stream).value();
}

template <class T>
std::span<T> range(std::vector<T>& values, int64_t begin, int64_t end) {
  return std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// Rows of f32, bf16 or, with `encode`, FP8 keys of `row_bytes`, with the bits that follow them.
template <class Encode>
std::vector<std::byte> to_pool(const std::vector<float>& values,
                               int64_t width,
                               DType dtype,
                               int64_t row_bytes,
                               const Encode& encode) {
  const auto copy = [](const auto& elements) {
    const auto bytes = std::as_bytes(std::span(elements));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  if (dtype == DType::kF32) return copy(values);
  if (dtype == DType::kBf16) return copy(to_bf16(values));
  const int64_t rows = static_cast<int64_t>(values.size()) / width;
  std::vector<std::byte> pool(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < rows; ++row) {
    encode(std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width)),
           pool.data() + row * row_bytes);
  }
  return pool;
}

KeyForm key_form_of(DType dtype) {
  return dtype == DType::kF8E4m3 ? KeyForm::kFp8 : KeyForm::kPlain;
}

// Inputs live as long as the case that uses them.
template <class Inputs, class Run>
OpCase make_case(const std::string& name, int64_t items, int64_t k, Inputs inputs, const Run& run) {
  auto shared = std::make_shared<Inputs>(std::move(inputs));
  return {.name = name,
          .num_items = items,
          .k = k,
          .run = [shared, run](
                     const KernelInfo& row, device::Stream& stream, int64_t begin, int64_t end) {
            return run(*shared, row, stream, begin, end);
          }};
}

// --- attention -----------------------------------------------------------------------------------

struct AttentionShape {
  std::string name;
  int64_t tokens = 1;
  int64_t heads = 4;
  int64_t d = 512;
  int32_t window = 128;
  int32_t entries = 0;
  DType dtype = DType::kF32;
  float magnitude = 1;
  float sink = 0.5f;
  int32_t num_rotary = 64;  // of FP8 keys

  quant::Fp8KeyLayout fp8() const {
    return {.num_codes = d - num_rotary, .num_rotary = num_rotary};
  }
};

struct AttentionInputs {
  HostTensor<float> q;
  std::vector<float> sink;
  std::vector<std::byte> pool;
  std::vector<std::vector<int32_t>> rows;  // per token: window rows, then entry rows
  std::vector<KeySet> keys;
};

OpCase attention_case(const AttentionShape& shape, uint32_t seed) {
  constexpr int32_t kPoolRows = 300;
  Random random(seed);
  AttentionInputs inputs{.q = random.tensor({shape.tokens, shape.heads, shape.d}, shape.magnitude),
                         .sink = std::vector<float>(static_cast<size_t>(shape.heads), shape.sink),
                         .pool = {},
                         .rows = {},
                         .keys = {}};
  inputs.pool = to_pool(random.values(kPoolRows * shape.d, shape.magnitude),
                        shape.d,
                        shape.dtype,
                        shape.fp8().row_bytes(),
                        [&](std::span<const float> key, std::byte* row) {
                          quant::encode_fp8_key(key, shape.fp8(), row);
                        });
  const void* pool = inputs.pool.data();
  for (int64_t t = 0; t < shape.tokens; ++t) {
    // Later tokens see one key less, so that the counts differ.
    const auto missing = static_cast<int32_t>(t);
    const int32_t window = std::max(0, shape.window - missing);
    std::vector<int32_t> rows(static_cast<size_t>(window + shape.entries));
    for (int32_t& row : rows) row = random.below(kPoolRows);
    inputs.rows.push_back(std::move(rows));
    const std::span<const int32_t> all = inputs.rows.back();
    inputs.keys.push_back({.window = pool,
                           .window_rows = all.first(static_cast<size_t>(window)),
                           .entries = pool,
                           .entry_rows = all.subspan(static_cast<size_t>(window))});
  }
  return make_case(shape.name,
                   shape.tokens,
                   shape.d + shape.window + shape.entries,
                   std::move(inputs),
                   [shape](AttentionInputs& in,
                           const KernelInfo& row,
                           device::Stream& stream,
                           int64_t begin,
                           int64_t end) {
                     auto out = f32_zeros({end - begin, shape.heads, shape.d});
                     launch(row,
                            SparseAttentionArgs{.q = in.q.view().rows(begin, end - begin),
                                                .keys = range(in.keys, begin, end),
                                                .kv_dtype = shape.dtype,
                                                .num_rotary = shape.num_rotary,
                                                .sink = in.sink.data(),
                                                .scale = 1 / std::sqrt(static_cast<float>(shape.d)),
                                                .out = out.view()},
                            stream);
                     return std::vector<OpOutput>{{.values = out.values}};
                   });
}

std::vector<OpCase> attention_cases() {
  const std::vector<AttentionShape> shapes = {
      {.name = "window_and_entries", .tokens = 3, .window = 128, .entries = 64},
      {.name = "bf16", .tokens = 3, .window = 70, .entries = 21, .dtype = DType::kBf16},
      {.name = "one_key", .window = 1},
      {.name = "no_key", .window = 0},
      {.name = "entries_only", .window = 0, .entries = 17},
      {.name = "head_dim_64", .tokens = 2, .heads = 8, .d = 64, .window = 33, .entries = 5},
      {.name = "odd_heads_width_36", .tokens = 2, .heads = 3, .d = 36, .window = 9, .entries = 9},
      {.name = "width_100", .heads = 1, .d = 100, .window = 16, .dtype = DType::kBf16},
      {.name = "many_heads", .heads = 66, .d = 64, .window = 40, .entries = 3},
      {.name = "sharp_softmax", .tokens = 2, .window = 64, .magnitude = 8},
      {.name = "sink_minus_infinity", .tokens = 2, .window = 20, .sink = -kInfinity},
      {.name = "sink_dominates", .tokens = 2, .window = 20, .sink = 80},
      {.name = "fp8", .tokens = 3, .window = 70, .entries = 21, .dtype = DType::kF8E4m3},
      {.name = "fp8_odd_tail",
       .heads = 3,
       .d = 70,
       .window = 9,
       .entries = 9,
       .dtype = DType::kF8E4m3,
       .num_rotary = 6},
      {.name = "fp8_tiny_values",
       .tokens = 2,
       .window = 33,
       .dtype = DType::kF8E4m3,
       .magnitude = 1e-5f},
      {.name = "fp8_huge_values",
       .tokens = 2,
       .window = 33,
       .dtype = DType::kF8E4m3,
       .magnitude = 1e15f},
  };
  std::vector<OpCase> cases;
  cases.reserve(shapes.size());
  for (const auto& shape : shapes) {
    cases.push_back(attention_case(shape, static_cast<uint32_t>(cases.size())));
    cases.back().keys = key_form_of(shape.dtype);
  }
  return cases;
}

// --- indexer -------------------------------------------------------------------------------------

struct IndexerShape {
  std::string name;
  int64_t tokens = 2;
  int64_t heads = 8;
  int64_t d = 128;
  int32_t count = 100;
  int32_t entries_per_page = 16;
  DType dtype = DType::kF32;
};

struct IndexerInputs {
  HostTensor<float> q;
  HostTensor<float> head_weights;
  std::vector<std::byte> pool;
  std::vector<PageId> pages;
  std::vector<PagedRows> keys;
};

OpCase indexer_case(const IndexerShape& shape, uint32_t seed) {
  Random random(seed);
  const int32_t num_pages = shape.count / shape.entries_per_page + 1;
  IndexerInputs inputs{
      .q = random.tensor({shape.tokens, shape.heads, shape.d}),
      .head_weights = random.tensor({shape.tokens, shape.heads}),
      .pool = to_pool(random.values(int64_t{num_pages} * shape.entries_per_page * shape.d),
                      shape.d,
                      shape.dtype,
                      quant::fp8_index_key_bytes(shape.d),
                      quant::encode_fp8_index_key),
      .pages = {},
      .keys = {}};
  for (int32_t i = num_pages - 1; i >= 0; --i) inputs.pages.push_back(PageId{i});
  const void* pool = inputs.pool.data();
  for (int64_t t = 0; t < shape.tokens; ++t) {
    inputs.keys.push_back(
        {.base = pool,
         .pages = inputs.pages,
         .entries_per_page = shape.entries_per_page,
         .count = std::max(0, shape.count - static_cast<int32_t>(shape.tokens - 1 - t))});
  }
  return make_case(
      shape.name,
      shape.tokens,
      shape.heads * shape.d,
      std::move(inputs),
      [shape](IndexerInputs& in,
              const KernelInfo& row,
              device::Stream& stream,
              int64_t begin,
              int64_t end) {
        auto scores = f32_zeros({end - begin, shape.count});
        launch(row,
               IndexerScoreArgs{.q = in.q.view().rows(begin, end - begin),
                                .head_weights = in.head_weights.view().rows(begin, end - begin),
                                .keys = range(in.keys, begin, end),
                                .key_dtype = shape.dtype,
                                .scores = scores.view()},
               stream);
        return std::vector<OpOutput>{{.values = scores.values}};
      });
}

std::vector<OpCase> indexer_cases() {
  const std::vector<IndexerShape> shapes = {
      {.name = "pages", .tokens = 3, .count = 1100},
      {.name = "bf16", .tokens = 3, .count = 77, .dtype = DType::kBf16},
      {.name = "one_entry", .tokens = 1, .count = 1},
      {.name = "no_entry", .tokens = 1, .count = 0},
      {.name = "index_dim_32", .heads = 4, .d = 32, .count = 40, .entries_per_page = 3},
      {.name = "odd_heads_width_20", .heads = 5, .d = 20, .count = 19, .entries_per_page = 1},
      {.name = "fp8", .tokens = 3, .count = 1100, .dtype = DType::kF8E4m3},
      {.name = "fp8_width_20", .heads = 5, .d = 20, .count = 19, .dtype = DType::kF8E4m3},
  };
  std::vector<OpCase> cases;
  cases.reserve(shapes.size());
  for (const auto& shape : shapes) {
    cases.push_back(indexer_case(shape, static_cast<uint32_t>(cases.size())));
    cases.back().keys = key_form_of(shape.dtype);
  }
  return cases;
}

struct TopKInputs {
  HostTensor<float> scores;
  std::vector<int32_t> counts;
};

// Scores from few distinct values tie often; `kinds` 0 means all different.
OpCase top_k_case(
    const std::string& name, int64_t tokens, int32_t count, int32_t k, int32_t kinds) {
  Random random(static_cast<uint32_t>(count));
  TopKInputs inputs{.scores = random.tensor({tokens, count}, 10), .counts = {}};
  if (kinds > 0) {
    for (float& score : inputs.scores.values) {
      // Both signs of zero occur.
      const float sign = random.below(2) == 0 ? -1.0f : 1.0f;
      const int32_t kind = random.below(kinds) / 2;
      score = sign * static_cast<float>(kind);
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    inputs.counts.push_back(std::max(0, count - static_cast<int32_t>(tokens - 1 - t)));
  }
  return make_case(name,
                   tokens,
                   1,
                   std::move(inputs),
                   [k](TopKInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     auto indices = i32_zeros({end - begin, k});
                     std::vector<int32_t> selected(static_cast<size_t>(end - begin));
                     launch(row,
                            TopKArgs{.scores = in.scores.view().rows(begin, end - begin),
                                     .counts = range(in.counts, begin, end),
                                     .k = k,
                                     .indices = indices.view(),
                                     .num_selected = selected},
                            stream);
                     return std::vector<OpOutput>{
                         {.values = to_floats(indices.values), .is_exact = true},
                         {.values = to_floats(selected), .is_exact = true}};
                   });
}

std::vector<OpCase> top_k_cases() {
  std::vector<OpCase> cases;
  cases.push_back(top_k_case("distinct", 5, 3000, 64, 0));
  cases.push_back(top_k_case("ties", 5, 1001, 64, 9));
  cases.push_back(top_k_case("one_value", 2, 100, 7, 1));
  cases.push_back(top_k_case("k_is_count", 2, 64, 64, 0));
  cases.push_back(top_k_case("k_above_count", 3, 10, 64, 0));
  cases.push_back(top_k_case("k_one", 2, 500, 1, 0));
  cases.push_back(top_k_case("nothing", 1, 0, 4, 0));
  return cases;
}

// --- norm, rope, embedding -----------------------------------------------------------------------

struct NormInputs {
  HostTensor<float> x;
  std::vector<float> gamma;
};

OpCase norm_case(
    const std::string& name, int64_t rows, int64_t k, bool with_gamma, float magnitude = 1) {
  Random random(static_cast<uint32_t>(k));
  NormInputs inputs{.x = random.tensor({rows, k}, magnitude), .gamma = random.values(k)};
  return make_case(name,
                   rows,
                   k,
                   std::move(inputs),
                   [with_gamma](NormInputs& in,
                                const KernelInfo& row,
                                device::Stream& stream,
                                int64_t begin,
                                int64_t end) {
                     auto y = f32_zeros({end - begin, in.x.shape[1]});
                     launch(row,
                            RmsNormArgs{.x = in.x.view().rows(begin, end - begin),
                                        .gamma = with_gamma ? in.gamma.data() : nullptr,
                                        .eps = 1e-6f,
                                        .y = y.view()},
                            stream);
                     return std::vector<OpOutput>{{.values = y.values}};
                   });
}

std::vector<OpCase> norm_cases() {
  std::vector<OpCase> cases;
  cases.push_back(norm_case("hidden", 200, 256, true));
  cases.push_back(norm_case("heads", 12, 512, false));
  cases.push_back(norm_case("width_36", 3, 36, true));
  cases.push_back(norm_case("width_100", 3, 100, true));
  cases.push_back(norm_case("width_1", 2, 1, true));
  cases.push_back(norm_case("large_values", 2, 64, true, 1e15f));
  cases.push_back(norm_case("zeros", 2, 64, true, 0));
  return cases;
}

struct RopeInputs {
  HostTensor<float> x;
  std::vector<int32_t> positions;
  std::vector<float> freqs;
};

OpCase rope_case(
    const std::string& name, Shape shape, int64_t num_freqs, int32_t first, bool inverse) {
  Random random(static_cast<uint32_t>(num_freqs));
  RopeInputs inputs{.x = random.tensor(shape), .positions = {}, .freqs = {}};
  for (int64_t t = 0; t < shape[0]; ++t) {
    inputs.positions.push_back(first + static_cast<int32_t>(t));
  }
  for (int64_t i = 0; i < num_freqs; ++i) {
    inputs.freqs.push_back(static_cast<float>(
        std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(num_freqs))));
  }
  return make_case(
      name,
      shape[0],
      2,
      std::move(inputs),
      [inverse](RopeInputs& in,
                const KernelInfo& row,
                device::Stream& stream,
                int64_t begin,
                int64_t end) {
        const auto [tokens, heads, d] = std::array{end - begin, in.x.shape[1], in.x.shape[2]};
        const auto first_value = in.x.values.begin() + begin * heads * d;
        auto x = f32_tensor({tokens, heads, d},
                            std::vector<float>(first_value, first_value + tokens * heads * d));
        launch(row,
               RopeArgs{.x = x.view(),
                        .positions = range(in.positions, begin, end),
                        .freqs = in.freqs,
                        .inverse = inverse},
               stream);
        return std::vector<OpOutput>{{.values = x.values}};
      });
}

std::vector<OpCase> rope_cases() {
  std::vector<OpCase> cases;
  cases.push_back(rope_case("queries", {60, 4, 512}, 32, 0, false));
  cases.push_back(rope_case("inverse", {3, 4, 64}, 32, 5000, true));
  cases.push_back(rope_case("far_position", {4, 1, 100}, 16, 1'000'000, false));
  cases.push_back(rope_case("odd_frequencies", {2, 3, 36}, 5, 77, false));
  cases.push_back(rope_case("many_frequencies", {2, 2, 200}, 70, 3, true));
  return cases;
}

struct EmbedInputs {
  std::vector<float> f32;
  std::vector<uint16_t> bits;
  std::vector<int32_t> ids;
};

OpCase embed_case(
    const std::string& name, DType dtype, int64_t width, int32_t copies, int64_t tokens) {
  constexpr int64_t kVocab = 50;
  Random random(static_cast<uint32_t>(width));
  EmbedInputs inputs{.f32 = random.values(kVocab * width), .bits = {}, .ids = {}};
  for (const float value : inputs.f32) {
    inputs.bits.push_back(dtype == DType::kBf16 ? quant::f32_to_bf16(value)
                                                : quant::f32_to_f16(value));
  }
  for (int64_t t = 0; t < tokens; ++t) inputs.ids.push_back(random.below(kVocab));
  return make_case(name,
                   tokens,
                   1,
                   std::move(inputs),
                   [=](EmbedInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     const void* data = dtype == DType::kF32
                                            ? static_cast<const void*>(in.f32.data())
                                            : in.bits.data();
                     auto out = f32_zeros({end - begin, copies * width});
                     launch(row,
                            EmbedArgs{.table = TensorView::read_only(data, dtype, {kVocab, width}),
                                      .ids = range(in.ids, begin, end),
                                      .copies = copies,
                                      .out = out.view()},
                            stream);
                     return std::vector<OpOutput>{{.values = out.values, .is_exact = true}};
                   });
}

std::vector<OpCase> embed_cases() {
  std::vector<OpCase> cases;
  cases.push_back(embed_case("f32", DType::kF32, 256, 4, 40));
  cases.push_back(embed_case("bf16", DType::kBf16, 100, 4, 3));
  cases.push_back(embed_case("f16", DType::kF16, 36, 1, 3));
  return cases;
}

// --- hyper-connections ---------------------------------------------------------------------------

struct HyperInputs {
  HostTensor<float> state;
  std::vector<float> fn;
  std::vector<float> base;
  std::vector<float> scale;
  HostTensor<float> y;
  HostTensor<float> post;
  HostTensor<float> comb;
};

HyperInputs hyper_inputs(int64_t tokens, int64_t mult, int64_t d, float magnitude) {
  Random random(static_cast<uint32_t>(tokens * 1000 + d));
  const int64_t rows = (2 + mult) * mult;
  HyperInputs inputs{.state = random.tensor({tokens, mult * d}, 3),
                     .fn = random.values(rows * mult * d, 1 / std::sqrt(static_cast<float>(d))),
                     .base = random.values(rows),
                     .scale = {0.5f * magnitude, 0.25f * magnitude, 1.5f * magnitude},
                     .y = random.tensor({tokens, d}),
                     .post = random.tensor({tokens, mult}),
                     .comb = random.tensor({tokens, int64_t{mult} * mult})};
  return inputs;
}

OpCase hyper_pre_case(
    const std::string& name, int64_t tokens, int32_t mult, int64_t d, float magnitude = 1) {
  return make_case(name,
                   tokens,
                   mult * d,
                   hyper_inputs(tokens, mult, d, magnitude),
                   [=](HyperInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     auto x = f32_zeros({end - begin, d});
                     auto post = f32_zeros({end - begin, mult});
                     auto comb = f32_zeros({end - begin, int64_t{mult} * mult});
                     launch(row,
                            HyperPreArgs{.state = in.state.view().rows(begin, end - begin),
                                         .fn = in.fn.data(),
                                         .base = in.base.data(),
                                         .scale = in.scale.data(),
                                         .hc_mult = mult,
                                         .sinkhorn_iters = 20,
                                         .hc_eps = 1e-6f,
                                         .norm_eps = 1e-6f,
                                         .x = x.view(),
                                         .post = post.view(),
                                         .comb = comb.view()},
                            stream);
                     return std::vector<OpOutput>{
                         {.values = x.values}, {.values = post.values}, {.values = comb.values}};
                   });
}

OpCase hyper_post_case(const std::string& name, int64_t tokens, int32_t mult, int64_t d) {
  return make_case(name,
                   tokens,
                   mult + 1,
                   hyper_inputs(tokens, mult, d, 1),
                   [=](HyperInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     const auto first = in.state.values.begin() + begin * mult * d;
                     auto state =
                         f32_tensor({end - begin, mult * d},
                                    std::vector<float>(first, first + (end - begin) * mult * d));
                     launch(row,
                            HyperPostArgs{.y = in.y.view().rows(begin, end - begin),
                                          .post = in.post.view().rows(begin, end - begin),
                                          .comb = in.comb.view().rows(begin, end - begin),
                                          .hc_mult = mult,
                                          .state = state.view()},
                            stream);
                     return std::vector<OpOutput>{{.values = state.values}};
                   });
}

OpCase hyper_head_case(const std::string& name, int64_t tokens, int32_t mult, int64_t d) {
  return make_case(name,
                   tokens,
                   mult * d,
                   hyper_inputs(tokens, mult, d, 1),
                   [=](HyperInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     auto x = f32_zeros({end - begin, d});
                     launch(row,
                            HyperHeadArgs{.state = in.state.view().rows(begin, end - begin),
                                          .fn = in.fn.data(),
                                          .base = in.base.data(),
                                          .scale = in.scale.data(),
                                          .hc_mult = mult,
                                          .hc_eps = 1e-6f,
                                          .norm_eps = 1e-6f,
                                          .x = x.view()},
                            stream);
                     return std::vector<OpOutput>{{.values = x.values}};
                   });
}

// Calls make(name, tokens, hc_mult, d) for the shapes of all hyper-connection ops.
template <class Make>
std::vector<OpCase> hyper_cases(Make make) {
  std::vector<OpCase> cases;
  cases.push_back(make("tiny", 21, 4, 256));
  cases.push_back(make("one_token", 1, 4, 256));
  cases.push_back(make("one_wide_token", 1, 4, 4096));
  cases.push_back(make("width_36", 3, 4, 36));
  cases.push_back(make("width_100", 2, 4, 25));
  cases.push_back(make("one_stream", 2, 1, 64));
  cases.push_back(make("two_streams", 2, 2, 64));
  cases.push_back(make("three_streams", 9, 3, 50));
  cases.push_back(make("eight_streams", 3, 8, 40));
  return cases;
}

// --- compressor and experts ----------------------------------------------------------------------

struct CompressInputs {
  std::vector<float> values;
  std::vector<float> gates;
  std::vector<const float*> value_rows;
  std::vector<const float*> gate_rows;
};

OpCase compress_case(
    const std::string& name, int64_t entries, int32_t slots, int64_t width, float magnitude = 4) {
  Random random(static_cast<uint32_t>(width));
  CompressInputs inputs{.values = random.values(entries * slots * width),
                        .gates = random.values(entries * slots * width, magnitude),
                        .value_rows = {},
                        .gate_rows = {}};
  for (int64_t row = 0; row < entries * slots; ++row) {
    const bool is_missing = row < slots / 2;  // the overlap of entry 0
    inputs.value_rows.push_back(is_missing ? nullptr : inputs.values.data() + row * width);
    inputs.gate_rows.push_back(is_missing ? nullptr : inputs.gates.data() + row * width);
  }
  return make_case(name,
                   entries,
                   slots,
                   std::move(inputs),
                   [=](CompressInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     auto out = f32_zeros({end - begin, width});
                     launch(row,
                            CompressArgs{.values = range(in.value_rows, begin * slots, end * slots),
                                         .gates = range(in.gate_rows, begin * slots, end * slots),
                                         .num_slots = slots,
                                         .out = out.view()},
                            stream);
                     return std::vector<OpOutput>{{.values = out.values}};
                   });
}

std::vector<OpCase> compress_cases() {
  std::vector<OpCase> cases;
  cases.push_back(compress_case("overlapping", 7, 8, 512));
  cases.push_back(compress_case("heavy", 2, 128, 512));
  cases.push_back(compress_case("width_36", 2, 8, 36));
  cases.push_back(compress_case("width_100", 2, 8, 100));
  cases.push_back(compress_case("sharp_gates", 2, 8, 64, 1e4f));
  return cases;
}

enum class Routing { kScores, kBiasedScores, kHash };

struct ExpertInputs {
  HostTensor<float> logits;
  std::vector<float> bias;
  std::vector<int32_t> table;
  std::vector<int32_t> token_ids;
};

OpCase select_case(const std::string& name, int64_t tokens, int32_t n, int32_t k, Routing routing) {
  constexpr int32_t kVocab = 20;
  Random random(static_cast<uint32_t>(n));
  ExpertInputs inputs{.logits = random.tensor({tokens, n}, 30),
                      .bias = random.values(n),
                      .table = {},
                      .token_ids = {}};
  for (int32_t id = 0; id < kVocab; ++id) {
    for (int32_t j = 0; j < k; ++j) inputs.table.push_back((id + j) % n);
  }
  for (int64_t t = 0; t < tokens; ++t) inputs.token_ids.push_back(random.below(kVocab));
  return make_case(
      name,
      tokens,
      k,
      std::move(inputs),
      [=](ExpertInputs& in,
          const KernelInfo& row,
          device::Stream& stream,
          int64_t begin,
          int64_t end) {
        auto ids = i32_zeros({end - begin, k});
        auto weights = f32_zeros({end - begin, k});
        launch(row,
               SelectExpertsArgs{
                   .logits = in.logits.view().rows(begin, end - begin),
                   .bias = routing == Routing::kBiasedScores ? in.bias.data() : nullptr,
                   .token_to_experts = routing == Routing::kHash ? in.table.data() : nullptr,
                   .token_ids = range(in.token_ids, begin, end),
                   .routed_scaling_factor = 1.5f,
                   .ids = ids.view(),
                   .weights = weights.view()},
               stream);
        return std::vector<OpOutput>{{.values = to_floats(ids.values), .is_exact = true},
                                     {.values = weights.values}};
      });
}

std::vector<OpCase> select_cases() {
  std::vector<OpCase> cases;
  cases.push_back(select_case("biased", 50, 256, 6, Routing::kBiasedScores));
  cases.push_back(select_case("plain", 3, 32, 6, Routing::kScores));
  cases.push_back(select_case("hash", 3, 32, 6, Routing::kHash));
  cases.push_back(select_case("odd_count", 3, 19, 2, Routing::kBiasedScores));
  cases.push_back(select_case("all_experts", 2, 4, 4, Routing::kBiasedScores));
  return cases;
}

struct SwigluInputs {
  HostTensor<float> x;
  std::vector<float> weights;
};

OpCase swiglu_case(
    const std::string& name, int64_t rows, int64_t width, float limit, bool weighted) {
  Random random(static_cast<uint32_t>(width));
  SwigluInputs inputs{.x = random.tensor({rows, 2 * width}, 15), .weights = random.values(rows)};
  return make_case(name,
                   rows,
                   1,
                   std::move(inputs),
                   [=](SwigluInputs& in,
                       const KernelInfo& row,
                       device::Stream& stream,
                       int64_t begin,
                       int64_t end) {
                     auto y = f32_zeros({end - begin, width});
                     launch(
                         row,
                         SwigluArgs{.x = in.x.view().rows(begin, end - begin),
                                    .limit = limit,
                                    .row_weights = weighted ? in.weights.data() + begin : nullptr,
                                    .y = y.view()},
                         stream);
                     return std::vector<OpOutput>{{.values = y.values}};
                   });
}

std::vector<OpCase> swiglu_cases() {
  std::vector<OpCase> cases;
  cases.push_back(swiglu_case("routed", 60, 128, 10, true));
  cases.push_back(swiglu_case("shared", 3, 128, 10, false));
  cases.push_back(swiglu_case("without_limit", 3, 36, 0, true));
  cases.push_back(swiglu_case("width_100", 3, 100, 10, true));
  return cases;
}

struct CombineInputs {
  HostTensor<float> experts;
  HostTensor<float> shared;
};

OpCase combine_case(const std::string& name, int64_t tokens, int32_t k, int64_t width) {
  Random random(static_cast<uint32_t>(width));
  CombineInputs inputs{.experts = random.tensor({tokens * k, width}),
                       .shared = random.tensor({tokens, width})};
  return make_case(
      name,
      tokens,
      k + 1,
      std::move(inputs),
      [=](CombineInputs& in,
          const KernelInfo& row,
          device::Stream& stream,
          int64_t begin,
          int64_t end) {
        auto y = f32_zeros({end - begin, width});
        launch(row,
               CombineExpertsArgs{.experts = in.experts.view().rows(begin * k, (end - begin) * k),
                                  .shared = in.shared.view().rows(begin, end - begin),
                                  .experts_per_token = k,
                                  .y = y.view()},
               stream);
        return std::vector<OpOutput>{{.values = y.values}};
      });
}

std::vector<OpCase> combine_cases() {
  std::vector<OpCase> cases;
  cases.push_back(combine_case("hidden", 40, 6, 256));
  cases.push_back(combine_case("width_36", 3, 2, 36));
  cases.push_back(combine_case("width_100", 1, 6, 100));
  return cases;
}

}  // namespace

std::vector<OpCase> op_cases(Op op) {
  switch (op) {
    case Op::kSparseAttention:
      return attention_cases();
    case Op::kIndexerScore:
      return indexer_cases();
    case Op::kTopK:
      return top_k_cases();
    case Op::kRmsNorm:
      return norm_cases();
    case Op::kRope:
      return rope_cases();
    case Op::kHyperPre: {
      auto cases = hyper_cases([](auto... shape) { return hyper_pre_case(shape...); });
      cases.push_back(hyper_pre_case("large_scales", 2, 4, 64, 30));
      return cases;
    }
    case Op::kHyperPost:
      return hyper_cases([](auto... shape) { return hyper_post_case(shape...); });
    case Op::kHyperHead:
      return hyper_cases([](auto... shape) { return hyper_head_case(shape...); });
    case Op::kCompress:
      return compress_cases();
    case Op::kSelectExperts:
      return select_cases();
    case Op::kSwiglu:
      return swiglu_cases();
    case Op::kCombineExperts:
      return combine_cases();
    case Op::kEmbed:
      return embed_cases();
    default:  // products, and what only GPUs have
      return {};
  }
}

namespace {

double largest_magnitude(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

void expect_close(const OpOutput& got, const OpOutput& expected, int64_t k) {
  ASSERT_EQ(got.values.size(), expected.values.size());
  if (expected.is_exact) {
    EXPECT_EQ(got.values, expected.values);
    return;
  }
  const double tolerance = op_tolerance(k) * largest_magnitude(expected.values);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_NEAR(got.values[i], expected.values[i], tolerance) << "element " << i;
  }
}

}  // namespace

void compare_op(const KernelInfo& kernel, const KernelInfo& reference) {
  device::Stream stream;
  for (const OpCase& op_case : op_cases(kernel.op)) {
    if (op_case.keys != kernel.keys) continue;
    SCOPED_TRACE(std::string(kernel.name) + " " + op_case.name);
    const auto expected = op_case.run(reference, stream, 0, op_case.num_items);
    const auto got = op_case.run(kernel, stream, 0, op_case.num_items);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], expected[i], op_case.k);
  }
}

double op_tolerance(int64_t k) {
  return 8 * std::numeric_limits<float>::epsilon() * (1 + std::sqrt(static_cast<double>(k)));
}

}  // namespace nibble::kernels
