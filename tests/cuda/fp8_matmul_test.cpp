// The dense FP8 product against sums in double over what the codes mean.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/cuda/sm90/fp8_bulk_matmul/launch.h"
#include "kernels/cuda/sm90/panel_matmul/launch.h"
#include "kernels/fp8_panel64.h"
#include "kernels/kernel.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;
using cuda_testing::HostFp8Rows;
using cuda_testing::random_fp8;
using cuda_testing::random_fp8_rows;

// E4M3 products keep 13 bits below the largest of an instruction. Source: spec "h200-facts" 3.
constexpr double kRelativeRms = 1e-3;

struct DeviceWeight {
  std::vector<float> rows;  // [n, k]
  DeviceArray<std::byte> bytes;
  PackedWeight packed;
};

DeviceWeight make_weight(const quant::QuantizedWeight& stored) {
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = stored.n};
  const PackedWeight host = pack_fp8_panel64({&source, 1}).value();
  std::vector<float> rows(static_cast<size_t>(stored.n * stored.k));
  unpack_weight(host, rows);
  DeviceWeight weight{.rows = std::move(rows),
                      .bytes = DeviceArray<std::byte>(
                          std::vector<std::byte>(host.codes, host.codes + host.num_bytes())),
                      .packed = {}};
  weight.packed.format = host.format;
  weight.packed.layout = host.layout;
  weight.packed.n = host.n;
  weight.packed.k = host.k;
  weight.packed.codes = weight.bytes.data();
  weight.packed.scales = weight.bytes.data() + (host.scales - host.codes);
  return weight;
}

// The first m of such rows.
HostFp8Rows first_rows(HostFp8Rows x, int64_t m, int64_t k) {
  x.codes.resize(static_cast<size_t>(m * k));
  x.scales.resize(static_cast<size_t>(m * k / 128));
  return x;
}

// Codes [m, k] and scales [m, k / 128], row after row.
struct HostCodes {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

// Rows in the blocks that dense products take, and back.
Fp8BlockPlace place_of(size_t m, size_t k, size_t row, size_t column) {
  return fp8_block_place(static_cast<int64_t>(m),
                         static_cast<int64_t>(k),
                         static_cast<int64_t>(row),
                         static_cast<int64_t>(column));
}
std::vector<uint8_t> to_blocks(const std::vector<uint8_t>& codes,
                               const std::vector<float>& scales,
                               size_t m) {
  const size_t k = codes.size() / m;
  std::vector<uint8_t> blocks(
      static_cast<size_t>(fp8_blocks_bytes(static_cast<int64_t>(m), static_cast<int64_t>(k))));
  for (size_t t = 0; t < m; ++t) {
    for (size_t i = 0; i < k; ++i) {
      const Fp8BlockPlace place = place_of(m, k, t, i);
      blocks[static_cast<size_t>(place.code(static_cast<int64_t>(i)))] = codes[t * k + i];
      std::memcpy(blocks.data() + place.scale(), &scales[t * (k / 128) + i / 128], 4);
    }
  }
  return blocks;
}
HostCodes from_blocks(const std::vector<uint8_t>& blocks, size_t m) {
  const size_t k =
      blocks.size() / static_cast<size_t>(fp8_block_bytes(static_cast<int64_t>(m))) * 128;
  HostCodes rows{.codes = std::vector<uint8_t>(m * k), .scales = std::vector<float>(m * k / 128)};
  for (size_t t = 0; t < m; ++t) {
    for (size_t i = 0; i < k; ++i) {
      const Fp8BlockPlace place = place_of(m, k, t, i);
      rows.codes[t * k + i] = blocks[static_cast<size_t>(place.code(static_cast<int64_t>(i)))];
      std::memcpy(&rows.scales[t * (k / 128) + i / 128], blocks.data() + place.scale(), 4);
    }
  }
  return rows;
}
std::byte* bytes(const DeviceArray<uint8_t>& array) {
  return reinterpret_cast<std::byte*>(array.data());
}

// The partial sums [splits, m, n] as they are.
std::vector<float> run_sums(const DeviceWeight& weight,
                            const HostFp8Rows& x,
                            int32_t m,
                            int32_t groups = 1,
                            int32_t splits = 1,
                            Launcher<DeviceMatMulArgs> launch = &launch_fp8_matmul_sm90,
                            int32_t num_units = gpu()->info().num_units) {
  const DeviceArray<uint8_t> blocks(to_blocks(x.codes, x.scales, static_cast<size_t>(m)));
  const DeviceArray<float> y(static_cast<size_t>(splits * m * weight.packed.n));
  launch({.x = {.fp8_blocks = bytes(blocks)},
          .m = m,
          .weight = &weight.packed,
          .groups = groups,
          .splits = splits,
          .y = y.data(),
          .num_units = num_units},
         gpu()->stream())
      .value();
  return y.to_host();
}

// What quantising [rows, 128]-groups of f32 on the host gives.
HostCodes quantize(const std::vector<float>& values) {
  HostCodes out;
  for (size_t begin = 0; begin < values.size(); begin += 128) {
    float amax = 1e-4f;
    for (size_t i = begin; i < begin + 128; ++i) amax = std::max(amax, std::abs(values[i]));
    const float scale = quant::exp2_int(quant::ceil_log2(amax / 448.0f));
    out.scales.push_back(scale);
    for (size_t i = begin; i < begin + 128; ++i) {
      out.codes.push_back(quant::f32_to_e4m3(values[i] / scale));
    }
  }
  return out;
}

class Fp8MatMul : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (gpu() != nullptr && gpu()->info().sm != 90) GTEST_SKIP() << "needs sm_90";
  }
};

