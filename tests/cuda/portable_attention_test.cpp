// Portable attention, indexer scores and selection against the scalar reference of the same
// arguments.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "cuda/cuda_testing.h"
#include "device/emulated_gpu.h"
#include "kernels/registry.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;

device::Stream& host_stream() {
  static const std::unique_ptr<device::Device> host = device::make_emulated_gpu(2).value();
  return host->stream();
}

template <class Args>
Launcher<Args> launcher(std::span<const KernelInfo> table, Op op, KeyForm keys) {
  for (const KernelInfo& row : table) {
    if (row.op == op && row.keys == keys) return std::get<Launcher<Args>>(row.launch);
  }
  return nullptr;
}

// Launches the portable row for arguments in device memory and the reference for the same in host
// memory.
template <class Args>
void run_both(Op op, DType key_dtype, const Args& device, const Args& host) {
  const KeyForm keys = key_dtype == DType::kF8E4m3 ? KeyForm::kFp8 : KeyForm::kPlain;
  launcher<Args>(cuda_portable_kernels(), op, keys)(device, gpu()->stream()).value();
  launcher<Args>(reference_device_attention_kernels(), op, keys)(host, host_stream()).value();
}

std::vector<uint16_t> random_bf16(size_t size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(size);
  for (uint16_t& value : values) value = quant::f32_to_bf16(normal(random));
  return values;
}

// Rows of keys as a pool stores them. `num_rotary` < 0: keys of the indexer. F32 keys are exact in
// BF16, in which they are multiplied.
std::vector<uint8_t> random_pool(
    DType dtype, int64_t rows, int64_t width, int64_t num_rotary, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint8_t> pool;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> key(static_cast<size_t>(width));
    for (float& value : key) value = quant::bf16_to_f32(quant::f32_to_bf16(normal(random)));
    std::vector<std::byte> bytes;
    if (dtype == DType::kF32) {
      bytes.resize(key.size() * 4);
      std::memcpy(bytes.data(), key.data(), bytes.size());
    } else if (dtype == DType::kBf16) {
      std::vector<uint16_t> rounded;
      for (const float value : key) rounded.push_back(quant::f32_to_bf16(value));
      bytes.resize(key.size() * 2);
      std::memcpy(bytes.data(), rounded.data(), bytes.size());
    } else if (num_rotary < 0) {
      bytes.resize(static_cast<size_t>(quant::fp8_index_key_bytes(width)));
      quant::encode_fp8_index_key(key, bytes.data());
    } else {
      const quant::Fp8KeyLayout layout{.num_codes = width - num_rotary, .num_rotary = num_rotary};
      bytes.resize(static_cast<size_t>(layout.row_bytes()));
      quant::encode_fp8_key(key, layout, bytes.data());
    }
    for (const std::byte byte : bytes) pool.push_back(static_cast<uint8_t>(byte));
  }
  return pool;
}

// --- attention ---

// How many keys a token sees in the two pools.
struct KeyCounts {
  int32_t window = 0;
  int32_t entries = 0;
};

struct AttentionShape {
  DType dtype;
  int32_t heads, width, num_rotary;
};

// Lists of random rows; every fifth names none.
struct KeyLists {
  KeyLists(const std::vector<int32_t>& token_counts, int32_t pool_rows, std::mt19937& random)
      : counts(token_counts) {
    for (const int32_t count : counts) max_rows = std::max(max_rows, count);
    for (const int32_t count : counts) {
      for (int32_t i = 0; i < max_rows; ++i) {
        const bool is_none = i >= count || random() % 5 == 0;
        rows.push_back(is_none ? -1
                               : static_cast<int32_t>(random() % static_cast<uint32_t>(pool_rows)));
      }
    }
  }

  std::vector<int32_t> counts, rows;
  int32_t max_rows = 1;
};

struct AttentionInputs {
  AttentionInputs(const AttentionShape& of_shape,
                  const std::vector<KeyCounts>& counts,
                  uint32_t seed)
      : shape(of_shape),
        m(static_cast<int32_t>(counts.size())),
        random(seed),
        q(random_bf16(static_cast<size_t>(m * shape.heads * shape.width), random)),
        pools{random_pool(shape.dtype, kRows, shape.width, shape.num_rotary, random),
              random_pool(shape.dtype, kRows, shape.width, shape.num_rotary, random)},
        window(of(counts, &KeyCounts::window), kRows, random),
        entries(of(counts, &KeyCounts::entries), kRows, random) {
    std::normal_distribution<float> normal;
    for (int32_t h = 0; h < shape.heads; ++h) sink.push_back(normal(random));
  }

