// Every row of the portable products against sums in double over what codes mean.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/registry.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;
using quant::Format;

// Products are exact and sums are f32: relative to the sum of magnitudes.
constexpr double kTolerance = 0x1p-18;

// Random weights of a format, as stored.
quant::QuantizedWeight random_weight(Format format, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * quant::exp2_int(static_cast<int32_t>(i / 64 % 7) - 3);
  }
  return quant::quantize(format, values, n, k);
}

// Matrices of one shape in kRowMajor, one after another, on the host and on the device.
struct Matrices {
  Matrices(Format format, int32_t count, int64_t rows, int64_t width)
      : n(rows), k(width), codes(size_t{0}), scales(size_t{0}) {
    std::vector<std::byte> all_codes;
    std::vector<float> all_scales;
    for (int32_t i = 0; i < count; ++i) {
      const quant::QuantizedWeight stored =
          random_weight(format, n, k, static_cast<uint32_t>(i + 1));
      const WeightRows source{.weight = stored.view(), .row_begin = 0, .row_end = n};
      const PackedWeight packed = pack_weight({&source, 1}, PackedLayout::kRowMajor).value();
      const int64_t code_bytes = n * k * quant::format_info(format).bits_per_weight / 8;
      all_codes.insert(all_codes.end(), packed.codes, packed.codes + code_bytes);
      if (packed.scales != nullptr) {
        const auto* const begin = reinterpret_cast<const float*>(packed.scales);
        all_scales.insert(all_scales.end(), begin, begin + n * ceil_div(k, group_size(format, k)));
      }
      values.resize(values.size() + static_cast<size_t>(n * k));
      unpack_weight(packed, std::span(values).last(static_cast<size_t>(n * k)));
    }
    codes = DeviceArray<std::byte>(all_codes);
    scales = DeviceArray<float>(all_scales);
    weight.format = format;
    weight.layout = PackedLayout::kRowMajor;
    weight.n = n;
    weight.k = k;
    weight.codes = codes.data();
    if (!all_scales.empty()) weight.scales = reinterpret_cast<const std::byte*>(scales.data());
  }

  int64_t n, k;
  std::vector<float> values;  // [matrix, n, k]
  DeviceArray<std::byte> codes;
  DeviceArray<float> scales;
  PackedWeight weight;
};

// Rows of activations in the form that a kernel reads, and what they mean.
struct Rows {
  Rows(ActivationForm form, int64_t rows, int64_t width, uint32_t seed)
      : f32(size_t{0}), bf16(size_t{0}), fp8(size_t{0}), fp8_scales(size_t{0}) {
    if (form == ActivationForm::kFp8Rows) {
      const cuda_testing::HostFp8Rows codes = cuda_testing::random_fp8_rows(rows, width, seed);
      fp8 = DeviceArray<uint8_t>(codes.codes);
      fp8_scales = DeviceArray<float>(codes.scales);
      values = codes.values;
      return;
    }
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> exact;
    std::vector<uint16_t> rounded;
    for (int64_t i = 0; i < rows * width; ++i) {
      exact.push_back(normal(random));
      rounded.push_back(quant::f32_to_bf16(exact.back()));
      values.push_back(static_cast<double>(
          form == ActivationForm::kF32 ? exact.back() : quant::bf16_to_f32(rounded.back())));
    }
    if (form == ActivationForm::kF32) f32 = DeviceArray<float>(exact);
    if (form == ActivationForm::kBf16) bf16 = DeviceArray<uint16_t>(rounded);
  }

  // From row `first` on.
  ActivationForms forms(int64_t width, int64_t first = 0) const {
    return {.f32 = f32.data() + first * width,
            .bf16 = bf16.data() + first * width,
            .fp8 = reinterpret_cast<std::byte*>(fp8.data() + first * width),
            .fp8_scales = fp8_scales.data() + first * width / 128};
  }

  std::vector<double> values;
  DeviceArray<float> f32;
  DeviceArray<uint16_t> bf16;
  DeviceArray<uint8_t> fp8;
  DeviceArray<float> fp8_scales;
};