using Fp8BulkMatMul = Fp8MatMul;

struct Case {
  int64_t n, k;
  int32_t m, groups, splits;
};

void expect_sums_in_double(std::span<const Case> cases,
                           Launcher<DeviceMatMulArgs> launch,
                           int32_t num_units = gpu()->info().num_units) {
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.n << "x" << c.k << " m " << c.m << " groups " << c.groups
                                      << " splits " << c.splits);
    const DeviceWeight weight = make_weight(random_fp8(c.n, c.k, 7));
    const HostFp8Rows x = random_fp8_rows(c.m, c.groups * c.k, 8);
    const std::vector<float> parts =
        run_sums(weight, x, c.m, c.groups, c.splits, launch, num_units);
    double error = 0, size = 0;
    for (int64_t t = 0; t < c.m; ++t) {
      for (int64_t row = 0; row < c.n; ++row) {
        const int64_t group = row / (c.n / c.groups);
        const double* const v = x.values.data() + (t * c.groups + group) * c.k;
        const float* const w = weight.rows.data() + row * c.k;
        double expected = 0, found = 0;
        for (int64_t i = 0; i < c.k; ++i) expected += static_cast<double>(w[i]) * v[i];
        for (int64_t s = 0; s < c.splits; ++s) {
          found += static_cast<double>(parts[static_cast<size_t>((s * c.m + t) * c.n + row)]);
        }
        error += (found - expected) * (found - expected);
        size += expected * expected;
      }
    }
    EXPECT_LT(std::sqrt(error / size), kRelativeRms);
  }
}

TEST_F(Fp8MatMul, EqualsTheSumsInDouble) {
  const Case cases[] = {{64, 256, 1, 1, 1},
                        {192, 512, 2, 1, 1},
                        {64, 768, 3, 1, 1},
                        {128, 1024, 5, 1, 2},
                        {256, 2048, 8, 1, 4},
                        {512, 512, 9, 4, 1},
                        {320, 1024, 11, 1, 1},
                        {512, 1024, 16, 8, 2},
                        {64, 8192, 1, 1, 1},
                        {128, 8192, 16, 1, 2},
                        {192, 8192, 7, 1, 4},
                        {24576, 256, 1, 1, 1},
                        {17024, 512, 4, 2, 2}};
  expect_sums_in_double(cases, &launch_fp8_matmul_sm90);
}

