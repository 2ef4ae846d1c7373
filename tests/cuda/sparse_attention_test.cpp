// Sparse attention on a GPU against the scalar reference.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/attention_testing.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sm90/sparse_attention/launch.h"
#include "kernels/reference/device_rows.h"
#include "kernels/reference/forms.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::AttentionCase;
using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;
using cuda_testing::KeyCounts;
using cuda_testing::kKeyWidth;

// Probabilities, partial sums and outputs are rounded to BF16, each by up to 2^-9 of its size.
constexpr double kRelativeRms = 0x1p-7;

using Kernel = SparseAttentionShape::Kernel;
constexpr SparseAttentionShape kShapes[] = {{Kernel::kCluster, 16},
                                            {Kernel::kCluster, 8},
                                            {Kernel::kWarpgroups, 1},
                                            {Kernel::kWarpgroups, 2},
                                            {Kernel::kWarpgroups, 4},
                                            {Kernel::kWarpgroups, 8}};

std::string name_of(const SparseAttentionShape& shape) {
  return (shape.kernel == Kernel::kCluster ? "cluster" : "warpgroups") +
         std::to_string(shape.splits);
}

// Attends into poisoned memory. `first`, `count`: tokens; all by default.
std::vector<float> attend(AttentionCase& inputs,
                          const SparseAttentionShape& shape,
                          int32_t first = 0,
                          int32_t count = -1) {
  const size_t tokens = count < 0 ? inputs.counts.size() : static_cast<size_t>(count);
  const DeviceArray<uint16_t> out(tokens * static_cast<size_t>(inputs.heads * kKeyWidth));
  launch_sparse_attention_sm90_shaped(inputs.args(out.data(), first, count), shape, gpu()->stream())
      .value();
  std::vector<float> values;
  for (const uint16_t value : out.to_host()) values.push_back(quant::bf16_to_f32(value));
  return values;
}

std::vector<float> row_of(const std::vector<float>& out,
                          const AttentionCase& inputs,
                          size_t token,
                          int32_t head) {
  const auto begin =
      out.begin() +
      static_cast<ptrdiff_t>(
          (token * static_cast<size_t>(inputs.heads) + static_cast<size_t>(head)) * kKeyWidth);
  return {begin, begin + kKeyWidth};
}

void expect_near_reference(const std::vector<float>& out,
                           const AttentionCase& inputs,
                           int32_t head,
                           const std::string& what) {
  const std::vector<float> expected = inputs.reference(head);
  for (size_t t = 0; t < inputs.counts.size(); ++t) {
    const std::vector<float> row = row_of(out, inputs, t, head);
    double error = 0, size = 0;
    for (size_t i = 0; i < kKeyWidth; ++i) {
      const double value = expected[t * kKeyWidth + i];
      error += (row[i] - value) * (row[i] - value);
      size += value * value;
    }
    EXPECT_LE(std::sqrt(error), kRelativeRms * std::sqrt(size))
        << what << " head " << head << " token " << t << " of " << inputs.counts[t].window << " + "
        << inputs.counts[t].entries << " keys";
  }
}

std::vector<KeyCounts> mixed_counts() {
  return {{0, 0},
          {1, 0},
          {0, 1},
          {3, 2},
          {17, 47},
          {127, 1},
          {128, 0},
          {0, 64},
          {64, 65},
          {128, 511},
          {128, 512},
          {128, 640},
          {128, 1100}};
}

class SparseAttention : public CudaTest,
                        public ::testing::WithParamInterface<SparseAttentionShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes,
                         SparseAttention,
                         ::testing::ValuesIn(kShapes),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(SparseAttention, EqualsTheReference) {
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    AttentionCase inputs(dtype, 64, mixed_counts(), 1);
    const std::vector<float> out = attend(inputs, GetParam());
    for (const int32_t head : {0, 9, 31, 46, 63}) {
      expect_near_reference(out, inputs, head, dtype == DType::kBf16 ? "bf16" : "fp8");
    }
    EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float v) { return std::isnan(v); }));
  }
}

// The shape that compute-sanitizer sees: it slows kernels down a hundredfold.
TEST_P(SparseAttention, EqualsTheReferenceOnFewKeys) {
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    AttentionCase inputs(dtype, 64, {{5, 70}, {0, 0}}, 2);
    expect_near_reference(attend(inputs, GetParam()), inputs, 17, "few");
  }
}

