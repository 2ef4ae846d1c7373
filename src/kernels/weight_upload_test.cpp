#include "kernels/weight_upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/emulated_gpu.h"
#include "quant/reference.h"

namespace nibble::kernels {
namespace {

using quant::Format;
using quant::QuantizedWeight;
using ::testing::HasSubstr;

QuantizedWeight random_weight(Format format, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n * k));
  for (float& value : values) value = normal(random);
  return quant::quantize(format, values, n, k);
}

WeightRows all_rows(const QuantizedWeight& weight) {
  return {.weight = weight.view(), .row_begin = 0, .row_end = weight.n};
}

std::vector<std::byte> bytes_of(const void* data, int64_t count) {
  const auto* const first = static_cast<const std::byte*>(data);
  return {first, first + count};
}

// Parts of the uploaded groups against the host packer's, group by group.
void expect_packed(const PackedWeight& uploaded,
                   std::span<const std::vector<WeightRows>> groups,
                   PackedLayout layout) {
  const WeightRows& first = groups.front().front();
  for (size_t g = 0; g < groups.size(); ++g) {
    const PackedWeight one = pack_weight(groups[g], layout).value();
    const PackedParts parts =
        packed_weight_parts(one.format, one.n, one.k, first.weight.scales.dtype, layout);
    const auto at = static_cast<int64_t>(g);
    EXPECT_EQ(uploaded.n, one.n);
    EXPECT_EQ(bytes_of(uploaded.codes + at * parts.codes, parts.codes),
              bytes_of(one.codes, parts.codes));
    if (parts.scales > 0) {
      EXPECT_EQ(bytes_of(uploaded.scales + at * parts.scales, parts.scales),
                bytes_of(one.scales, parts.scales));
    }
    if (parts.global_scales > 0) {
      EXPECT_EQ(
          bytes_of(uploaded.global_scales + at * parts.global_scales / 4, parts.global_scales),
          bytes_of(one.global_scales, parts.global_scales));
    }
  }
}

// Small buffers: every weight goes through several.
constexpr UploadOptions kSmallBuffers{.num_threads = 2, .num_buffers = 2, .buffer_bytes = 4096};

TEST(WeightUploader, GivesWhatTheHostPacks) {
  const auto device = device::make_emulated_gpu(2).value();
  WeightUploader uploader = WeightUploader::create(*device, kSmallBuffers).value();
  const std::pair<Format, PackedLayout> cases[] = {
      {Format::kBf16, PackedLayout::kRowMajor},
      {Format::kMxfp4, PackedLayout::kRowMajor},
      {Format::kNvfp4, PackedLayout::kRowMajor},
      {Format::kInt4Group32, PackedLayout::kRowMajor},
      {Format::kFp8E4m3Block128x128, PackedLayout::kRowMajor},
      {Format::kBf16, PackedLayout::kBf16Panel64},
      {Format::kMxfp4, PackedLayout::kPanel64},
      {Format::kFp8E4m3Block128x128, PackedLayout::kFp8Panel64},
      {Format::kNvfp4, PackedLayout::kSlab16},
      {Format::kFp8E4m3Block128x128, PackedLayout::kSlab16},
  };
  for (const auto& [format, layout] : cases) {
    std::vector<QuantizedWeight> weights;
    for (uint32_t i = 0; i < 6; ++i) weights.push_back(random_weight(format, 64, 96, i));
    std::vector<std::vector<WeightRows>> groups;
    for (size_t i = 0; i < weights.size(); i += 2) {
      groups.push_back({all_rows(weights[i]), all_rows(weights[i + 1])});
    }
    const PackedWeight packed = uploader.pack_groups("w", groups, layout).value();
    ASSERT_TRUE(uploader.finish().ok());
    expect_packed(packed, groups, layout);
  }
}

TEST(WeightUploader, KeepsTheOrderOfGateAndUpRows) {
  const auto device = device::make_emulated_gpu(1).value();
  WeightUploader uploader = WeightUploader::create(*device, kSmallBuffers).value();
  const QuantizedWeight gate = random_weight(Format::kMxfp4, 40, 64, 1);
  const QuantizedWeight up = random_weight(Format::kMxfp4, 40, 64, 2);
  const WeightRows rows[] = {all_rows(gate), all_rows(up)};
  const PackedWeight packed =
      uploader.pack("w13", rows, PackedLayout::kPanel64, PanelOrder::kGateUp).value();
  ASSERT_TRUE(uploader.finish().ok());
  const PackedWeight expected = pack_panel64(rows, PanelOrder::kGateUp).value();
  EXPECT_EQ(bytes_of(packed.codes, panel_bytes(quant::Format::kMxfp4, 80, 64)),
            bytes_of(expected.codes, panel_bytes(quant::Format::kMxfp4, 80, 64)));
}

TEST(WeightUploader, UploadsBytesLongerThanItsBuffers) {
  const auto device = device::make_emulated_gpu(2).value();
  WeightUploader uploader = WeightUploader::create(*device, kSmallBuffers).value();
  std::vector<std::byte> bytes(20'001);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const device::Buffer uploaded = uploader.upload(bytes).value();
  ASSERT_TRUE(uploader.finish().ok());
  EXPECT_EQ(bytes_of(uploaded.data(), uploaded.num_bytes()), bytes);
  EXPECT_EQ(uploader.statistics().stored_bytes, 20'001);
}

TEST(WeightUploader, RefusesWeightsThatDiffer) {
  const auto device = device::make_emulated_gpu(1).value();
  WeightUploader uploader = WeightUploader::create(*device, kSmallBuffers).value();
  const QuantizedWeight a = random_weight(Format::kMxfp4, 64, 64, 1);
  const QuantizedWeight b = random_weight(Format::kMxfp4, 32, 64, 2);
  const std::vector<WeightRows> groups[] = {{all_rows(a)}, {all_rows(b)}};
  const auto packed = uploader.pack_groups("w", groups, PackedLayout::kRowMajor);
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Errc::kDataLoss);
  EXPECT_THAT(packed.error().message, HasSubstr("[32, 64] beside mxfp4 [64, 64]"));
}

}  // namespace
}  // namespace nibble::kernels
