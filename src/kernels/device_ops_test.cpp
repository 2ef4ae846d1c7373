// What the argument blocks of kernels/device_args.h mean, by hand-made values on the reference rows
// of the emulated GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "device/emulated_gpu.h"
#include "kernels/ops_testing.h"
#include "quant/activation.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::FloatEq;
using ::testing::FloatNear;

constexpr int32_t kPoison = -77;
constexpr float kPoisonF32 = -77;

// Launches the emulated GPU's row of `op`.
template <class Args>
void launch(Op op, const Args& args) {
  const auto device = device::make_emulated_gpu(1).value();
  const Route route = kernels::route({.op = op}, device->info(), {.allow_reference = true}).value();
  route.launch(args, device->stream()).value();
}

// Owned rows of a step: three sequences and a padding row.
//   rows 0, 1, 2: sequence 0, slot 2, positions 5 6 7; row 3: sequence 1, slot 0, position 300;
//   row 4: padding
struct Step {
  std::vector<int32_t> ids = {3, 1, 2, 0, 0};
  std::vector<int32_t> positions = {5, 6, 7, 300, 0};
  std::vector<int32_t> sequences = {0, 0, 0, 1, -1};
  std::vector<int32_t> slots = {2, 0};
  std::vector<int32_t> row_begin = {0, 3};
  std::vector<int32_t> num_tokens = {3, 1};
  std::vector<int32_t> position_begin = {5, 300};
  std::vector<int32_t> window_begin = {0, 298};
  std::vector<int32_t> pages = {4, -1, 7, 1};
  int32_t max_pages = 2;

  DeviceTokens tokens() const {
    return {.ids = ids.data(),
            .positions = positions.data(),
            .sequences = sequences.data(),
            .m = static_cast<int32_t>(ids.size())};
  }
  DeviceSequences device_sequences() const {
    return {.slots = slots.data(),
            .row_begin = row_begin.data(),
            .num_tokens = num_tokens.data(),
            .position_begin = position_begin.data(),
            .window_begin = window_begin.data(),
            .pages = pages.data(),
            .max_pages = max_pages};
  }
};

// --- the plan ------------------------------------------------------------------------------------

struct Plan {
  std::vector<int32_t> key_rows = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> window_rows = std::vector<int32_t>(20, kPoison);
  std::vector<int32_t> window_counts = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> window_ready = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> token_pages = std::vector<int32_t>(10, kPoison);
  std::vector<int32_t> counts_4 = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> selected_counts = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> selected = std::vector<int32_t>(100, kPoison);
  std::vector<int32_t> ready_4 = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> counts_128 = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> ready_128 = std::vector<int32_t>(5, kPoison);
  std::vector<int32_t> rows_128 = std::vector<int32_t>(15, kPoison);

  Plan(const Step& step, int32_t direct_tokens) {
    launch(Op::kPlan,
           DevicePlanArgs{.tokens = step.tokens(),
                          .sequences = step.device_sequences(),
                          .num_slots = 3,
                          .window = 4,
                          .ring_capacity = 8,
                          .direct_tokens = direct_tokens,
                          .page_tokens = 256,
                          .top_k = 20,
                          .key_rows = key_rows.data(),
                          .window_rows = window_rows.data(),
                          .window_counts = window_counts.data(),
                          .window_ready = window_ready.data(),
                          .token_pages = token_pages.data(),
                          .counts_4 = counts_4.data(),
                          .selected_counts = selected_counts.data(),
                          .selected = selected.data(),
                          .ready_4 = ready_4.data(),
                          .counts_128 = counts_128.data(),
                          .ready_128 = ready_128.data(),
                          .rows_128 = rows_128.data(),
                          .max_rows_128 = 3});
  }
};

std::vector<int32_t> row_of(const std::vector<int32_t>& values, size_t width, size_t row) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

TEST(DevicePlan, ListsTheRingRowsThatATokenSees) {
  const Plan plan(Step{}, 3);
  EXPECT_THAT(plan.key_rows, ElementsAre(21, 22, 23, 300 % 8, -1));
  EXPECT_THAT(row_of(plan.window_rows, 4, 0), ElementsAre(18, 19, 20, 21));
  EXPECT_THAT(row_of(plan.window_rows, 4, 2), ElementsAre(20, 21, 22, 23));
  // Positions 298 on may be read: 298, 299, 300.
  EXPECT_THAT(row_of(plan.window_rows, 4, 3), ElementsAre(2, 3, 4, -1));
  EXPECT_THAT(plan.window_counts, ElementsAre(4, 4, 4, 3, 0));
  EXPECT_THAT(plan.window_ready, ElementsAre(3, 2, 1, 2, 0));
}