TEST_P(SparseAttention, TakesMoreHeads) {
  AttentionCase inputs(DType::kBf16, 128, {{128, 300}, {7, 0}}, 3);
  const std::vector<float> out = attend(inputs, GetParam());
  for (const int32_t head : {1, 64, 127}) expect_near_reference(out, inputs, head, "128 heads");
}

TEST_P(SparseAttention, LeavesOutKeysThatAreNone) {
  AttentionCase inputs(DType::kBf16, 64, {{128, 200}, {40, 30}, {20, 0}}, 4);
  std::mt19937 random(5);
  for (int32_t& row : inputs.window_rows) row = random() % 3 == 0 ? -1 : row;
  for (int32_t& row : inputs.entry_rows) row = random() % 5 == 0 ? -1 : row;
  std::fill(inputs.window_rows.end() - inputs.max_window, inputs.window_rows.end(), -1);
  const std::vector<float> out = attend(inputs, GetParam());
  for (const int32_t head : {2, 33}) expect_near_reference(out, inputs, head, "holes");
  EXPECT_EQ(row_of(out, inputs, 2, 5), std::vector<float>(kKeyWidth, 0.0f));
}

TEST_P(SparseAttention, SinksTakePartInTheDenominatorOnly) {
  AttentionCase inputs(DType::kBf16, 64, {{100, 100}, {0, 0}}, 6);
  inputs.sink[0] = 30;
  inputs.sink[1] = -30;
  inputs.sink[2] = -INFINITY;
  const std::vector<float> out = attend(inputs, GetParam());
  for (const int32_t head : {0, 1, 2}) expect_near_reference(out, inputs, head, "sink");
}

TEST_P(SparseAttention, RaisesTheMaximumOnTheWay) {
  AttentionCase inputs(DType::kBf16, 64, {{128, 512}}, 7);
  // Later keys are ever larger multiples of the query of head 3.
  for (int32_t i = 0; i < inputs.max_entries; ++i) inputs.entry_rows[static_cast<size_t>(i)] = i;
  for (int32_t i = 0; i < inputs.max_entries; i += 16) {
    for (int64_t j = 0; j < kKeyWidth; ++j) {
      const float value =
          inputs.q[static_cast<size_t>(3 * kKeyWidth + j)] * static_cast<float>(i) / 128.0f;
      const uint16_t rounded = quant::f32_to_bf16(value);
      const auto element = static_cast<size_t>(i * kKeyWidth + j);
      std::memcpy(inputs.entries.bytes.data() + 2 * element, &rounded, 2);
      inputs.entries.values[element] = quant::bf16_to_f32(rounded);
    }
  }
  const std::vector<float> out = attend(inputs, GetParam());
  for (const int32_t head : {3, 4}) expect_near_reference(out, inputs, head, "growing");
}

TEST_P(SparseAttention, NanStaysInItsToken) {
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    AttentionCase inputs(dtype, 64, {{128, 100}, {128, 100}}, 8);
    // Row 0 of the window becomes NaN: an element, or the scale of a block.
    const uint8_t nan[] = {0xC0, 0x7F};
    if (dtype == DType::kBf16) {
      std::copy(nan, nan + 2, inputs.window.bytes.begin() + 2 * 77);
    } else {
      inputs.window.bytes[576] = 0xFF;
    }
    for (int32_t& row : inputs.window_rows) row = std::max(row, 1);
    inputs.window_rows[5] = 0;
    const std::vector<float> out = attend(inputs, GetParam());
    const std::vector<float> first = row_of(out, inputs, 0, 20),
                             second = row_of(out, inputs, 1, 20);
    EXPECT_TRUE(std::isnan(first[77 % 64]));
    EXPECT_TRUE(std::none_of(second.begin(), second.end(), [](float v) { return std::isnan(v); }));
  }
}

// Scales above 2^7, which no key of a model has, with codes so small that the values are common.
TEST_P(SparseAttention, TakesLargeScalesOfFp8Keys) {
  constexpr size_t kRowBytes = 584, kScalesAt = 576, kBlock = 64;
  AttentionCase inputs(DType::kF8E4m3, 64, {{128, 100}, {7, 64}}, 12);
  const size_t rows = inputs.entries.bytes.size() / kRowBytes;
  for (size_t row = 0; row < rows; row += 3) {
    const size_t block = row % 7;
    uint8_t* const stored = inputs.entries.bytes.data() + row * kRowBytes;
    stored[kScalesAt + block] = 136;
    for (size_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      stored[i] &= 0x83;  // up to 3 * 2^-9
      inputs.entries.values[row * kKeyWidth + i] = quant::e4m3_to_f32(stored[i]) * 512;
    }
  }
  const std::vector<float> out = attend(inputs, GetParam());
  for (const int32_t head : {0, 37}) expect_near_reference(out, inputs, head, "large scales");
}

