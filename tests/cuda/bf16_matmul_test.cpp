// The dense BF16 product against sums in double.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/bf16_panel64.h"
#include "kernels/cuda/sm90/bf16_matmul/launch.h"
#include "kernels/cuda/sm90/panel_matmul/launch.h"
#include "kernels/kernel.h"
#include "kernels/reference/forms.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;
using cuda_testing::random_values;

// Products are exact: what is left is the rounding of f32 sums. Source: spec "h200-facts" 3.
constexpr double kRelativeRms = 0x1p-18;

struct DeviceWeight {
  std::vector<float> rows;  // [n, k]
  DeviceArray<std::byte> bytes;
  PackedWeight packed;
};

DeviceWeight make_weight(int64_t n, int64_t k, const std::vector<float>& values) {
  const quant::QuantizedWeight stored = quant::quantize(quant::Format::kBf16, values, n, k);
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = n};
  const PackedWeight host = pack_bf16_panel64({&source, 1}).value();
  std::vector<float> rows(static_cast<size_t>(n * k));
  unpack_weight(host, rows);
  DeviceWeight weight{.rows = std::move(rows),
                      .bytes = DeviceArray<std::byte>(
                          std::vector<std::byte>(host.codes, host.codes + host.num_bytes())),
                      .packed = {}};
  weight.packed.format = host.format;
  weight.packed.layout = host.layout;
  weight.packed.n = n;
  weight.packed.k = k;
  weight.packed.codes = weight.bytes.data();
  return weight;
}

struct Case {
  int64_t n, k;
  int32_t m, groups, splits;
};

// The launchers under test.
enum class Kind { kBf16, kF32, kF32FewTokens };
constexpr Kind kKinds[] = {Kind::kBf16, Kind::kF32, Kind::kF32FewTokens};

bool takes(Kind kind, const Case& c) {
  return kind != Kind::kF32FewTokens || (c.m <= kMaxPanelTokens && c.k / c.splits % 128 == 0);
}

// x: [m, k] in the form that the launcher reads.
std::vector<std::byte> blocks_of(const std::vector<float>& x, int32_t m, Kind kind) {
  const size_t k = x.size() / static_cast<size_t>(m);
  const int64_t terms = kind == Kind::kBf16 ? 1 : kBf16Terms;
  std::vector<std::byte> blocks(
      static_cast<size_t>(bf16_blocks_bytes(m, static_cast<int64_t>(k), terms)));
  ActivationForms forms;
  (kind == Kind::kBf16 ? forms.bf16_blocks : forms.bf16_terms) = blocks.data();
  for (int32_t t = 0; t < m; ++t) {
    reference::write_forms(forms, m, t, std::span(x).subspan(static_cast<size_t>(t) * k, k));
  }
  return blocks;
}

// The partial sums [splits, m, n] as they are.   x: [m, groups * k]
std::vector<float> run(const DeviceWeight& weight,
                       const std::vector<float>& x,
                       const Case& c,
                       Kind kind,
                       int32_t num_units = gpu()->info().num_units) {
  const DeviceArray<float> y(static_cast<size_t>(c.splits * c.m * c.n));
  DeviceMatMulArgs args{.m = c.m,
                        .weight = &weight.packed,
                        .groups = c.groups,
                        .splits = c.splits,
                        .y = y.data(),
                        .num_units = num_units};
  const DeviceArray<std::byte> blocks(blocks_of(x, c.m, kind));
  if (kind == Kind::kBf16) {
    args.x.bf16_blocks = blocks.data();
    launch_bf16_matmul_sm90(args, gpu()->stream()).value();
    return y.to_host();
  }
  args.x.bf16_terms = blocks.data();
  const auto launch =
      kind == Kind::kF32 ? &launch_bf16_matmul_f32_sm90 : &launch_bf16_terms_matmul_sm90;
  launch(args, gpu()->stream()).value();
  return y.to_host();
}

float as_multiplied(float x, Kind kind) {
  return kind != Kind::kBf16 ? x : quant::bf16_to_f32(quant::f32_to_bf16(x));
}

class Bf16MatMul : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (gpu() != nullptr && gpu()->info().sm != 90) GTEST_SKIP() << "needs sm_90";
  }
};

void expect_sums_in_double(const Case& c, Kind kind, int32_t num_units = gpu()->info().num_units) {
  SCOPED_TRACE(::testing::Message()
               << c.n << "x" << c.k << " m " << c.m << " groups " << c.groups << " splits "
               << c.splits << " kind " << static_cast<int>(kind));
  const DeviceWeight weight = make_weight(c.n, c.k, random_values(c.n * c.k, 7));
  const std::vector<float> x = random_values(c.m * c.groups * c.k, 8);
  const std::vector<float> parts = run(weight, x, c, kind, num_units);
  double error = 0, size = 0;
  for (int64_t t = 0; t < c.m; ++t) {
    for (int64_t row = 0; row < c.n; ++row) {
      const int64_t group = row / (c.n / c.groups);
      const float* const v = x.data() + (t * c.groups + group) * c.k;
      const float* const w = weight.rows.data() + row * c.k;
      double expected = 0, found = 0;
      for (int64_t i = 0; i < c.k; ++i) {
        expected += static_cast<double>(w[i]) * static_cast<double>(as_multiplied(v[i], kind));
      }
      for (int64_t s = 0; s < c.splits; ++s) {
        found += static_cast<double>(parts[static_cast<size_t>((s * c.m + t) * c.n + row)]);
      }
      error += (found - expected) * (found - expected);
      size += expected * expected;
    }
  }
  EXPECT_LT(std::sqrt(error / size), kRelativeRms);
}

