// Speed of the ops without weights at the shapes of tiny-v4 and of DeepSeek-V4-Flash, for every row
// that this machine can run. Names: op/row/shape/tokens/threads. Counters: macs (multiply-adds per
// second) and bytes_per_second of what the op must read from its inputs once.
//
//   build/release/bin/ops_bench --benchmark_filter='sparse_attention.*avx512'
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/kernel.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

struct ModelShape {
  std::string name;
  int64_t hidden_size = 0;
  int64_t heads = 0;
  int64_t index_heads = 0;
  int32_t index_topk = 0;
  int32_t entries = 0;  // compressed entries in the context
  int64_t experts = 0;
  int64_t moe_intermediate_size = 0;
};
const ModelShape kShapes[] = {
    {"tiny", 256, 4, 8, 64, 1024, 32, 128},
    {"flash", 4096, 64, 64, 512, 8192, 256, 2048},
};
constexpr int64_t kHeadDim = 512;
constexpr int64_t kIndexHeadDim = 128;
constexpr int64_t kRopeFreqs = 32;
constexpr int32_t kWindow = 128;
constexpr int32_t kMult = 4;
constexpr int32_t kExpertsPerToken = 6;

std::vector<float> random_values(int64_t count) {
  std::mt19937 engine(static_cast<uint32_t>(count));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(engine() >> 8) * 0x1p-23f - 1.0f;
  return values;
}

TensorView view(std::vector<float>& values, Shape shape) {
  return TensorView::contiguous(values.data(), DType::kF32, shape);
}

// One launch: what it runs, and its work for the counters.
struct Work {
  std::function<void(const KernelInfo&, device::Stream&)> launch;
  double macs = 0;
  double bytes = 0;
};

template <class Args>
void launch(const KernelInfo& row, const Args& args, device::Stream& stream) {
  std::get<Launcher<Args>>(row.launch)(args, stream).value();
}

// A pool of `rows` random keys.
struct KeyPool {
  std::vector<std::byte> data;
  int64_t row_bytes = 0;
};

// encode(key, row) writes an FP8 row.
template <class Encode>
KeyPool random_keys(
    int64_t rows, int64_t width, DType dtype, int64_t fp8_bytes, const Encode& encode) {
  KeyPool pool{.row_bytes = dtype == DType::kF8E4m3 ? fp8_bytes : width * dtype_size(dtype)};
  pool.data.resize(static_cast<size_t>(rows * pool.row_bytes));
  const std::vector<float> values = random_values(rows * width);
  for (int64_t i = 0; i < rows; ++i) {
    const auto key =
        std::span(values).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width));
    std::byte* const row = pool.data.data() + i * pool.row_bytes;
    if (dtype == DType::kF32) std::memcpy(row, key.data(), key.size_bytes());
    if (dtype == DType::kF8E4m3) encode(key, row);
    if (dtype != DType::kBf16) continue;
    auto* const bits = reinterpret_cast<uint16_t*>(row);
    for (size_t k = 0; k < key.size(); ++k) bits[k] = quant::f32_to_bf16(key[k]);
  }
  return pool;
}

Work attention(const ModelShape& shape, int64_t m, DType dtype) {
  constexpr quant::Fp8KeyLayout kLayout{.num_codes = kHeadDim - 2 * kRopeFreqs,
                                        .num_rotary = 2 * kRopeFreqs};
  struct Data {
    std::vector<float> q, sink, out;
    KeyPool pool;
    std::vector<int32_t> window, entries;
    std::vector<KeySet> keys;
  };
  auto data = std::make_shared<Data>();
  data->q = random_values(m * shape.heads * kHeadDim);
  data->out = data->q;
  data->sink = random_values(shape.heads);
  const int32_t rows = kWindow + shape.entries;
  data->pool = random_keys(
      rows, kHeadDim, dtype, kLayout.row_bytes(), [=](std::span<const float> key, std::byte* row) {
        quant::encode_fp8_key(key, kLayout, row);
      });
  for (int32_t i = 0; i < kWindow; ++i) data->window.push_back(i);
  for (int32_t i = 0; i < shape.index_topk; ++i) {
    data->entries.push_back(kWindow + i * (shape.entries / shape.index_topk));
  }
  const void* pool = data->pool.data.data();
  data->keys.assign(static_cast<size_t>(m),
                    KeySet{.window = pool,
                           .window_rows = data->window,
                           .entries = pool,
                           .entry_rows = data->entries});
  const auto keys = static_cast<double>(m * (kWindow + shape.index_topk));
  const SparseAttentionArgs args{.q = view(data->q, {m, shape.heads, kHeadDim}),
                                 .keys = data->keys,
                                 .kv_dtype = dtype,
                                 .num_rotary = kLayout.num_rotary,
                                 .sink = data->sink.data(),
                                 .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)),
                                 .out = view(data->out, {m, shape.heads, kHeadDim})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .macs = 2 * keys * static_cast<double>(shape.heads * kHeadDim),
          .bytes = keys * static_cast<double>(data->pool.row_bytes)};
}

