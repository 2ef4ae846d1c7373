// What each op means, checked on every row that this machine can run: check vectors of the model
// specification (14.1, 14.3, section 8) and values computed by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/ops_testing.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::FloatEq;
using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// The specification prints its vectors to about this precision.
constexpr float kVectorTolerance = 1e-6f;

// Runs the body once per row of `op`, with the row's name in every failure.
template <class Body>
void for_each_row(Op op, Body body) {
  const auto rows = runnable_rows(op);
  ASSERT_FALSE(rows.empty());
  for (const KernelInfo* row : rows) {
    SCOPED_TRACE(row->name);
    body(*row);
  }
}

// --- hyper-connections ---------------------------------------------------------------------------

constexpr int64_t kMult = 4;
constexpr int64_t kMixRows = (2 + kMult) * kMult;

// Mixing rows that give mix[j] = sin(0.7 j + 0.3) for a state whose stream m is the m-th unit
// vector of four elements: its inverse RMS is 2, so that x[i] = pre[i].
struct SpecificationSplit {
  HostTensor<float> state = f32_zeros({1, kMult * 4});
  std::vector<float> fn = std::vector<float>(kMixRows * kMult * 4);
  std::vector<float> base = std::vector<float>(kMixRows);
  std::vector<float> scale = {0.5f, 0.25f, 1.5f};
  HostTensor<float> x = f32_zeros({1, 4});
  HostTensor<float> post = f32_zeros({1, kMult});
  HostTensor<float> comb = f32_zeros({1, kMult* kMult});

  SpecificationSplit() {
    for (size_t m = 0; m < kMult; ++m) state.values[m * 4 + m] = 1;
    for (size_t j = 0; j < kMixRows; ++j) {
      fn[j * kMult * 4] = static_cast<float>(std::sin(0.7 * static_cast<double>(j) + 0.3) / 2);
      base[j] = 0.1f * (static_cast<float>(j % 5) - 2.0f);
    }
  }
  HyperPreArgs args() {
    return {.state = state.view(),
            .fn = fn.data(),
            .base = base.data(),
            .scale = scale.data(),
            .hc_mult = kMult,
            .sinkhorn_iters = 20,
            .hc_eps = 1e-6f,
            .norm_eps = 0,
            .x = x.view(),
            .post = post.view(),
            .comb = comb.view()};
  }
};

TEST(HyperPre, SplitsTheSpecificationVector) {
  for_each_row(Op::kHyperPre, [](const KernelInfo& row) {
    SpecificationSplit split;
    launch_inline(row, split.args());
    EXPECT_THAT(
        split.x.values,
        Pointwise(FloatNear(kVectorTolerance), {0.4869440f, 0.5795045f, 0.6214804f, 0.6077194f}));
    EXPECT_THAT(
        split.post.values,
        Pointwise(FloatNear(kVectorTolerance), {1.1048112f, 0.8253275f, 0.8294906f, 0.8900149f}));
    EXPECT_THAT(split.comb.values,
                Pointwise(FloatNear(kVectorTolerance),
                          {0.0521864f,
                           0.2247746f,
                           0.3684985f,
                           0.3545395f,
                           0.5168167f,
                           0.3056862f,
                           0.1389054f,
                           0.0385907f,
                           0.0284313f,
                           0.0951513f,
                           0.3205418f,
                           0.5558747f,
                           0.4025646f,
                           0.3743869f,
                           0.1720533f,
                           0.0509942f}));
  });
}

TEST(HyperPre, ScaleOfTheStateCancels) {
  for_each_row(Op::kHyperPre, [](const KernelInfo& row) {
    SpecificationSplit split;
    launch_inline(row, split.args());
    SpecificationSplit scaled;
    for (float& value : scaled.state.values) value *= 8.0f;  // a power of two: exact
    launch_inline(row, scaled.args());
    EXPECT_EQ(scaled.comb.values, split.comb.values);
    EXPECT_EQ(scaled.post.values, split.post.values);
    EXPECT_FLOAT_EQ(scaled.x.values[0], 8.0f * split.x.values[0]);
  });
}

