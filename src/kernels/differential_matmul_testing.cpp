#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/checked_math.h"
#include "kernels/differential_testing.h"
#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;

// A matrix whose rows are spaced by more than their length; the gaps hold a sentinel that no kernel
// may touch.
struct SpacedMatrix {
  static constexpr int64_t kGap = 3;
  static constexpr float kSentinel = -12345.5f;
  int64_t rows = 0, columns = 0;
  std::vector<float> values;

  SpacedMatrix(int64_t num_rows, int64_t num_columns)
      : rows(num_rows),
        columns(num_columns),
        values(static_cast<size_t>(num_rows * (num_columns + kGap)), kSentinel) {}
  float* row(int64_t i) { return values.data() + i * (columns + kGap); }
  const float* row(int64_t i) const { return values.data() + i * (columns + kGap); }
  TensorView view() {
    TensorView view = TensorView::contiguous(values.data(), DType::kF32, {rows, columns});
    view.row_stride = columns + kGap;
    return view;
  }
  int64_t count_sentinels() const { return std::count(values.begin(), values.end(), kSentinel); }
};

class Random final {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  float normal() { return normal_(engine_); }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

enum class Special {
  kNone,
  kZeroWeights,
  kExtremeScales,
  kLargestCodes,
  kNanWeight,
  kNanActivation
};

// Overwrites codes or scales so that the weight is as `special` says, where the format can express
// it.
void apply_special(QuantizedWeight& weight, Special special, Random& random) {
  const quant::FormatInfo& info = quant::format_info(weight.format);
  auto* const codes = reinterpret_cast<uint8_t*>(weight.codes.data());
  auto* const scales = reinterpret_cast<uint8_t*>(weight.scales.data());
  const auto code_bytes = static_cast<int64_t>(weight.codes.size());
  const auto scale_bytes = static_cast<int64_t>(weight.scales.size());
  const bool has_byte_scales = info.has_scales() && dtype_size(weight.scale_dtype) == 1;
  switch (special) {
    case Special::kExtremeScales:
      // Every finite scale code whose products stay finite in f32, the subnormal 2^-127 included.
      for (int64_t i = 0; has_byte_scales && i < scale_bytes; ++i) {
        const int64_t largest = weight.scale_dtype == DType::kF8E8m0 ? 200 : quant::kE4m3Nan - 1;
        scales[i] = static_cast<uint8_t>(i % 5 == 0 ? 0 : random.integer(0, largest));
      }
      break;
    case Special::kLargestCodes:
      if (weight.format == Format::kFp8E4m3Block128x128) {
        for (int64_t i = 0; i < code_bytes; ++i) codes[i] = i % 3 == 0 ? 0xFE : 0x7E;
      } else if (info.bits_per_weight == 4) {
        for (int64_t i = 0; i < code_bytes; ++i) codes[i] = i % 3 == 0 ? 0xF7 : 0x7F;
      }
      break;
    case Special::kNanWeight: {
      const int64_t at = random.integer(0, weight.n * weight.k - 1);
      if (weight.format == Format::kF32) {
        reinterpret_cast<float*>(codes)[at] = std::numeric_limits<float>::quiet_NaN();
      } else if (weight.format == Format::kBf16) {
        reinterpret_cast<uint16_t*>(codes)[at] = 0x7FC0;
      } else if (weight.format == Format::kFp8E4m3Block128x128) {
        codes[at] = 0xFF;
      } else if (has_byte_scales) {
        scales[random.integer(0, scale_bytes - 1)] =
            weight.scale_dtype == DType::kF8E8m0 ? quant::kE8m0Nan : quant::kE4m3Nan;
      }
      break;
    }
    default:
      break;
  }
}

QuantizedWeight random_weight(
    Format format, int64_t n, int64_t k, DType scale_dtype, Special special, Random& random) {
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n * k && special != Special::kZeroWeights; ++i) {
    // Groups of different sizes, so that a wrong scale shows.
    values[static_cast<size_t>(i)] = std::ldexp(random.normal(), static_cast<int>(i / 16 % 7) - 3);
  }
  QuantizedWeight weight = quant::quantize(format, values, n, k, scale_dtype);
  apply_special(weight, special, random);
  return weight;
}

