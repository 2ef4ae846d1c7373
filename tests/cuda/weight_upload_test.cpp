// The device's packing against the host's, byte for byte, through buffers so small that weights
// are cut in the middle of panels.
#include "kernels/weight_upload.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "cuda/cuda_testing.h"
#include "kernels/repack.h"

namespace nibble::cuda_testing {
namespace {

using namespace kernels;  // NOLINT: the subject of these tests
using quant::Format;
using quant::QuantizedWeight;
using ::testing::HasSubstr;

constexpr UploadOptions kSmallBuffers{.num_threads = 2, .num_buffers = 2, .buffer_bytes = 20000};

class WeightUpload : public CudaTest {};

// Random codes of every value; scales that decode to numbers, in MXFP4 within what a panel holds.
QuantizedWeight random_weight(
    Format format, DType scale_dtype, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  const quant::FormatInfo& info = quant::format_info(format);
  QuantizedWeight weight{.format = format, .n = n, .k = k, .scale_dtype = scale_dtype};
  weight.codes.resize(static_cast<size_t>(n * k * info.bits_per_weight / 8));
  for (std::byte& code : weight.codes) code = static_cast<std::byte>(random());
  if (info.has_global_scale) weight.global_scale = 0.37f;
  if (!info.has_scales()) return weight;
  const int64_t count = quant::scale_shape(format, n, k).num_elements();
  weight.scales.resize(static_cast<size_t>(count * dtype_size(scale_dtype)));
  // Bytes below 0x60 are finite in every dtype, whatever their place in it.
  for (std::byte& byte : weight.scales) byte = static_cast<std::byte>(random() % 0x60);
  if (scale_dtype == DType::kF8E8m0) {
    for (std::byte& byte : weight.scales) byte = static_cast<std::byte>(100 + random() % 27);
  }
  if (scale_dtype == DType::kF16) {  // seven bits of mantissa, so that BF16 holds them
    for (size_t i = 0; i < weight.scales.size(); i += 2) weight.scales[i] &= std::byte{0xF8};
  }
  return weight;
}

WeightRows rows_of(const QuantizedWeight& weight, int64_t begin, int64_t end) {
  return {.weight = weight.view(), .row_begin = begin, .row_end = end};
}

std::vector<std::byte> from_device(const void* data, int64_t num_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_bytes));
  device::copy_to_host(bytes.data(), data, num_bytes, gpu()->stream()).value();
  device::synchronize(gpu()->stream()).value();
  return bytes;
}

std::vector<std::byte> on_host(const void* data, int64_t num_bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  return {first, first + num_bytes};
}

PackedWeight pack_on_host(std::span<const WeightRows> rows, PackedLayout layout, PanelOrder order) {
  if (layout == PackedLayout::kPanel64) return pack_panel64(rows, order).value();
  return pack_weight(rows, layout).value();
}

void expect_same(const PackedWeight& packed,
                 std::span<const std::vector<WeightRows>> groups,
                 PackedLayout layout,
                 PanelOrder order) {
  int64_t at = 0;
  for (const std::vector<WeightRows>& group : groups) {
    const PackedWeight one = pack_on_host(group, layout, order);
    const PackedParts parts =
        packed_weight_parts(one.format, one.n, one.k, group.front().weight.scales.dtype, layout);
    EXPECT_EQ(from_device(packed.codes + at * parts.codes, parts.codes),
              on_host(one.codes, parts.codes));
    if (parts.scales > 0) {
      EXPECT_EQ(from_device(packed.scales + at * parts.scales, parts.scales),
                on_host(one.scales, parts.scales));
    }
    if (parts.global_scales > 0) {
      EXPECT_EQ(
          from_device(packed.global_scales + at * (parts.global_scales / 4), parts.global_scales),
          on_host(one.global_scales, parts.global_scales));
    }
    ++at;
  }
}

