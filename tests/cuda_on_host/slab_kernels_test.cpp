// The sm_120 kernels on the host: their own source over packed weights, against sums in double over
// what the codes mean.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cuda_on_host/cuda_on_host.h"
// After the stand-ins.
#include "kernels/cuda/sm120/expert_matmul/kernel.cuh"
#include "kernels/cuda/sm120/expert_matmul/tile_kernel.cuh"
#include "kernels/cuda/sm120/fp8_matmul/kernel.cuh"
#include "kernels/cuda/sm120/fp8_matmul/tile_kernel.cuh"
#include "kernels/device_args.h"
#include "kernels/slab16.h"
#include "kernels/slab16_testing.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_on_host::run;
using quant::Format;

// Products are exact and sums in f32, 2^-24 each; at most 6 * 448 terms of k cancel.
// Source: spec "kernels" 4.7.
double tolerance(double sum_of_magnitudes) { return std::ldexp(sum_of_magnitudes, -18); }

// [rows, k] activations in the form of a product, and what they mean.
struct Activations {
  int64_t rows = 0, k = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scales;   // [rows, k / 128]
  std::vector<uint16_t> bf16;  // instead of codes
  std::vector<double> values;
};

Activations random_activations(int64_t rows, int64_t k, bool is_fp8, uint32_t seed) {
  std::mt19937 random(seed);
  Activations x{.rows = rows, .k = k};
  for (int64_t i = 0; i < rows * k; ++i) {
    if (is_fp8) {
      const auto code = static_cast<uint8_t>(random() & 0xFFU);
      x.codes.push_back(quant::is_e4m3_nan(code) ? uint8_t{0} : code);
      if (i % 128 == 0) x.scales.push_back(std::ldexp(1.0f, static_cast<int>(random() % 6) - 9));
      x.values.push_back(static_cast<double>(quant::e4m3_to_f32(x.codes.back())) * x.scales.back());
    } else {
      const float value = static_cast<float>(random() % 4096) / 1024 - 2;
      x.bf16.push_back(quant::f32_to_bf16(value));
      x.values.push_back(quant::bf16_to_f32(x.bf16.back()));
    }
  }
  return x;
}

struct Dot {
  double sum = 0, magnitude = 0;
};
Dot dot(std::span<const float> weights, const Activations& x, int64_t row, int64_t first = 0) {
  Dot result;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double term = weights[i] * x.values[static_cast<size_t>(row * x.k + first) + i];
    result.sum += term;
    result.magnitude += std::abs(term);
  }
  return result;
}

// --- experts ---

struct Experts {
  int64_t n, k;
  std::vector<uint4> aligned;  // the packages: bulk copies want them aligned to 16
  std::vector<float> multipliers;
  std::vector<std::vector<float>> values;  // [expert][n * k] in packed order
  const uint8_t* packages() const { return reinterpret_cast<const uint8_t*>(aligned.data()); }
};

Experts make_experts(Format format, int32_t count, int64_t n, int64_t k) {
  Experts experts{.n = n, .k = k};
  const int64_t bytes = slab_bytes(format, n, k);
  experts.aligned.resize(static_cast<size_t>(count * bytes / 16));
  for (int32_t e = 0; e < count; ++e) {
    const auto stored = random_slab_weight(format, n, k, static_cast<uint32_t>(e + 1));
    const WeightRows rows{.weight = stored.view(), .row_begin = 0, .row_end = n};
    const PackedWeight packed = pack_slab16({&rows, 1}, PanelOrder::kGateUp).value();
    std::memcpy(reinterpret_cast<uint8_t*>(experts.aligned.data()) + e * bytes,
                packed.codes,
                static_cast<size_t>(bytes));
    if (packed.global_scales != nullptr) {
      experts.multipliers.insert(
          experts.multipliers.end(), packed.global_scales, packed.global_scales + n);
    }
    std::vector<float>& values = experts.values.emplace_back(static_cast<size_t>(n * k));
    unpack_weight(packed, values);
  }
  return experts;
}

