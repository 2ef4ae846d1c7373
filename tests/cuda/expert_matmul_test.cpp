// The expert product and its neighbours against sums in double over what the codes mean.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <numeric>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sm90/expert_matmul/launch.h"
#include "kernels/cuda/sm90/panel_matmul/launch.h"
#include "kernels/fp8_panel64.h"
#include "kernels/panel64.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;
using cuda_testing::HostFp8Rows;
using cuda_testing::random_fp8;
using cuda_testing::random_fp8_rows;
using cuda_testing::random_int4;
using cuda_testing::random_mxfp4;
using cuda_testing::random_nvfp4;
using quant::Format;

// E4M3 and E5M2 products keep 13 bits below the largest of an instruction. Source: spec
// "h200-facts" 3.
constexpr double kRelativeRms = 1e-3;

// Experts of one shape, packed one by one, and what they mean.
struct Experts {
  int64_t n, k;
  PanelOrder order;
  std::vector<std::vector<float>> rows;  // [expert][panel row * k]
  DeviceArray<std::byte> packages;
  DeviceArray<float> multipliers;
  PackedWeight weight;
};

quant::QuantizedWeight random_weight(
    Format format, int64_t n, int64_t k, int32_t spread, uint32_t seed) {
  switch (format) {
    case Format::kNvfp4:
      return random_nvfp4(n, k, seed);
    case Format::kInt4Group32:
      return random_int4(n, k, seed);
    default:
      return random_mxfp4(n, k, spread, seed);
  }
}

// `spread`: of MXFP4's exponents.
Experts make_experts(int32_t count,
                     int64_t n,
                     int64_t k,
                     PanelOrder order,
                     int32_t spread,
                     Format format = Format::kMxfp4) {
  std::vector<std::byte> packages;
  std::vector<float> multipliers;
  std::vector<std::vector<float>> rows;
  for (int32_t e = 0; e < count; ++e) {
    const quant::QuantizedWeight stored =
        random_weight(format, n, k, spread, static_cast<uint32_t>(e + 1));
    const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = n};
    const PackedWeight packed = pack_panel64({&source, 1}, order).value();
    packages.insert(packages.end(), packed.codes, packed.codes + panel_bytes(format, n, k));
    multipliers.insert(multipliers.end(), packed.global_scales, packed.global_scales + n);
    std::vector<float>& values = rows.emplace_back(static_cast<size_t>(n * k));
    for (int64_t row = 0; row < n; ++row) {
      unpack_panel64_row(
          packed,
          row,
          std::span(values).subspan(static_cast<size_t>(row * k), static_cast<size_t>(k)));
    }
  }
  Experts experts{.n = n,
                  .k = k,
                  .order = order,
                  .rows = std::move(rows),
                  .packages = DeviceArray<std::byte>(packages),
                  .multipliers = DeviceArray<float>(multipliers),
                  .weight = {}};
  experts.weight.format = format;
  experts.weight.layout = PackedLayout::kPanel64;
  experts.weight.n = n;
  experts.weight.k = k;
  experts.weight.codes = experts.packages.data();
  experts.weight.global_scales = experts.multipliers.data();
  return experts;
}

// Slots as the device makes them.
struct Slots {
  DeviceArray<int32_t> ids, count, experts, pairs;
  ExpertSlots view;
};

Slots make_device_slots(const std::vector<int32_t>& ids, int32_t num_experts, int32_t rows) {
  const auto num_pairs = static_cast<int32_t>(ids.size());
  const int32_t most = max_slots(num_pairs, num_experts, rows);
  Slots slots{.ids = DeviceArray<int32_t>(ids),
              .count = DeviceArray<int32_t>(size_t{1}),
              .experts = DeviceArray<int32_t>(static_cast<size_t>(most)),
              .pairs = DeviceArray<int32_t>(static_cast<size_t>(most * rows)),
              .view = {}};
  launch_make_expert_slots({.ids = slots.ids.data(),
                            .num_pairs = num_pairs,
                            .num_experts = num_experts,
                            .rows = rows,
                            .count = slots.count.data(),
                            .experts = slots.experts.data(),
                            .pairs = slots.pairs.data()},
                           gpu()->stream())
      .value();
  slots.view = {.rows = rows,
                .count = slots.count.data(),
                .experts = slots.experts.data(),
                .pairs = slots.pairs.data(),
                .max_slots = most};
  return slots;
}

// Slots of one row: the choices themselves.
Slots one_row_slots(const std::vector<int32_t>& ids) {
  Slots slots{.ids = DeviceArray<int32_t>(ids),
              .count = DeviceArray<int32_t>(size_t{1}),
              .experts = DeviceArray<int32_t>(size_t{1}),
              .pairs = DeviceArray<int32_t>(size_t{1}),
              .view = {}};
  slots.view = {.rows = kOneSlotRow,
                .experts = slots.ids.data(),
                .max_slots = static_cast<int32_t>(ids.size())};
  return slots;
}

std::vector<int32_t> random_choices(int32_t tokens,
                                    int32_t choices,
                                    int32_t num_experts,
                                    uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> experts(static_cast<size_t>(num_experts)), ids;
  std::iota(experts.begin(), experts.end(), 0);
  for (int32_t t = 0; t < tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    ids.insert(ids.end(), experts.begin(), experts.begin() + choices);
  }
  return ids;
}

double swiglu(double gate, double up, double limit) {
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return gate / (1 + std::exp(-gate)) * up;
}

