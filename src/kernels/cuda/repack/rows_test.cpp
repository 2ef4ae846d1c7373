// The repack kernels' arithmetic on the host, against pack_weight(), in the pieces that an
// uploader makes.
#include "kernels/cuda/repack/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quant/numeric.h"
#include "quant/reference.h"

namespace nibble::kernels::cuda {
namespace {

using quant::Format;
using quant::QuantizedWeight;

// Random codes and scales of any value but NaN, and groups of zeros.
QuantizedWeight random_weight(
    Format format, int64_t n, int64_t k, DType scale_dtype, uint32_t seed) {
  std::mt19937 random(seed);
  const quant::FormatInfo& info = quant::format_info(format);
  QuantizedWeight weight{.format = format, .n = n, .k = k, .scale_dtype = scale_dtype};
  weight.codes.resize(static_cast<size_t>(n * k * info.bits_per_weight / 8));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random() % 0x7F);
  const int64_t num_scales =
      info.has_scales() ? quant::scale_shape(format, n, k).num_elements() : 0;
  weight.scales.resize(static_cast<size_t>(num_scales * dtype_size(scale_dtype)));
  for (int64_t i = 0; i < num_scales; ++i) {
    const float value = std::ldexp(1.0f + static_cast<float>(random() % 8) / 8,
                                   static_cast<int32_t>(random() % 12) - 6);
    std::byte* const at = weight.scales.data() + i * dtype_size(scale_dtype);
    if (scale_dtype == DType::kF32) {
      std::memcpy(at, &value, 4);
    } else if (scale_dtype == DType::kBf16 || scale_dtype == DType::kF16) {
      const uint16_t half =
          scale_dtype == DType::kBf16 ? quant::f32_to_bf16(value) : quant::f32_to_f16(value);
      std::memcpy(at, &half, 2);
    } else {
      // Of either sign, but no NaN.
      *at = static_cast<std::byte>(scale_dtype == DType::kF8E4m3
                                       ? random() % 0x7F + random() % 2 * 0x80
                                       : 100 + random() % 27);
    }
  }
  if (format == Format::kMxfp4) {
    for (int64_t group = 0; group < n * k / 32; group += 5) {
      std::fill_n(weight.codes.begin() + group * 16, 16, std::byte{0x80});
      weight.scales[static_cast<size_t>(group)] = std::byte{255};  // of zeros: never read
    }
  }
  if (info.has_global_scale) weight.global_scale = 0.37f;
  return weight;
}

// A packed weight made as the GPU makes it: pieces of `piece_rows`, all parts zero at first.
struct Emulated {
  std::vector<std::byte> codes, scales;
  std::vector<float> global_scales;
};

void pack_piece(const RepackArgs& args, Format format, PackedLayout layout) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    if (layout == PackedLayout::kRowMajor) {
      for (int64_t group = 0; group < groups_per_row(args); ++group) expand_scale(args, row, group);
    } else if (layout == PackedLayout::kBf16Panel64) {
      for (int64_t chunk = 0; chunk < bf16_chunks_per_row(args.k); ++chunk) {
        pack_bf16_chunk(args, row, chunk);
      }
    } else if (layout == PackedLayout::kFp8Panel64) {
      for (int64_t chunk = 0; chunk < fp8_chunks_per_row(args.k); ++chunk) {
        pack_fp8_chunk(args, row, chunk);
      }
    } else if (format != Format::kMxfp4) {
      for (int64_t group = 0; group < panel_groups(args.k); ++group) {
        for (int64_t t = 0; t < 4; ++t) {
          const uint32_t wrong = format == Format::kNvfp4 ? pack_nvfp4_group(args, row, group, t)
                                                          : pack_int4_group(args, row, group, t);
          EXPECT_EQ(wrong, 0U);
        }
      }
    } else {
      const auto is_zero = [&](int64_t group) {
        uint32_t magnitudes = 0;
        for (int64_t t = 0; t < 4; ++t) {
          magnitudes |= panel_nibbles(stored_group(args, row, group), t) & 0x77777777U;
        }
        return magnitudes == 0;
      };
      ExponentSpan span;
      for (int64_t group = 0; group < args.k / kPanelGroup; ++group) {
        const int32_t exponent = stored_exponent(args, row, group);
        if (!is_zero(group)) span = join(span, {.min = exponent, .max = exponent});
      }
      const int32_t base = panel_base(span);
      for (int64_t group = 0; group < args.k / kPanelGroup; ++group) {
        for (int64_t t = 0; t < 4; ++t) {
          pack_panel_group(args, row, group, t, base, is_zero(group));
        }
      }
      args.packed_global_scales[panel_row(args.order, args.n, args.stack_row + row)] =
          panel_multiplier(base);
    }
  }
}

