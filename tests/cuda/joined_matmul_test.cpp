// Dense products in one launch against the same products alone, bit for bit.
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/cuda/quantize/launch.h"
#include "kernels/cuda/sm90/panel_matmul/launch.h"
#include "kernels/kernel.h"
#include "kernels/reference/forms.h"
#include "quant/reference.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;
using cuda_testing::random_values;

struct DeviceWeight {
  DeviceArray<std::byte> bytes;
  PackedWeight packed;
};

DeviceWeight make_weight(quant::Format format, PackedLayout layout, int64_t n, int64_t k) {
  const quant::QuantizedWeight stored = quant::quantize(format, random_values(n * k, 5), n, k);
  const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = n};
  const PackedWeight host = pack_weight({&source, 1}, layout).value();
  DeviceWeight weight{.bytes = DeviceArray<std::byte>(std::vector<std::byte>(
                          host.storage.data(), host.storage.data() + host.storage.num_bytes())),
                      .packed = {}};
  weight.packed.format = host.format;
  weight.packed.layout = host.layout;
  weight.packed.scale_dtype = host.scale_dtype;
  weight.packed.n = n;
  weight.packed.k = k;
  weight.packed.codes = weight.bytes.data();
  if (host.scales != nullptr)
    weight.packed.scales = weight.bytes.data() + (host.scales - host.codes);
  return weight;
}

DeviceWeight make_fp8(int64_t n, int64_t k) {
  return make_weight(quant::Format::kFp8E4m3Block128x128, PackedLayout::kFp8Panel64, n, k);
}
DeviceWeight make_bf16(int64_t n, int64_t k) {
  return make_weight(quant::Format::kBf16, PackedLayout::kBf16Panel64, n, k);
}

// x: [m, k] in the forms of both formats.
struct DeviceInput {
  DeviceArray<std::byte> fp8_blocks;
  DeviceArray<std::byte> bf16_terms;

  DeviceInput(int32_t m, int64_t k, const std::vector<float>& x)
      : fp8_blocks(blocks_of(m, k, x)), bf16_terms(terms_of(m, k, x)) {}

  ActivationForms forms() const {
    return {.fp8_blocks = fp8_blocks.data(), .bf16_terms = bf16_terms.data()};
  }

 private:
  static void write(const ActivationForms& forms,
                    int32_t m,
                    int64_t k,
                    const std::vector<float>& x) {
    for (int64_t t = 0; t < m; ++t) {
      reference::write_forms(
          forms, m, t, std::span(x).subspan(static_cast<size_t>(t * k), static_cast<size_t>(k)));
    }
  }
  static std::vector<std::byte> blocks_of(int32_t m, int64_t k, const std::vector<float>& x) {
    std::vector<std::byte> blocks(static_cast<size_t>(fp8_blocks_bytes(m, k)));
    write({.fp8_blocks = blocks.data()}, m, k, x);
    return blocks;
  }
  static std::vector<std::byte> terms_of(int32_t m, int64_t k, const std::vector<float>& x) {
    std::vector<std::byte> terms(static_cast<size_t>(bf16_blocks_bytes(m, k, kBf16Terms)));
    write({.bf16_terms = terms.data()}, m, k, x);
    return terms;
  }
};

class JoinedMatMul : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (gpu() != nullptr && gpu()->info().sm != 90) GTEST_SKIP() << "needs sm_90";
  }
};

bool are_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The sums of a product, every value NaN before.
class Sums final {
 public:
  explicit Sums(int64_t size) : values_(static_cast<size_t>(size)) {}
  float* data() const { return values_.data(); }
  std::vector<float> to_host() const {
    std::vector<float> values = values_.to_host();
    for (const float value : values) EXPECT_FALSE(std::isnan(value));
    return values;
  }

 private:
  DeviceArray<float> values_;
};

DeviceMatMulArgs args_of(const DeviceWeight& weight,
                         const ActivationForms& x,
                         int32_t m,
                         int32_t splits,
                         float* y,
                         int32_t groups = 1) {
  return {.x = x,
          .m = m,
          .weight = &weight.packed,
          .groups = groups,
          .splits = splits,
          .y = y,
          .num_units = gpu()->info().num_units};
}

struct PairCase {
  int64_t first_n, second_n, k;
  int32_t m, first_splits, second_splits, first_blocks;
};

void expect_pair(const PairCase& c, bool second_is_fp8) {
  SCOPED_TRACE(::testing::Message() << c.first_n << " " << c.second_n << " x " << c.k << " m "
                                    << c.m << " fp8 " << second_is_fp8);
  const DeviceWeight first = make_fp8(c.first_n, c.k);
  const DeviceWeight second =
      second_is_fp8 ? make_fp8(c.second_n, c.k) : make_bf16(c.second_n, c.k);
  const DeviceInput x(c.m, c.k, random_values(c.m * c.k, 6));
  const int64_t sizes[] = {c.first_splits * c.m * c.first_n, c.second_splits * c.m * c.second_n};
  const Sums y[] = {Sums(sizes[0]), Sums(sizes[1])}, alone[] = {Sums(sizes[0]), Sums(sizes[1])};
  const auto args = [&](const Sums(&to)[2]) {
    return DeviceMatMulPairArgs{
        .first = args_of(first, x.forms(), c.m, c.first_splits, to[0].data()),
        .second = args_of(second, x.forms(), c.m, c.second_splits, to[1].data()),
        .first_blocks = c.first_blocks};
  };
  const DeviceMatMulPairArgs apart = args(alone);
  launch_fp8_matmul_sm90(apart.first, gpu()->stream()).value();
  (second_is_fp8 ? launch_fp8_matmul_sm90 : launch_bf16_terms_matmul_sm90)(apart.second,
                                                                           gpu()->stream())
      .value();
  launch_matmul_pair_sm90(args(y), gpu()->stream()).value();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(are_equal(y[i].to_host(), alone[i].to_host())) << i;
  }
}