// Row of expert `e` times row `r` of x, in double.
double product(
    const Experts& experts, int32_t e, int64_t row, const HostFp8Rows& x, int64_t x_row) {
  const float* const w = experts.rows[static_cast<size_t>(e)].data() + row * experts.k;
  const double* const v = x.values.data() + x_row * experts.k;
  double sum = 0;
  for (int64_t i = 0; i < experts.k; ++i) sum += static_cast<double>(w[i]) * v[i];
  return sum;
}

struct Case {
  int64_t n, k;
  int32_t num_experts, tokens, choices, rows;
};

// Errors of all checked outputs together, relative to their size.
class RelativeError {
 public:
  void add(double found, double expected) {
    error_ += (found - expected) * (found - expected);
    size_ += expected * expected;
  }
  double value() const { return std::sqrt(error_ / size_); }

 private:
  double error_ = 0, size_ = 0;
};

std::vector<float> run_plain(const Experts& experts,
                             const HostFp8Rows& x,
                             const Slots& slots,
                             size_t num_pairs,
                             int32_t pairs_per_row,
                             int32_t num_units = gpu()->info().num_units) {
  const DeviceArray<uint8_t> codes(x.codes);
  const DeviceArray<float> scales(x.scales);
  const DeviceArray<float> y(num_pairs * static_cast<size_t>(experts.n));
  const auto launch =
      slots.view.rows > kLargeSlotRows ? &launch_expert_prefill_sm90 : &launch_expert_matmul_sm90;
  launch({.x = {.fp8 = reinterpret_cast<std::byte*>(codes.data()), .fp8_scales = scales.data()},
          .pairs_per_row = pairs_per_row,
          .weight = &experts.weight,
          .slots = slots.view,
          .y = y.data(),
          .num_units = num_units},
         gpu()->stream())
      .value();
  return y.to_host();
}

class ExpertMatMul : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (gpu() != nullptr && gpu()->info().sm != 90) GTEST_SKIP() << "needs sm_90";
  }
};

// Every output of a case, NaN where one was not written.
std::vector<float> expect_sums(const Case& c,
                               Format format,
                               int32_t num_units = gpu()->info().num_units) {
  SCOPED_TRACE(::testing::Message()
               << quant::format_name(format) << " " << c.n << "x" << c.k << " experts "
               << c.num_experts << " tokens " << c.tokens << " rows " << c.rows);
  const Experts experts = make_experts(c.num_experts, c.n, c.k, PanelOrder::kNatural, 9, format);
  const HostFp8Rows x = random_fp8_rows(c.tokens, c.k, 5);
  const std::vector<int32_t> ids = random_choices(c.tokens, c.choices, c.num_experts, 6);
  const Slots slots =
      c.rows == kOneSlotRow ? one_row_slots(ids) : make_device_slots(ids, c.num_experts, c.rows);
  const std::vector<float> y = run_plain(experts, x, slots, ids.size(), c.choices, num_units);
  RelativeError error;
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    for (int64_t row = 0; row < c.n; ++row) {
      error.add(static_cast<double>(y[pair * static_cast<size_t>(c.n) + static_cast<size_t>(row)]),
                product(experts, ids[pair], row, x, static_cast<int64_t>(pair) / c.choices));
    }
  }
  EXPECT_LT(error.value(), kRelativeRms);
  return y;
}

TEST_F(ExpertMatMul, EqualsTheSumsInDouble) {
  const Case cases[] = {{64, 256, 3, 1, 2, 8},
                        {128, 512, 4, 3, 2, 8},
                        {192, 768, 5, 17, 2, 8},
                        {256, 1024, 8, 5, 6, 8},
                        {256, 1024, 8, 5, 6, 16},
                        {128, 2048, 6, 33, 3, 16},
                        {192, 4096, 4, 9, 2, 16},
                        {128, 7168, 2, 9, 2, 16},
                        {128, 256, 2, 64, 1, 16},
                        {1024, 1024, 16, 1, 6, 8},
                        {2048, 256, 40, 33, 3, 8},
                        {4096, 256, 40, 100, 3, 16},
                        {64, 256, 3, 1, 2, 1},
                        {1024, 512, 16, 1, 6, 1},
                        {192, 2048, 8, 1, 6, 1},
                        {2112, 4096, 8, 1, 6, 1},
                        {128, 7168, 3, 1, 2, 1},
                        {128, 1024, 3, 1, 1, 1}};
  for (const Format format : {Format::kMxfp4, Format::kNvfp4, Format::kInt4Group32}) {
    for (const Case& c : cases) expect_sums(c, format);
  }
}

TEST_F(ExpertMatMul, EqualsTheSumsInDoubleForManyRows) {
  const Case cases[] = {{64, 256, 3, 17, 2, 64},
                        {192, 768, 5, 40, 2, 64},
                        {128, 1024, 2, 100, 1, 128},
                        {192, 512, 3, 65, 3, 64},
                        {128, 512, 4, 128, 3, 128},
                        {256, 4096, 2, 96, 1, 128},
                        {128, 7168, 2, 60, 1, 64},
                        {2048, 256, 40, 200, 3, 64},
                        {320, 256, 3, 700, 2, 256},
                        {128, 2048, 8, 300, 2, 256},
                        {320, 768, 20, 300, 4, 64},
                        {448, 512, 9, 700, 2, 128},
                        {2048, 1024, 5, 500, 2, 256}};
  for (const Case& c : cases) {
    expect_sums(c, Format::kMxfp4);
    if (c.rows > kPrefillSlotRows[0]) continue;
    expect_sums(c, Format::kNvfp4);
    expect_sums(c, Format::kInt4Group32);
  }
}