TEST(HyperPre, SurvivesHugeMixes) {
  for_each_row(Op::kHyperPre, [](const KernelInfo& row) {
    SpecificationSplit split;
    split.scale = {1e4f, -1e4f, 1e4f};
    launch_inline(row, split.args());
    for (const auto* values : {&split.x.values, &split.post.values, &split.comb.values}) {
      for (const float value : *values) EXPECT_TRUE(std::isfinite(value)) << value;
    }
  });
}

TEST(HyperPost, SumsOverTheSourceStream) {
  for_each_row(Op::kHyperPost, [](const KernelInfo& row) {
    auto y = f32_tensor({1, 1}, {10});
    auto post = f32_tensor({1, 2}, {0.5f, 2});
    auto comb = f32_tensor({1, 4}, {1, 2, 3, 4});  // comb[m][j]
    auto state = f32_tensor({1, 2}, {100, 1000});
    launch_inline(row,
                  HyperPostArgs{.y = y.view(),
                                .post = post.view(),
                                .comb = comb.view(),
                                .hc_mult = 2,
                                .state = state.view()});
    EXPECT_THAT(state.values, ElementsAre(5 + 100 + 3000, 20 + 200 + 4000));
  });
}

TEST(HyperHead, WeighsStreamsBySigmoid) {
  for_each_row(Op::kHyperHead, [](const KernelInfo& row) {
    auto state = f32_tensor({1, 4}, {1, 3, 5, 7});  // two streams of two
    const std::vector<float> fn(8, 0.0f);
    const std::vector<float> base = {0, std::log(3.0f)};
    const float scale = 7;
    auto x = f32_zeros({1, 2});
    launch_inline(row,
                  HyperHeadArgs{.state = state.view(),
                                .fn = fn.data(),
                                .base = base.data(),
                                .scale = &scale,
                                .hc_mult = 2,
                                .hc_eps = 0,
                                .norm_eps = 1e-6f,
                                .x = x.view()});
    EXPECT_THAT(x.values, ElementsAre(FloatEq(0.5f + 3.75f), FloatEq(1.5f + 5.25f)));
  });
}

// --- norm and rope -------------------------------------------------------------------------------

TEST(RmsNorm, DividesByTheRootMeanSquare) {
  for_each_row(Op::kRmsNorm, [](const KernelInfo& row) {
    auto x = f32_tensor({2, 3}, {1, 2, 2, 0, 0, 0});
    auto y = f32_zeros({2, 3});
    const std::vector<float> gamma = {1, 10, -1};
    launch_inline(row,
                  RmsNormArgs{.x = x.view(), .gamma = gamma.data(), .eps = 1.0f, .y = y.view()});
    EXPECT_THAT(y.values, ElementsAre(FloatEq(0.5f), FloatEq(10), FloatEq(-1), 0, 0, 0));
  });
}

TEST(RmsNorm, WorksInPlaceWithoutWeight) {
  for_each_row(Op::kRmsNorm, [](const KernelInfo& row) {
    auto x = f32_tensor({1, 3}, {1, 2, 2});
    launch_inline(row, RmsNormArgs{.x = x.view(), .eps = 1.0f, .y = x.view()});
    EXPECT_THAT(x.values, ElementsAre(FloatEq(0.5f), FloatEq(1), FloatEq(1)));
  });
}

// Frequencies of the released models (specification 8): both tables, fast and slow ends.
constexpr std::array<float, 5> kFreqs = {1.0f, 0.68765602f, 0.5f, 2.2656250e-3f, 5.6805290e-7f};

// One token, two heads of width 13; the first three elements of each are not rotated.
HostTensor<float> rope_input() {
  auto x = f32_zeros({1, 2, 13});
  for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = static_cast<float>(i % 7) - 2.5f;
  return x;
}