  static std::vector<int32_t> of(const std::vector<KeyCounts>& counts, int32_t KeyCounts::*part) {
    std::vector<int32_t> list;
    for (const KeyCounts& count : counts) list.push_back(count.*part);
    return list;
  }

  // What arguments in either memory have in common; `first`: the first token of `count`.
  DeviceSparseAttentionArgs common(int32_t count) const {
    return {.window = {.max_rows = window.max_rows},
            .entries = {.max_rows = entries.max_rows},
            .kv_dtype = shape.dtype,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.width)),
            .m = count,
            .heads = shape.heads,
            .head_dim = shape.width,
            .num_rotary = shape.num_rotary,
            .num_units = gpu()->info().num_units};
  }
  std::vector<uint16_t> on_gpu(int32_t first, int32_t count) const {
    const DeviceArray<uint16_t> device_q(q);
    const DeviceArray<uint8_t> window_pool(pools[0]), entry_pool(pools[1]);
    const DeviceArray<int32_t> window_rows(window.rows), window_counts(window.counts);
    const DeviceArray<int32_t> entry_rows(entries.rows), entry_counts(entries.counts);
    const DeviceArray<float> device_sink(sink);
    const int64_t row = shape.heads * int64_t{shape.width};
    const DeviceArray<uint16_t> out(static_cast<size_t>(count * row));
    DeviceSparseAttentionArgs args = common(count);
    args.q = device_q.data() + first * row;
    args.window.pool = window_pool.data();
    args.window.rows = window_rows.data() + first * window.max_rows;
    args.window.counts = window_counts.data() + first;
    args.entries.pool = entry_pool.data();
    args.entries.rows = entry_rows.data() + first * entries.max_rows;
    args.entries.counts = entry_counts.data() + first;
    args.sink = device_sink.data();
    args.out = {.bf16 = out.data()};
    launcher<DeviceSparseAttentionArgs>(
        cuda_portable_kernels(),
        Op::kSparseAttention,
        shape.dtype == DType::kF8E4m3 ? KeyForm::kFp8 : KeyForm::kPlain)(args, gpu()->stream())
        .value();
    return out.to_host();
  }
  std::vector<uint16_t> by_reference() const {
    std::vector<uint16_t> out(q.size());
    DeviceSparseAttentionArgs args = common(m);
    args.q = q.data();
    args.window.pool = pools[0].data();
    args.window.rows = window.rows.data();
    args.window.counts = window.counts.data();
    args.entries.pool = pools[1].data();
    args.entries.rows = entries.rows.data();
    args.entries.counts = entries.counts.data();
    args.sink = sink.data();
    args.out = {.bf16 = out.data()};
    launcher<DeviceSparseAttentionArgs>(
        reference_device_attention_kernels(),
        Op::kSparseAttention,
        shape.dtype == DType::kF8E4m3 ? KeyForm::kFp8 : KeyForm::kPlain)(args, host_stream())
        .value();
    return out;
  }

  static constexpr int32_t kRows = 90;
  AttentionShape shape;
  int32_t m;
  std::mt19937 random;
  std::vector<uint16_t> q;
  std::vector<uint8_t> pools[2];
  KeyLists window, entries;
  std::vector<float> sink;
};

// Weights and outputs are rounded to BF16, each by up to 2^-9 of its size.
constexpr double kRelativeRms = 0x1p-7;

void expect_near(const std::vector<uint16_t>& found,
                 const std::vector<uint16_t>& expected,
                 size_t width) {
  for (size_t row = 0; row < found.size() / width; ++row) {
    double error = 0, size = 0;
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      const auto value = static_cast<double>(quant::bf16_to_f32(expected[i]));
      const double difference = static_cast<double>(quant::bf16_to_f32(found[i])) - value;
      error += difference * difference;
      size += value * value;
    }
    ASSERT_LE(std::sqrt(error), kRelativeRms * std::sqrt(size)) << "row " << row;
  }
}

constexpr AttentionShape kShapes[] = {{DType::kBf16, 8, 64, 16},
                                      {DType::kF32, 4, 48, 16},
                                      {DType::kBf16, 20, 96, 32},
                                      {DType::kF8E4m3, 4, 80, 16},
                                      {DType::kF8E4m3, 17, 512, 64},
                                      {DType::kBf16, 64, 512, 64}};

using PortableAttention = CudaTest;