// Bit for bit: rows in slots of 64, 128 and 256, and a row alone.
TEST_F(ExpertMatMul, SizesOfLargeSlotsGiveTheSameBits) {
  constexpr int64_t kN = 192, kK = 1024;
  constexpr int32_t kExperts = 3, kTokens = 333;
  const Experts experts = make_experts(kExperts, kN, kK, PanelOrder::kNatural, 9);
  const HostFp8Rows x = random_fp8_rows(kTokens, kK, 12);
  const std::vector<int32_t> ids = random_choices(kTokens, 1, kExperts, 13);
  const auto run = [&](const HostFp8Rows& rows, const std::vector<int32_t>& chosen, int32_t size) {
    return run_plain(experts, rows, make_device_slots(chosen, kExperts, size), chosen.size(), 1);
  };
  const std::vector<float> all = run(x, ids, 64);
  EXPECT_EQ(run(x, ids, 128), all);
  EXPECT_EQ(run(x, ids, 256), all);
  constexpr int32_t kToken = 201;
  HostFp8Rows row;
  row.codes.assign(x.codes.begin() + kToken * kK, x.codes.begin() + (kToken + 1) * kK);
  row.scales.assign(x.scales.begin() + kToken * (kK / 128),
                    x.scales.begin() + (kToken + 1) * (kK / 128));
  EXPECT_EQ(run(row, {ids[kToken]}, 64),
            std::vector<float>(all.begin() + kToken * kN, all.begin() + (kToken + 1) * kN));
}

// Zero, subnormal and largest scales, each with every code.
TEST_F(ExpertMatMul, KeepsTheEndsOfNvfp4Scales) {
  constexpr int64_t kN = 64, kK = 256;
  for (const int32_t scale : {0x00, 0x01, 0x07, 0x08, 0x38, 0x7E}) {
    quant::QuantizedWeight stored = random_nvfp4(kN, kK, 21);
    std::fill(stored.scales.begin(), stored.scales.end(), static_cast<std::byte>(scale));
    const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = kN};
    const PackedWeight packed = pack_panel64({&source, 1}, PanelOrder::kNatural).value();
    Experts experts = make_experts(1, kN, kK, PanelOrder::kNatural, 0, Format::kNvfp4);
    experts.packages = DeviceArray<std::byte>(
        std::vector<std::byte>(packed.codes, packed.codes + panel_bytes(Format::kNvfp4, kN, kK)));
    experts.weight.codes = experts.packages.data();
    for (int64_t row = 0; row < kN; ++row) {
      unpack_panel64_row(
          packed, row, std::span(experts.rows[0]).subspan(static_cast<size_t>(row * kK), kK));
    }
    const HostFp8Rows x = random_fp8_rows(3, kK, 22);
    for (const int32_t rows : {kOneSlotRow, kSmallSlotRows, kPrefillSlotRows[0]}) {
      const int32_t tokens = rows == kOneSlotRow ? 1 : 3;
      const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
      const Slots slots =
          rows == kOneSlotRow ? one_row_slots(ids) : make_device_slots(ids, 1, rows);
      const std::vector<float> y = run_plain(experts, x, slots, ids.size(), 1);
      RelativeError error;
      for (int64_t i = 0; i < tokens * kN; ++i) {
        const double expected = product(experts, 0, i % kN, x, i / kN);
        if (scale == 0) {
          EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f);
        }
        error.add(static_cast<double>(y[static_cast<size_t>(i)]), expected);
      }
      if (scale != 0) {
        EXPECT_LT(error.value(), kRelativeRms) << scale;
      }
    }
  }
}

TEST_F(ExpertMatMul, FusesSwigluWithClampAndPairWeights) {
  constexpr int64_t kIntermediate = 128, kHidden = 512;
  constexpr int32_t kExperts = 6, kTokens = 7, kChoices = 3;
  const Experts experts =
      make_experts(kExperts, 2 * kIntermediate, kHidden, PanelOrder::kGateUp, 4);
  const HostFp8Rows x = random_fp8_rows(kTokens, kHidden, 8);
  const std::vector<int32_t> ids = random_choices(kTokens, kChoices, kExperts, 9);
  std::vector<float> weights;
  for (size_t pair = 0; pair < ids.size(); ++pair)
    weights.push_back(0.25f * static_cast<float>(pair + 1));
  for (const auto& [limit, rows] : {std::pair<float, int32_t>{10.0f, 8}, {0.0f, 8}, {10.0f, 64}}) {
    const Slots slots = make_device_slots(ids, kExperts, rows);
    const DeviceArray<uint8_t> codes(x.codes);
    const DeviceArray<float> scales(x.scales), pair_weights(weights);
    const DeviceArray<uint16_t> y(ids.size() * kIntermediate);
    const auto launch = rows == 64 ? &launch_expert_prefill_sm90 : &launch_expert_matmul_sm90;
    launch({.x = {.fp8 = reinterpret_cast<std::byte*>(codes.data()), .fp8_scales = scales.data()},
            .pairs_per_row = kChoices,
            .weight = &experts.weight,
            .slots = slots.view,
            .swiglu = true,
            .limit = limit,
            .pair_weights = pair_weights.data(),
            .y = y.data(),
            .num_units = gpu()->info().num_units},
           gpu()->stream())
        .value();
    const std::vector<uint16_t> found = y.to_host();
    RelativeError error;
    for (size_t pair = 0; pair < ids.size(); ++pair) {
      for (int64_t i = 0; i < kIntermediate; ++i) {
        const int64_t gate = i / 8 * 16 + i % 8;
        const auto token = static_cast<int64_t>(pair) / kChoices;
        const double expected = swiglu(product(experts, ids[pair], gate, x, token),
                                       product(experts, ids[pair], gate + 8, x, token),
                                       limit > 0 ? static_cast<double>(limit) : INFINITY) *
                                static_cast<double>(weights[pair]);
        error.add(static_cast<double>(
                      quant::bf16_to_f32(found[pair * kIntermediate + static_cast<size_t>(i)])),
                  expected);
      }
    }
    EXPECT_LT(error.value(), 4e-3)
        << "limit " << limit << " rows " << rows;  // bf16 outputs: 2^-8 / sqrt(12) and more
  }
}

