// The reference rows of products on the emulated GPU against dot products of decoded weights, and
// the choice of kernels by rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "device/emulated_gpu.h"
#include "kernels/kernel.h"
#include "kernels/reference/device_ops_launchers.h"
#include "kernels/reference/forms.h"
#include "quant/activation.h"
#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using ::testing::Each;
using ::testing::ElementsAre;

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

class EmulatedGpu : public ::testing::Test {
 protected:
  Route route_by(Op op, Format format, Activation activation, int64_t m, int64_t n, int64_t k) {
    routes_ = route_by_rows({.op = op,
                             .has_weight = true,
                             .weight = format,
                             .activation = activation,
                             .n = n,
                             .k = k},
                            gpu_->info(),
                            {.allow_reference = true})
                  .value();
    return route_for(routes_, m);
  }

  std::unique_ptr<device::Device> gpu_ = device::make_emulated_gpu(2).value();
  std::vector<RangedRoute> routes_;
};

// An [m, k] matrix in the form that `kernel` reads, and the values that this form holds.
struct Input {
  ActivationForms forms;
  std::vector<float> values;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;
  std::vector<std::byte> fp8;
  std::vector<float> fp8_scales;
  std::vector<std::byte> fp8_blocks;
  std::vector<std::byte> bf16_terms;

  Input(ActivationForm form, int64_t m, int64_t k) : values(random_values(size_of(m, k), 3)) {
    f32.resize(values.size());
    bf16.resize(values.size());
    fp8.resize(values.size());
    fp8_scales.resize(values.size() / 128);
    fp8_blocks.resize(static_cast<size_t>(k / 128 * fp8_block_bytes(m)));
    bf16_terms.resize(static_cast<size_t>(bf16_blocks_bytes(m, k, kBf16Terms)));
    if (form == ActivationForm::kF32) forms.f32 = f32.data();
    if (form == ActivationForm::kBf16) forms.bf16 = bf16.data();
    if (form == ActivationForm::kFp8Rows) {
      forms.fp8 = fp8.data();
      forms.fp8_scales = fp8_scales.data();
    }
    if (form == ActivationForm::kFp8Blocks) forms.fp8_blocks = fp8_blocks.data();
    if (form == ActivationForm::kBf16Terms) forms.bf16_terms = bf16_terms.data();
    for (int64_t t = 0; t < m; ++t) {
      const auto row = std::span(values).subspan(size_of(t, k), static_cast<size_t>(k));
      reference::write_forms(forms, m, t, row);
      if (form == ActivationForm::kBf16) {
        for (float& value : row) value = quant::round_to_bf16(value);
      }
      if (form == ActivationForm::kFp8Rows || form == ActivationForm::kFp8Blocks) {
        quant::simulate_fp8(row, 128);
      }
    }
  }

  static size_t size_of(int64_t m, int64_t k) { return static_cast<size_t>(m * k); }
};

double exact_dot(const float* a, const float* b, int64_t k) {
  return std::inner_product(
      a, a + k, b, 0.0, std::plus<>(), [](float x, float y) { return static_cast<double>(x) * y; });
}