TEST_P(SparseAttention, TokensDoNotDependOnTheirNeighbours) {
  AttentionCase inputs(DType::kBf16, 64, mixed_counts(), 9);
  const std::vector<float> all = attend(inputs, GetParam());
  for (const int32_t token : {4, 10, 12}) {
    const std::vector<float> alone = attend(inputs, GetParam(), token, 1);
    const auto begin = all.begin() + token * inputs.heads * kKeyWidth;
    EXPECT_EQ(alone, std::vector<float>(begin, begin + inputs.heads * kKeyWidth)) << token;
  }
}

// What a step asks of a token's heads: rotated back, f32 and what products read.
struct StepInputs {
  StepInputs(size_t m, int32_t heads, uint32_t seed)
      : row(static_cast<size_t>(heads * kKeyWidth)), freqs(frequencies()) {
    std::vector<int32_t> all = {5000, 3, 70};
    all.resize(m, 9);
    positions = std::make_unique<DeviceArray<int32_t>>(all);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> sums(kSplits * m * row);
    for (float& sum : sums) sum = normal(random);
    q_sums = std::make_unique<DeviceArray<float>>(sums);
  }
  static constexpr size_t kSplits = 2;
  size_t row;
  DeviceArray<float> freqs;
  std::unique_ptr<DeviceArray<int32_t>> positions;
  std::unique_ptr<DeviceArray<float>> q_sums;

  DeviceRotation rotation() const { return {.freqs = freqs.data(), .num_rotary = 64}; }
  static std::vector<float> frequencies() {
    std::vector<float> values;
    for (int32_t i = 0; i < 32; ++i) {
      values.push_back(std::pow(1e-4f, static_cast<float>(i) / 32.0f));
    }
    return values;
  }
};

// Every form, poisoned; FP8 blocks with their padding.
struct Forms {
  Forms(size_t m, size_t k)
      : f32(m * k),
        bf16(m * k),
        fp8(m * k),
        scales(m * k / 128),
        blocks(static_cast<size_t>(
            fp8_blocks_bytes(static_cast<int64_t>(m), static_cast<int64_t>(k)))) {}
  DeviceArray<float> f32;
  DeviceArray<uint16_t> bf16;
  DeviceArray<std::byte> fp8;
  DeviceArray<float> scales;
  DeviceArray<std::byte> blocks;

  ActivationForms forms() const {
    return {.f32 = f32.data(),
            .bf16 = bf16.data(),
            .fp8 = fp8.data(),
            .fp8_scales = scales.data(),
            .fp8_blocks = blocks.data()};
  }
};

// Turned back, the rotated results are those without rotation; the other forms are those of f32.
void expect_forms(AttentionCase& inputs, const SparseAttentionShape& shape) {
  const size_t m = inputs.counts.size();
  const StepInputs step(m, inputs.heads, 30);
  const Forms plain(m, step.row), rotated(m, step.row);
  DeviceSparseAttentionArgs args = inputs.args(nullptr);
  args.out = {.f32 = plain.f32.data()};
  launch_sparse_attention_sm90_shaped(args, shape, gpu()->stream()).value();
  args.positions = step.positions->data();
  args.rotation = step.rotation();
  args.out = rotated.forms();
  launch_sparse_attention_sm90_shaped(args, shape, gpu()->stream()).value();
  const std::vector<float> before = plain.f32.to_host(), after = rotated.f32.to_host();
  const std::vector<float> freqs = step.freqs.to_host();
  const std::vector<int32_t> positions = step.positions->to_host();
  const std::vector<uint16_t> bf16 = rotated.bf16.to_host();
  std::vector<std::byte> fp8(m * step.row, std::byte{0xFF}),
      blocks(rotated.blocks.to_host().size(), std::byte{0xFF});
  std::vector<float> scales(m * step.row / 128);
  for (size_t t = 0; t < m; ++t) {
    const std::span<const float> from = std::span(before).subspan(t * step.row, step.row);
    const std::span<const float> row = std::span(after).subspan(t * step.row, step.row);
    std::vector<float> expected(from.begin(), from.end());
    for (size_t head = 0; head < expected.size(); head += kKeyWidth) {
      reference::rotate(std::span(expected).subspan(head, kKeyWidth),
                        {.freqs = freqs.data(), .num_rotary = 64},
                        positions[t],
                        true);
    }
    for (size_t i = 0; i < step.row; ++i) {
      ASSERT_NEAR(row[i], expected[i], 1e-5f * (std::abs(from[i]) + std::abs(from[i ^ 1])))
          << t << " " << i;
      ASSERT_EQ(bf16[t * step.row + i], quant::f32_to_bf16(row[i])) << t << " " << i;
    }
    reference::write_forms(
        {.fp8 = fp8.data(), .fp8_scales = scales.data(), .fp8_blocks = blocks.data()},
        static_cast<int64_t>(m),
        static_cast<int64_t>(t),
        row);
  }
  EXPECT_EQ(rotated.fp8.to_host(), fp8);
  EXPECT_EQ(rotated.scales.to_host(), scales);
  EXPECT_EQ(rotated.blocks.to_host(), blocks);
}