// Bit for bit: a row alone, among others, in slots of 8 and of 16 that are full or half empty; with
// MXFP4 also in slots of 1.
TEST_F(ExpertMatMul, ARowDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 256;
  constexpr int32_t kExperts = 8, kTokens = 60, kChoices = 2;
  for (const auto& [k, format] : {std::pair<int64_t, Format>{2048, Format::kMxfp4},
                                  {4096, Format::kMxfp4},
                                  {768, Format::kMxfp4},
                                  {2048, Format::kNvfp4},
                                  {2048, Format::kInt4Group32}}) {
    const Experts experts = make_experts(kExperts, kN, k, PanelOrder::kNatural, 9, format);
    const HostFp8Rows x = random_fp8_rows(kTokens, k, 10);
    const std::vector<int32_t> ids = random_choices(kTokens, kChoices, kExperts, 11);
    const Slots together = make_device_slots(ids, kExperts, 8);
    const std::vector<float> all = run_plain(experts, x, together, ids.size(), kChoices);
    const Slots wide = make_device_slots(ids, kExperts, 16);
    EXPECT_EQ(run_plain(experts, x, wide, ids.size(), kChoices), all) << k;
    const std::vector<int32_t> few(ids.begin(), ids.begin() + 16 * kChoices);
    const Slots half_empty = make_device_slots(few, kExperts, 16);
    EXPECT_EQ(run_plain(experts, x, half_empty, few.size(), kChoices),
              std::vector<float>(all.begin(), all.begin() + 16 * kChoices * kN))
        << k;
    for (const int32_t token : {0, 13, 59}) {
      const std::vector<int32_t> own(ids.begin() + token * kChoices,
                                     ids.begin() + (token + 1) * kChoices);
      HostFp8Rows row;
      row.codes.assign(x.codes.begin() + token * k, x.codes.begin() + (token + 1) * k);
      row.scales.assign(x.scales.begin() + token * (k / 128),
                        x.scales.begin() + (token + 1) * (k / 128));
      const auto begin = all.begin() + static_cast<ptrdiff_t>(token) * kChoices * kN;
      const std::vector<float> among(begin, begin + kChoices * kN);
      const Slots alone = make_device_slots(own, kExperts, 8);
      EXPECT_EQ(run_plain(experts, row, alone, own.size(), kChoices), among) << k << " " << token;
      const Slots single = one_row_slots(own);
      const std::vector<float> rows = run_plain(experts, row, single, own.size(), kChoices);
      if (format == Format::kMxfp4) {
        EXPECT_EQ(rows, among) << k << " " << token;
      }
      EXPECT_EQ(run_plain(experts, row, one_row_slots({own[0]}), 1, kChoices),
                std::vector<float>(rows.begin(), rows.begin() + kN))
          << k << " " << token;
    }
  }
}

// Rows of k bf16 values by the op quantize.
HostFp8Rows quantize(const DeviceArray<uint16_t>& rows, int64_t k) {
  const int64_t size = rows.num_bytes() / 2;
  const DeviceArray<uint8_t> codes(static_cast<size_t>(size));
  const DeviceArray<float> scales(static_cast<size_t>(size / 128));
  launch_quantize(
      {.x_bf16 = rows.data(),
       .m = static_cast<int32_t>(size / k),
       .k = k,
       .y = {.fp8 = reinterpret_cast<std::byte*>(codes.data()), .fp8_scales = scales.data()}},
      gpu()->stream())
      .value();
  return {.codes = codes.to_host(), .scales = scales.to_host(), .values = {}};
}

// The codes that the product makes of bf16 rows are those of the op quantize.
TEST_F(ExpertMatMul, QuantizesARowAsTheOpDoes) {
  constexpr int64_t kN = 128, kK = 2048;
  constexpr int32_t kExperts = 4;
  const std::vector<int32_t> ids = {2, 0, 3, 2, 1, 2, 2, 2, 2, 3, 2, 0, 2, 2};
  const Experts experts = make_experts(kExperts, kN, kK, PanelOrder::kNatural, 9);
  std::mt19937 random(18);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(ids.size() * kK);
  for (uint16_t& value : x) value = quant::f32_to_bf16(normal(random));
  const DeviceArray<uint16_t> rows(x);
  const HostFp8Rows quantized = quantize(rows, kK);
  for (const int32_t slot_rows : {kOneSlotRow, kSmallSlotRows, kLargeSlotRows}) {
    const bool is_one = slot_rows == kOneSlotRow;
    const Slots slots = is_one ? one_row_slots(ids) : make_device_slots(ids, kExperts, slot_rows);
    const DeviceArray<float> y(ids.size() * kN);
    launch_expert_matmul_sm90({.x = {.bf16 = rows.data()},
                               .weight = &experts.weight,
                               .slots = slots.view,
                               .slots_are_ready = is_one,
                               .y = y.data(),
                               .num_units = gpu()->info().num_units},
                              gpu()->stream())
        .value();
    EXPECT_EQ(y.to_host(), run_plain(experts, quantized, slots, ids.size(), 1)) << slot_rows;
  }
}