SpacedMatrix random_activations(int64_t m, int64_t k, Special special, Random& random) {
  SpacedMatrix x(m, k);
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t j = 0; j < k; ++j) x.row(t)[j] = random.normal();
  }
  if (special == Special::kNanActivation) {
    x.row(random.integer(0, m - 1))[random.integer(0, k - 1)] =
        std::numeric_limits<float>::quiet_NaN();
  }
  return x;
}

// What `kernel` multiplies: the activations themselves or their bf16 roundings.
SpacedMatrix as_multiplied(const SpacedMatrix& x, Activation activation) {
  SpacedMatrix rounded = x;
  if (activation == Activation::kF32) return rounded;
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t j = 0; j < x.columns; ++j) rounded.row(t)[j] = quant::round_to_bf16(x.row(t)[j]);
  }
  return rounded;
}

PackedWeight packed(const QuantizedWeight& weight, PackedLayout layout) {
  const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = weight.n};
  return pack_weight({&rows, 1}, layout).value();
}

template <class Args>
void launch(const KernelInfo& kernel, const Args& args, int32_t num_threads) {
  device::ThreadPool pool({.num_threads = num_threads});
  device::Stream stream{.pool = &pool};
  std::get<Launcher<Args>>(kernel.launch)(args, stream).value();
}

// One output row against the reference: NaN in the same places, otherwise within the tolerance.
void expect_close(const float* y,
                  const float* expected,
                  const float* x,
                  std::span<const float> decoded,
                  const QuantizedWeight& weight) {
  const double tolerance = matmul_tolerance(weight.format, weight.k);
  for (int64_t i = 0; i < weight.n; ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(y[i])) << "row " << i << ": " << y[i] << ", expected NaN";
      continue;
    }
    double magnitude = 0;
    for (int64_t j = 0; j < weight.k; ++j) {
      magnitude += std::abs(double{decoded[static_cast<size_t>(i * weight.k + j)]} * double{x[j]});
    }
    EXPECT_NEAR(y[i], expected[i], tolerance * magnitude) << "row " << i;
  }
}

std::vector<float> decoded(const QuantizedWeight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.n * weight.k));
  quant::dequantize(weight.view(), values);
  return values;
}

struct MatMulCase {
  int64_t m = 1, n = 1, k = 1;
  Special special = Special::kNone;
};

std::string describe(const MatMulCase& c, DType scale_dtype) {
  return "m " + std::to_string(c.m) + ", n " + std::to_string(c.n) + ", k " + std::to_string(c.k) +
         ", special " + std::to_string(static_cast<int>(c.special)) + ", scales " +
         std::string(dtype_name(scale_dtype));
}

// Edges first, then random shapes. k is rounded to what the format allows.
std::vector<MatMulCase> matmul_cases(const KernelInfo& kernel, Random& random) {
  std::vector<MatMulCase> cases = {
      {1, 1, 1},
      {1, 16, 16},
      {1, 17, 48},
      {3, 15, 32},
      {1, 128, 256},
      {1, 300, 96},
      {2, 33, 129},
      {13, 40, 200},
      {37, 65, 300},
      {100, 20, 257},
      {193, 20, 64},
      {1, 64, 1500},
      {5, 272, 640},
      {2, 32, 128, Special::kZeroWeights},
      {3, 40, 256, Special::kExtremeScales},
      {1, 144, 320, Special::kExtremeScales},
      {14, 24, 256, Special::kLargestCodes},
      {1, 24, 256, Special::kLargestCodes},
      {1, 50, 160, Special::kNanWeight},
      {25, 50, 160, Special::kNanWeight},
      {13, 16, 144, Special::kNanActivation},
  };
  for (int i = 0; i < 12; ++i) {
    cases.push_back({random.integer(1, 30), random.integer(1, 80), random.integer(1, 300)});
  }
  const int64_t multiple = std::max(quant::k_multiple(kernel.weight), kernel.limits.k_multiple);
  for (MatMulCase& c : cases) {
    c.k = round_up(c.k, multiple);
    if (kernel.limits.n_multiple > 0) c.n = round_up(c.n, kernel.limits.n_multiple);
    if (kernel.limits.m_max > 0) c.m = std::min(c.m, kernel.limits.m_max);
  }
  return cases;
}