TEST_F(EmulatedGpu, MultipliesWhatTheFormHolds) {
  constexpr int64_t kN = 128, kK = 1024;
  for (const auto& [format, activation, m, form, splits] :
       {std::tuple{
            Format::kFp8E4m3Block128x128, Activation::kFp8, 3, ActivationForm::kFp8Blocks, 4},
        std::tuple{Format::kFp8E4m3Block128x128, Activation::kFp8, 17, ActivationForm::kFp8Rows, 1},
        std::tuple{Format::kMxfp4, Activation::kBf16, 2, ActivationForm::kBf16, 1},
        std::tuple{Format::kBf16, Activation::kF32, 2, ActivationForm::kBf16Terms, 8},
        std::tuple{Format::kBf16, Activation::kF32, 17, ActivationForm::kF32, 1}}) {
    const Route route = route_by(Op::kMatMul, format, activation, m, kN, kK);
    ASSERT_EQ(route.kernel->x_form, form) << route.kernel->name;
    const quant::QuantizedWeight stored =
        quant::quantize(format, random_values(kN * kK, 1), kN, kK);
    const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = kN};
    const PackedWeight weight = pack_weight(std::span(&source, 1), route.kernel->layout).value();
    std::vector<float> w(kN * kK);
    quant::dequantize(stored.view(), w);
    const Input x(form, m, kK);
    EXPECT_EQ(num_splits(*route.kernel, kN, kK, 132), splits);
    std::vector<float> y(static_cast<size_t>(splits * m * kN));
    ASSERT_TRUE(
        route
            .launch(
                DeviceMatMulArgs{
                    .x = x.forms, .m = m, .weight = &weight, .splits = splits, .y = y.data()},
                gpu_->stream())
            .ok());
    for (int64_t t = 0; t < m; ++t) {
      for (int64_t row = 0; row < kN; ++row) {
        double sum = 0;
        for (int64_t s = 0; s < splits; ++s) {
          sum += y[static_cast<size_t>((s * m + t) * kN + row)];
        }
        ASSERT_NEAR(
            sum, exact_dot(&x.values[Input::size_of(t, kK)], &w[Input::size_of(row, kK)], kK), 1e-3)
            << route.kernel->name << " " << t << " " << row;
      }
    }
  }
}

TEST_F(EmulatedGpu, PassesPairsThroughTheirExperts) {
  constexpr int64_t kN = 8, kK = 128;
  constexpr int32_t kExperts = 3;
  const Route route = route_by(Op::kGroupedMatMul, Format::kMxfp4, Activation::kFp8, 4, kN, kK);
  const quant::QuantizedWeight stored =
      quant::quantize(Format::kMxfp4, random_values(kExperts * kN * kK, 1), kExperts * kN, kK);
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = kExperts * kN};
  PackedWeight weight = pack_weight(std::span(&source, 1), route.kernel->layout).value();
  weight.n = kN;
  std::vector<float> w(kExperts * kN * kK);
  quant::dequantize(stored.view(), w);

  const Input x(ActivationForm::kFp8Rows, 2, kK);  // two tokens with two choices each
  const int32_t count = 2, experts[] = {0, 2};
  const int32_t pairs[] = {3, -1, -1, -1, -1, -1, -1, -1, 0, 2, -1, -1, -1, -1, -1, -1};
  std::vector<float> y(4 * kN, -1.0f);
  ASSERT_TRUE(route
                  .launch(DeviceGroupedMatMulArgs{.x = x.forms,
                                                  .pairs_per_row = 2,
                                                  .weight = &weight,
                                                  .slots = {.rows = 8,
                                                            .count = &count,
                                                            .experts = experts,
                                                            .pairs = pairs,
                                                            .max_slots = 2},
                                                  .y = y.data()},
                          gpu_->stream())
                  .ok());
  for (const auto& [pair, expert] : {std::pair{3, 0}, std::pair{0, 2}, std::pair{2, 2}}) {
    for (int64_t row = 0; row < kN; ++row) {
      ASSERT_NEAR(y[static_cast<size_t>(pair * kN + row)],
                  exact_dot(&x.values[Input::size_of(pair / 2, kK)],
                            &w[Input::size_of(expert * kN + row, kK)],
                            kK),
                  1e-4);
    }
  }
  EXPECT_THAT(std::vector<float>(y.begin() + kN, y.begin() + 2 * kN), Each(-1.0f)) << "pair 1";
}

// Experts that follow each other, as stored.
PackedWeight pack_experts(
    const Route& route, quant::QuantizedWeight& stored, int64_t n, int64_t k, int32_t count) {
  stored = quant::quantize(
      Format::kMxfp4, random_values(static_cast<size_t>(count * n * k), 1), count * n, k);
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = count * n};
  PackedWeight weight = pack_weight(std::span(&source, 1), route.kernel->layout).value();
  weight.n = n;
  return weight;
}