Emulated pack(std::span<const WeightRows> sources,
              PackedLayout layout,
              PanelOrder order,
              int64_t piece_rows) {
  const quant::WeightView& like = sources.front().weight;
  const quant::FormatInfo& info = quant::format_info(like.format);
  int64_t n = 0;
  for (const WeightRows& source : sources) n += source.row_end - source.row_begin;
  const PackedParts parts = packed_weight_parts(like.format, n, like.k, like.scales.dtype, layout);
  Emulated packed{
      .codes = std::vector<std::byte>(static_cast<size_t>(parts.codes)),
      .scales = std::vector<std::byte>(static_cast<size_t>(parts.scales)),
      .global_scales = std::vector<float>(static_cast<size_t>(parts.global_scales / 4))};
  RepackArgs args{.scale_dtype = like.scales.dtype,
                  .block_shape = info.block_shape,
                  .k = like.k,
                  .n = n,
                  .order = order,
                  .packed_codes = packed.codes.data(),
                  .packed_scales = packed.scales.data(),
                  .packed_global_scales = packed.global_scales.data()};
  for (const auto& [weight, row_begin, row_end] : sources) {
    args.global_scale = weight.global_scale;
    for (int64_t begin = row_begin; begin < row_end; begin += piece_rows) {
      const int64_t row_bytes = like.k * info.bits_per_weight / 8;
      const int64_t scale_row_bytes = weight.scales.row_stride * dtype_size(weight.scales.dtype);
      args.first_row = begin;
      args.num_rows = std::min(piece_rows, row_end - begin);
      args.codes = static_cast<const std::byte*>(weight.codes.data) + begin * row_bytes;
      args.scales = static_cast<const std::byte*>(weight.scales.data) +
                    begin / info.block_shape.n * scale_row_bytes;
      pack_piece(args, like.format, layout);
      args.stack_row += args.num_rows;
    }
  }
  return packed;
}

template <class T>
std::vector<T> copy_of(const void* data, size_t count) {
  const auto* const first = static_cast<const T*>(data);
  return data == nullptr ? std::vector<T>{} : std::vector<T>(first, first + count);
}

struct Case {
  Format format;
  DType scale_dtype;
  PackedLayout layout;
  int64_t n, k;
};

TEST(RepackRows, GiveTheBytesOfTheHostPacker) {
  constexpr PackedLayout kRowMajor = PackedLayout::kRowMajor;
  const Case cases[] = {
      {Format::kMxfp4, DType::kF8E8m0, kRowMajor, 7, 96},
      {Format::kNvfp4, DType::kF8E4m3, kRowMajor, 7, 48},
      {Format::kInt4Group32, DType::kBf16, kRowMajor, 7, 96},
      {Format::kInt4Group32, DType::kF16, kRowMajor, 7, 96},
      {Format::kInt4Group32, DType::kF32, kRowMajor, 7, 96},
      {Format::kFp8E4m3Block128x128, DType::kF8E8m0, kRowMajor, 200, 300},
      {Format::kFp8E4m3Block128x128, DType::kF32, kRowMajor, 200, 300},
      {Format::kBf16, DType::kF32, PackedLayout::kBf16Panel64, 100, 300},
      {Format::kBf16, DType::kF32, PackedLayout::kBf16Panel64, 70, 256},
      {Format::kFp8E4m3Block128x128, DType::kF8E8m0, PackedLayout::kFp8Panel64, 200, 300},
      {Format::kFp8E4m3Block128x128, DType::kF32, PackedLayout::kFp8Panel64, 64, 256},
      {Format::kFp8E4m3Block128x128, DType::kF32, PackedLayout::kFp8Panel64, 1, 16},
      {Format::kMxfp4, DType::kF8E8m0, PackedLayout::kPanel64, 1, 32},
      {Format::kMxfp4, DType::kF8E8m0, PackedLayout::kPanel64, 70, 288},
      {Format::kMxfp4, DType::kF8E8m0, PackedLayout::kPanel64, 128, 512},
      {Format::kNvfp4, DType::kF8E4m3, PackedLayout::kPanel64, 1, 16},
      {Format::kNvfp4, DType::kF8E4m3, PackedLayout::kPanel64, 70, 272},
      {Format::kNvfp4, DType::kF8E4m3, PackedLayout::kPanel64, 128, 512},
      {Format::kInt4Group32, DType::kBf16, PackedLayout::kPanel64, 1, 32},
      {Format::kInt4Group32, DType::kF16, PackedLayout::kPanel64, 70, 288},
      {Format::kInt4Group32, DType::kF32, PackedLayout::kPanel64, 128, 512},
  };
  for (const auto& [format, scale_dtype, layout, n, k] : cases) {
    const QuantizedWeight weight = random_weight(format, n, k, scale_dtype, 7);
    const WeightRows rows{.weight = weight.view(), .row_begin = 0, .row_end = n};
    const PackedWeight expected = pack_weight({&rows, 1}, layout).value();
    for (const int64_t piece_rows : {int64_t{13}, n}) {
      const Emulated packed = pack({&rows, 1}, layout, PanelOrder::kNatural, piece_rows);
      if (layout != kRowMajor) {
        EXPECT_EQ(packed.codes, copy_of<std::byte>(expected.codes, packed.codes.size()))
            << quant::format_name(format) << " " << n << "x" << k;
      }
      EXPECT_EQ(packed.scales, copy_of<std::byte>(expected.scales, packed.scales.size()))
          << quant::format_name(format) << " " << n << "x" << k;
      EXPECT_EQ(packed.global_scales,
                copy_of<float>(expected.global_scales, packed.global_scales.size()));
    }
  }
}