struct Sum {
  double value = 0;
  double magnitude = 0;  // the sum of magnitudes
};
Sum product(const float* w, const double* x, int64_t k) {
  Sum sum;
  for (int64_t i = 0; i < k; ++i) {
    const double term = static_cast<double>(w[i]) * x[i];
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

std::vector<const KernelInfo*> rows_of(Op op) {
  std::vector<const KernelInfo*> rows;
  for (const KernelInfo& row : cuda_portable_kernels()) {
    if (row.op == op) rows.push_back(&row);
  }
  return rows;
}

struct Shape {
  int64_t n, k;
  int32_t m, groups;
};

std::vector<float> multiply(const KernelInfo& row,
                            const Matrices& weight,
                            const ActivationForms& x,
                            int32_t m,
                            int32_t groups) {
  const DeviceArray<float> y(static_cast<size_t>(m * weight.n));
  std::get<Launcher<DeviceMatMulArgs>>(row.launch)({.x = x,
                                                    .m = m,
                                                    .weight = &weight.weight,
                                                    .groups = groups,
                                                    .y = y.data(),
                                                    .num_units = gpu()->info().num_units},
                                                   gpu()->stream())
      .value();
  return y.to_host();
}

void expect_product(const KernelInfo& row, const Shape& shape) {
  SCOPED_TRACE(::testing::Message() << row.name << " n " << shape.n << " k " << shape.k << " m "
                                    << shape.m << " groups " << shape.groups);
  const Matrices weight(row.weight, 1, shape.n, shape.k);
  const int64_t width = shape.groups * shape.k;
  const Rows x(row.x_form, shape.m, width, 7);
  const std::vector<float> y = multiply(row, weight, x.forms(width), shape.m, shape.groups);
  for (int64_t t = 0; t < shape.m; ++t) {
    for (int64_t i = 0; i < shape.n; ++i) {
      const int64_t group = i / (shape.n / shape.groups);
      const Sum sum = product(weight.values.data() + i * shape.k,
                              x.values.data() + t * width + group * shape.k,
                              shape.k);
      const auto found = static_cast<double>(y[static_cast<size_t>(t * shape.n + i)]);
      ASSERT_LE(std::abs(found - sum.value), kTolerance * sum.magnitude) << t << " " << i;
    }
  }
}

bool takes(const KernelInfo& row, int64_t k) { return k % row.limits.k_multiple == 0; }

using PortableMatMul = CudaTest;

TEST_F(PortableMatMul, EqualsTheSumsInDoubleOnSmallShapes) {
  const Shape shapes[] = {{5, 16, 1, 1},
                          {16, 32, 3, 1},
                          {40, 48, 2, 1},
                          {64, 96, 9, 1},
                          {33, 128, 8, 1},
                          {48, 160, 17, 3},
                          {96, 384, 33, 2},
                          {20, 1184, 5, 1}};
  for (const KernelInfo* row : rows_of(Op::kMatMul)) {
    for (const Shape& shape : shapes) {
      if (takes(*row, shape.k)) expect_product(*row, shape);
    }
  }
}

TEST_F(PortableMatMul, EqualsTheSumsInDoubleOnLargeShapes) {
  const Shape shapes[] = {{320, 4096, 1, 1}, {512, 1024, 100, 4}, {1000, 2048, 40, 1}};
  for (const KernelInfo* row : rows_of(Op::kMatMul)) {
    for (const Shape& shape : shapes) expect_product(*row, shape);
  }
}

// Bit for bit, whatever tile takes them.
TEST_F(PortableMatMul, ARowDoesNotDependOnItsNeighbours) {
  constexpr int64_t kN = 72, kK = 1280;
  constexpr int32_t kRows = 37;
  for (const KernelInfo* row : rows_of(Op::kMatMul)) {
    const Matrices weight(row->weight, 1, kN, kK);
    const Rows x(row->x_form, kRows, kK, 3);
    const std::vector<float> all = multiply(*row, weight, x.forms(kK), kRows, 1);
    for (const auto& [first, count] : {std::pair{0, 1}, {5, 8}, {20, 17}}) {
      const std::vector<float> some = multiply(*row, weight, x.forms(kK, first), count, 1);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * kN))
          << row->name << " " << first;
    }
  }
}