// The products for many tokens, with each of their widths and with more items than clusters.
TEST_F(Fp8BulkMatMul, EqualsTheSumsInDouble) {
  const Case few[] = {{64, 128, 1, 1, 1},
                      {256, 128, 7, 1, 1},
                      {320, 384, 9, 1, 3},
                      {512, 512, 17, 2, 1},
                      {192, 1024, 32, 1, 2},
                      {256, 4224, 33, 1, 1},
                      {1024, 640, 63, 4, 1},
                      {256, 8192, 64, 1, 8},
                      {448, 512, 65, 1, 1},
                      {512, 256, 127, 2, 2},
                      {256, 768, 128, 1, 1},
                      {18432, 256, 40, 1, 1}};
  expect_sums_in_double(few, &launch_fp8_batch_matmul_sm90);
  const Case many[] = {{64, 128, 1, 1, 1},
                       {256, 1152, 100, 1, 1},
                       {320, 256, 129, 1, 1},
                       {2048, 256, 255, 8, 1},
                       {256, 1024, 600, 1, 2},
                       {128, 128, 2305, 1, 1},
                       {9216, 384, 260, 2, 1}};
  expect_sums_in_double(many, &launch_fp8_prefill_matmul_sm90);
}

// One cluster goes around its ring several times; small enough for the sanitizers.
TEST_F(Fp8BulkMatMul, AnyGridGivesTheSumsOfSplits) {
  const Case cases[] = {{64, 1024, 260, 1, 2}};
  for (const int32_t num_units : {2, gpu()->info().num_units}) {
    expect_sums_in_double(cases, &launch_fp8_prefill_matmul_sm90, num_units);
  }
}

// Bit for bit, also between the widths that the products are compiled for.
TEST_F(Fp8BulkMatMul, ATokenDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 320, kK = 1280;
  const DeviceWeight weight = make_weight(random_fp8(kN, kK, 19));
  const auto expect_same =
      [&](Launcher<DeviceMatMulArgs> launch, int32_t most, std::span<const int32_t> counts) {
        const HostFp8Rows x = random_fp8_rows(most, kK, 20);
        const std::vector<float> all = run_sums(weight, x, most, 1, 2, launch);
        for (const int32_t m : counts) {
          const HostFp8Rows first = first_rows(x, m, kK);
          const std::vector<float> y = run_sums(weight, first, m, 1, 2, launch);
          for (int64_t split = 0; split < 2; ++split) {
            const auto own = y.begin() + split * m * kN;
            const auto among = all.begin() + split * most * kN;
            EXPECT_TRUE(std::equal(own, own + m * kN, among)) << m << " split " << split;
          }
        }
      };
  const int32_t few[] = {1, 20, 50, 64, 100};
  expect_same(&launch_fp8_batch_matmul_sm90, 128, few);
  const int32_t many[] = {1, 100, 128, 129, 257};
  expect_same(&launch_fp8_prefill_matmul_sm90, 270, many);
}

TEST_F(Fp8BulkMatMul, KeepsANanToItsRowAndItsToken) {
  quant::QuantizedWeight stored = random_fp8(128, 256, 13);
  stored.codes[5 * 256 + 70] = std::byte{0x7F};
  const DeviceWeight weight = make_weight(stored);
  const std::pair<int32_t, Launcher<DeviceMatMulArgs>> cases[] = {
      {18, &launch_fp8_batch_matmul_sm90},
      {40, &launch_fp8_batch_matmul_sm90},
      {70, &launch_fp8_batch_matmul_sm90},
      {131, &launch_fp8_prefill_matmul_sm90}};
  for (const auto& [m, launch] : cases) {
    HostFp8Rows x = random_fp8_rows(m, 256, 14);
    x.codes[256 + 9] = 0xFF;
    const std::vector<float> y = run_sums(weight, x, m, 1, 1, launch);
    for (size_t t = 0; t < static_cast<size_t>(m); ++t) {
      for (size_t row = 0; row < 128; ++row) {
        EXPECT_EQ(std::isnan(y[t * 128 + row]), t == 1 || row == 5) << m << " " << t << " " << row;
      }
    }
  }
}