TEST_P(SparseAttention, GivesEveryFormRotatedBackOfFewKeys) {
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    AttentionCase inputs(dtype, 64, {{5, 70}, {0, 0}, {64, 3}}, 31);
    expect_forms(inputs, GetParam());
  }
}

TEST_P(SparseAttention, GivesEveryFormRotatedBackOfManyTokens) {
  // More than one slice of 128 rows, and of 132 blocks with one token each.
  AttentionCase inputs(DType::kBf16, 64, std::vector<KeyCounts>(150, {17, 90}), 32);
  expect_forms(inputs, GetParam());
}

// Bit for bit what the op of its own makes of them.
TEST(SparseAttentionCluster, MakesQueriesOfSumsOfFewKeys) {
  if (gpu() == nullptr) GTEST_SKIP() << "no GPU: NOT RUN ON HARDWARE";
  const std::pair<DType, std::vector<KeyCounts>> cases[] = {
      {DType::kBf16, {{128, 70}, {0, 5}}},
      {DType::kF8E4m3, {{128, 70}, {0, 5}}},
      {DType::kBf16, {{128, 70}, {0, 5}, {3, 3}, {128, 640}}}};
  for (const auto& [dtype, keys] : cases) {
    const size_t m = keys.size();
    AttentionCase inputs(dtype, 64, keys, 33);
    const StepInputs step(m, 64, 34);
    const DeviceArray<uint16_t> q(m * step.row);
    const DeviceSums sums{.data = step.q_sums->data(), .splits = StepInputs::kSplits};
    launch_queries({.q_sums = sums,
                    .tokens = {.positions = step.positions->data(), .m = static_cast<int32_t>(m)},
                    .heads = 64,
                    .head_dim = kKeyWidth,
                    .eps = 1e-6f,
                    .rotation = step.rotation(),
                    .q = q.data()},
                   gpu()->stream())
        .value();
    const DeviceArray<float> expected(m * step.row), out(m * step.row);
    DeviceSparseAttentionArgs args = inputs.args(nullptr);
    args.positions = step.positions->data();
    args.rotation = step.rotation();
    args.eps = 1e-6f;
    args.q = q.data();
    args.out = {.f32 = expected.data()};
    launch_sparse_attention_sm90(args, gpu()->stream()).value();
    args.q = nullptr;
    args.q_sums = sums;
    args.out = {.f32 = out.data()};
    launch_sparse_attention_sm90(args, gpu()->stream()).value();
    EXPECT_EQ(out.to_host(), expected.to_host());
  }
}

TEST_P(SparseAttention, ReadingAheadChangesNothing) {
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    AttentionCase inputs(dtype, 64, {{128, 512}, {100, 3}}, 10);
    const std::vector<float> expected = attend(inputs, GetParam());
    const DeviceArray<int32_t> some(std::vector<int32_t>{127, 40}),
        all(std::vector<int32_t>{500, 3});
    for (uint32_t bits = 1; bits < 4; ++bits) {
      const DeviceArray<uint16_t> out(inputs.out_size());
      DeviceSparseAttentionArgs args = inputs.args(out.data());
      if ((bits & 1) != 0) args.window.ready_counts = some.data();
      if ((bits & 2) != 0) args.entries.ready_counts = all.data();
      args.is_dependent = true;
      for (int32_t i = 0; i < 3; ++i) {
        launch_sparse_attention_sm90_shaped(args, GetParam(), gpu()->stream()).value();
      }
      std::vector<float> values;
      for (const uint16_t value : out.to_host()) values.push_back(quant::bf16_to_f32(value));
      EXPECT_EQ(values, expected) << bits;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