TEST_F(PortableMatMul, KeepsNanInItsRow) {
  for (const KernelInfo* row : rows_of(Op::kMatMul)) {
    if (row->weight != Format::kFp8E4m3Block128x128) continue;
    Matrices weight(row->weight, 1, 32, 128);
    std::vector<std::byte> codes = weight.codes.to_host();
    codes[3 * 128 + 77] = std::byte{0x7F};
    codes[20 * 128 + 4] = std::byte{0xFF};
    weight.codes = DeviceArray<std::byte>(codes);
    weight.weight.codes = weight.codes.data();
    const Rows x(row->x_form, 2, 128, 3);
    const std::vector<float> y = multiply(*row, weight, x.forms(128), 2, 1);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(std::isnan(y[i]), i % 32 == 3 || i % 32 == 20) << row->name << " " << i;
    }
  }
}

struct GroupedShape {
  int64_t n, k;
  int32_t experts, tokens, choices, rows;
};

// Slots in order of expert and pair, as the device makes them.
struct Slots {
  Slots(const std::vector<int32_t>& ids, int32_t num_experts, int32_t rows)
      : count(size_t{1}), experts(size_t{0}), pairs(size_t{0}) {
    std::vector<int32_t> slot_experts, slot_pairs;
    if (rows == 1) {
      slot_experts = ids;
    } else {
      for (int32_t e = 0; e < num_experts; ++e) {
        int32_t used = rows;
        for (size_t pair = 0; pair < ids.size(); ++pair) {
          if (ids[pair] != e) continue;
          if (used == rows) {
            slot_experts.push_back(e);
            slot_pairs.resize(slot_pairs.size() + static_cast<size_t>(rows), -1);
            used = 0;
          }
          slot_pairs[slot_pairs.size() - static_cast<size_t>(rows - used)] =
              static_cast<int32_t>(pair);
          ++used;
        }
      }
    }
    count = DeviceArray<int32_t>(std::vector<int32_t>{static_cast<int32_t>(slot_experts.size())});
    if (rows > 1) slot_experts.push_back(num_experts + 1000);  // never looked at
    view = {.rows = rows, .max_slots = static_cast<int32_t>(slot_experts.size())};
    slot_pairs.resize(slot_experts.size() * static_cast<size_t>(rows), -1);
    experts = DeviceArray<int32_t>(slot_experts);
    pairs = DeviceArray<int32_t>(slot_pairs);
    view.count = count.data();
    view.experts = experts.data();
    view.pairs = pairs.data();
  }

  DeviceArray<int32_t> count, experts, pairs;
  ExpertSlots view;
};

std::vector<int32_t> random_choices(const GroupedShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> experts(static_cast<size_t>(shape.experts)), ids;
  std::iota(experts.begin(), experts.end(), 0);
  for (int32_t t = 0; t < shape.tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    ids.insert(ids.end(), experts.begin(), experts.begin() + shape.choices);
  }
  ids[ids.size() / 2] = -1;
  return ids;
}

void expect_grouped(const KernelInfo& row, const GroupedShape& shape) {
  SCOPED_TRACE(::testing::Message()
               << row.name << " n " << shape.n << " k " << shape.k << " experts " << shape.experts
               << " tokens " << shape.tokens << " rows " << shape.rows);
  const Matrices weight(row.weight, shape.experts, shape.n, shape.k);
  const Rows x(row.x_form, shape.tokens, shape.k, 7);
  const std::vector<int32_t> ids = random_choices(shape, 5);
  const Slots slots(ids, shape.experts, shape.rows);
  const DeviceArray<float> y(ids.size() * static_cast<size_t>(shape.n));
  std::get<Launcher<DeviceGroupedMatMulArgs>>(row.launch)({.x = x.forms(shape.k),
                                                           .pairs_per_row = shape.choices,
                                                           .weight = &weight.weight,
                                                           .slots = slots.view,
                                                           .y = y.data(),
                                                           .num_units = gpu()->info().num_units},
                                                          gpu()->stream())
      .value();
  const std::vector<float> found = y.to_host();
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    for (int64_t i = 0; i < shape.n; ++i) {
      const float value = found[pair * static_cast<size_t>(shape.n) + static_cast<size_t>(i)];
      if (ids[pair] < 0) {
        ASSERT_TRUE(std::isnan(value)) << pair << " " << i;
        continue;
      }
      const Sum sum =
          product(weight.values.data() + (ids[pair] * shape.n + i) * shape.k,
                  x.values.data() + static_cast<int64_t>(pair) / shape.choices * shape.k,
                  shape.k);
      ASSERT_LE(std::abs(static_cast<double>(value) - sum.value), kTolerance * sum.magnitude)
          << pair << " " << i;
    }
  }
}