TEST(DevicePlan, KeepsNewKeysOfLongChunksInScratchRows) {
  const Plan plan(Step{}, 2);
  EXPECT_THAT(plan.key_rows, ElementsAre(24, 25, 26, 300 % 8, -1));
  EXPECT_THAT(row_of(plan.window_rows, 4, 0), ElementsAre(18, 19, 20, 24));
  EXPECT_THAT(row_of(plan.window_rows, 4, 2), ElementsAre(20, 24, 25, 26));
  EXPECT_THAT(row_of(plan.window_rows, 4, 3), ElementsAre(2, 3, 4, -1));
}

TEST(DevicePlan, CountsAndTranslatesEntries) {
  const Plan plan(Step{}, 3);
  EXPECT_THAT(plan.counts_4, ElementsAre(1, 1, 2, 75, 0));
  EXPECT_THAT(plan.selected_counts, ElementsAre(1, 1, 2, 20, 0));
  // What selects itself is listed: entries of page 4. The 75 of the fourth row wait for scores.
  EXPECT_THAT(std::vector<int32_t>(plan.selected.begin() + 40, plan.selected.begin() + 43),
              ElementsAre(4 * 64, 4 * 64 + 1, -1));
  EXPECT_EQ(plan.selected[60], kPoison);
  EXPECT_THAT(plan.ready_4, ElementsAre(1, 1, 1, 0, 0));
  EXPECT_THAT(plan.counts_128, ElementsAre(0, 0, 0, 2, 0));
  EXPECT_THAT(plan.ready_128, ElementsAre(0, 0, 0, 2, 0));
  EXPECT_THAT(row_of(plan.rows_128, 3, 0), Each(-1));
  EXPECT_THAT(row_of(plan.rows_128, 3, 3), ElementsAre(14, 15, -1));
  EXPECT_THAT(row_of(plan.token_pages, 2, 2), ElementsAre(4, -1));
  EXPECT_THAT(row_of(plan.token_pages, 2, 3), ElementsAre(7, 1));
}

TEST(DevicePlan, ClearsPaddingRows) {
  const Plan plan(Step{}, 3);
  EXPECT_THAT(row_of(plan.window_rows, 4, 4), Each(-1));
  EXPECT_THAT(row_of(plan.token_pages, 2, 4), Each(-1));
  EXPECT_THAT(row_of(plan.rows_128, 3, 4), Each(-1));
}

TEST(DeviceCopyRows, LeavesOutNegativeRows) {
  const std::vector<int32_t> in = {10, 11, 20, 21, 30, 31};
  std::vector<int32_t> out(6, kPoison);
  const std::vector<int32_t> from = {2, -1, 0};
  const std::vector<int32_t> to = {0, 1, -1};
  DeviceCopyRowsArgs args{.in = reinterpret_cast<const std::byte*>(in.data()),
                          .out = reinterpret_cast<std::byte*>(out.data()),
                          .from = from.data(),
                          .to = to.data(),
                          .count = 3,
                          .row_bytes = 8};
  launch(Op::kCopyRows, args);
  EXPECT_THAT(out, ElementsAre(30, 31, kPoison, kPoison, kPoison, kPoison));
  args.from = nullptr;
  args.to = nullptr;
  launch(Op::kCopyRows, args);
  EXPECT_EQ(out, in);
}

TEST(DeviceMakeSlots, GroupsPairsOfOneExpert) {
  const std::vector<int32_t> ids = {2, 0, 2, -1, 2, 5};
  int32_t count = kPoison;
  std::vector<int32_t> experts(8, kPoison), pairs(16, kPoison);
  launch(Op::kMakeSlots,
         DeviceMakeSlotsArgs{.ids = ids.data(),
                             .num_pairs = 6,
                             .num_experts = 4,
                             .rows = 2,
                             .count = &count,
                             .experts = experts.data(),
                             .pairs = pairs.data()});
  EXPECT_EQ(count, 3);
  EXPECT_THAT(std::vector(experts.begin(), experts.begin() + 3), ElementsAre(0, 2, 2));
  EXPECT_THAT(std::vector(pairs.begin(), pairs.begin() + 6), ElementsAre(1, -1, 0, 2, 4, -1));
  EXPECT_EQ(pairs[6], kPoison);
}