Work indexer(const ModelShape& shape, int64_t m, DType dtype) {
  struct Data {
    std::vector<float> q, weights, scores;
    KeyPool pool;
    std::vector<PageId> pages;
    std::vector<PagedRows> keys;
  };
  constexpr int32_t kEntriesPerPage = 64;
  auto data = std::make_shared<Data>();
  data->q = random_values(m * shape.index_heads * kIndexHeadDim);
  data->weights = random_values(m * shape.index_heads);
  data->pool = random_keys(shape.entries,
                           kIndexHeadDim,
                           dtype,
                           quant::fp8_index_key_bytes(kIndexHeadDim),
                           quant::encode_fp8_index_key);
  data->scores.resize(static_cast<size_t>(m * shape.entries));
  for (int32_t i = 0; i < shape.entries / kEntriesPerPage; ++i) data->pages.push_back(PageId{i});
  data->keys.assign(static_cast<size_t>(m),
                    PagedRows{.base = data->pool.data.data(),
                              .pages = data->pages,
                              .entries_per_page = kEntriesPerPage,
                              .count = shape.entries});
  const IndexerScoreArgs args{.q = view(data->q, {m, shape.index_heads, kIndexHeadDim}),
                              .head_weights = view(data->weights, {m, shape.index_heads}),
                              .keys = data->keys,
                              .key_dtype = dtype,
                              .scores = view(data->scores, {m, shape.entries})};
  const auto keys = static_cast<double>(m * shape.entries);
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .macs = keys * static_cast<double>(shape.index_heads * kIndexHeadDim),
          .bytes = keys * static_cast<double>(data->pool.row_bytes)};
}

Work top_k(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> scores;
    std::vector<int32_t> counts, indices, selected;
  };
  auto data = std::make_shared<Data>();
  data->scores = random_values(m * shape.entries);
  data->counts.assign(static_cast<size_t>(m), shape.entries);
  data->selected.resize(static_cast<size_t>(m));
  data->indices.resize(static_cast<size_t>(m * shape.index_topk));
  const TopKArgs args{
      .scores = view(data->scores, {m, shape.entries}),
      .counts = data->counts,
      .k = shape.index_topk,
      .indices = TensorView::contiguous(data->indices.data(), DType::kI32, {m, shape.index_topk}),
      .num_selected = data->selected};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(m * shape.entries) * 4};
}

Work hyper_pre(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> state, fn, base, scale, x, post, comb;
  };
  constexpr int64_t kRows = (2 + kMult) * kMult;
  const int64_t width = kMult * shape.hidden_size;
  auto data = std::make_shared<Data>();
  data->state = random_values(m * width);
  data->fn = random_values(kRows * width);
  data->base = random_values(kRows);
  data->scale = {0.01f, 0.01f, 0.01f};
  data->x.resize(static_cast<size_t>(m * shape.hidden_size));
  data->post.resize(static_cast<size_t>(m * kMult));
  data->comb.resize(static_cast<size_t>(m * kMult * kMult));
  const HyperPreArgs args{.state = view(data->state, {m, width}),
                          .fn = data->fn.data(),
                          .base = data->base.data(),
                          .scale = data->scale.data(),
                          .hc_mult = kMult,
                          .sinkhorn_iters = 20,
                          .hc_eps = 1e-6f,
                          .norm_eps = 1e-6f,
                          .x = view(data->x, {m, shape.hidden_size}),
                          .post = view(data->post, {m, kMult}),
                          .comb = view(data->comb, {m, kMult * kMult})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .macs = static_cast<double>(m * kRows * width),
          .bytes = static_cast<double>((m + kRows) * width) * 4};
}