TEST_F(EmulatedGpu, JoinsTheProductsOfATokensExperts) {
  constexpr int64_t kHidden = 128, kIntermediate = 256;
  const Route route =
      route_by(Op::kGroupedMatMul, Format::kMxfp4, Activation::kFp8, 1, kHidden, kIntermediate);
  quant::QuantizedWeight stored_up, stored_down;
  const PackedWeight up = pack_experts(route, stored_up, 2 * kIntermediate, kHidden, 3);
  const PackedWeight down = pack_experts(route, stored_down, kHidden, kIntermediate, 3);
  const Input x(ActivationForm::kFp8Rows, 1, kHidden);
  const int32_t experts[] = {2, -1, 0};
  std::vector<uint16_t> activated(3 * kIntermediate);
  std::vector<float> joined(3 * kHidden, -1.0f), apart(3 * kHidden, -1.0f);
  std::vector<int32_t> counters(4);
  DeviceGroupedMatMulArgs args{
      .x = x.forms,
      .pairs_per_row = 3,
      .weight = &up,
      .slots = {.rows = 1, .experts = experts, .max_slots = 3},
      .swiglu = true,
      .y = activated.data(),
      .down = {.weight = &down, .y = joined.data(), .counters = counters.data()}};
  ASSERT_TRUE(route.launch(args, gpu_->stream()).ok());

  std::vector<std::byte> codes(activated.size());
  std::vector<float> scales(activated.size() / 128), row(kIntermediate);
  const ActivationForms quantized{.fp8 = codes.data(), .fp8_scales = scales.data()};
  for (int64_t pair = 0; pair < 3; ++pair) {
    const auto from = activated.begin() + pair * kIntermediate;
    std::transform(from, from + kIntermediate, row.begin(), quant::bf16_to_f32);
    reference::write_forms(quantized, 3, pair, row);
  }
  args = {.x = quantized, .weight = &down, .slots = args.slots, .y = apart.data()};
  ASSERT_TRUE(route.launch(args, gpu_->stream()).ok());
  EXPECT_EQ(joined, apart);
  EXPECT_NE(joined[0], -1.0f);
  EXPECT_EQ(joined[kHidden], -1.0f) << "pair 1 has no expert";
}