TEST(DeviceEmbed, FillsEveryStreamAndClearsPadding) {
  const std::vector<float> table = {0, 1, 10, 11, 20, 21, 30, 31};
  std::vector<float> out(20, kPoisonF32);
  launch(Op::kEmbed,
         DeviceEmbedArgs{.table = table.data(),
                         .table_dtype = DType::kF32,
                         .hidden = 2,
                         .tokens = Step{}.tokens(),
                         .copies = 2,
                         .out = out.data()});
  EXPECT_THAT(out,
              ElementsAre(30, 31, 30, 31, 10, 11, 10, 11, 20, 21, 20, 21, 0, 1, 0, 1, 0, 0, 0, 0));
}

// --- forms ---------------------------------------------------------------------------------------

TEST(DeviceQuantize, WritesEveryForm) {
  constexpr int64_t kRows = 3, kWidth = 256;
  std::vector<float> x(2 * kRows * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(0.1 * double(i)));
  std::vector<float> sums(kRows * kWidth);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = x[i] + x[i + sums.size()];
  std::vector<float> f32(sums.size()), scales(kRows * 2);
  std::vector<uint16_t> bf16(sums.size());
  std::vector<std::byte> codes(sums.size());
  std::vector<std::byte> blocks(static_cast<size_t>(2 * fp8_block_bytes(kRows)));
  std::vector<uint16_t> terms(
      static_cast<size_t>(bf16_blocks_bytes(kRows, kWidth, kBf16Terms) / 2));
  launch(Op::kQuantize,
         DeviceQuantizeArgs{.x_sums = {.data = x.data(), .splits = 2},
                            .m = kRows,
                            .k = kWidth,
                            .y = {.f32 = f32.data(),
                                  .bf16 = bf16.data(),
                                  .fp8 = codes.data(),
                                  .fp8_scales = scales.data(),
                                  .fp8_blocks = blocks.data(),
                                  .bf16_terms = reinterpret_cast<std::byte*>(terms.data())}});
  EXPECT_EQ(f32, sums);
  std::vector<uint8_t> expected(128);
  std::vector<float> scale(1);
  for (size_t t = 0; t < kRows; ++t) {
    for (size_t g = 0; g < 2; ++g) {
      const auto group = std::span<const float>(sums).subspan(t * kWidth + g * 128, 128);
      quant::quantize_fp8(group, 128, expected, scale);
      EXPECT_EQ(scales[t * 2 + g], scale[0]);
      const std::byte* const block = blocks.data() + g * size_t{fp8_block_bytes(kRows)};
      float block_scale = 0;
      std::memcpy(&block_scale, block + kRows * 128 + t * 4, 4);
      EXPECT_EQ(block_scale, scale[0]);
      for (size_t i = 0; i < 128; ++i) {
        EXPECT_EQ(bf16[t * kWidth + g * 128 + i], quant::f32_to_bf16(group[i]));
        EXPECT_EQ(codes[t * kWidth + g * 128 + i], std::byte{expected[i]});
        EXPECT_EQ(block[(i / 16 * kRows + t) * 16 + i % 16], std::byte{expected[i]});
        const size_t column = g * 128 + i;
        float sum = 0;
        for (size_t term = 3; term-- > 0;) {
          const size_t chunk = column / 64 * 24 + term * 8 + column % 64 / 8;
          sum += quant::bf16_to_f32(terms[(chunk * kRows + t) * 8 + column % 8]);
        }
        EXPECT_EQ(sum, group[i]);
      }
    }
  }
}

TEST(DeviceQuantize, ReadsBf16Rows) {
  const std::vector<uint16_t> x = {quant::f32_to_bf16(1.5f), quant::f32_to_bf16(-2.0f)};
  std::vector<float> y(2);
  launch(Op::kQuantize,
         DeviceQuantizeArgs{.x_bf16 = x.data(), .m = 1, .k = 2, .y = {.f32 = y.data()}});
  EXPECT_THAT(y, ElementsAre(1.5f, -2.0f));
}

TEST(DeviceRmsNorm, DividesByTheRms) {
  const std::vector<float> x = {3, 4, -6, 8}, gamma = {1, 2};
  std::vector<float> y(4);
  launch(Op::kRmsNorm,
         DeviceRmsNormArgs{
             .x = x.data(), .m = 2, .k = 2, .gamma = gamma.data(), .y = {.f32 = y.data()}});
  const float rms = std::sqrt(12.5f);
  EXPECT_THAT(y,
              ElementsAre(FloatEq(3 / rms), FloatEq(8 / rms), FloatEq(-3 / rms), FloatEq(8 / rms)));
}

// --- streams -------------------------------------------------------------------------------------