struct Slots {
  int32_t rows = 0, count = 0;
  std::vector<int32_t> experts, pairs;
};

// As launch_make_slots(); with one row, the choices themselves.
Slots make_slots(const std::vector<int32_t>& ids, int32_t num_experts, int32_t rows) {
  Slots slots{.rows = rows};
  if (rows == 1) {
    slots.experts = ids;
    return slots;
  }
  for (int32_t e = 0; e < num_experts; ++e) {
    int32_t in_slot = rows;
    for (size_t pair = 0; pair < ids.size(); ++pair) {
      if (ids[pair] != e) continue;
      if (in_slot == rows) {
        slots.experts.push_back(e);
        slots.pairs.resize(slots.pairs.size() + static_cast<size_t>(rows), -1);
        ++slots.count;
        in_slot = 0;
      }
      slots.pairs[slots.pairs.size() - static_cast<size_t>(rows - in_slot++)] =
          static_cast<int32_t>(pair);
    }
  }
  return slots;
}

struct Case {
  Format format;
  int64_t n, k;
  int32_t rows;
  bool swiglu;
  int32_t blocks;
};

template <class Slab, int kRows>
void run_experts(const SlabExpertParams& params, bool swiglu, int blocks) {
  constexpr int kRing = 3;
  static_assert(SlabBlockMemory<Slab, slab_tiles_of(kRows), kRing>::kBytes <=
                cuda_on_host::kSharedBytes);
  run(blocks, kSlabThreads, [&] {
    if (swiglu) {
      slab_expert_matmul<Slab, kRows, kRing, true>(params);
    } else {
      slab_expert_matmul<Slab, kRows, kRing, false>(params);
    }
  });
}

template <class Slab>
void run_experts(const SlabExpertParams& params, const Case& c) {
  switch (c.rows) {
    case 1:
      return run_experts<Slab, 1>(params, c.swiglu, c.blocks);
    case 8:
      return run_experts<Slab, 8>(params, c.swiglu, c.blocks);
    default:
      return run_experts<Slab, 16>(params, c.swiglu, c.blocks);
  }
}

constexpr float kLimit = 4.0f;
constexpr int32_t kNumExperts = 3;

// The bits of y after a run over poison: f32, or bf16 with swiglu.
std::vector<uint32_t> expert_outputs(const Case& c,
                                     const Experts& experts,
                                     const Activations& x,
                                     const std::vector<int32_t>& ids,
                                     const std::vector<float>& pair_weights,
                                     int32_t pairs_per_row) {
  const Slots slots = make_slots(ids, kNumExperts, c.rows);
  const size_t width = static_cast<size_t>(c.swiglu ? c.n / 2 : c.n);
  std::vector<uint16_t> halves(ids.size() * width, 0xFFFF);
  std::vector<uint32_t> words(ids.size() * width, 0xFFFFFFFF);
  const SlabExpertParams params{
      .x_codes = x.codes.data(),
      .x_scales = x.scales.data(),
      .x_bf16 = x.bf16.data(),
      .pairs_per_row = pairs_per_row,
      .weights = experts.packages(),
      .row_multipliers = experts.multipliers.data(),
      .slot_count = &slots.count,
      .max_slots = static_cast<int>(slots.experts.size()),
      .slot_experts = slots.experts.data(),
      .slot_pairs = slots.pairs.data(),
      .slots_are_ready = false,
      .limit = kLimit,
      .pair_weights = pair_weights.data(),
      .y = c.swiglu ? static_cast<void*>(halves.data()) : static_cast<void*>(words.data()),
      .n = static_cast<int>(c.n),
      .k = static_cast<int>(c.k)};
  if (c.rows == 64) {
    run(c.blocks, ExpertTileMemory::kThreads, [&] {
      if (c.swiglu) {
        slab_expert_tile_matmul<true>(params);
      } else {
        slab_expert_tile_matmul<false>(params);
      }
    });
  } else if (c.format == Format::kMxfp4) {
    run_experts<Mxfp4Slab>(params, c);
  } else {
    run_experts<Nvfp4Slab>(params, c);
  }
  return c.swiglu ? std::vector<uint32_t>(halves.begin(), halves.end()) : words;
}