TEST_F(WeightUpload, PacksEveryLayoutAsTheHostDoes) {
  struct Case {
    Format format;
    DType scale_dtype;
    PackedLayout layout;
    int64_t n, k;
  };
  constexpr PackedLayout kRowMajor = PackedLayout::kRowMajor;
  const Case cases[] = {
      {Format::kF32, DType::kF32, kRowMajor, 9, 100},
      {Format::kBf16, DType::kF32, kRowMajor, 33, 264},
      {Format::kMxfp4, DType::kF8E8m0, kRowMajor, 70, 288},
      {Format::kNvfp4, DType::kF8E4m3, kRowMajor, 70, 272},
      {Format::kInt4Group32, DType::kBf16, kRowMajor, 70, 288},
      {Format::kInt4Group32, DType::kF16, kRowMajor, 70, 288},
      {Format::kInt4Group32, DType::kF32, kRowMajor, 70, 288},
      {Format::kFp8E4m3Block128x128, DType::kF8E8m0, kRowMajor, 200, 300},
      {Format::kFp8E4m3Block128x128, DType::kF32, kRowMajor, 192, 384},
      {Format::kBf16, DType::kF32, PackedLayout::kBf16Panel64, 200, 300},
      {Format::kFp8E4m3Block128x128, DType::kF8E8m0, PackedLayout::kFp8Panel64, 192, 300},
      {Format::kFp8E4m3Block128x128, DType::kF32, PackedLayout::kFp8Panel64, 320, 512},
      {Format::kMxfp4, DType::kF8E8m0, PackedLayout::kPanel64, 70, 288},
      {Format::kMxfp4, DType::kF8E8m0, PackedLayout::kPanel64, 256, 1024},
      {Format::kNvfp4, DType::kF8E4m3, PackedLayout::kPanel64, 70, 272},
      {Format::kNvfp4, DType::kF8E4m3, PackedLayout::kPanel64, 256, 1024},
      {Format::kInt4Group32, DType::kBf16, PackedLayout::kPanel64, 70, 288},
      {Format::kInt4Group32, DType::kF16, PackedLayout::kPanel64, 256, 1024},
  };
  WeightUploader uploader = WeightUploader::create(*gpu(), kSmallBuffers).value();
  for (const auto& [format, scale_dtype, layout, n, k] : cases) {
    SCOPED_TRACE(std::string(quant::format_name(format)) + " " + std::string(layout_name(layout)));
    ASSERT_NE(find_repack(format, layout), nullptr);
    const QuantizedWeight a = random_weight(format, scale_dtype, n, k, 1);
    const QuantizedWeight b = random_weight(format, scale_dtype, n, k, 2);
    const std::vector<WeightRows> groups[] = {{rows_of(a, 0, n)}, {rows_of(b, 0, n)}};
    const PackedWeight packed = uploader.pack_groups("w", groups, layout).value();
    ASSERT_TRUE(uploader.finish().ok());
    expect_same(packed, groups, layout, PanelOrder::kNatural);
  }
  EXPECT_EQ(uploader.statistics().host_packed_bytes, 0);
}

TEST_F(WeightUpload, StacksPartsOfSourcesInGateUpOrder) {
  const QuantizedWeight gate = random_weight(Format::kMxfp4, DType::kF8E8m0, 300, 512, 3);
  const QuantizedWeight up = random_weight(Format::kMxfp4, DType::kF8E8m0, 300, 512, 4);
  WeightUploader uploader = WeightUploader::create(*gpu(), kSmallBuffers).value();
  const std::vector<WeightRows> groups[] = {{rows_of(gate, 3, 131), rows_of(up, 40, 168)},
                                            {rows_of(up, 100, 228), rows_of(gate, 0, 128)}};
  const PackedWeight packed =
      uploader.pack_groups("w13", groups, PackedLayout::kPanel64, PanelOrder::kGateUp).value();
  ASSERT_TRUE(uploader.finish().ok());
  expect_same(packed, groups, PackedLayout::kPanel64, PanelOrder::kGateUp);
}

TEST_F(WeightUpload, NamesAWeightWhoseExponentsDoNotFit) {
  QuantizedWeight weight = random_weight(Format::kMxfp4, DType::kF8E8m0, 64, 64, 5);
  std::fill(weight.codes.begin(), weight.codes.end(), std::byte{0x11});
  weight.scales[7] = std::byte{60};
  weight.scales[6] = std::byte{100};
  const std::vector<WeightRows> rows = {rows_of(weight, 0, 64)};
  WeightUploader uploader = WeightUploader::create(*gpu(), kSmallBuffers).value();
  ASSERT_TRUE(uploader.pack("layers.3.w2", rows, PackedLayout::kPanel64).ok());
  const Result<void> finished = uploader.finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().code, Errc::kUnsupported);
  EXPECT_THAT(finished.error().message, HasSubstr("layers.3.w2"));
  EXPECT_THAT(finished.error().message, HasSubstr("differ by 40"));
}

TEST_F(WeightUpload, NamesAWeightWithAScaleThatIsNoBf16) {
  QuantizedWeight weight = random_weight(Format::kInt4Group32, DType::kF32, 64, 64, 6);
  const float third = 1.0f / 3;
  for (size_t i = 0; i < weight.scales.size(); i += 4) weight.scales[i] = weight.scales[i + 1] = {};
  std::memcpy(weight.scales.data() + 40, &third, sizeof(third));
  const std::vector<WeightRows> rows = {rows_of(weight, 0, 64)};
  WeightUploader uploader = WeightUploader::create(*gpu(), kSmallBuffers).value();
  ASSERT_TRUE(uploader.pack("layers.4.w2", rows, PackedLayout::kPanel64).ok());
  const Result<void> finished = uploader.finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().code, Errc::kUnsupported);
  EXPECT_THAT(finished.error().message,
              HasSubstr("layers.4.w2: panel64: a group scale is no bf16"));
}

TEST_F(WeightUpload, CopiesBytesThroughSeveralBuffers) {
  std::vector<std::byte> bytes(100'003);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  WeightUploader uploader = WeightUploader::create(*gpu(), kSmallBuffers).value();
  const device::Buffer uploaded = uploader.upload(bytes).value();
  ASSERT_TRUE(uploader.finish().ok());
  EXPECT_EQ(from_device(uploaded.data(), uploaded.num_bytes()), bytes);
}

}  // namespace
}  // namespace nibble::cuda_testing