TEST_F(PortableAttention, EqualsTheReferenceOnFewKeys) {
  const std::vector<KeyCounts> counts = {{5, 70}, {0, 0}, {0, 1}, {64, 0}};
  for (const AttentionShape& shape : kShapes) {
    SCOPED_TRACE(::testing::Message()
                 << dtype_name(shape.dtype) << " " << shape.heads << " x " << shape.width);
    const AttentionInputs inputs(shape, counts, 3);
    expect_near(
        inputs.on_gpu(0, inputs.m), inputs.by_reference(), static_cast<size_t>(shape.width));
  }
}

TEST_F(PortableAttention, EqualsTheReferenceOnManyKeys) {
  const std::vector<KeyCounts> counts = {{128, 512}, {32, 16}, {17, 129}, {128, 1100}};
  for (const AttentionShape& shape : kShapes) {
    SCOPED_TRACE(::testing::Message()
                 << dtype_name(shape.dtype) << " " << shape.heads << " x " << shape.width);
    const AttentionInputs inputs(shape, counts, 4);
    expect_near(
        inputs.on_gpu(0, inputs.m), inputs.by_reference(), static_cast<size_t>(shape.width));
  }
}

TEST_F(PortableAttention, TokensDoNotDependOnTheirNeighbours) {
  const std::vector<KeyCounts> counts = {{128, 200}, {1, 3}, {30, 64}};
  const AttentionInputs inputs({DType::kBf16, 8, 64, 16}, counts, 5);
  const std::vector<uint16_t> all = inputs.on_gpu(0, inputs.m);
  for (const int32_t token : {0, 2}) {
    const std::vector<uint16_t> alone = inputs.on_gpu(token, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + token * 8 * 64)) << token;
  }
}

TEST_F(PortableAttention, SinksTakePartInTheDenominatorOnly) {
  AttentionInputs inputs({DType::kBf16, 8, 64, 16}, {{50, 20}, {0, 0}}, 6);
  inputs.sink[0] = 30;
  inputs.sink[1] = -INFINITY;
  expect_near(inputs.on_gpu(0, inputs.m), inputs.by_reference(), 64);
}

TEST_F(PortableAttention, NanStaysInItsToken) {
  AttentionInputs inputs({DType::kBf16, 8, 64, 16}, {{40, 40}, {40, 40}}, 7);
  const uint16_t nan = 0x7FC0;
  std::memcpy(inputs.pools[0].data() + 2 * 21, &nan, 2);
  for (int32_t& row : inputs.window.rows) row = row == 0 ? 1 : row;
  inputs.window.rows[5] = 0;
  const std::vector<uint16_t> out = inputs.on_gpu(0, inputs.m);
  const auto is_nan = [](uint16_t value) { return std::isnan(quant::bf16_to_f32(value)); };
  EXPECT_TRUE(is_nan(out[21]));
  EXPECT_TRUE(std::none_of(out.begin() + 8 * 64, out.end(), is_nan));
}

// --- the indexer ---

struct IndexerShape {
  DType dtype;
  int32_t heads, width, entries_per_page;
};

TEST_F(PortableAttention, IndexerScoresEqualTheReferenceOnFewEntries) {
  constexpr IndexerShape kIndexers[] = {{DType::kBf16, 4, 32, 16},
                                        {DType::kF32, 8, 64, 24},
                                        {DType::kF8E4m3, 8, 128, 16},
                                        {DType::kBf16, 64, 128, 64},
                                        {DType::kF8E4m3, 9, 48, 8}};
  const std::vector<int32_t> counts = {0, 1, 300, 17, 128};
  constexpr int32_t kColumns = 304, kPages = 40;
  for (const IndexerShape& shape : kIndexers) {
    SCOPED_TRACE(::testing::Message()
                 << dtype_name(shape.dtype) << " " << shape.heads << " x " << shape.width);
    std::mt19937 random(11);
    const auto m = static_cast<int32_t>(counts.size());
    const std::vector<uint16_t> q =
        random_bf16(static_cast<size_t>(m * shape.heads * shape.width), random);
    const std::vector<uint8_t> pool =
        random_pool(shape.dtype, kPages * shape.entries_per_page, shape.width, -1, random);
    std::normal_distribution<float> normal;
    std::vector<float> weights;
    for (int32_t i = 0; i < m * shape.heads; ++i) weights.push_back(normal(random));
    const int32_t max_pages = static_cast<int32_t>(ceil_div(kColumns, shape.entries_per_page));
    std::vector<int32_t> pages;
    for (int32_t i = 0; i < m * max_pages; ++i) {
      pages.push_back(static_cast<int32_t>(random() % kPages));
    }
    const float poison = std::bit_cast<float>(0xFFFFFFFFU);
    std::vector<float> expected(static_cast<size_t>(m * kColumns), poison);
    const DeviceArray<uint16_t> device_q(q);
    const DeviceArray<uint8_t> device_pool(pool);
    const DeviceArray<float> device_weights(weights), scores(expected.size());
    const DeviceArray<int32_t> device_pages(pages), device_counts(counts);
    DeviceIndexerScoreArgs args{.q = q.data(),
                                .head_weights = weights.data(),
                                .keys = {.pool = pool.data(),
                                         .pages = pages.data(),
                                         .counts = counts.data(),
                                         .max_pages = max_pages,
                                         .entries_per_page = shape.entries_per_page},
                                .scores = expected.data(),
                                .columns = kColumns,
                                .m = m,
                                .heads = shape.heads,
                                .width = shape.width,
                                .key_dtype = shape.dtype,
                                .unscored_count = 1,
                                .num_units = gpu()->info().num_units};
    const DeviceIndexerScoreArgs host = args;
    args.q = device_q.data();
    args.head_weights = device_weights.data();
    args.keys.pool = device_pool.data();
    args.keys.pages = device_pages.data();
    args.keys.counts = device_counts.data();
    args.scores = scores.data();
    run_both(Op::kIndexerScore, shape.dtype, args, host);
    const std::vector<float> found = scores.to_host();
    for (size_t i = 0; i < found.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(found[i])) << i;
        continue;
      }
      // Sums of heads * width products in f32, of which any may cancel.
      const auto scale = static_cast<double>(shape.heads * shape.width);
      ASSERT_NEAR(static_cast<double>(found[i]), static_cast<double>(expected[i]), 0x1p-19 * scale)
          << i;
    }
  }
}