// Both products of a token's experts by launches of their own; in slots of 8 rows with MXFP4, whose
// bits do not depend on that.
struct Joined {
  std::vector<uint16_t> activated;
  std::vector<float> y;
};
Joined run_apart(const Experts& up,
                 const Experts& down,
                 const HostFp8Rows& x,
                 int32_t choices,
                 const std::vector<int32_t>& ids,
                 const float* pair_weights) {
  const Slots slots = up.weight.format == Format::kMxfp4
                          ? make_device_slots(ids, 64, kSmallSlotRows)
                          : one_row_slots(ids);
  const DeviceArray<uint8_t> codes(x.codes);
  const DeviceArray<float> scales(x.scales);
  const DeviceArray<uint16_t> activated(ids.size() * static_cast<size_t>(down.k));
  launch_expert_matmul_sm90(
      {.x = {.fp8 = reinterpret_cast<std::byte*>(codes.data()), .fp8_scales = scales.data()},
       .pairs_per_row = choices,
       .weight = &up.weight,
       .slots = slots.view,
       .swiglu = true,
       .limit = 10,
       .pair_weights = pair_weights,
       .y = activated.data(),
       .num_units = gpu()->info().num_units},
      gpu()->stream())
      .value();
  const HostFp8Rows rows = quantize(activated, down.k);
  return {.activated = activated.to_host(), .y = run_plain(down, rows, slots, ids.size(), 1)};
}

// Again and again with other choices, at last of several tokens: the counters end as they began.
TEST_F(ExpertMatMul, JoinsBothProductsBitForBit) {
  constexpr int32_t kExperts = 4, kChoices = 3, kTokens = 5;
  struct Shape {
    int64_t hidden, intermediate;
  };
  for (const Format format : {Format::kMxfp4, Format::kNvfp4, Format::kInt4Group32}) {
    for (const Shape& shape : {Shape{256, 256}, {1024, 512}, {2048, 1024}, {7168, 256}}) {
      SCOPED_TRACE(::testing::Message() << quant::format_name(format) << " " << shape.hidden);
      const auto [hidden, intermediate] = shape;
      const Experts up =
          make_experts(kExperts, 2 * intermediate, hidden, PanelOrder::kGateUp, 4, format);
      const Experts down =
          make_experts(kExperts, hidden, intermediate, PanelOrder::kNatural, 4, format);
      const HostFp8Rows x = random_fp8_rows(kTokens, hidden, 8);
      const DeviceArray<uint8_t> codes(x.codes);
      const DeviceArray<float> scales(x.scales);
      std::vector<float> pair_weights(kTokens * kChoices);
      std::iota(pair_weights.begin(), pair_weights.end(), 0.25f);
      const DeviceArray<float> weights(pair_weights);
      const std::vector<int32_t> zeros(kTokens * kChoices + 1, 0);
      const DeviceArray<int32_t> counters(zeros);
      for (uint32_t step = 0; step < 5; ++step) {
        std::vector<int32_t> ids = random_choices(step < 4 ? 1 : kTokens, kChoices, kExperts, step);
        if (step == 2) ids[1] = -1;
        if (step == 3) ids.assign(kChoices, -1);
        const Joined expected = run_apart(up, down, x, kChoices, ids, weights.data());
        const DeviceArray<uint16_t> activated(expected.activated.size());
        const DeviceArray<float> y(expected.y.size());
        const Slots slots = one_row_slots(ids);
        launch_expert_matmul_sm90(
            {.x = {.fp8 = reinterpret_cast<std::byte*>(codes.data()), .fp8_scales = scales.data()},
             .pairs_per_row = kChoices,
             .weight = &up.weight,
             .slots = slots.view,
             .swiglu = true,
             .limit = 10,
             .pair_weights = weights.data(),
             .y = activated.data(),
             .down = {.weight = &down.weight, .y = y.data(), .counters = counters.data()},
             .num_units = step == 1 ? 1 : gpu()->info().num_units},
            gpu()->stream())
            .value();
        EXPECT_EQ(counters.to_host(), zeros) << step;
        const std::vector<float> found = y.to_host();
        const std::vector<uint16_t> found_rows = activated.to_host();
        for (size_t pair = 0; pair < ids.size(); ++pair) {
          const auto row = [&](const auto& values) {
            const size_t width = values.size() / ids.size();
            return std::vector(values.begin() + static_cast<ptrdiff_t>(pair * width),
                               values.begin() + static_cast<ptrdiff_t>((pair + 1) * width));
          };
          if (ids[pair] < 0) {
            EXPECT_TRUE(std::isnan(row(found)[0])) << step;
            continue;
          }
          EXPECT_EQ(row(found_rows), row(expected.activated)) << step << " " << pair;
          EXPECT_EQ(row(found), row(expected.y)) << step << " " << pair;
        }
      }
    }
  }
}