TEST(Rope, RotatesByTheAngleRoundedToFloat) {
  for_each_row(Op::kRope, [](const KernelInfo& row) {
    for (const int32_t position : {0, 1, 127, 3000, 1000000, 16777215}) {
      auto x = rope_input();
      const auto before = x.values;
      const std::array<int32_t, 1> positions = {position};
      launch_inline(row, RopeArgs{.x = x.view(), .positions = positions, .freqs = kFreqs});
      for (size_t head = 0; head < 2; ++head) {
        for (size_t i = 0; i < 3; ++i) EXPECT_EQ(x.values[head * 13 + i], before[head * 13 + i]);
        for (size_t i = 0; i < kFreqs.size(); ++i) {
          const size_t pair = head * 13 + 3 + 2 * i;
          const float angle = static_cast<float>(position) * kFreqs[i];
          const double cos = std::cos(double{angle});
          const double sin = std::sin(double{angle});
          const double x0 = before[pair];
          const double x1 = before[pair + 1];
          // Two products and a sum of values below 5, in f32.
          const float tolerance = 8 * std::numeric_limits<float>::epsilon();
          EXPECT_NEAR(x.values[pair], x0 * cos - x1 * sin, tolerance) << position << " " << i;
          EXPECT_NEAR(x.values[pair + 1], x0 * sin + x1 * cos, tolerance) << position << " " << i;
        }
      }
    }
  });
}

TEST(Rope, InverseUndoesTheRotation) {
  for_each_row(Op::kRope, [](const KernelInfo& row) {
    auto x = rope_input();
    const auto before = x.values;
    const std::array<int32_t, 1> positions = {54321};
    RopeArgs args{.x = x.view(), .positions = positions, .freqs = kFreqs};
    launch_inline(row, args);
    EXPECT_NE(x.values, before);
    args.inverse = true;
    launch_inline(row, args);
    EXPECT_THAT(x.values, Pointwise(FloatNear(2e-6f), before));
  });
}

// --- attention and compressor --------------------------------------------------------------------

// One query of one head over keys that hold `values` in two dimensions.
struct AttentionCase {
  HostTensor<float> q = f32_tensor({1, 1, 2}, {1, 0});
  std::vector<float> window = {};
  std::vector<int32_t> window_rows = {};
  std::vector<float> entries = {};
  std::vector<int32_t> entry_rows = {};
  float sink = -kInfinity;
  HostTensor<float> out = f32_tensor({1, 1, 2}, {kNan, kNan});

  const std::vector<float>& run(const KernelInfo& row) {
    const KeySet keys{.window = window.data(),
                      .window_rows = window_rows,
                      .entries = entries.data(),
                      .entry_rows = entry_rows};
    launch_inline(
        row,
        SparseAttentionArgs{
            .q = q.view(), .keys = {&keys, 1}, .sink = &sink, .scale = 1, .out = out.view()});
    return out.values;
  }
};

TEST(SparseAttention, OneSoftmaxCoversWindowAndEntries) {
  for_each_row(Op::kSparseAttention, [](const KernelInfo& row) {
    AttentionCase attention{.window = {99, 99, 0, 4},
                            .window_rows = {1},
                            .entries = {std::log(3.0f), 8, 99, 99},
                            .entry_rows = {0}};
    EXPECT_THAT(attention.run(row),
                ElementsAre(FloatEq(0.75f * std::log(3.0f)), FloatEq(0.25f * 4 + 0.75f * 8)));
  });
}

TEST(SparseAttention, SinkOnlyDividesAndIsNotScaled) {
  for_each_row(Op::kSparseAttention, [](const KernelInfo& row) {
    AttentionCase attention{.window = {0, 6}, .window_rows = {0}, .sink = std::log(2.0f)};
    EXPECT_THAT(attention.run(row), ElementsAre(0, FloatEq(2)));
  });
}

TEST(SparseAttention, GivesZeroWithoutKeysAndUnderAHugeSink) {
  for_each_row(Op::kSparseAttention, [](const KernelInfo& row) {
    EXPECT_THAT(AttentionCase{}.run(row), Each(0.0f));
    EXPECT_THAT(AttentionCase{.sink = 1.0f}.run(row), Each(0.0f));
    AttentionCase attention{.window = {1, 6}, .window_rows = {0}, .sink = 1e30f};
    EXPECT_THAT(attention.run(row), Each(0.0f));
  });
}