TEST(DeviceStreamUpdate, AddsSumsAndPairsAndMixesStreams) {
  constexpr int32_t kMult = 2;
  const std::vector<float> y = {1, 2, 10, 20};              // two splits of one row of two columns
  const std::vector<float> pairs = {100, 200, 1000, 2000};  // two choices
  const std::vector<float> post = {1, 0.5f};
  const std::vector<float> comb = {1, 2, 3, 4};  // row: source
  std::vector<float> streams = {1, 2, 5, 6};
  const std::vector<float> fn = {1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 2, 0};
  std::vector<float> partials(2 * 4, kPoisonF32);
  launch(Op::kStreamUpdate,
         DeviceStreamUpdateArgs{.y = {.data = y.data(), .splits = 2},
                                .pairs = pairs.data(),
                                .choices = 2,
                                .post = post.data(),
                                .comb = comb.data(),
                                .streams = streams.data(),
                                .hidden = 2,
                                .hc_mult = kMult,
                                .m = 1,
                                .fn = fn.data(),
                                .num_mix = 3,
                                .parts = 2,
                                .partials = partials.data()});
  // y is (1111, 2222); stream 0 is y + 1 * s0 + 3 * s1, stream 1 is y / 2 + 2 * s0 + 4 * s1.
  EXPECT_THAT(streams, ElementsAre(1127, 2242, 577.5f, 1139));
  // Parts are rounded up to 4 columns, so that the first has both and the second none.
  EXPECT_THAT(partials[0], FloatEq(1127 + 2242 + 577.5f + 1139));
  EXPECT_THAT(partials[1], FloatEq(2242));
  EXPECT_THAT(partials[2], FloatEq(1155));
  EXPECT_THAT(partials[3],
              FloatEq(1127.0f * 1127 + 2242.0f * 2242 + 577.5f * 577.5f + 1139.0f * 1139));
  EXPECT_THAT(std::vector(partials.begin() + 4, partials.end()), Each(0));
}

TEST(DeviceStreamUpdate, OnlyReadsStreamsWithoutPost) {
  std::vector<float> streams = {1, 2, 3, 4};
  const std::vector<float> fn = {1, 0, 0, 1};
  std::vector<float> partials(2);
  launch(Op::kStreamUpdate,
         DeviceStreamUpdateArgs{.streams = streams.data(),
                                .hidden = 4,
                                .hc_mult = 1,
                                .m = 1,
                                .fn = fn.data(),
                                .num_mix = 1,
                                .parts = 1,
                                .partials = partials.data()});
  EXPECT_THAT(streams, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(partials, ElementsAre(5, 30));
}

// The host row of HyperPreArgs and the norm behind it are the meaning of update and mix.
TEST(DeviceStreamMix, EqualsTheHostRowsOfReadAndNorm) {
  constexpr int64_t kHidden = 20, kMult = 4, kMix = (2 + kMult) * kMult, kParts = 3, kRows = 2;
  HostTensor<float> state = f32_zeros({kRows, kMult * kHidden});
  std::vector<float> fn(kMix * kMult * kHidden), base(kMix), scale = {0.5f, 0.25f, 1.5f};
  std::vector<float> gamma(kHidden);
  const auto fill = [](std::vector<float>& values, double step) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(std::sin(step * double(i + 1)));
    }
  };
  fill(state.values, 0.7);
  fill(fn, 0.3);
  fill(base, 0.9);
  fill(gamma, 1.1);
  HostTensor<float> x = f32_zeros({kRows, kHidden}), post = f32_zeros({kRows, kMult}),
                    comb = f32_zeros({kRows, kMult * kMult});
  constexpr float kEps = 1e-6f;
  launch_inline(*runnable_rows(Op::kHyperPre).back(),
                HyperPreArgs{.state = state.view(),
                             .fn = fn.data(),
                             .base = base.data(),
                             .scale = scale.data(),
                             .hc_mult = kMult,
                             .sinkhorn_iters = 20,
                             .hc_eps = kEps,
                             .norm_eps = kEps,
                             .x = x.view(),
                             .post = post.view(),
                             .comb = comb.view()});
  launch_inline(*runnable_rows(Op::kRmsNorm).back(),
                RmsNormArgs{.x = x.view(), .gamma = gamma.data(), .eps = kEps, .y = x.view()});

  std::vector<float> partials(kRows * kParts * (kMix + 1));
  launch(Op::kStreamUpdate,
         DeviceStreamUpdateArgs{.streams = state.values.data(),
                                .hidden = kHidden,
                                .hc_mult = kMult,
                                .m = kRows,
                                .fn = fn.data(),
                                .num_mix = kMix,
                                .parts = kParts,
                                .partials = partials.data()});
  // Row 1 first, then padding.
  const std::vector<int32_t> rows = {1, -1};
  std::vector<float> mixed(2 * kHidden, kPoisonF32), mixed_post(2 * kMult, kPoisonF32),
      mixed_comb(2 * kMult * kMult, kPoisonF32);
  launch(Op::kStreamMix,
         DeviceStreamMixArgs{.streams = state.values.data(),
                             .partials = partials.data(),
                             .parts = kParts,
                             .num_mix = kMix,
                             .base = base.data(),
                             .scale = scale.data(),
                             .hidden = kHidden,
                             .hc_mult = kMult,
                             .sinkhorn_iters = 20,
                             .hc_eps = kEps,
                             .norm_eps = kEps,
                             .gamma = gamma.data(),
                             .rows = rows.data(),
                             .m = 2,
                             .x = {.f32 = mixed.data()},
                             .post = mixed_post.data(),
                             .comb = mixed_comb.data()});
  for (size_t i = 0; i < kHidden; ++i) {
    EXPECT_NEAR(mixed[i], x.values[kHidden + i], 1e-5);
    EXPECT_EQ(mixed[kHidden + i], 0);
  }
  for (size_t i = 0; i < kMult; ++i) EXPECT_NEAR(mixed_post[i], post.values[kMult + i], 1e-5);
  for (size_t i = 0; i < kMult * kMult; ++i) {
    EXPECT_NEAR(mixed_comb[i], comb.values[kMult * kMult + i], 1e-5);
  }
  EXPECT_EQ(mixed_post[kMult], kPoisonF32);  // padding has no coefficients
}