// What a token's router and shared expert leave behind, and what choice and products make of it.
struct Token {
  int32_t num_experts, choices;
  int64_t shared_k;
  DeviceArray<float> logits, gate_up, bias;
  DeviceArray<int32_t> sequence, token, table, ids, counters;
  DeviceArray<float> weights, sums, pairs;
  DeviceArray<uint16_t> activated;
  DeviceArray<uint8_t> blocks, codes;
  DeviceArray<float> scales;
};
constexpr int32_t kTokenExperts = 18;
Token make_token(int32_t num_experts,
                 int32_t choices,
                 int64_t hidden,
                 int64_t intermediate,
                 int64_t shared_k,
                 int32_t sequence) {
  constexpr int32_t kSplits = 3;
  std::mt19937 random(18);
  std::normal_distribution<float> normal;
  const auto values = [&](int64_t count) {
    std::vector<float> made(static_cast<size_t>(count));
    for (float& value : made) value = normal(random);
    return DeviceArray<float>(made);
  };
  const HostFp8Rows x = random_fp8_rows(1, hidden, 8);
  const auto pairs = static_cast<size_t>(choices);
  // Weights exist for a few experts only.
  std::vector<float> bias(static_cast<size_t>(num_experts), -1e6f);
  std::fill_n(bias.begin(), kTokenExperts, 0.25f);
  std::vector<int32_t> table(pairs * 4);
  std::iota(table.begin(), table.end(), 0);
  return {.num_experts = num_experts,
          .choices = choices,
          .shared_k = shared_k,
          .logits = values(kSplits * num_experts),
          .gate_up = values(kSplits * 2 * shared_k),
          .bias = DeviceArray<float>(bias),
          .sequence = DeviceArray<int32_t>(std::vector<int32_t>{sequence}),
          .token = DeviceArray<int32_t>(std::vector<int32_t>{sequence < 0 ? INT32_MIN : 2}),
          .table = DeviceArray<int32_t>(table),
          .ids = DeviceArray<int32_t>(pairs),
          .counters = DeviceArray<int32_t>(std::vector<int32_t>(pairs + 1, 0)),
          .weights = DeviceArray<float>(pairs),
          .sums = DeviceArray<float>(static_cast<size_t>(kBesideSplits * hidden)),
          .pairs = DeviceArray<float>(pairs * static_cast<size_t>(hidden)),
          .activated = DeviceArray<uint16_t>(pairs * static_cast<size_t>(intermediate)),
          .blocks = DeviceArray<uint8_t>(static_cast<size_t>(fp8_blocks_bytes(1, shared_k))),
          .codes = DeviceArray<uint8_t>(x.codes),
          .scales = DeviceArray<float>(x.scales)};
}

DeviceSelectExpertsArgs choice_of(const Token& token, bool by_table) {
  return {.logits = {.data = token.logits.data(), .splits = 3},
          .tokens = {.ids = token.token.data(), .sequences = token.sequence.data(), .m = 1},
          .num_experts = token.num_experts,
          .choices = token.choices,
          .bias = by_table ? nullptr : token.bias.data(),
          .token_to_experts = by_table ? token.table.data() : nullptr,
          .routed_scaling_factor = 1.5f,
          .ids = token.ids.data(),
          .weights = token.weights.data(),
          .shared = {.x = {.data = token.gate_up.data(), .splits = 3},
                     .m = 1,
                     .n = token.shared_k,
                     .limit = 10,
                     .y = {.fp8_blocks = reinterpret_cast<std::byte*>(token.blocks.data())}}};
}

struct TokenResults {
  std::vector<int32_t> ids;
  std::vector<float> weights, sums, pairs;
};
TokenResults run_token(const Token& token,
                       const Experts& up,
                       const Experts& down,
                       const PackedWeight& shared,
                       bool by_table,
                       bool joined,
                       int32_t num_units) {
  const DeviceSelectExpertsArgs choice = choice_of(token, by_table);
  const DeviceMatMulArgs beside{.x = choice.shared.y,
                                .m = 1,
                                .weight = &shared,
                                .splits = kBesideSplits,
                                .y = token.sums.data(),
                                .num_units = gpu()->info().num_units};
  DeviceGroupedMatMulArgs args{
      .x = {.fp8 = reinterpret_cast<std::byte*>(token.codes.data()),
            .fp8_scales = token.scales.data()},
      .pairs_per_row = token.choices,
      .weight = &up.weight,
      .slots = {.rows = 1, .experts = token.ids.data(), .max_slots = token.choices},
      .swiglu = true,
      .limit = 10,
      .pair_weights = token.weights.data(),
      .y = token.activated.data(),
      .down = {.weight = &down.weight, .y = token.pairs.data(), .counters = token.counters.data()},
      .num_units = num_units};
  if (joined) {
    args.choice = choice;
    args.beside = beside;
  } else {
    launch_select_experts(choice, gpu()->stream()).value();
    launch_fp8_matmul_sm90(beside, gpu()->stream()).value();
  }
  launch_expert_matmul_sm90(args, gpu()->stream()).value();
  EXPECT_EQ(token.counters.to_host(),
            std::vector<int32_t>(static_cast<size_t>(token.choices) + 1, 0));
  return {.ids = token.ids.to_host(),
          .weights = token.weights.to_host(),
          .sums = token.sums.to_host(),
          .pairs = token.pairs.to_host()};
}

// An FP8 weight as the product beside reads it.
struct SharedDown {
  DeviceArray<std::byte> bytes;
  PackedWeight weight;
};
SharedDown make_shared_down(int64_t n, int64_t k) {
  const quant::QuantizedWeight stored = random_fp8(n, k, 16);
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = n};
  const PackedWeight host = pack_fp8_panel64({&source, 1}).value();
  SharedDown shared{.bytes = DeviceArray<std::byte>(
                        std::vector<std::byte>(host.codes, host.codes + host.num_bytes())),
                    .weight = {}};
  shared.weight.format = host.format;
  shared.weight.layout = host.layout;
  shared.weight.n = n;
  shared.weight.k = k;
  shared.weight.codes = shared.bytes.data();
  shared.weight.scales = shared.bytes.data() + (host.scales - host.codes);
  return shared;
}