double silu_gated(double gate, double up) {
  gate = std::min<double>(gate, kLimit);
  up = std::clamp<double>(up, -kLimit, kLimit);
  return gate / (1 + std::exp(-gate)) * up;
}

class ExpertSlabs : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertSlabs, AgreeWithSumsInDouble) {
  const Case& c = GetParam();
  const Experts experts = make_experts(c.format, kNumExperts, c.n, c.k);
  // Rows of one token, or 20 pairs of 10 tokens: expert 1 takes most, expert 2 a few, -1 is none.
  std::vector<int32_t> ids = {2, -1, 0};
  if (c.rows > 1) ids = {1, 1, 1, 2, 1, -1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const int32_t pairs_per_row = c.rows > 1 ? 2 : 3;
  const auto tokens = static_cast<int64_t>(ids.size()) / pairs_per_row;
  const Activations x = random_activations(tokens, c.k, c.format == Format::kMxfp4, 7);
  std::vector<float> pair_weights;
  for (size_t i = 0; i < ids.size(); ++i) pair_weights.push_back(0.25f + 0.125f * float(i));
  const std::vector<uint32_t> y = expert_outputs(c, experts, x, ids, pair_weights, pairs_per_row);

  const size_t width = static_cast<size_t>(c.swiglu ? c.n / 2 : c.n);
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    for (size_t i = 0; i < width; ++i) {
      const uint32_t bits = y[pair * width + i];
      if (ids[pair] < 0) {
        EXPECT_EQ(bits, c.swiglu ? 0xFFFFU : 0xFFFFFFFFU) << "pair " << pair;
        continue;
      }
      const auto& values = experts.values[static_cast<size_t>(ids[pair])];
      const auto row_of = [&](size_t packed_row) {
        return dot(std::span(values).subspan(packed_row * size_t(c.k), size_t(c.k)),
                   x,
                   static_cast<int64_t>(pair) / pairs_per_row);
      };
      if (!c.swiglu) {
        const Dot expected = row_of(i);
        EXPECT_NEAR(__uint_as_float(bits), expected.sum, tolerance(expected.magnitude))
            << "pair " << pair << " row " << i;
        continue;
      }
      const Dot gate = row_of(i / 8 * 16 + i % 8), up = row_of(i / 8 * 16 + i % 8 + 8);
      const double expected = silu_gated(gate.sum, up.sum) * pair_weights[pair];
      // silu has slope 1.1 at most; then rounding to bf16.
      const double bound =
          (tolerance(gate.magnitude) * 1.1 * kLimit + tolerance(up.magnitude) * kLimit) *
              pair_weights[pair] +
          std::abs(expected) / 256;
      EXPECT_NEAR(quant::bf16_to_f32(static_cast<uint16_t>(bits)), expected, bound)
          << "pair " << pair << " row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         ExpertSlabs,
                         ::testing::Values(Case{Format::kMxfp4, 32, 256, 1, false, 1},
                                           Case{Format::kMxfp4, 48, 1280, 1, true, 4},
                                           Case{Format::kMxfp4, 32, 512, 8, false, 3},
                                           Case{Format::kMxfp4, 48, 1280, 8, true, 2},
                                           Case{Format::kMxfp4, 32, 1024, 16, true, 3},
                                           Case{Format::kMxfp4, 48, 512, 64, false, 1},
                                           Case{Format::kMxfp4, 144, 768, 64, true, 2},
                                           Case{Format::kNvfp4, 32, 256, 1, false, 2},
                                           Case{Format::kNvfp4, 32, 1280, 8, true, 3},
                                           Case{Format::kNvfp4, 48, 512, 16, false, 2}));

// What a row gives depends on neither its slot nor how many blocks share the work.
TEST(ExpertSlabs, GiveARowTheSameBitsInEverySlot) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
    const int64_t n = 32, k = 512;
    const Experts experts = make_experts(format, kNumExperts, n, k);
    const Activations x = random_activations(4, k, format == Format::kMxfp4, 8);
    const std::vector<float> ones(4, 1.0f);
    const std::vector<int32_t> ids = {1, 1, 0, 1};
    const auto outputs = [&](int32_t rows, int32_t blocks) {
      return expert_outputs({format, n, k, rows, false, blocks}, experts, x, ids, ones, 1);
    };
    const std::vector<uint32_t> alone = outputs(1, 3);
    EXPECT_EQ(outputs(8, 1), alone);
    EXPECT_EQ(outputs(16, 2), alone);
    if (format == Format::kMxfp4) {
      EXPECT_EQ(outputs(64, 2), alone);
    }
  }
}