TEST(DeviceJoinMtp, AddsTheEmbeddingToEveryStream) {
  const std::vector<float> embedded = {1, 2}, projected = {10, 20, 30, 40};
  std::vector<float> streams(4);
  launch(Op::kJoinMtp,
         DeviceJoinMtpArgs{.embedded = {.data = embedded.data()},
                           .projected = {.data = projected.data()},
                           .m = 1,
                           .hidden = 2,
                           .hc_mult = 2,
                           .streams = streams.data()});
  EXPECT_THAT(streams, ElementsAre(11, 22, 31, 42));
}

// --- attention -----------------------------------------------------------------------------------

std::vector<float> waves(size_t count, double step) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::sin(step * double(i + 1)));
  return values;
}

// A key as the model makes it: normed, its last elements rotated.
std::vector<float> expected_key(std::span<const float> kv,
                                const std::vector<float>& freqs,
                                int32_t position) {
  double squares = 0;
  for (const float value : kv) squares += double{value} * value;
  const double rms = std::sqrt(squares / double(kv.size()));
  std::vector<float> key;
  for (const float value : kv) key.push_back(static_cast<float>(value / rms));
  for (size_t i = 0; i < freqs.size(); ++i) {
    float* const pair = key.data() + key.size() - 2 * (freqs.size() - i);
    const double angle = static_cast<float>(position) * freqs[i];
    const double x = pair[0], y = pair[1];
    pair[0] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
    pair[1] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
  }
  return key;
}

TEST(DeviceLatents, StoresKeysWhereThePlanSaysAndNowhereForPadding) {
  constexpr int32_t kRank = 4, kWidth = 6, kRows = 5;
  const std::vector<float> sums = waves(kRows * (kRank + kWidth), 0.4);
  const std::vector<float> ones(kWidth, 1.0f);
  const std::vector<float> freqs = {1.0f, 0.1f};
  const std::vector<int32_t> key_rows = {3, 0, 1, 2, -1};
  std::vector<float> q(kRows * kRank), pool(6 * kWidth, kPoisonF32);
  const Step step;
  launch(Op::kLatents,
         DeviceLatentsArgs{.qr_kv = {.data = sums.data()},
                           .tokens = step.tokens(),
                           .q_rank = kRank,
                           .head_dim = kWidth,
                           .q_gamma = ones.data(),
                           .kv_gamma = ones.data(),
                           .rotation = {.freqs = freqs.data(), .num_rotary = 4},
                           .q = {.f32 = q.data()},
                           .key_rows = key_rows.data(),
                           .window_pool = reinterpret_cast<std::byte*>(pool.data()),
                           .key_dtype = DType::kF32});
  for (size_t t = 0; t < 4; ++t) {
    const auto kv = std::span(sums).subspan(t * (kRank + kWidth) + kRank, kWidth);
    const auto key = expected_key(kv, freqs, step.positions[t]);
    const auto stored = std::span(pool).subspan(static_cast<size_t>(key_rows[t]) * kWidth, kWidth);
    for (size_t i = 0; i < kWidth; ++i) EXPECT_NEAR(stored[i], key[i], 1e-6);
  }
  EXPECT_THAT(std::vector(pool.begin() + 4 * kWidth, pool.end()), Each(kPoisonF32));
}