TEST_F(JoinedMatMul, PairsHaveTheBitsOfTheirProducts) {
  const PairCase cases[] = {{64, 64, 256, 1, 1, 1, 1},
                            {384, 704, 1024, 1, 4, 4, 32},
                            {1536, 2624, 4096, 1, 4, 16, 32},
                            {1536, 1024, 4096, 5, 2, 4, 48},
                            {512, 256, 4096, 8, 8, 4, 103},
                            {1536, 2624, 4096, 16, 4, 8, 40}};
  for (const PairCase& c : cases) {
    expect_pair(c, false);
    expect_pair(c, true);
  }
}

struct ChainCase {
  int64_t k, between, n;  // of the first product; what the second one reads, and gives
  int32_t m, groups, first_splits, second_splits;
};

// A chain's weights and input, and launches of it.
class Chain final {
 public:
  Chain(const ChainCase& c, int32_t m, const std::vector<float>& x)
      : case_(c),
        m_(m),
        first_(make_fp8(c.between, c.k)),
        second_(make_fp8(c.n, c.between)),
        x_(m, c.groups * c.k, x),
        between_(static_cast<size_t>(fp8_blocks_bytes(m, c.between))),
        counters_(std::vector<int32_t>(
            static_cast<size_t>(chain_counters(c.between, c.second_splits)), 0)) {}

  std::vector<float> joined() const {
    const Sums first(first_size()), y(second_size());
    launch_matmul_chain_sm90({.first = first_args(first.data()),
                              .second = second_args(y.data()),
                              .counters = counters_.data()},
                             gpu()->stream())
        .value();
    for (const int32_t counter : counters_.to_host()) EXPECT_EQ(counter, 0);
    return y.to_host();
  }
  std::vector<float> apart() const {
    const Sums first(first_size()), y(second_size());
    launch_fp8_matmul_sm90(first_args(first.data()), gpu()->stream()).value();
    launch_quantize_sums({.sums = first.data(),
                          .splits = case_.first_splits,
                          .m = m_,
                          .n = case_.between,
                          .y = between_.data()},
                         gpu()->stream())
        .value();
    launch_fp8_matmul_sm90(second_args(y.data()), gpu()->stream()).value();
    return y.to_host();
  }

 private:
  int64_t first_size() const { return case_.first_splits * m_ * case_.between; }
  int64_t second_size() const { return case_.second_splits * m_ * case_.n; }
  DeviceMatMulArgs first_args(float* y) const {
    return args_of(first_, x_.forms(), m_, case_.first_splits, y, case_.groups);
  }
  DeviceMatMulArgs second_args(float* y) const {
    return args_of(second_, {.fp8_blocks = between_.data()}, m_, case_.second_splits, y);
  }

  const ChainCase& case_;
  int32_t m_;
  DeviceWeight first_, second_;
  DeviceInput x_;
  DeviceArray<std::byte> between_;
  DeviceArray<int32_t> counters_;
};

constexpr ChainCase kFewOutputs = {256, 512, 64, 3, 1, 1, 2};

TEST_F(JoinedMatMul, ChainsHaveTheBitsOfTheirProducts) {
  const ChainCase cases[] = {{256, 256, 64, 1, 1, 1, 1},
                             kFewOutputs,
                             {1024, 512, 192, 8, 2, 2, 1},
                             {1024, 1024, 320, 7, 1, 2, 4},
                             {4096, 8192, 4096, 1, 8, 2, 4},
                             {4096, 8192, 4096, 8, 8, 1, 2}};
  for (const ChainCase& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.k << " " << c.between << " " << c.n << " m " << c.m);
    const Chain chain(c, c.m, random_values(c.m * c.groups * c.k, 6));
    const std::vector<float> expected = chain.apart();
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(are_equal(chain.joined(), expected)) << i;
  }
}

TEST_F(JoinedMatMul, ARowOfAChainDoesNotDependOnItsNeighbours) {
  constexpr int32_t kRows = 8;
  const ChainCase& c = kFewOutputs;
  const std::vector<float> x = random_values(kRows * c.k, 6);
  const std::vector<float> all = Chain(c, kRows, x).joined();
  for (int64_t t = 0; t < kRows; ++t) {
    const std::vector<float> own =
        Chain(c, 1, {x.begin() + t * c.k, x.begin() + (t + 1) * c.k}).joined();
    for (int64_t split = 0; split < c.second_splits; ++split) {
      EXPECT_TRUE(std::equal(own.begin() + split * c.n,
                             own.begin() + (split + 1) * c.n,
                             all.begin() + (split * kRows + t) * c.n))
          << t;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
