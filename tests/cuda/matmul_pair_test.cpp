// Two dense products in one launch against the same products alone, bit for bit.
#include <cstring>
#include <random>
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

// x: [m, k] in the forms of both products.
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

class MatMulPair : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (gpu() != nullptr && gpu()->info().sm != 90) GTEST_SKIP() << "needs sm_90";
  }
};

struct Case {
  int64_t first_n, second_n, k;
  int32_t m, first_splits, second_splits, first_blocks;
};

bool are_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_F(MatMulPair, HasTheBitsOfTheProductsAlone) {
  const Case cases[] = {{64, 64, 256, 1, 1, 1, 1},
                        {384, 704, 1024, 1, 4, 4, 32},
                        {1536, 2624, 4096, 1, 4, 16, 32},
                        {1536, 1024, 4096, 5, 2, 4, 48},
                        {512, 256, 4096, 8, 8, 4, 103},
                        {128, 64, 768, 9, 1, 3, 131},
                        {1536, 2624, 4096, 16, 1, 2, 24}};
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message()
                 << c.first_n << " " << c.second_n << " x " << c.k << " m " << c.m);
    const DeviceWeight first =
        make_weight(quant::Format::kFp8E4m3Block128x128, PackedLayout::kFp8Panel64, c.first_n, c.k);
    const DeviceWeight second =
        make_weight(quant::Format::kBf16, PackedLayout::kBf16Panel64, c.second_n, c.k);
    const DeviceInput x(c.m, c.k, random_values(c.m * c.k, 6));
    const auto args = [&](const DeviceWeight& weight, int32_t splits, float* y) {
      return DeviceMatMulArgs{.x = x.forms(),
                              .m = c.m,
                              .weight = &weight.packed,
                              .splits = splits,
                              .y = y,
                              .num_units = gpu()->info().num_units};
    };
    const auto first_sums = static_cast<size_t>(c.first_splits * c.m * c.first_n);
    const auto second_sums = static_cast<size_t>(c.second_splits * c.m * c.second_n);
    const std::vector<float> poison(std::max(first_sums, second_sums), NAN);
    const auto poisoned = [&](size_t size) {
      return DeviceArray<float>(
          std::vector<float>(poison.begin(), poison.begin() + static_cast<ptrdiff_t>(size)));
    };
    const DeviceArray<float> y[] = {poisoned(first_sums), poisoned(second_sums)};
    const DeviceArray<float> alone[] = {poisoned(first_sums), poisoned(second_sums)};
    launch_fp8_matmul_sm90(args(first, c.first_splits, alone[0].data()), gpu()->stream()).value();
    launch_bf16_terms_matmul_sm90(args(second, c.second_splits, alone[1].data()), gpu()->stream())
        .value();
    launch_matmul_pair_sm90({.first = args(first, c.first_splits, y[0].data()),
                             .second = args(second, c.second_splits, y[1].data()),
                             .first_blocks = c.first_blocks},
                            gpu()->stream())
        .value();
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(are_equal(y[i].to_host(), alone[i].to_host())) << i;
      for (const float value : y[i].to_host()) ASSERT_FALSE(std::isnan(value)) << i;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
