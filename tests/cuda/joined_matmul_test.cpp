// Dense products in one launch against the same products alone, bit for bit.
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "cuda/cuda_testing.h"
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

// Launches of a pair and of the products alone.
class Pair final {
 public:
  Pair(const PairCase& c, bool second_is_fp8)
      : case_(c),
        second_is_fp8_(second_is_fp8),
        weights_{make_fp8(c.first_n, c.k),
                 second_is_fp8 ? make_fp8(c.second_n, c.k) : make_bf16(c.second_n, c.k)} {}

  // The sums of both for m rows.
  std::array<std::vector<float>, 2> joined(int32_t m, const std::vector<float>& x) const {
    const DeviceInput input(m, case_.k, x);
    const std::array y = {Sums(size(0, m)), Sums(size(1, m))};
    launch_matmul_pair_sm90({.first = args(0, input, m, y[0]),
                             .second = args(1, input, m, y[1]),
                             .first_blocks = case_.first_blocks},
                            gpu()->stream())
        .value();
    return {y[0].to_host(), y[1].to_host()};
  }
  // The sums of one of them.
  std::vector<float> alone(size_t i, int32_t m, const std::vector<float>& x) const {
    const DeviceInput input(m, case_.k, x);
    const Sums y(size(i, m));
    (is_fp8(i) ? launch_fp8_matmul_sm90 : launch_bf16_terms_matmul_sm90)(args(i, input, m, y),
                                                                         gpu()->stream())
        .value();
    return y.to_host();
  }
  bool is_fp8(size_t i) const { return i == 0 || second_is_fp8_; }
  int64_t n(size_t i) const { return weights_[i].packed.n; }
  int32_t splits(size_t i) const { return i == 0 ? case_.first_splits : case_.second_splits; }

 private:
  int64_t size(size_t i, int32_t m) const { return splits(i) * m * n(i); }
  DeviceMatMulArgs args(size_t i, const DeviceInput& x, int32_t m, const Sums& y) const {
    return args_of(weights_[i], x.forms(), m, splits(i), y.data());
  }

  const PairCase& case_;
  bool second_is_fp8_;
  std::array<DeviceWeight, 2> weights_;
};

constexpr PairCase kPairCases[] = {{64, 64, 512, 1, 2, 2, 1},
                                   {384, 704, 1024, 1, 4, 4, 32},
                                   {1536, 2624, 4096, 1, 4, 16, 32},
                                   {1536, 1024, 4096, 5, 2, 4, 48},
                                   {512, 256, 4096, 8, 8, 4, 103},
                                   {1536, 2624, 4096, 16, 4, 8, 40}};

TEST_F(JoinedMatMul, PairsHaveTheBitsOfTheirProducts) {
  for (const PairCase& c : kPairCases) {
    for (const bool second_is_fp8 : {false, true}) {
      SCOPED_TRACE(::testing::Message() << c.first_n << " " << c.second_n << " x " << c.k << " m "
                                        << c.m << " fp8 " << second_is_fp8);
      const Pair pair(c, second_is_fp8);
      const std::vector<float> x = random_values(c.m * c.k, 6);
      const auto joined = pair.joined(c.m, x);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(are_equal(joined[i], pair.alone(i, c.m, x))) << i;
      }
    }
  }
}

// Bit for bit: a row alone and among 16.
TEST_F(JoinedMatMul, ARowOfAPairDoesNotDependOnItsNeighbours) {
  constexpr int32_t kRows = 16;
  const PairCase& c = kPairCases[1];
  const Pair pair(c, true);
  const std::vector<float> x = random_values(kRows * c.k, 6);
  const auto all = pair.joined(kRows, x);
  for (int64_t t = 0; t < kRows; ++t) {
    const auto own = pair.joined(1, {x.begin() + t * c.k, x.begin() + (t + 1) * c.k});
    for (size_t i = 0; i < 2; ++i) {
      const int64_t n = pair.n(i);
      for (int64_t split = 0; split < pair.splits(i); ++split) {
        EXPECT_TRUE(std::equal(own[i].begin() + split * n,
                               own[i].begin() + (split + 1) * n,
                               all[i].begin() + (split * kRows + t) * n))
            << t;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