// The same result every time, with the rings refilled many times over.
TEST_F(Fp8BulkMatMul, RepeatsBitForBit) {
  const DeviceWeight weight = make_weight(random_fp8(4096, 2048, 15));
  const std::pair<int32_t, Launcher<DeviceMatMulArgs>> cases[] = {
      {30, &launch_fp8_batch_matmul_sm90},
      {64, &launch_fp8_batch_matmul_sm90},
      {520, &launch_fp8_prefill_matmul_sm90}};
  for (const auto& [m, launch] : cases) {
    const HostFp8Rows x = random_fp8_rows(m, 2048, 16);
    const std::vector<float> first = run_sums(weight, x, m, 1, 1, launch);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(run_sums(weight, x, m, 1, 1, launch), first) << m;
  }
}

// Bit for bit: a token alone and among up to 16.
TEST_F(Fp8MatMul, ATokenDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 256, kK = 2048;
  const DeviceWeight weight = make_weight(random_fp8(kN, kK, 9));
  const HostFp8Rows x = random_fp8_rows(16, kK, 10);
  const std::vector<float> all = run_sums(weight, x, 16, 1, 2);
  for (const int32_t m : {1, 3, 8, 11}) {
    const HostFp8Rows first = first_rows(x, m, kK);
    const std::vector<float> y = run_sums(weight, first, m, 1, 2);
    for (int64_t split = 0; split < 2; ++split) {
      const auto own = y.begin() + split * m * kN;
      const auto among = all.begin() + split * 16 * kN;
      EXPECT_TRUE(std::equal(own, own + m * kN, among)) << m << " split " << split;
    }
  }
}

TEST_F(Fp8MatMul, KeepsANanToItsRowAndItsToken) {
  quant::QuantizedWeight stored = random_fp8(128, 256, 13);
  stored.codes[5 * 256 + 70] = std::byte{0x7F};
  const DeviceWeight weight = make_weight(stored);
  HostFp8Rows x = random_fp8_rows(3, 256, 14);
  x.codes[256 + 9] = 0xFF;
  const std::vector<float> y = run_sums(weight, x, 3);
  for (size_t t = 0; t < 3; ++t) {
    for (size_t row = 0; row < 128; ++row) {
      EXPECT_EQ(std::isnan(y[t * 128 + row]), t == 1 || row == 5) << t << " " << row;
    }
  }
}

// The same result every time, with the rings refilled many times over.
TEST_F(Fp8MatMul, RepeatsBitForBit) {
  const DeviceWeight weight = make_weight(random_fp8(4096, 4096, 15));
  const HostFp8Rows x = random_fp8_rows(4, 4096, 16);
  const std::vector<float> first = run_sums(weight, x, 4, 1, 2);
  for (int32_t i = 0; i < 50; ++i) ASSERT_EQ(run_sums(weight, x, 4, 1, 2), first) << i;
}

// Products that quantise their results for the next one.
using Fp8ClusterMatMul = Fp8MatMul;

// Clusters of every size, odd numbers of tiles, blocks with several units, and such that go from
// group to group.
constexpr Case kQuantized[] = {{128, 256, 1, 1, 1},
                               {384, 512, 2, 1, 1},
                               {128, 768, 3, 1, 1},
                               {128, 1024, 5, 1, 1},
                               {256, 2048, 8, 1, 1},
                               {1024, 512, 9, 4, 1},
                               {640, 1280, 11, 1, 1},
                               {1024, 1024, 16, 8, 1},
                               {1536, 4096, 1, 1, 1},
                               {256, 8192, 16, 1, 1}};
constexpr Case kLargeQuantized[] = {{24576, 256, 1, 1, 1},
                                    {17152, 512, 4, 2, 1},
                                    {33792, 1024, 16, 8, 1},
                                    // As many tiles as a block takes.
                                    {16384, 8192, 16, 1, 1}};