TEST(SparseAttention, HugeLogitsDoNotOverflow) {
  for_each_row(Op::kSparseAttention, [](const KernelInfo& row) {
    AttentionCase attention{
        .window = {1e30f, 1, -1e30f, 2, 3e30f, 5}, .window_rows = {0, 1, 2}, .sink = 3};
    EXPECT_THAT(attention.run(row), ElementsAre(3e30f, 5));
  });
}

TEST(SparseAttention, AManyKeyMeanIsExactForEqualLogits) {
  for_each_row(Op::kSparseAttention, [](const KernelInfo& row) {
    AttentionCase attention;
    for (int32_t i = 0; i < 64; ++i) {
      attention.entries.insert(attention.entries.end(), {0, static_cast<float>(i)});
      attention.entry_rows.push_back(i);
    }
    EXPECT_THAT(attention.run(row), ElementsAre(0, 31.5f));
  });
}

// One key of 64 codes and two rotary elements; the codes' block holds a NaN.
TEST(SparseAttention, ABlockOfFp8KeysThatIsNanMakesTheResultNan) {
  const quant::Fp8KeyLayout layout{.num_codes = 128, .num_rotary = 2};
  std::vector<float> key(130, 1.0f);
  key[70] = kNan;
  std::vector<std::byte> pool(static_cast<size_t>(layout.row_bytes()));
  quant::encode_fp8_key(key, layout, pool.data());
  for (const KernelInfo* row : runnable_rows(Op::kSparseAttention, KeyForm::kFp8)) {
    SCOPED_TRACE(row->name);
    auto q = f32_tensor({1, 1, 130}, std::vector<float>(130, 0.5f));
    auto out = f32_zeros({1, 1, 130});
    const std::array<int32_t, 1> rows = {0};
    const KeySet keys{.window = pool.data(), .window_rows = rows};
    const float sink = 0;
    launch_inline(*row,
                  SparseAttentionArgs{.q = q.view(),
                                      .keys = {&keys, 1},
                                      .kv_dtype = DType::kF8E4m3,
                                      .num_rotary = 2,
                                      .sink = &sink,
                                      .scale = 1,
                                      .out = out.view()});
    EXPECT_TRUE(std::isnan(out.values[64]));
  }
}

TEST(SparseAttention, KeysTooWideForTheScratchFallBackToTheReference) {
  device::DeviceInfo device;
  device.isa = device::kIsaAvx2 | device::kIsaAvx512;
  const Route narrow = route({.op = Op::kSparseAttention, .k = 1024}, device).value();
  EXPECT_EQ(narrow.kernel->name, "sparse_attention.avx512.simd");
  const Route wide =
      route({.op = Op::kSparseAttention, .k = 1032}, device, {.allow_reference = true}).value();
  EXPECT_EQ(wide.kernel->name, "sparse_attention.cpu.scalar");
  ASSERT_EQ(wide.refused.size(), 2U);
  EXPECT_EQ(wide.refused[0].reason, "k 1032, at most 1024");
}

TEST(HyperPre, ManyStreamsFallBackToTheReference) {
  device::DeviceInfo device;
  device.isa = device::kIsaAvx2 | device::kIsaAvx512;
  for (const Op op : {Op::kHyperPre, Op::kHyperPost, Op::kHyperHead}) {
    EXPECT_EQ(route({.op = op, .n = 8, .k = 64}, device).value().kernel->unit, ComputeUnit::kSimd);
    const Route many =
        route({.op = op, .n = 9, .k = 64}, device, {.allow_reference = true}).value();
    EXPECT_EQ(many.kernel->unit, ComputeUnit::kScalar);
    EXPECT_EQ(many.refused.front().reason, "n 9, at most 8");
  }
}

TEST(Compress, PoolsByTheSoftmaxOfPresentSlots) {
  for_each_row(Op::kCompress, [](const KernelInfo& row) {
    const std::vector<float> gate_a = {0, 100};
    const std::vector<float> gate_b = {std::log(3.0f), -100};
    const std::vector<float> value_a = {4, 7};
    const std::vector<float> value_b = {8, 9};
    const std::array<const float*, 3> values = {nullptr, value_a.data(), value_b.data()};
    const std::array<const float*, 3> gates = {nullptr, gate_a.data(), gate_b.data()};
    auto out = f32_zeros({1, 2});
    launch_inline(
        row, CompressArgs{.values = values, .gates = gates, .num_slots = 3, .out = out.view()});
    EXPECT_THAT(out.values, ElementsAre(FloatEq(7), FloatEq(7)));
  });
}

