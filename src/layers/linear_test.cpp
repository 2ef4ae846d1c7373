#include "layers/linear.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "quant/reference.h"

namespace nibble::layers {
namespace {

using kernels::WeightRows;
using quant::Format;

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

quant::QuantizedWeight random_weight(Format format, int64_t n, int64_t k, uint32_t seed) {
  return quant::quantize(format, random_values(n * k, seed), n, k);
}

WeightRows all_rows(const quant::QuantizedWeight& weight) {
  return {.weight = weight.view(), .row_begin = 0, .row_end = weight.n};
}

class LinearTest : public testing::Test {
 protected:
  LinearTest()
      : device_(device::make_host_device({.num_threads = 1, .isa = device::IsaLevel::kScalar})
                    .value()) {
    options_.device = device_->info();
    options_.routing.allow_reference = true;
  }

  // [m, n] of `linear` on x.
  std::vector<float> apply(const Linear& linear, std::vector<float>& x) {
    const auto m = static_cast<int64_t>(x.size()) / linear.k();
    std::vector<float> y(static_cast<size_t>(m * linear.n()));
    linear
        .forward(TensorView::contiguous(x.data(), DType::kF32, {m, linear.k()}),
                 TensorView::contiguous(y.data(), DType::kF32, {m, linear.n()}),
                 device_->stream())
        .value();
    return y;
  }

  std::unique_ptr<device::Device> device_;
  LinearOptions options_;
};

TEST_F(LinearTest, StacksSourcesOfOneFormatAndKeepsTheirOrder) {
  const auto a = random_weight(Format::kBf16, 5, 64, 1);
  const auto b = random_weight(Format::kMxfp4, 7, 64, 2);
  const auto c = random_weight(Format::kMxfp4, 3, 64, 3);
  const WeightRows sources[] = {all_rows(a), all_rows(b), all_rows(c)};
  const Linear together = Linear::make(sources, options_).value();
  EXPECT_EQ(together.parts().size(), 2U);
  EXPECT_EQ(together.n(), 15);
  EXPECT_TRUE(together.is_quantized());

  std::vector<float> x = random_values(2 * 64, 4);
  const std::vector<float> y = apply(together, x);
  int64_t column = 0;
  for (const WeightRows& source : sources) {
    const Linear alone = Linear::make(std::span(&source, 1), options_).value();
    const std::vector<float> expected = apply(alone, x);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < alone.n(); ++i) {
        EXPECT_EQ(y[static_cast<size_t>(t * 15 + column + i)],
                  expected[static_cast<size_t>(t * alone.n() + i)]);
      }
    }
    column += alone.n();
  }
}

TEST_F(LinearTest, ComputesARankOfATensorParallelSplit) {
  const auto weight = random_weight(Format::kF32, 8, 16, 5);
  std::vector<float> x = random_values(16, 6);
  const WeightRows whole = all_rows(weight);
  const std::vector<float> y = apply(Linear::make(std::span(&whole, 1), options_).value(), x);
  for (int32_t rank = 0; rank < 4; ++rank) {
    const WeightRows share = tensor_parallel_rows(whole, rank, 4);
    const std::vector<float> part = apply(Linear::make(std::span(&share, 1), options_).value(), x);
    EXPECT_EQ(part, std::vector<float>(y.begin() + 2 * rank, y.begin() + 2 * rank + 2));
  }
}

TEST_F(LinearTest, SendsRowsThroughTheirGroups) {
  const auto a = random_weight(Format::kBf16, 4, 32, 7);
  const auto b = random_weight(Format::kBf16, 4, 32, 8);
  const std::vector<WeightRows> groups[] = {{all_rows(a)}, {all_rows(b)}};
  const GroupedLinear grouped = GroupedLinear::make(groups, options_).value();
  EXPECT_EQ(grouped.num_groups(), 2);

  std::vector<float> x = random_values(2 * 32, 9);
  std::vector<float> y(3 * 4);
  const int32_t offsets[] = {0, 1, 3};
  const int32_t in_rows[] = {1, 0, 1};
  const int32_t out_rows[] = {2, 0, 1};
  grouped
      .forward(TensorView::contiguous(x.data(), DType::kF32, {2, 32}),
               {.group_offsets = offsets, .in_rows = in_rows, .out_rows = out_rows},
               TensorView::contiguous(y.data(), DType::kF32, {3, 4}),
               device_->stream())
      .value();
  const Linear alone_a = Linear::make(groups[0], options_).value();
  const Linear alone_b = Linear::make(groups[1], options_).value();
  const std::vector<float> ya = apply(alone_a, x);
  const std::vector<float> yb = apply(alone_b, x);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(y[2 * 4 + i], ya[4 + i]);
    EXPECT_EQ(y[i], yb[i]);
    EXPECT_EQ(y[4 + i], yb[4 + i]);
  }
}

TEST_F(LinearTest, RefusesGroupsOfDifferentFormats) {
  const auto a = random_weight(Format::kBf16, 4, 32, 7);
  const auto b = random_weight(Format::kMxfp4, 4, 32, 8);
  const std::vector<WeightRows> groups[] = {{all_rows(a)}, {all_rows(b)}};
  const auto made = GroupedLinear::make(groups, options_);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Errc::kDataLoss);
  EXPECT_EQ(made.error().message, "group 1: format mxfp4, expected bf16 as in group 0");
}

}  // namespace
}  // namespace nibble::layers