Work hyper_post(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> y, post, comb, state;
  };
  auto data = std::make_shared<Data>();
  data->y = random_values(m * shape.hidden_size);
  data->post = random_values(m * kMult);
  // A doubly stochastic matrix keeps the state bounded over the runs; half of it lets it settle.
  data->comb.assign(static_cast<size_t>(m * kMult * kMult), 0.5f / kMult);
  data->state = random_values(m * kMult * shape.hidden_size);
  const HyperPostArgs args{.y = view(data->y, {m, shape.hidden_size}),
                           .post = view(data->post, {m, kMult}),
                           .comb = view(data->comb, {m, kMult * kMult}),
                           .hc_mult = kMult,
                           .state = view(data->state, {m, kMult * shape.hidden_size})};
  const auto values = static_cast<double>(m * shape.hidden_size);
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .macs = values * kMult * (kMult + 1),
          .bytes = values * (kMult + 1) * 4};
}

Work rms_norm(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> x, gamma, y;
  };
  auto data = std::make_shared<Data>();
  data->x = random_values(m * shape.hidden_size);
  data->y = data->x;
  data->gamma = random_values(shape.hidden_size);
  const RmsNormArgs args{.x = view(data->x, {m, shape.hidden_size}),
                         .gamma = data->gamma.data(),
                         .eps = 1e-6f,
                         .y = view(data->y, {m, shape.hidden_size})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(m * shape.hidden_size) * 4};
}

Work rope(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> x, freqs;
    std::vector<int32_t> positions;
  };
  auto data = std::make_shared<Data>();
  data->x = random_values(m * shape.heads * kHeadDim);
  for (int64_t i = 0; i < kRopeFreqs; ++i) {
    data->freqs.push_back(std::pow(10000.0f, -static_cast<float>(i) / kRopeFreqs));
  }
  for (int64_t t = 0; t < m; ++t) data->positions.push_back(static_cast<int32_t>(1000 + t));
  const RopeArgs args{.x = view(data->x, {m, shape.heads, kHeadDim}),
                      .positions = data->positions,
                      .freqs = data->freqs};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(m * shape.heads * kRopeFreqs) * 8};
}

Work compress(const ModelShape&, int64_t m) {
  struct Data {
    std::vector<float> values, gates, out;
    std::vector<const float*> value_rows, gate_rows;
  };
  constexpr int32_t kSlots = 8;
  auto data = std::make_shared<Data>();
  data->values = random_values(m * kSlots * kHeadDim);
  data->gates = random_values(m * kSlots * kHeadDim);
  data->out.resize(static_cast<size_t>(m * kHeadDim));
  for (int64_t row = 0; row < m * kSlots; ++row) {
    data->value_rows.push_back(data->values.data() + row * kHeadDim);
    data->gate_rows.push_back(data->gates.data() + row * kHeadDim);
  }
  const CompressArgs args{.values = data->value_rows,
                          .gates = data->gate_rows,
                          .num_slots = kSlots,
                          .out = view(data->out, {m, kHeadDim})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(m * kSlots * kHeadDim) * 8};
}

Work select_experts(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> logits, bias, weights;
    std::vector<int32_t> ids;
  };
  auto data = std::make_shared<Data>();
  data->logits = random_values(m * shape.experts);
  data->bias = random_values(shape.experts);
  data->weights.resize(static_cast<size_t>(m * kExpertsPerToken));
  data->ids.resize(data->weights.size());
  const SelectExpertsArgs args{
      .logits = view(data->logits, {m, shape.experts}),
      .bias = data->bias.data(),
      .routed_scaling_factor = 1.5f,
      .ids = TensorView::contiguous(data->ids.data(), DType::kI32, {m, kExpertsPerToken}),
      .weights = view(data->weights, {m, kExpertsPerToken})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(m * shape.experts) * 4};
}

Work swiglu(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> x, weights, y;
  };
  const int64_t rows = m * kExpertsPerToken;
  auto data = std::make_shared<Data>();
  data->x = random_values(rows * 2 * shape.moe_intermediate_size);
  data->weights = random_values(rows);
  data->y.resize(static_cast<size_t>(rows * shape.moe_intermediate_size));
  const SwigluArgs args{.x = view(data->x, {rows, 2 * shape.moe_intermediate_size}),
                        .limit = 10,
                        .row_weights = data->weights.data(),
                        .y = view(data->y, {rows, shape.moe_intermediate_size})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(rows * shape.moe_intermediate_size) * 8};
}