// --- indexer -------------------------------------------------------------------------------------

TEST(IndexerScore, SumsOpenHeadsAcrossPages) {
  for_each_row(Op::kIndexerScore, [](const KernelInfo& row) {
    auto q = f32_tensor({1, 2, 2}, {1, 0, 0, 1});
    auto weights = f32_tensor({1, 2}, {2, -3});
    // Two entries per page; the sequence owns page 1, then page 0.
    const std::vector<float> pool = {5, 1, -7, -7, 1, 1, -1, 2};
    const std::array<PageId, 2> pages = {PageId{1}, PageId{0}};
    const PagedRows keys{.base = pool.data(), .pages = pages, .entries_per_page = 2, .count = 4};
    auto scores = f32_zeros({1, 4});
    launch_inline(row,
                  IndexerScoreArgs{.q = q.view(),
                                   .head_weights = weights.view(),
                                   .keys = {&keys, 1},
                                   .scores = scores.view()});
    EXPECT_THAT(scores.values, ElementsAre(2 - 3, -6, 10 - 3, 0));
    EXPECT_FALSE(std::signbit(scores.values[3]));
  });
}

struct Selection {
  std::vector<int32_t> indices;
  int32_t count = 0;
};

Selection select(const KernelInfo& row, const std::vector<float>& scores, int32_t k) {
  auto tensor = f32_tensor({1, static_cast<int64_t>(scores.size())}, scores);
  const std::array<int32_t, 1> counts = {static_cast<int32_t>(scores.size())};
  auto indices = i32_zeros({1, k});
  std::array<int32_t, 1> num_selected = {-1};
  launch_inline(row,
                TopKArgs{.scores = tensor.view(),
                         .counts = counts,
                         .k = k,
                         .indices = indices.view(),
                         .num_selected = num_selected});
  indices.values.resize(static_cast<size_t>(num_selected[0]));
  return {indices.values, num_selected[0]};
}

TEST(TopK, KeepsTheBestInAscendingOrder) {
  for_each_row(Op::kTopK, [](const KernelInfo& row) {
    EXPECT_THAT(select(row, {1, 9, -2, 7, 8}, 3).indices, ElementsAre(1, 3, 4));
  });
}

TEST(TopK, TiesGoToTheLowerIndexAndMinusZeroEqualsZero) {
  for_each_row(Op::kTopK, [](const KernelInfo& row) {
    EXPECT_THAT(select(row, {5, 5, 5, 5}, 2).indices, ElementsAre(0, 1));
    EXPECT_THAT(select(row, {-0.0f, 0.0f, -0.0f, 1}, 2).indices, ElementsAre(0, 3));
    EXPECT_THAT(select(row, {0.0f, -0.0f, 0.0f, -1}, 2).indices, ElementsAre(0, 1));
  });
}

TEST(TopK, TakesEverythingWhenThereIsLittle) {
  for_each_row(Op::kTopK, [](const KernelInfo& row) {
    EXPECT_THAT(select(row, {3, 1}, 5).indices, ElementsAre(0, 1));
    EXPECT_EQ(select(row, {}, 5).count, 0);
  });
}

TEST(TopK, NanRanksLowest) {
  for_each_row(Op::kTopK, [](const KernelInfo& row) {
    EXPECT_THAT(select(row, {kNan, -1e30f, -kNan, 4, kInfinity}, 3).indices, ElementsAre(1, 3, 4));
    EXPECT_THAT(select(row, {kNan, -kInfinity, kNan}, 2).indices, ElementsAre(0, 1));
  });
}