TEST(DeviceLatents, Fp8KeysAreThoseOfQuant) {
  constexpr int32_t kWidth = 72;
  const quant::Fp8KeyLayout layout{.num_codes = 64, .num_rotary = 8};
  const std::vector<float> sums = waves(kWidth + 1, 0.4);
  const std::vector<float> ones(kWidth, 1.0f);
  const std::vector<float> freqs(4, 0.0f);  // no rotation
  const std::vector<int32_t> zero = {0};
  std::vector<float> key(static_cast<size_t>(kWidth)), q(1);
  std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes())), expected(row.size());
  DeviceLatentsArgs args{.qr_kv = {.data = sums.data()},
                         .tokens = {.positions = zero.data(), .sequences = zero.data(), .m = 1},
                         .q_rank = 1,
                         .head_dim = kWidth,
                         .q_gamma = ones.data(),
                         .kv_gamma = ones.data(),
                         .rotation = {.freqs = freqs.data(), .num_rotary = 8},
                         .q = {.f32 = q.data()},
                         .key_rows = zero.data(),
                         .window_pool = reinterpret_cast<std::byte*>(key.data()),
                         .key_dtype = DType::kF32};
  launch(Op::kLatents, args);
  args.window_pool = row.data();
  args.key_dtype = DType::kF8E4m3;
  launch(Op::kLatents, args);
  quant::encode_fp8_key(key, layout, expected.data());
  EXPECT_EQ(row, expected);
}

// One compressor of width 1 without rotation: an entry is the sign of the pooled value. Gates of 0
// pool the mean.
struct Compression {
  static constexpr int32_t kRingCapacity = 16, kRingWidth = 4;

  Step step;
  int32_t ratio = 4;
  std::vector<float> projections;  // [m, 4]: values of both halves, then gates of both
  std::vector<float> ape = std::vector<float>(8, 0.0f);
  std::vector<float> gamma = {1.0f};
  std::vector<float> ring = std::vector<float>(3 * kRingCapacity * kRingWidth, kPoisonF32);
  std::vector<float> entries = std::vector<float>(8 * 64, kPoisonF32);

  void run(bool forms_entries, bool stores_rows) {
    launch(Op::kLatents,
           DeviceLatentsArgs{
               .tokens = step.tokens(),
               .eps = 3.0f,
               .compression = {.projections = {.data = projections.data()},
                               .row_width = 4,
                               .sequences = step.device_sequences(),
                               .ratio = ratio,
                               .page_tokens = 256,
                               .parts = {{.value_column = 0,
                                          .gate_column = 2,
                                          .width = 1,
                                          .ape = ape.data(),
                                          .gamma = gamma.data(),
                                          .entries = reinterpret_cast<std::byte*>(entries.data()),
                                          .entry_dtype = DType::kF32}},
                               .num_parts = 1,
                               .ring = ring.data(),
                               .ring_capacity = kRingCapacity,
                               .ring_width = kRingWidth,
                               .forms_entries = forms_entries,
                               .stores_rows = stores_rows}});
  }
  float* ring_row(int32_t slot, int32_t position) {
    return ring.data() + (slot * kRingCapacity + position % kRingCapacity) * kRingWidth;
  }
};

// What the norm with eps 3 makes of a pooled value.
float normed(float value) { return value / std::sqrt(value * value + 3); }

TEST(DeviceCompress, PoolsTheRingAndTheStep) {
  Compression c;
  // Positions 5, 6, 7 of slot 2: first halves 100, second halves 3 each; position 4 is in the ring,
  // as are positions 0 to 3 with first halves 1.
  c.projections = {100, 3, 0, 0, 100, 3, 0, 0, 100, 3, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9};
  for (int32_t p = 0; p < 4; ++p)
    std::copy_n(std::vector<float>{1, 50, 0, 0}.data(), 4, c.ring_row(2, p));
  std::copy_n(std::vector<float>{100, 7, 0, 0}.data(), 4, c.ring_row(2, 4));
  c.run(true, false);
  // Entry 1 in page 4 (64 entries per page).
  EXPECT_THAT(c.entries[4 * 64 + 1], FloatEq(normed((4 * 1 + 7 + 3 * 3) / 8.0f)));
  c.entries[4 * 64 + 1] = kPoisonF32;
  EXPECT_THAT(c.entries, Each(kPoisonF32));
}