// --- selection ---

void expect_selection(const std::vector<float>& scores,
                      const std::vector<int32_t>& counts,
                      int32_t k,
                      int32_t entries_per_page) {
  const auto m = static_cast<int32_t>(counts.size());
  const auto columns = static_cast<int64_t>(scores.size()) / m;
  const int32_t max_pages =
      entries_per_page == 0 ? 0
                            : static_cast<int32_t>(ceil_div(columns, int64_t{entries_per_page}));
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < m * max_pages; ++i) pages.push_back((i * 37 + 11) % 101);
  std::vector<int32_t> expected(static_cast<size_t>(m * k)), expected_counts(counts.size());
  const DeviceArray<float> device_scores(scores);
  const DeviceArray<int32_t> device_counts(counts), device_pages(pages);
  const DeviceArray<int32_t> indices(expected.size()), num_selected(counts.size());
  DeviceTopKArgs args{.scores = scores.data(),
                      .counts = counts.data(),
                      .columns = columns,
                      .m = m,
                      .k = k,
                      .pages = entries_per_page == 0 ? nullptr : pages.data(),
                      .max_pages = max_pages,
                      .entries_per_page = entries_per_page,
                      .indices = expected.data(),
                      .num_selected = expected_counts.data()};
  const DeviceTopKArgs host = args;
  args.scores = device_scores.data();
  args.counts = device_counts.data();
  if (entries_per_page != 0) args.pages = device_pages.data();
  args.indices = indices.data();
  args.num_selected = num_selected.data();
  run_both(Op::kTopK, DType::kBf16, args, host);
  EXPECT_EQ(indices.to_host(), expected);
  EXPECT_EQ(num_selected.to_host(), expected_counts);
}

TEST_F(PortableAttention, SelectsTheBestOfFewScores) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  constexpr int32_t kColumns = 1500;
  const std::vector<int32_t> counts = {0, 5, 24, 25, 700, 1500};
  std::vector<float> scores;
  for (size_t i = 0; i < counts.size() * kColumns; ++i) {
    // Few different values, so that ties cross every bound; zeros of both signs, NaN, infinities.
    const float value = std::floor(normal(random) * 4);
    const auto special = static_cast<uint32_t>(random() % 40);
    scores.push_back(special == 0   ? std::numeric_limits<float>::quiet_NaN()
                     : special == 1 ? -INFINITY
                     : special == 2 ? -0.0f
                                    : value);
  }
  for (const int32_t k : {1, 24, 512}) {
    expect_selection(scores, counts, k, 0);
    expect_selection(scores, counts, k, 24);
  }
}

TEST_F(PortableAttention, SelectsTheBestOfManyScores) {
  std::mt19937 random(14);
  std::normal_distribution<float> normal;
  std::vector<float> scores(2 * 70000);
  for (float& score : scores) score = normal(random);
  expect_selection(scores, {70000, 40001}, 1024, 64);
}

}  // namespace
}  // namespace nibble::kernels::cuda