Work combine_experts(const ModelShape& shape, int64_t m) {
  struct Data {
    std::vector<float> experts, shared, y;
  };
  auto data = std::make_shared<Data>();
  data->experts = random_values(m * kExpertsPerToken * shape.hidden_size);
  data->shared = random_values(m * shape.hidden_size);
  data->y = data->shared;
  const CombineExpertsArgs args{
      .experts = view(data->experts, {m * kExpertsPerToken, shape.hidden_size}),
      .shared = view(data->shared, {m, shape.hidden_size}),
      .experts_per_token = kExpertsPerToken,
      .y = view(data->y, {m, shape.hidden_size})};
  return {.launch = [data, args](const KernelInfo& row,
                                 device::Stream& stream) { launch(row, args, stream); },
          .bytes = static_cast<double>(m * (kExpertsPerToken + 1) * shape.hidden_size) * 4};
}

struct OpBenchmark {
  Op op;
  std::string variant;
  Work (*make)(const ModelShape& shape, int64_t m);
  KeyForm keys = KeyForm::kPlain;
};
const OpBenchmark kBenchmarks[] = {
    {Op::kSparseAttention,
     "/f32",
     [](const ModelShape& shape, int64_t m) { return attention(shape, m, DType::kF32); }},
    {Op::kSparseAttention,
     "/bf16",
     [](const ModelShape& shape, int64_t m) { return attention(shape, m, DType::kBf16); }},
    {Op::kSparseAttention,
     "",
     [](const ModelShape& shape, int64_t m) { return attention(shape, m, DType::kF8E4m3); },
     KeyForm::kFp8},
    {Op::kIndexerScore,
     "/f32",
     [](const ModelShape& shape, int64_t m) { return indexer(shape, m, DType::kF32); }},
    {Op::kIndexerScore,
     "/bf16",
     [](const ModelShape& shape, int64_t m) { return indexer(shape, m, DType::kBf16); }},
    {Op::kIndexerScore,
     "",
     [](const ModelShape& shape, int64_t m) { return indexer(shape, m, DType::kF8E4m3); },
     KeyForm::kFp8},
    {Op::kTopK, "", &top_k},
    {Op::kHyperPre, "", &hyper_pre},
    {Op::kHyperPost, "", &hyper_post},
    {Op::kRmsNorm, "", &rms_norm},
    {Op::kRope, "", &rope},
    {Op::kCompress, "", &compress},
    {Op::kSelectExperts, "", &select_experts},
    {Op::kSwiglu, "", &swiglu},
    {Op::kCombineExperts, "", &combine_experts},
};

void run(benchmark::State& state,
         const KernelInfo& row,
         const OpBenchmark& op,
         const ModelShape& shape,
         int64_t tokens,
         int32_t threads) {
  const Work work = op.make(shape, tokens);
  device::ThreadPool pool({.num_threads = threads});
  device::Stream stream{.pool = &pool};
  for (auto _ : state) work.launch(row, stream);
  using benchmark::Counter;
  if (work.macs > 0) {
    state.counters["macs"] = Counter(work.macs, Counter::kIsIterationInvariantRate);
  }
  state.counters["bytes_per_second"] = Counter(work.bytes, Counter::kIsIterationInvariantRate);
}

void register_row(const KernelInfo& row, const OpBenchmark& op) {
  for (const ModelShape& shape : kShapes) {
    for (const int64_t tokens : {1, 64}) {
      for (const int32_t threads : {1, 2}) {
        const std::string name = std::string(row.name) + op.variant + "/" + shape.name + "/m" +
                                 std::to_string(tokens) + "/threads" + std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [&row, &op, &shape, tokens, threads](benchmark::State& state) {
                                       run(state, row, op, shape, tokens, threads);
                                     })
            ->UseRealTime();
      }
    }
  }
}

// The table decides which benchmarks exist, so they are registered before main runs.
const bool kRegistered = [] {
  const device::IsaSet isa = device::detect_isa();
  for (const KernelInfo* row : all_kernels()) {
    if (row->target.kind != device::DeviceKind::kCpu || row->unit == ComputeUnit::kScalar) continue;
    if ((row->target.isa & ~isa) != 0) continue;
    for (const OpBenchmark& op : kBenchmarks) {
      if (op.op == row->op && op.keys == row->keys) register_row(*row, op);
    }
  }
  return true;
}();

}  // namespace
}  // namespace nibble::kernels