TEST(DeviceCompress, EntryZeroHasNoOverlap) {
  Compression c;
  c.step.positions = {1, 2, 3, 300, 0};
  c.step.position_begin = {1, 300};
  c.projections = {100, 2, 0, 0, 100, 2, 0, 0, 100, 2, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9};
  std::copy_n(std::vector<float>{100, 6, 0, 0}.data(), 4, c.ring_row(2, 0));
  c.run(true, false);
  EXPECT_THAT(c.entries[4 * 64], FloatEq(normed(3)));
}

TEST(DeviceCompress, AddsThePositionBiasToGates) {
  Compression c;
  c.step.positions = {1, 2, 3, 300, 0};
  c.step.position_begin = {1, 300};
  c.ape = {0, 0, 0, std::log(2.0f), 0, 0, 0, 0};  // [4, 2]: position 1's second half counts twice
  c.projections = {100, 5, 0, 0, 100, 2, 0, 0, 100, 2, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9};
  std::copy_n(std::vector<float>{100, 6, 0, 0}.data(), 4, c.ring_row(2, 0));
  c.run(true, false);
  EXPECT_THAT(c.entries[4 * 64], FloatNear(normed((6 + 2 * 5 + 2 + 2) / 5.0f), 1e-6f));
}

TEST(DeviceCompress, StoresTheLastRowsWithBiasAndNoPadding) {
  Compression c;
  c.ape = {0, 0, 1, 2, 3, 4, 5, 6};
  c.projections = waves(20, 0.3);
  c.run(false, true);
  EXPECT_THAT(c.entries, Each(kPoisonF32));
  for (int32_t t = 0; t < 4; ++t) {
    const int32_t position = c.step.positions[static_cast<size_t>(t)];
    float* const row = c.ring_row(t < 3 ? 2 : 0, position);
    for (int32_t i = 0; i < 4; ++i) {
      const float bias = i < 2 ? 0 : c.ape[static_cast<size_t>(position % 4 * 2 + i - 2)];
      EXPECT_EQ(row[i], c.projections[static_cast<size_t>(4 * t + i)] + bias);
    }
    std::fill_n(row, 4, kPoisonF32);
  }
  EXPECT_THAT(c.ring, Each(kPoisonF32));
}

TEST(DeviceQueries, NormsHeadsAndRotatesBothKinds) {
  const std::vector<float> q_sums = {3, 4, 0, 5};  // two heads of two
  const std::vector<float> index_sums = {2, 0};
  const std::vector<float> projections = {7, 8, 9};
  const std::vector<float> freqs = {static_cast<float>(std::acos(0.0))};  // a quarter turn
  const std::vector<int32_t> one = {1};
  std::vector<uint16_t> q(4), index_q(2);
  std::vector<float> head_weights(1);
  launch(Op::kQueries,
         DeviceQueriesArgs{.q_sums = {.data = q_sums.data()},
                           .tokens = {.positions = one.data(), .sequences = one.data(), .m = 1},
                           .heads = 2,
                           .head_dim = 2,
                           .rotation = {.freqs = freqs.data(), .num_rotary = 2},
                           .q = q.data(),
                           .index_sums = {.data = index_sums.data()},
                           .index_heads = 1,
                           .index_width = 2,
                           .weights = {.projections = {.data = projections.data()},
                                       .row_width = 3,
                                       .column = 2,
                                       .scale = 0.5f},
                           .index_q = index_q.data(),
                           .head_weights = head_weights.data()});
  const auto value = [](uint16_t bits) { return quant::bf16_to_f32(bits); };
  const float rms = std::sqrt(12.5f);
  EXPECT_NEAR(value(q[0]), -4 / rms, 4e-3);
  EXPECT_NEAR(value(q[1]), 3 / rms, 4e-3);
  EXPECT_NEAR(value(q[2]), -5 / rms, 4e-3);
  EXPECT_NEAR(value(index_q[1]), 2, 4e-3);
  EXPECT_EQ(head_weights[0], 4.5f);
}

TEST(DeviceAttended, TurnsBack) {
  const std::vector<uint16_t> x = {
      quant::f32_to_bf16(1), quant::f32_to_bf16(3), quant::f32_to_bf16(4)};
  const std::vector<float> freqs = {static_cast<float>(std::acos(0.0))};
  const std::vector<int32_t> one = {1};
  std::vector<float> y(3);
  launch(Op::kAttended,
         DeviceAttendedArgs{.x = x.data(),
                            .tokens = {.positions = one.data(), .sequences = one.data(), .m = 1},
                            .heads = 1,
                            .head_dim = 3,
                            .rotation = {.freqs = freqs.data(), .num_rotary = 2},
                            .y = {.f32 = y.data()}});
  EXPECT_THAT(y, ElementsAre(1, FloatNear(4, 1e-6f), FloatNear(-3, 1e-6f)));
}