// Bit for bit what the launches give alone: the choice, the shared expert, the experts.
TEST_F(EmulatedGpu, ATokensExpertsChooseAndHaveASharedOneBeside) {
  constexpr int64_t kHidden = 128, kShared = 512;
  const Route route =
      route_by(Op::kGroupedMatMul, Format::kMxfp4, Activation::kFp8, 1, kHidden, kHidden);
  quant::QuantizedWeight stored_up, stored_down;
  const PackedWeight up = pack_experts(route, stored_up, 2 * kHidden, kHidden, 3);
  const PackedWeight down = pack_experts(route, stored_down, kHidden, kHidden, 3);
  const Route dense =
      route_by(Op::kMatMul, Format::kFp8E4m3Block128x128, Activation::kFp8, 1, kHidden, kShared);
  ASSERT_EQ(dense.kernel->name, route.kernel->beside);
  const quant::QuantizedWeight stored = quant::quantize(
      Format::kFp8E4m3Block128x128, random_values(kHidden * kShared, 7), kHidden, kShared);
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = kHidden};
  const PackedWeight shared = pack_weight(std::span(&source, 1), dense.kernel->layout).value();
  const Input x(ActivationForm::kFp8Rows, 1, kHidden);
  const std::vector<float> gate_up = random_values(2 * kShared, 8), logits = {0.5f, -1, 2};
  const int32_t sequence = 0;

  struct Results {
    std::vector<int32_t> ids = std::vector<int32_t>(2), counters = std::vector<int32_t>(3);
    std::vector<float> weights = std::vector<float>(2), pairs = std::vector<float>(2 * kHidden),
                       sums = std::vector<float>(kBesideSplits * kHidden, -1.0f);
    std::vector<uint16_t> activated = std::vector<uint16_t>(2 * kHidden);
    std::vector<std::byte> blocks =
        std::vector<std::byte>(static_cast<size_t>(fp8_blocks_bytes(1, kShared)));
  };
  const auto run = [&](bool joined) {
    Results results;
    const DeviceSelectExpertsArgs choice{.logits = {.data = logits.data()},
                                         .tokens = {.sequences = &sequence, .m = 1},
                                         .num_experts = 3,
                                         .choices = 2,
                                         .ids = results.ids.data(),
                                         .weights = results.weights.data(),
                                         .shared = {.x = {.data = gate_up.data()},
                                                    .m = 1,
                                                    .n = kShared,
                                                    .y = {.fp8_blocks = results.blocks.data()}}};
    const DeviceMatMulArgs beside{.x = choice.shared.y,
                                  .m = 1,
                                  .weight = &shared,
                                  .splits = kBesideSplits,
                                  .y = results.sums.data()};
    DeviceGroupedMatMulArgs args{
        .x = x.forms,
        .pairs_per_row = 2,
        .weight = &up,
        .slots = {.rows = 1, .experts = results.ids.data(), .max_slots = 2},
        .swiglu = true,
        .pair_weights = results.weights.data(),
        .y = results.activated.data(),
        .down = {.weight = &down, .y = results.pairs.data(), .counters = results.counters.data()}};
    if (joined) {
      args.choice = choice;
      args.beside = beside;
    } else {
      EXPECT_TRUE(reference::device_select_experts(choice, gpu_->stream()).ok());
      EXPECT_TRUE(dense.launch(beside, gpu_->stream()).ok());
    }
    EXPECT_TRUE(route.launch(args, gpu_->stream()).ok());
    return results;
  };
  const Results joined = run(true), apart = run(false);
  EXPECT_THAT(joined.ids, ElementsAre(2, 0));
  EXPECT_EQ(joined.ids, apart.ids);
  EXPECT_EQ(joined.weights, apart.weights);
  EXPECT_EQ(joined.activated, apart.activated);
  EXPECT_EQ(joined.pairs, apart.pairs);
  EXPECT_EQ(joined.sums, apart.sums);
  EXPECT_NE(joined.sums[0], -1.0f);
}

TEST_F(EmulatedGpu, OneLayoutServesEveryNumberOfRows) {
  route_by(Op::kMatMul, Format::kFp8E4m3Block128x128, Activation::kFp8, 1, 256, 256);
  std::vector<int64_t> bounds;
  for (const RangedRoute& ranged : routes_) {
    bounds.push_back(ranged.m_max);
    EXPECT_EQ(ranged.route.kernel->layout, PackedLayout::kRowMajor);
  }
  EXPECT_THAT(bounds, ElementsAre(16, 0));
  EXPECT_EQ(route_for(routes_, 16).kernel->x_form, ActivationForm::kFp8Blocks);
  EXPECT_EQ(route_for(routes_, 17).kernel->x_form, ActivationForm::kFp8Rows);
}

TEST_F(EmulatedGpu, NarrowInputsTakeBf16) {
  EXPECT_EQ(route_by(Op::kMatMul, Format::kMxfp4, Activation::kFp8, 1, 64, 96).kernel->x_form,
            ActivationForm::kBf16);
}

TEST_F(EmulatedGpu, SlotsHoldMorePairsThanTheMeanOfAnExpert) {
  const KernelInfo& kernel =
      *route_by(Op::kGroupedMatMul, Format::kMxfp4, Activation::kFp8, 1, 64, 128).kernel;
  EXPECT_EQ(choose_slot_rows(kernel, 1, 6, 256), 1);
  EXPECT_EQ(choose_slot_rows(kernel, 4, 6, 256), 1);
  EXPECT_EQ(choose_slot_rows(kernel, 5, 6, 256), 8);
  EXPECT_EQ(choose_slot_rows(kernel, 2, 2, 8), 8);
  EXPECT_EQ(choose_slot_rows(kernel, 16, 6, 256), 8);
  EXPECT_EQ(choose_slot_rows(kernel, 256, 6, 256), 32);
  EXPECT_EQ(choose_slot_rows(kernel, 8192, 6, 256), 32);
}

}  // namespace
}  // namespace nibble::kernels