struct TokenShape {
  int64_t hidden, intermediate, shared_k;
  int32_t num_experts, choices;
};
void expect_joined_as_apart(Format format, const TokenShape& shape) {
  const auto& [hidden, intermediate, shared_k, num_experts, choices] = shape;
  const Experts up =
      make_experts(kTokenExperts, 2 * intermediate, hidden, PanelOrder::kGateUp, 4, format);
  const Experts down =
      make_experts(kTokenExperts, hidden, intermediate, PanelOrder::kNatural, 4, format);
  const SharedDown shared = make_shared_down(hidden, shared_k);
  for (const bool by_table : {false, true}) {
    for (const int32_t sequence : {0, -1}) {
      const Token token =
          make_token(num_experts, choices, hidden, intermediate, shared_k, sequence);
      const int32_t all_units = gpu()->info().num_units;
      const TokenResults apart =
          run_token(token, up, down, shared.weight, by_table, false, all_units);
      for (const int32_t num_units : {all_units, 2, 3}) {
        const Token again =
            make_token(num_experts, choices, hidden, intermediate, shared_k, sequence);
        const TokenResults joined =
            run_token(again, up, down, shared.weight, by_table, true, num_units);
        EXPECT_EQ(joined.ids, apart.ids);
        EXPECT_EQ(joined.weights, apart.weights);
        EXPECT_EQ(joined.sums, apart.sums);
        if (sequence >= 0) {
          EXPECT_EQ(joined.pairs, apart.pairs);
        }
      }
    }
  }
}

// Bit for bit what separate launches give; also with few blocks, which take many units each.
void expect_joined_as_apart(std::initializer_list<TokenShape> shapes) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4, Format::kInt4Group32}) {
    for (const TokenShape& shape : shapes) {
      SCOPED_TRACE(::testing::Message() << quant::format_name(format) << " " << shape.hidden);
      expect_joined_as_apart(format, shape);
    }
  }
}

TEST_F(ExpertMatMul, ChoosesAndHasTheSharedExpertBesideItWithFewExperts) {
  expect_joined_as_apart({{256, 256, 512, 18, 3}});
}

// The last shape leaves NVFP4 two slots of a ring.
TEST_F(ExpertMatMul, HasTheSharedExpertBesideItInModelsShapes) {
  expect_joined_as_apart(
      {{1024, 512, 2048, 256, 6}, {512, 256, 1024, 384, 4}, {7168, 256, 3072, 384, 6}});
}

TEST_F(ExpertMatMul, SkipsIdsThatAreNoExpert) {
  const Experts experts = make_experts(4, 64, 256, PanelOrder::kNatural, 3);
  const HostFp8Rows x = random_fp8_rows(3, 256, 12);
  const std::vector<int32_t> ids = {2, -1, 4};
  const Slots slots = make_device_slots(ids, 4, 8);
  const std::vector<float> y = run_plain(experts, x, slots, ids.size(), 1);
  EXPECT_EQ(slots.count.to_host(), std::vector<int32_t>{1});
  EXPECT_FALSE(std::isnan(y[0]));
  EXPECT_TRUE(std::all_of(y.begin() + 64, y.end(), [](float v) { return std::isnan(v); }));
  const Slots single = one_row_slots({2, -1, 3});
  const std::vector<float> rows = run_plain(experts, x, single, ids.size(), 1);
  EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + 64, y.begin()));
  EXPECT_TRUE(std::isnan(rows[64]));
  EXPECT_FALSE(std::isnan(rows[128]));
}

// Bit for bit: a row alone and among others in slots of many rows, whose number of columns differs.
TEST_F(ExpertMatMul, ARowOfManyDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 192, kK = 1024;
  constexpr int32_t kExperts = 2, kTokens = 128;
  const HostFp8Rows x = random_fp8_rows(kTokens, kK, 23);
  const std::vector<int32_t> ids(kTokens, 1);
  for (const auto& [format, rows] : {std::pair<Format, int32_t>{Format::kMxfp4, 64},
                                     {Format::kMxfp4, 128},
                                     {Format::kMxfp4, 256},
                                     {Format::kNvfp4, 64},
                                     {Format::kInt4Group32, 64}}) {
    const Experts experts = make_experts(kExperts, kN, kK, PanelOrder::kNatural, 9, format);
    const std::vector<float> all =
        run_plain(experts, x, make_device_slots(ids, kExperts, 64), ids.size(), 1);
    for (const int32_t tokens : {1, 20, 70, 100}) {
      HostFp8Rows some;
      some.codes.assign(x.codes.begin(), x.codes.begin() + tokens * kK);
      some.scales.assign(x.scales.begin(), x.scales.begin() + tokens * (kK / 128));
      const std::vector<int32_t> own(static_cast<size_t>(tokens), 1);
      const std::vector<float> found =
          run_plain(experts, some, make_device_slots(own, kExperts, rows), own.size(), 1);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin()))
          << quant::format_name(format) << " " << rows << " " << tokens;
    }
  }
}

struct Slotted {
  Format format;
  int32_t rows, tokens;
};

// Few blocks go around their rings several times; small enough for the sanitizers.
void expect_same_bits_of_any_grid(std::initializer_list<Slotted> kinds) {
  for (const auto& [format, rows, tokens] : kinds) {
    const Case c{128, 2048, 2, tokens, 2, rows};
    EXPECT_EQ(expect_sums(c, format, 1), expect_sums(c, format))
        << quant::format_name(format) << " " << rows;
  }
}