// --- experts -------------------------------------------------------------------------------------

TEST(DeviceSelectExperts, TakesTheBestOfScoreAndBiasAndNothingForPadding) {
  const Step step;
  const std::vector<float> logits = {0, 0, 0, -5, 5, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0};  // [5, 3]
  const std::vector<float> bias = {0, 3, 0};
  std::vector<int32_t> ids(10, kPoison);
  std::vector<float> weights(10, kPoisonF32);
  launch(Op::kSelectExperts,
         DeviceSelectExpertsArgs{.logits = {.data = logits.data()},
                                 .tokens = step.tokens(),
                                 .num_experts = 3,
                                 .choices = 2,
                                 .bias = bias.data(),
                                 .routed_scaling_factor = 2,
                                 .ids = ids.data(),
                                 .weights = weights.data()});
  EXPECT_THAT(ids, ElementsAre(1, 0, 1, 2, 1, 0, 1, 0, -1, -1));
  EXPECT_THAT(weights[0], FloatEq(1));
  // Row 1: sqrt(softplus) of 5 and 1 (specification 14.3).
  EXPECT_NEAR(weights[2], 2 * 2.2375691 / (2.2375691 + 1.1459763), 1e-6);
  EXPECT_EQ(weights[8], 0);
}

TEST(DeviceSelectExperts, TakesIdsOfTheTableOrOfTheCaller) {
  const Step step;
  const std::vector<float> logits(15, 0.0f);
  const std::vector<int32_t> table = {0, 1, 1, 2, 2, 0, 2, 1};
  std::vector<int32_t> ids(10, kPoison);
  std::vector<float> weights(10);
  DeviceSelectExpertsArgs args{.logits = {.data = logits.data()},
                               .tokens = step.tokens(),
                               .num_experts = 3,
                               .choices = 2,
                               .token_to_experts = table.data(),
                               .ids = ids.data(),
                               .weights = weights.data()};
  launch(Op::kSelectExperts, args);
  EXPECT_THAT(ids, ElementsAre(2, 1, 1, 2, 2, 0, 0, 1, -1, -1));
  ids = {0, 2, 0, 2, 0, 2, 0, 2, 0, 2};
  args.reuse_ids = true;
  launch(Op::kSelectExperts, args);
  EXPECT_THAT(ids, ElementsAre(0, 2, 0, 2, 0, 2, 0, 2, -1, -1));
  EXPECT_THAT(weights[1], FloatEq(0.5f));
}

TEST(DeviceSelectExperts, ClampsGateAndUpOfTheSharedExpert) {
  const std::vector<float> x = {20, 1, 20, -3};  // gate 20, 1; up 20, -3
  std::vector<float> y(2);
  launch(
      Op::kSelectExperts,
      DeviceSelectExpertsArgs{
          .shared = {.x = {.data = x.data()}, .m = 1, .n = 2, .limit = 2, .y = {.f32 = y.data()}}});
  EXPECT_THAT(y[0], FloatEq(2 / (1 + std::exp(-2.0f)) * 2));
  EXPECT_THAT(y[1], FloatEq(1 / (1 + std::exp(-1.0f)) * -2));
}

// --- sampling ------------------------------------------------------------------------------------

TEST(DeviceSample, TakesTheFirstOfTheLargestWhenGreedy) {
  const std::vector<float> logits = {1, 5, 5, 0, -1, -1, -1, -1};
  std::vector<int32_t> ids(2);
  launch(
      Op::kSample,
      DeviceSampleArgs{.logits = {.data = logits.data()}, .m = 2, .vocab = 4, .ids = ids.data()});
  EXPECT_THAT(ids, ElementsAre(1, 0));
}

TEST(DeviceSample, TopKOfOneAndSmallTopPTakeTheBest) {
  const std::vector<float> logits = {1, 2, 3, 2.5f, 1, 2, 3, 2.5f};
  const std::vector<float> temperatures = {1, 1}, top_p = {1, 0.1f};
  const std::vector<int32_t> top_k = {1, 0};
  const std::vector<uint64_t> seeds = {7, 7}, draws = {0, 1};
  std::vector<int32_t> ids(2);
  launch(Op::kSample,
         DeviceSampleArgs{.logits = {.data = logits.data()},
                          .m = 2,
                          .vocab = 4,
                          .temperatures = temperatures.data(),
                          .top_k = top_k.data(),
                          .top_p = top_p.data(),
                          .seeds = seeds.data(),
                          .draws = draws.data(),
                          .ids = ids.data()});
  EXPECT_THAT(ids, Each(2));
}

}  // namespace
}  // namespace nibble::kernels