TEST_F(PortableMatMul, GroupedEqualsTheSumsInDouble) {
  const GroupedShape shapes[] = {{24, 128, 3, 1, 2, 1},
                                 {64, 256, 5, 4, 3, 8},
                                 {33, 128, 3, 40, 2, 16},
                                 {32, 256, 2, 70, 1, 64},
                                 {256, 128, 32, 1, 6, 1}};
  for (const KernelInfo* row : rows_of(Op::kGroupedMatMul)) {
    for (const GroupedShape& shape : shapes) expect_grouped(*row, shape);
  }
}

double swiglu(double gate, double up, double limit) {
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  return gate / (1 + std::exp(-gate)) * up;
}

TEST_F(PortableMatMul, GroupedFusesSwigluWithClampAndPairWeights) {
  constexpr int64_t kIntermediate = 40, kHidden = 256;
  for (const KernelInfo* row : rows_of(Op::kGroupedMatMul)) {
    const Matrices weight(row->weight, 4, 2 * kIntermediate, kHidden);
    for (const auto& [tokens, rows, limit] :
         {std::tuple{1, 1, 10.0f}, {7, 8, 0.0f}, {30, 32, 10.0f}}) {
      const GroupedShape shape{2 * kIntermediate, kHidden, 4, tokens, 3, rows};
      const Rows x(row->x_form, tokens, kHidden, 11);
      const std::vector<int32_t> ids = random_choices(shape, 9);
      const Slots slots(ids, 4, rows);
      std::vector<float> weights;
      for (size_t pair = 0; pair < ids.size(); ++pair) {
        weights.push_back(0.25f * static_cast<float>(pair + 1));
      }
      const DeviceArray<float> pair_weights(weights);
      const DeviceArray<uint16_t> y(ids.size() * kIntermediate);
      std::get<Launcher<DeviceGroupedMatMulArgs>>(row->launch)(
          {.x = x.forms(kHidden),
           .pairs_per_row = 3,
           .weight = &weight.weight,
           .slots = slots.view,
           .swiglu = true,
           .limit = limit,
           .pair_weights = pair_weights.data(),
           .y = y.data(),
           .num_units = gpu()->info().num_units},
          gpu()->stream())
          .value();
      const std::vector<uint16_t> found = y.to_host();
      for (size_t pair = 0; pair < ids.size(); ++pair) {
        if (ids[pair] < 0) continue;
        for (int64_t i = 0; i < kIntermediate; ++i) {
          const float* const gate =
              weight.values.data() + (ids[pair] * 2 * kIntermediate + i) * kHidden;
          const double* const token = x.values.data() + static_cast<int64_t>(pair) / 3 * kHidden;
          const double expected =
              swiglu(product(gate, token, kHidden).value,
                     product(gate + kIntermediate * kHidden, token, kHidden).value,
                     limit > 0 ? static_cast<double>(limit) : INFINITY) *
              static_cast<double>(weights[pair]);
          const auto value = static_cast<double>(
              quant::bf16_to_f32(found[pair * kIntermediate + static_cast<size_t>(i)]));
          // One rounding to BF16, and sums that may have cancelled.
          ASSERT_LE(std::abs(value - expected), 0x1p-8 * std::abs(expected) + 1e-3)
              << row->name << " " << pair << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