// Codes of few small values and scales within 2^6: sums of 8192 are exact in any order.
constexpr uint8_t kSmallCodes[] = {0x00, 0x30, 0xB0, 0x38, 0xB8, 0x3C, 0xBC, 0x40};
quant::QuantizedWeight small_weight(int64_t n, int64_t k, uint32_t seed) {
  quant::QuantizedWeight stored = random_fp8(n, k, seed);
  for (std::byte& code : stored.codes) {
    code = static_cast<std::byte>(kSmallCodes[static_cast<uint8_t>(code) % std::size(kSmallCodes)]);
  }
  for (std::byte& scale : stored.scales) scale = std::max(scale, std::byte{118});
  return stored;
}
HostFp8Rows small_rows(int64_t rows, int64_t k, uint32_t seed) {
  HostFp8Rows x = random_fp8_rows(rows, k, seed);
  for (uint8_t& code : x.codes) code = kSmallCodes[code % std::size(kSmallCodes)];
  for (float& scale : x.scales) scale = std::max(scale, 0x1p-7f);
  return x;
}

HostCodes run_quantized(const DeviceWeight& weight,
                        const HostFp8Rows& x,
                        int32_t m,
                        int32_t groups = 1) {
  const DeviceArray<uint8_t> blocks(to_blocks(x.codes, x.scales, static_cast<size_t>(m)));
  const DeviceArray<uint8_t> y(static_cast<size_t>(fp8_blocks_bytes(m, weight.packed.n)));
  launch_fp8_matmul_sm90({.x = {.fp8_blocks = bytes(blocks)},
                          .m = m,
                          .weight = &weight.packed,
                          .groups = groups,
                          .y_fp8 = bytes(y),
                          .num_units = gpu()->info().num_units},
                         gpu()->stream())
      .value();
  return from_blocks(y.to_host(), static_cast<size_t>(m));
}

void expect_quantized_sums(std::span<const Case> cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.n << "x" << c.k << " m " << c.m);
    const DeviceWeight weight = make_weight(small_weight(c.n, c.k, 7));
    const HostFp8Rows x = small_rows(c.m, c.groups * c.k, 8);
    const HostCodes expected = quantize(run_sums(weight, x, c.m, c.groups));
    const HostCodes found = run_quantized(weight, x, c.m, c.groups);
    EXPECT_EQ(found.scales, expected.scales);
    EXPECT_EQ(found.codes, expected.codes);
  }
}

TEST_F(Fp8ClusterMatMul, QuantizesTheSums) { expect_quantized_sums(kQuantized); }

// Too slow for the sanitizers.
TEST_F(Fp8ClusterMatMul, GivesTheCodesOfLargeProducts) { expect_quantized_sums(kLargeQuantized); }

// Bit for bit: a token alone and among up to 16.
TEST_F(Fp8ClusterMatMul, ATokenDoesNotDependOnItsNeighbours) {
  constexpr int64_t kK = 2048;
  for (const int64_t n : {256, 8192}) {
    const DeviceWeight weight = make_weight(random_fp8(n, kK, 9));
    const HostFp8Rows x = random_fp8_rows(16, kK, 10);
    const HostCodes all = run_quantized(weight, x, 16);
    for (const int32_t m : {1, 3, 8, 11}) {
      const HostFp8Rows first = first_rows(x, m, kK);
      const HostCodes y = run_quantized(weight, first, m);
      EXPECT_TRUE(std::equal(y.codes.begin(), y.codes.end(), all.codes.begin())) << m;
      EXPECT_TRUE(std::equal(y.scales.begin(), y.scales.end(), all.scales.begin())) << m;
    }
  }
}

// The same result every time, with the rings and the sums' places taken many times over.
TEST_F(Fp8ClusterMatMul, RepeatsBitForBit) {
  const DeviceWeight weight = make_weight(random_fp8(17408, 2048, 15));
  const HostFp8Rows x = random_fp8_rows(9, 2048, 16);
  const HostCodes first = run_quantized(weight, x, 9);
  for (int32_t i = 0; i < 20; ++i) {
    const HostCodes again = run_quantized(weight, x, 9);
    ASSERT_EQ(again.codes, first.codes) << i;
    ASSERT_EQ(again.scales, first.scales) << i;
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