std::vector<DType> scale_dtypes(Format format) {
  const auto dtypes = quant::format_info(format).scale_dtypes.span();
  if (dtypes.empty()) return {DType::kF32};
  return {dtypes.begin(), dtypes.end()};
}

void compare_one(const KernelInfo& kernel,
                 const KernelInfo& reference,
                 const MatMulCase& c,
                 DType scale_dtype,
                 Random& random) {
  const QuantizedWeight weight =
      random_weight(kernel.weight, c.n, c.k, scale_dtype, c.special, random);
  SpacedMatrix x = random_activations(c.m, c.k, c.special, random);
  SpacedMatrix x_multiplied = as_multiplied(x, kernel.activation);
  SpacedMatrix y(c.m, c.n), expected(c.m, c.n);
  const PackedWeight reference_weight = packed(weight, reference.layout);
  launch<MatMulArgs>(
      reference, {.x = x_multiplied.view(), .weight = &reference_weight, .y = expected.view()}, 1);
  const PackedWeight kernel_weight = packed(weight, kernel.layout);
  launch<MatMulArgs>(kernel, {.x = x.view(), .weight = &kernel_weight, .y = y.view()}, 2);
  const std::vector<float> values = decoded(weight);
  for (int64_t t = 0; t < c.m; ++t) {
    expect_close(y.row(t), expected.row(t), x_multiplied.row(t), values, weight);
  }
  EXPECT_EQ(y.count_sentinels(), c.m * SpacedMatrix::kGap);
}

bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

// Each token alone on one thread gives the bits that it has in a batch on several.
void expect_batch_invariance(const KernelInfo& kernel, DType scale_dtype, Random& random) {
  const MatMulCase cases[] = {
      {2, 72, 288}, {3, 72, 288}, {4, 72, 288}, {5, 72, 288}, {37, 200, 416}, {110, 24, 1056}};
  for (const MatMulCase& c : cases) {
    const QuantizedWeight weight =
        random_weight(kernel.weight, c.n, c.k, scale_dtype, Special::kNone, random);
    SpacedMatrix x = random_activations(c.m, c.k, Special::kNone, random);
    const PackedWeight kernel_weight = packed(weight, kernel.layout);
    SpacedMatrix together(c.m, c.n), on_three(c.m, c.n), alone(c.m, c.n);
    launch<MatMulArgs>(kernel, {.x = x.view(), .weight = &kernel_weight, .y = together.view()}, 1);
    launch<MatMulArgs>(kernel, {.x = x.view(), .weight = &kernel_weight, .y = on_three.view()}, 3);
    for (int64_t t = 0; t < c.m; ++t) {
      launch<MatMulArgs>(
          kernel,
          {.x = x.view().rows(t, 1), .weight = &kernel_weight, .y = alone.view().rows(t, 1)},
          1);
      EXPECT_TRUE(same_bits(together.row(t), alone.row(t), c.n)) << "token " << t;
      EXPECT_TRUE(same_bits(together.row(t), on_three.row(t), c.n)) << "token " << t;
    }
  }
}

// Groups of every interesting size over one x; inputs repeat, outputs are scattered.
struct GroupedCase {
  std::vector<int32_t> group_sizes;
  int64_t n, k;
};