// --- dense FP8 ---

struct Fp8Case {
  int32_t m;
  int64_t n, k;
  int32_t groups, splits;
  bool quantize;
  int32_t blocks;
};

// Activations as blocks (kernels/device_args.h).
std::vector<uint4> to_blocks(const Activations& x) {
  std::vector<uint4> blocks(static_cast<size_t>(fp8_blocks_bytes(x.rows, x.k) / 16));
  auto* const bytes = reinterpret_cast<uint8_t*>(blocks.data());
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t k = 0; k < x.k; ++k) {
      const Fp8BlockPlace place = fp8_block_place(x.rows, x.k, row, k);
      bytes[place.code(k)] = x.codes[size_t(row * x.k + k)];
      std::memcpy(bytes + place.scale(), &x.scales[size_t((row * x.k + k) / 128)], 4);
    }
  }
  return blocks;
}

template <int kTiles>
void run_fp8(const SlabFp8Params& params, const Fp8Case& c) {
  run(c.blocks, kSlabThreads, [&] {
    if (c.quantize) {
      slab_fp8_matmul<kTiles, 2, true>(params);
    } else {
      slab_fp8_matmul<kTiles, 2, false>(params);
    }
  });
}

class Fp8Slabs : public ::testing::TestWithParam<Fp8Case> {};