TEST(RepackRows, StackPartsOfSourcesInGateUpOrder) {
  const QuantizedWeight gate = random_weight(Format::kMxfp4, 100, 64, DType::kF8E8m0, 1);
  const QuantizedWeight up = random_weight(Format::kMxfp4, 90, 64, DType::kF8E8m0, 2);
  const WeightRows rows[] = {{.weight = gate.view(), .row_begin = 3, .row_end = 75},
                             {.weight = up.view(), .row_begin = 10, .row_end = 82}};
  const PackedWeight expected = pack_panel64(rows, PanelOrder::kGateUp).value();
  const Emulated packed = pack(rows, PackedLayout::kPanel64, PanelOrder::kGateUp, 17);
  EXPECT_EQ(packed.codes, copy_of<std::byte>(expected.codes, packed.codes.size()));
  EXPECT_EQ(packed.global_scales,
            copy_of<float>(expected.global_scales, packed.global_scales.size()));
}

TEST(RepackRows, SayWhichScalesDoNotFit) {
  std::vector<std::byte> codes(16), packed(static_cast<size_t>(panel_bytes(Format::kNvfp4, 1, 32)));
  std::vector<float> multipliers(static_cast<size_t>(kPanelRows));
  std::vector<float> scales = {1.5f, 0};
  RepackArgs args{.codes = codes.data(),
                  .scales = reinterpret_cast<const std::byte*>(scales.data()),
                  .num_rows = 1,
                  .k = 32,
                  .n = 1,
                  .packed_codes = packed.data(),
                  .packed_global_scales = multipliers.data()};
  const auto int4 = [&](float scale) {
    scales[0] = scale;
    return pack_int4_group(args, 0, 0, 0);
  };
  EXPECT_EQ(int4(1.5f), 0U);
  EXPECT_EQ(int4(1.0f + 0x1p-8f), kScaleIsNoBf16);
  EXPECT_EQ(int4(INFINITY), kScaleIsNan);
  EXPECT_EQ(int4(NAN), kScaleIsNan);
  const uint8_t nvfp4[] = {0x30, 0xFF};
  args.scales = reinterpret_cast<const std::byte*>(nvfp4);
  EXPECT_EQ(pack_nvfp4_group(args, 0, 0, 0), kScaleIsNan);
  args.k = 16;  // the second half does not exist
  EXPECT_EQ(pack_nvfp4_group(args, 0, 0, 0), 0U);
}

TEST(RepackRows, InvertThePanelOrder) {
  for (int64_t row = 0; row < 96; ++row) {
    EXPECT_EQ(panel_row(PanelOrder::kGateUp, 96, panel_source_row(PanelOrder::kGateUp, 96, row)),
              row);
  }
}

TEST(RepackRows, DecodeEveryScaleByte) {
  for (uint32_t code = 0; code < 256; ++code) {
    if (code != quant::kE8m0Nan) {
      EXPECT_EQ(decode_e8m0(code), quant::e8m0_to_f32(static_cast<uint8_t>(code)));
    }
    if (!quant::is_e4m3_nan(static_cast<uint8_t>(code))) {
      EXPECT_EQ(decode_e4m3(code), quant::e4m3_to_f32(static_cast<uint8_t>(code)));
    }
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_TRUE(std::isnan(decode_e4m3(0xFF)));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float expected = quant::f16_to_f32(static_cast<uint16_t>(bits));
    const float found = decode_f16(bits);
    EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << bits;
  }
}

}  // namespace
}  // namespace nibble::kernels::cuda