TEST_F(ExpertMatMul, AnyGridGivesTheSameBits) {
  expect_same_bits_of_any_grid({{Format::kMxfp4, 1, 1},
                                {Format::kMxfp4, 8, 3},
                                {Format::kNvfp4, 1, 1},
                                {Format::kNvfp4, 8, 3},
                                {Format::kInt4Group32, 8, 3},
                                {Format::kInt4Group32, 64, 3},
                                {Format::kMxfp4, 64, 3},
                                {Format::kNvfp4, 64, 3},
                                {Format::kNvfp4, 64, 70},
                                {Format::kMxfp4, 128, 70},
                                {Format::kMxfp4, 256, 70}});
}

TEST_F(ExpertMatMul, AnyGridGivesTheSameBitsOfSlotsOf16Rows) {
  expect_same_bits_of_any_grid(
      {{Format::kMxfp4, 16, 11}, {Format::kNvfp4, 16, 11}, {Format::kInt4Group32, 16, 11}});
}

// 200 steps of one graph with other choices each time: no state is left behind.
TEST_F(ExpertMatMul, ReplaysWithNewChoices) {
  constexpr int64_t kN = 128, kK = 1024;
  constexpr int32_t kExperts = 16;
  const Experts experts = make_experts(kExperts, kN, kK, PanelOrder::kNatural, 9);
  const HostFp8Rows x = random_fp8_rows(2, kK, 13);
  std::map<int32_t, std::vector<float>> seen;  // by expert: the row of token 0
  for (uint32_t step = 0; step < 200; ++step) {
    const std::vector<int32_t> ids = random_choices(2, 3, kExperts, step);
    const Slots slots = make_device_slots(ids, kExperts, 8);
    const std::vector<float> y = run_plain(experts, x, slots, ids.size(), 3);
    for (int32_t j = 0; j < 3; ++j) {
      const std::vector<float> row(y.begin() + j * kN, y.begin() + (j + 1) * kN);
      const auto [entry, is_new] = seen.emplace(ids[static_cast<size_t>(j)], row);
      ASSERT_EQ(entry->second, row) << "step " << step << " choice " << j;
    }
  }
}

using MakeSlots = CudaTest;

TEST_F(MakeSlots, GroupsPairsInAscendingOrder) {
  const Slots slots = make_device_slots({3, 1, 3, 0, 3, 1}, 4, 8);
  EXPECT_EQ(slots.count.to_host(), std::vector<int32_t>{3});
  const std::vector<int32_t> experts = slots.experts.to_host(), pairs = slots.pairs.to_host();
  EXPECT_EQ(std::vector<int32_t>(experts.begin(), experts.begin() + 3),
            (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(std::vector<int32_t>(pairs.begin(), pairs.begin() + 24),
            (std::vector<int32_t>{3,  -1, -1, -1, -1, -1, -1, -1, 1,  5,  -1, -1,
                                  -1, -1, -1, -1, 0,  2,  4,  -1, -1, -1, -1, -1}));
}

TEST_F(MakeSlots, EqualsAStableSortAtEverySize) {
  for (const int32_t tokens : {1, 2, 5, 16, 64, 255, 256}) {
    for (const int32_t num_experts : {8, 256, 384}) {
      const std::vector<int32_t> ids =
          random_choices(tokens, 6, num_experts, static_cast<uint32_t>(tokens));
      const Slots slots = make_device_slots(ids, num_experts, 16);
      std::vector<int32_t> experts, pairs;
      for (int32_t e = 0; e < num_experts; ++e) {
        int32_t in_slot = 16;
        for (size_t pair = 0; pair < ids.size(); ++pair) {
          if (ids[pair] != e) continue;
          if (in_slot == 16) {
            experts.push_back(e);
            pairs.resize(experts.size() * 16, -1);
            in_slot = 0;
          }
          pairs[(experts.size() - 1) * 16 + static_cast<size_t>(in_slot++)] =
              static_cast<int32_t>(pair);
        }
      }
      ASSERT_EQ(slots.count.to_host()[0], static_cast<int32_t>(experts.size()));
      std::vector<int32_t> found_experts = slots.experts.to_host(),
                           found_pairs = slots.pairs.to_host();
      ASSERT_LE(experts.size(), found_experts.size());
      found_experts.resize(experts.size());
      found_pairs.resize(pairs.size());
      EXPECT_EQ(found_experts, experts) << tokens << " " << num_experts;
      EXPECT_EQ(found_pairs, pairs) << tokens << " " << num_experts;
    }
  }
}

TEST_F(MakeSlots, HoldsEveryPairOfAPrompt) {
  constexpr int32_t kExperts = 256, kTokens = 8192, kChoices = 6, kRows = 128;
  std::vector<int32_t> ids = random_choices(kTokens, kChoices, kExperts, 3);
  for (size_t i = 0; i < ids.size(); i += 1000) ids[i] = -1;
  const Slots slots = make_device_slots(ids, kExperts, kRows);
  const int32_t count = slots.count.to_host()[0];
  const std::vector<int32_t> experts = slots.experts.to_host(), pairs = slots.pairs.to_host();
  std::vector<std::vector<int32_t>> found(kExperts), expected(kExperts);
  for (int32_t s = 0; s < count; ++s) {
    for (int32_t i = 0; i < kRows; ++i) {
      const int32_t pair = pairs[static_cast<size_t>(s * kRows + i)];
      if (pair >= 0) found[static_cast<size_t>(experts[static_cast<size_t>(s)])].push_back(pair);
    }
  }
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    if (ids[pair] >= 0) expected[static_cast<size_t>(ids[pair])].push_back(static_cast<int>(pair));
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace nibble::kernels::cuda