TEST(TopK, FindsTheBestOfALongList) {
  for_each_row(Op::kTopK, [](const KernelInfo& row) {
    // A permutation of 0 .. 4096 by a step that is coprime to the prime 4097 = 17 * 241.
    std::vector<float> scores(4097);
    std::vector<int32_t> expected;
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i] = static_cast<float>(i * 1000 % scores.size()) - 2000.0f;
      if (scores[i] >= 4097 - 64 - 2000.0f) expected.push_back(static_cast<int32_t>(i));
    }
    EXPECT_THAT(select(row, scores, 64).indices, ElementsAreArray(expected));
  });
}

// --- experts -------------------------------------------------------------------------------------

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice choose(const KernelInfo& row,
              const std::vector<float>& logits,
              const float* bias,
              int32_t k) {
  auto tensor = f32_tensor({1, static_cast<int64_t>(logits.size())}, logits);
  auto ids = i32_zeros({1, k});
  auto weights = f32_zeros({1, k});
  launch_inline(
      row,
      SelectExpertsArgs{
          .logits = tensor.view(), .bias = bias, .ids = ids.view(), .weights = weights.view()});
  return {ids.values, weights.values};
}

TEST(SelectExperts, ScoresAreTheSpecificationVector) {
  for_each_row(Op::kSelectExperts, [](const KernelInfo& row) {
    const std::vector<std::pair<float, float>> vector = {{-20, 4.5399930e-5f},
                                                         {-5, 0.08194723f},
                                                         {-1, 0.55969785f},
                                                         {0, 0.83255461f},
                                                         {1, 1.1459763f},
                                                         {5, 2.2375691f},
                                                         {20, 4.4721360f}};
    for (const auto& [logit, score] : vector) {
      auto logits = f32_tensor({1, 2}, {logit, 0});
      auto ids = i32_zeros({1, 2});
      ids.values = {0, 1};
      auto weights = f32_zeros({1, 2});
      launch_inline(row,
                    SelectExpertsArgs{.logits = logits.view(),
                                      .reuse_ids = true,
                                      .ids = ids.view(),
                                      .weights = weights.view()});
      const float got = weights.values[0] / weights.values[1] * 0.83255461f;
      EXPECT_NEAR(got / score, 1.0f, kVectorTolerance) << logit;
    }
  });
}

TEST(SelectExperts, BiasSelectsButDoesNotWeigh) {
  for_each_row(Op::kSelectExperts, [](const KernelInfo& row) {
    const std::vector<float> bias = {0, 0, 100, 0};
    const Choice choice = choose(row, {1, 3, 1, 2}, bias.data(), 2);
    EXPECT_THAT(choice.ids, ElementsAre(2, 1));
    EXPECT_LT(choice.weights[0], choice.weights[1]);
    EXPECT_FLOAT_EQ(choice.weights[0] + choice.weights[1], 1);
  });
}

TEST(SelectExperts, TiesGoToTheLowerIdAndNanRanksLowest) {
  for_each_row(Op::kSelectExperts, [](const KernelInfo& row) {
    EXPECT_THAT(choose(row, {1, 2, 2, 2, 1}, nullptr, 2).ids, ElementsAre(1, 2));
    EXPECT_THAT(choose(row, {kNan, 2, kNan, 3}, nullptr, 3).ids, ElementsAre(3, 1, 0));
  });
}

TEST(SelectExperts, VeryNegativeLogitsStillWeigh) {
  for_each_row(Op::kSelectExperts, [](const KernelInfo& row) {
    for (const float weight : choose(row, {-60, -60, -60}, nullptr, 2).weights) {
      EXPECT_FLOAT_EQ(weight, 0.5f);
    }
    for (const float weight : choose(row, {-1e30f, -kInfinity, -200}, nullptr, 2).weights) {
      EXPECT_TRUE(std::isfinite(weight));
    }
  });
}

TEST(SelectExperts, HashLayersReadTheTokensRow) {
  for_each_row(Op::kSelectExperts, [](const KernelInfo& row) {
    auto logits = f32_tensor({2, 3}, {0, 0, 0, 0, 0, 0});
    const std::vector<int32_t> table = {0, 1, 2, 0, 1, 2};
    const std::array<int32_t, 2> tokens = {2, 1};
    auto ids = i32_zeros({2, 2});
    auto weights = f32_zeros({2, 2});
    launch_inline(row,
                  SelectExpertsArgs{.logits = logits.view(),
                                    .token_to_experts = table.data(),
                                    .token_ids = tokens,
                                    .routed_scaling_factor = 1.5f,
                                    .ids = ids.view(),
                                    .weights = weights.view()});
    EXPECT_THAT(ids.values, ElementsAre(1, 2, 2, 0));
    EXPECT_THAT(weights.values, Each(FloatEq(0.75f)));
  });
}