// Each number of columns that the product is compiled for, ragged ends, more tiles than blocks.
TEST_F(Bf16MatMul, EqualsTheSumsInDouble) {
  const Case cases[] = {{64, 64, 1, 1, 1},
                        {64, 64, 70, 1, 1},
                        {192, 512, 2, 1, 2},
                        {256, 4096, 1, 1, 16},
                        {576, 1024, 7, 3, 1},
                        {128, 448, 8, 1, 1},
                        {384, 640, 9, 2, 2},
                        {320, 1024, 16, 1, 1},
                        {256, 512, 17, 4, 2},
                        {128, 2048, 32, 1, 8},
                        {192, 256, 33, 1, 1},
                        {64, 4096, 64, 1, 4},
                        {512, 256, 65, 2, 1},
                        {192, 512, 128, 1, 1},
                        {256, 192, 129, 1, 3},
                        {128, 128, 700, 1, 1},
                        {20480, 128, 3, 1, 1},
                        {9216, 192, 20, 1, 3},
                        {4352, 64, 600, 1, 1}};
  for (const Kind kind : kKinds) {
    for (const Case& c : cases) {
      if (takes(kind, c)) expect_sums_in_double(c, kind);
    }
  }
}

// More tokens than the product for fewer takes; one cluster goes around its ring several times.
// Small enough for the sanitizers.
TEST_F(Bf16MatMul, AnyGridGivesTheSumsOfManyTokens) {
  const Case c{64, 256, 520, 1, 2};
  for (const Kind kind : {Kind::kBf16, Kind::kF32}) {
    expect_sums_in_double(c, kind, 2);
    expect_sums_in_double(c, kind);
  }
}

// What the lower bits of f32 activations add: with x and x rounded to BF16 as two tokens, the
// difference of the results is the product with what rounding took away.
TEST_F(Bf16MatMul, MultipliesEveryBitOfF32) {
  constexpr int64_t kN = 128, kK = 128;
  std::vector<float> ones(kN * kK, 0.0f);
  for (size_t i = 0; i < kN; ++i) ones[i * kK + i] = 1.0f;
  const DeviceWeight weight = make_weight(kN, kK, ones);
  std::vector<float> x = random_values(2 * kK, 9);
  x[0] = 0x1.fffffep127f / 2;
  x[1] = 0x1.555556p-60f;
  x[2] = -0x1.000002p0f;
  for (const Kind kind : {Kind::kF32, Kind::kF32FewTokens}) {
    EXPECT_EQ(run(weight, x, {kN, kK, 2, 1, 1}, kind), x);
  }
}

// Bit for bit, also between the widths that the product is compiled for.
TEST_F(Bf16MatMul, ATokenDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 320, kK = 1024;
  constexpr int32_t kAll = 270;
  const DeviceWeight weight = make_weight(kN, kK, random_values(kN * kK, 19));
  const std::vector<float> x = random_values(kAll * kK, 20);
  for (const Kind kind : kKinds) {
    const int32_t most = kind == Kind::kF32FewTokens ? kMaxPanelTokens : kAll;
    const std::vector<float> among_all(x.begin(), x.begin() + most * kK);
    const std::vector<float> all = run(weight, among_all, {kN, kK, most, 1, 2}, kind);
    for (const int32_t m : {1, 3, 9, 20, 50, 64, 100, 129}) {
      if (m > most) continue;
      const std::vector<float> first(x.begin(), x.begin() + m * kK);
      const std::vector<float> y = run(weight, first, {kN, kK, m, 1, 2}, kind);
      for (int64_t split = 0; split < 2; ++split) {
        const auto own = y.begin() + split * m * kN;
        const auto among = all.begin() + split * most * kN;
        EXPECT_TRUE(std::equal(own, own + m * kN, among)) << m << " split " << split;
      }
    }
  }
}

TEST_F(Bf16MatMul, KeepsANanToItsRowAndItsToken) {
  std::vector<float> values = random_values(128 * 128, 13);
  values[5 * 128 + 70] = NAN;
  const DeviceWeight weight = make_weight(128, 128, values);
  for (const Kind kind : kKinds) {
    for (const int32_t m : {2, 18, 70}) {
      if (!takes(kind, {128, 128, m, 1, 1})) continue;
      std::vector<float> x = random_values(m * 128, 14);
      x[128 + 9] = NAN;
      const std::vector<float> y = run(weight, x, {128, 128, m, 1, 1}, kind);
      for (size_t t = 0; t < static_cast<size_t>(m); ++t) {
        for (size_t row = 0; row < 128; ++row) {
          EXPECT_EQ(std::isnan(y[t * 128 + row]), t == 1 || row == 5)
              << m << " " << t << " " << row;
        }
      }
    }
  }
}

// The same result every time, with the rings refilled many times over.
TEST_F(Bf16MatMul, RepeatsBitForBit) {
  const DeviceWeight weight = make_weight(4096, 2048, random_values(4096 * 2048, 15));
  for (const int32_t m : {1, 12, 30, 64, 300}) {
    const std::vector<float> x = random_values(m * 2048, 16);
    const Case c{4096, 2048, m, 1, 1};
    for (const Kind kind : {Kind::kF32, Kind::kF32FewTokens}) {
      if (!takes(kind, c)) continue;
      const std::vector<float> first = run(weight, x, c, kind);
      for (int i = 0; i < 4; ++i) EXPECT_EQ(run(weight, x, c, kind), first) << m;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