void compare_one_grouped(const KernelInfo& kernel,
                         const KernelInfo& reference,
                         const GroupedCase& c,
                         DType scale_dtype,
                         Random& random) {
  std::vector<QuantizedWeight> weights;
  std::vector<PackedWeight> kernel_weights, reference_weights;
  std::vector<int32_t> offsets = {0};
  for (const int32_t size : c.group_sizes) {
    weights.push_back(random_weight(kernel.weight, c.n, c.k, scale_dtype, Special::kNone, random));
    kernel_weights.push_back(packed(weights.back(), kernel.layout));
    reference_weights.push_back(packed(weights.back(), reference.layout));
    offsets.push_back(offsets.back() + size);
  }
  const int64_t positions = offsets.back();
  const int64_t num_inputs = positions / 2 + 1, num_outputs = positions + 4;
  std::vector<int32_t> in_rows(static_cast<size_t>(positions)), out_rows;
  for (int32_t& row : in_rows) row = static_cast<int32_t>(random.integer(0, num_inputs - 1));
  for (int32_t i = 0; i < num_outputs; ++i) out_rows.push_back(i);
  std::shuffle(out_rows.begin(), out_rows.end(), random.engine());
  out_rows.resize(static_cast<size_t>(positions));

  SpacedMatrix x = random_activations(num_inputs, c.k, Special::kNone, random);
  SpacedMatrix x_multiplied = as_multiplied(x, kernel.activation);
  SpacedMatrix y(num_outputs, c.n), expected(num_outputs, c.n);
  GroupedMatMulArgs args{.x = x_multiplied.view(),
                         .weights = reference_weights,
                         .group_offsets = offsets,
                         .in_rows = in_rows,
                         .out_rows = out_rows,
                         .y = expected.view()};
  launch(reference, args, 1);
  args.x = x.view();
  args.weights = kernel_weights;
  args.y = y.view();
  launch(kernel, args, 2);
  EXPECT_EQ(y.count_sentinels(), expected.count_sentinels());
  for (size_t group = 0; group < weights.size(); ++group) {
    const std::vector<float> values = decoded(weights[group]);
    for (auto i = static_cast<size_t>(offsets[group]); i < static_cast<size_t>(offsets[group + 1]);
         ++i) {
      expect_close(y.row(out_rows[i]),
                   expected.row(out_rows[i]),
                   x_multiplied.row(in_rows[i]),
                   values,
                   weights[group]);
    }
  }
}

}  // namespace

double matmul_tolerance(quant::Format format, int64_t k) {
  constexpr double kRounding = 0x1p-24;
  constexpr int64_t kOtherRoundings = 4;
  const quant::FormatInfo& info = quant::format_info(format);
  const int64_t group = info.has_scales() ? info.block_shape.k : 128;
  const int64_t additions = std::min(k, group) + ceil_div(k, group);
  return 2 * kRounding * static_cast<double>(additions + kOtherRoundings);
}

void compare_matmul(const KernelInfo& kernel, const KernelInfo& reference) {
  Random random(7);
  for (const DType scale_dtype : scale_dtypes(kernel.weight)) {
    for (const MatMulCase& c : matmul_cases(kernel, random)) {
      SCOPED_TRACE(describe(c, scale_dtype));
      compare_one(kernel, reference, c, scale_dtype, random);
    }
    if (kernel.is_batch_invariant) expect_batch_invariance(kernel, scale_dtype, random);
  }
}

void compare_grouped_matmul(const KernelInfo& kernel, const KernelInfo& reference) {
  Random random(8);
  const GroupedCase cases[] = {
      {{0, 1, 3, 0, 37, 1, 0}, 72, 160},
      {{1, 1, 1, 1, 1, 1}, 256, 256},
      {{0, 0}, 16, 32},
      {{120, 2}, 17, 96},
  };
  for (const DType scale_dtype : scale_dtypes(kernel.weight)) {
    for (const GroupedCase& c : cases) {
      SCOPED_TRACE("groups " + std::to_string(c.group_sizes.size()) + ", scales " +
                   std::string(dtype_name(scale_dtype)));
      compare_one_grouped(kernel, reference, c, scale_dtype, random);
    }
  }
}

}  // namespace nibble::kernels