TEST(Swiglu, ClampsUpOnBothSidesAndGateAboveOnly) {
  for_each_row(Op::kSwiglu, [](const KernelInfo& row) {
    auto x = f32_tensor({1, 8}, {20, -20, 0, 1, 20, -20, 5, 1});
    auto y = f32_zeros({1, 4});
    const float weight = 0.5f;
    launch_inline(row,
                  SwigluArgs{.x = x.view(), .limit = 10, .row_weights = &weight, .y = y.view()});
    const auto silu = [](double g) { return g / (1 + std::exp(-g)); };
    EXPECT_FLOAT_EQ(y.values[0], static_cast<float>(silu(10) * 10 * 0.5));
    EXPECT_FLOAT_EQ(y.values[1], static_cast<float>(silu(-20) * -10 * 0.5));
    EXPECT_EQ(y.values[2], 0);
    EXPECT_FLOAT_EQ(y.values[3], static_cast<float>(silu(1) * 0.5));
  });
}

TEST(Swiglu, WithoutLimitNothingIsClampedAndExtremesStayFinite) {
  for_each_row(Op::kSwiglu, [](const KernelInfo& row) {
    auto x = f32_tensor({1, 4}, {1e4f, -1e4f, 3e4f, 1});
    auto y = f32_zeros({1, 2});
    launch_inline(row, SwigluArgs{.x = x.view(), .y = y.view()});
    EXPECT_FLOAT_EQ(y.values[0], 3e8f);
    EXPECT_NEAR(y.values[1], 0, 1e-30);
  });
}

TEST(CombineExperts, AddsSlotsToTheSharedExpertInPlace) {
  for_each_row(Op::kCombineExperts, [](const KernelInfo& row) {
    auto experts = f32_tensor({4, 2}, {1, 2, 10, 20, 3, 4, 30, 40});
    auto shared = f32_tensor({2, 2}, {100, 200, 300, 400});
    launch_inline(row,
                  CombineExpertsArgs{.experts = experts.view(),
                                     .shared = shared.view(),
                                     .experts_per_token = 2,
                                     .y = shared.view()});
    EXPECT_THAT(shared.values, ElementsAre(111, 222, 333, 444));
  });
}

// --- embedding -----------------------------------------------------------------------------------

TEST(Embed, CopiesRowsOfEveryStoredDtype) {
  for_each_row(Op::kEmbed, [](const KernelInfo& row) {
    const std::vector<float> rows = {1, -2, 0.5f, 3, 65504, -0.25f};
    std::vector<uint16_t> bf16;
    std::vector<uint16_t> f16;
    for (const float value : rows) {
      bf16.push_back(quant::f32_to_bf16(value));
      f16.push_back(quant::f32_to_f16(value));
    }
    const std::array<int32_t, 2> ids = {2, 0};
    const auto embed = [&](const void* table, DType dtype) {
      auto out = f32_zeros({2, 4});
      launch_inline(row,
                    EmbedArgs{.table = TensorView::read_only(table, dtype, {3, 2}),
                              .ids = ids,
                              .copies = 2,
                              .out = out.view()});
      return out.values;
    };
    EXPECT_THAT(embed(rows.data(), DType::kF32),
                ElementsAre(65504, -0.25f, 65504, -0.25f, 1, -2, 1, -2));
    EXPECT_THAT(embed(f16.data(), DType::kF16),
                ElementsAre(65504, -0.25f, 65504, -0.25f, 1, -2, 1, -2));
    EXPECT_THAT(embed(bf16.data(), DType::kBf16),
                ElementsAre(65536, -0.25f, 65536, -0.25f, 1, -2, 1, -2));
  });
}

}  // namespace
}  // namespace nibble::kernels