TEST_P(Fp8Slabs, AgreeWithSumsInDouble) {
  const Fp8Case& c = GetParam();
  const auto stored = random_slab_weight(Format::kFp8E4m3Block128x128, c.n, c.k, 5);
  const WeightRows rows{.weight = stored.view(), .row_begin = 0, .row_end = c.n};
  const PackedWeight packed = pack_slab16({&rows, 1}, PanelOrder::kNatural).value();
  std::vector<float> values(static_cast<size_t>(c.n * c.k));
  unpack_weight(packed, values);
  const Activations x = random_activations(c.m, c.groups * c.k, true, 6);
  const std::vector<uint4> blocks = to_blocks(x);
  std::vector<float> y(static_cast<size_t>(c.splits * c.m * c.n), NAN);
  const int64_t block_bytes = fp8_block_bytes(c.m);
  std::vector<uint4> y_fp8(static_cast<size_t>(c.n / 128 * block_bytes / 16),
                           uint4{~0U, ~0U, ~0U, ~0U});
  const SlabFp8Params params{.x = reinterpret_cast<const uint8_t*>(blocks.data()),
                             .m = c.m,
                             .block_bytes = static_cast<int>(block_bytes),
                             .groups = c.groups,
                             .weights = reinterpret_cast<const uint8_t*>(packed.codes),
                             .n = static_cast<int>(c.n),
                             .k = static_cast<int>(c.k),
                             .splits = c.splits,
                             .y = y.data(),
                             .y_fp8 = reinterpret_cast<uint8_t*>(y_fp8.data())};
  if (c.m > 16) {
    run(c.blocks, Fp8TileMemory::kThreads, [&] { slab_fp8_tile_matmul(params); });
  } else if (c.m <= 8) {
    run_fp8<1>(params, c);
  } else {
    run_fp8<2>(params, c);
  }
  for (int64_t t = 0; t < c.m; ++t) {
    for (int64_t row = 0; row < c.n; ++row) {
      const int64_t group = row / (c.n / c.groups);
      const Dot expected =
          dot(std::span(values).subspan(size_t(row * c.k), size_t(c.k)), x, t, group * c.k);
      double got = 0, bound = tolerance(expected.magnitude);
      if (c.quantize) {
        const auto* const block =
            reinterpret_cast<const uint8_t*>(y_fp8.data()) + row / 128 * block_bytes;
        float scale = 0;
        std::memcpy(&scale, block + 128 * c.m + t * 4, sizeof(scale));
        EXPECT_EQ(std::ldexp(1.0f, std::ilogb(scale)), scale);
        const uint8_t code = block[(row % 128 / 16 * c.m + t) * 16 + row % 16];
        got = static_cast<double>(quant::e4m3_to_f32(code)) * scale;
        // E4M3 keeps 4 bits, below 2^-6 steps of 2^-9.
        bound += std::max(std::abs(expected.sum) / 16, std::ldexp(double{scale}, -10));
      } else {
        for (int32_t split = 0; split < c.splits; ++split) {
          got += y[static_cast<size_t>((split * c.m + t) * c.n + row)];
        }
      }
      EXPECT_NEAR(got, expected.sum, bound) << "token " << t << " row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         Fp8Slabs,
                         ::testing::Values(Fp8Case{1, 48, 256, 1, 1, false, 2},
                                           Fp8Case{5, 32, 1280, 1, 2, false, 3},
                                           Fp8Case{8, 64, 512, 4, 1, false, 5},
                                           Fp8Case{13, 160, 768, 1, 3, false, 4},
                                           Fp8Case{3, 256, 512, 2, 1, true, 1},
                                           Fp8Case{16, 128, 256, 1, 1, true, 2},
                                           Fp8Case{20, 64, 1280, 1, 1, false, 1},
                                           Fp8Case{150, 128, 512, 2, 1, false, 3},
                                           Fp8Case{70, 64, 768, 1, 2, false, 2}));

// What a token gives does not depend on how many come with it.
TEST(Fp8Slabs, GiveATokenTheSameBitsAmongManyTokens) {
  const int64_t n = 64, k = 1024;
  const int32_t splits = 2;
  const auto stored = random_slab_weight(Format::kFp8E4m3Block128x128, n, k, 9);
  const WeightRows rows{.weight = stored.view(), .row_begin = 0, .row_end = n};
  const PackedWeight packed = pack_slab16({&rows, 1}, PanelOrder::kNatural).value();
  const auto outputs = [&](const Activations& x) {
    const Fp8Case c{static_cast<int32_t>(x.rows), n, k, 1, splits, false, 2};
    const std::vector<uint4> blocks = to_blocks(x);
    std::vector<float> y(static_cast<size_t>(splits * x.rows * n), NAN);
    const SlabFp8Params params{.x = reinterpret_cast<const uint8_t*>(blocks.data()),
                               .m = c.m,
                               .block_bytes = static_cast<int>(fp8_block_bytes(c.m)),
                               .groups = 1,
                               .weights = reinterpret_cast<const uint8_t*>(packed.codes),
                               .n = static_cast<int>(n),
                               .k = static_cast<int>(k),
                               .splits = splits,
                               .y = y.data(),
                               .y_fp8 = nullptr};
    if (c.m > 16) {
      run(c.blocks, Fp8TileMemory::kThreads, [&] { slab_fp8_tile_matmul(params); });
    } else {
      run_fp8<1>(params, c);
    }
    return y;
  };
  const Activations many = random_activations(18, k, true, 10);
  Activations one{.rows = 1, .k = k};
  one.codes.assign(many.codes.begin() + 17 * k, many.codes.end());
  one.scales.assign(many.scales.begin() + 17 * k / 128, many.scales.end());
  const std::vector<float> alone = outputs(one), among = outputs(many);
  for (int64_t split = 0; split < splits; ++split) {
    for (int64_t row = 0; row < n; ++row) {
      EXPECT_EQ(alone[size_t(split * n + row)], among[size_t((split * 18 + 17) * n + row)]) << row;
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
