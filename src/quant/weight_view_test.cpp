#include "quant/weight_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace nibble::quant {
namespace {

using ::testing::HasSubstr;

TensorView shaped(DType dtype, Shape shape) {
  return TensorView::contiguous(nullptr, dtype, shape);
}

WeightTensors plain(TensorView weight) {
  return {.name = "w.weight", .weight = weight, .scale_name = "w.scale"};
}

WeightTensors scaled(TensorView weight, TensorView scale) {
  WeightTensors tensors = plain(weight);
  tensors.scale = scale;
  return tensors;
}

TEST(MakeWeightView, DeducesEachFormat) {
  WeightTensors nvfp4 = scaled(shaped(DType::kU8, {64, 128}), shaped(DType::kF8E4m3, {64, 16}));
  nvfp4.global_scale = 0.5f;
  const struct {
    WeightTensors tensors;
    Format format;
    int64_t k;
  } cases[] = {
      {plain(shaped(DType::kF32, {64, 256})), Format::kF32, 256},
      {plain(shaped(DType::kBf16, {64, 256})), Format::kBf16, 256},
      {plain(shaped(DType::kF16, {64, 256})), Format::kF16, 256},
      {scaled(shaped(DType::kF8E4m3, {64, 300}), shaped(DType::kF8E8m0, {1, 3})),
       Format::kFp8E4m3Block128x128,
       300},
      {scaled(shaped(DType::kF8E4m3, {64, 256}), shaped(DType::kF32, {1, 2})),
       Format::kFp8E4m3Block128x128,
       256},
      {scaled(shaped(DType::kI8, {64, 128}), shaped(DType::kF8E8m0, {64, 8})), Format::kMxfp4, 256},
      {scaled(shaped(DType::kU8, {64, 128}), shaped(DType::kF8E8m0, {64, 8})), Format::kMxfp4, 256},
      {nvfp4, Format::kNvfp4, 256},
      {scaled(shaped(DType::kI32, {64, 32}), shaped(DType::kBf16, {64, 8})),
       Format::kInt4Group32,
       256},
      {scaled(shaped(DType::kI32, {64, 32}), shaped(DType::kF16, {64, 8})),
       Format::kInt4Group32,
       256},
  };
  for (const auto& c : cases) {
    const Result<WeightView> view = make_weight_view(c.tensors);
    ASSERT_TRUE(view.ok()) << view.error().message;
    EXPECT_EQ(view->format, c.format);
    EXPECT_EQ(view->n, 64);
    EXPECT_EQ(view->k, c.k);
  }
}

TEST(MakeWeightView, NamesWhatDoesNotFit) {
  const TensorView fp4 = shaped(DType::kI8, {64, 128});
  const TensorView nvfp4_scale = shaped(DType::kF8E4m3, {64, 16});
  WeightTensors negative_global = scaled(fp4, nvfp4_scale);
  negative_global.global_scale = -1.0f;
  WeightTensors nan_global = scaled(fp4, nvfp4_scale);
  nan_global.global_scale = std::numeric_limits<float>::quiet_NaN();
  WeightTensors stray_global = scaled(fp4, shaped(DType::kF8E8m0, {64, 8}));
  stray_global.global_scale = 1.0f;
  const struct {
    WeightTensors tensors;
    Errc code;
    std::vector<const char*> texts;
  } cases[] = {
      {scaled(fp4, shaped(DType::kF8E8m0, {64, 7})),
       Errc::kDataLoss,
       {"w.scale",
        "F8_E8M0 [64, 7]",
        "expected shape [64, 8]",
        "w.weight",
        "[64, 256]",
        "[1, 32]"}},
      {scaled(shaped(DType::kF8E4m3, {200, 300}), shaped(DType::kF8E8m0, {1, 2})),
       Errc::kDataLoss,
       {"w.scale", "[1, 2]", "[2, 3]", "[128, 128]"}},
      {plain(fp4), Errc::kDataLoss, {"w.weight", "I8", "without a scale", "F8_E8M0", "w.scale"}},
      {plain(shaped(DType::kF8E4m3, {64, 256})),
       Errc::kDataLoss,
       {"w.weight", "F8_E8M0 or F32", "w.scale"}},
      {scaled(fp4, shaped(DType::kF32, {64, 8})),
       Errc::kUnsupported,
       {"w.scale", "F32", "F8_E8M0 scale (mxfp4)"}},
      {scaled(shaped(DType::kBf16, {64, 256}), shaped(DType::kF32, {1, 2})),
       Errc::kUnsupported,
       {"w.weight", "BF16", "no scale (bf16)"}},
      {plain(shaped(DType::kI64, {64, 256})), Errc::kUnsupported, {"w.weight", "I64", "Convert"}},
      {plain(shaped(DType::kF32, {64})),
       Errc::kDataLoss,
       {"w.weight", "F32 [64]", "matrix [n, k]"}},
      {scaled(shaped(DType::kI8, {64, 24}), shaped(DType::kF8E8m0, {64, 1})),
       Errc::kDataLoss,
       {"w.weight", "[64, 24]", "multiple of 32"}},
      {scaled(fp4, nvfp4_scale), Errc::kDataLoss, {"w.weight", "without a global scale"}},
      {negative_global, Errc::kDataLoss, {"w.weight", "-1", "above 0"}},
      {nan_global, Errc::kDataLoss, {"w.weight", "nan", "finite"}},
      {stray_global, Errc::kDataLoss, {"w.weight", "global scale, expected none"}},
      {plain(shaped(DType::kI8, {64, std::numeric_limits<int64_t>::max()})),
       Errc::kDataLoss,
       {"without a scale"}},
  };
  for (const auto& c : cases) {
    const Result<WeightView> view = make_weight_view(c.tensors);
    ASSERT_FALSE(view.ok());
    EXPECT_EQ(view.error().code, c.code) << view.error().message;
    for (const char* text : c.texts) EXPECT_THAT(view.error().message, HasSubstr(text));
  }
}

TEST(MakeWeightView, RefusesEmptyAndOverflowingShapes) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  for (const Shape& shape :
       {Shape{0, 256}, Shape{64, 0}, Shape{0, max}, Shape{max, 0}, Shape{1, max / 2 + 1}}) {
    const Result<WeightView> view =
        make_weight_view(scaled(shaped(DType::kI8, shape), shaped(DType::kF8E8m0, {1, 1})));
    ASSERT_FALSE(view.ok());
    EXPECT_EQ(view.error().code, Errc::kDataLoss);
    EXPECT_THAT(view.error().message, HasSubstr(shape.to_string()));
  }
}

TEST(MakeWeightView, EscapesHostileNames) {
  WeightTensors tensors = plain(shaped(DType::kI64, {1, 1}));
  tensors.name = "a\n\x1b[2Jb";
  EXPECT_THAT(make_weight_view(tensors).error().message, HasSubstr("a\\x0a\\x1b[2Jb"));
}

TEST(CountNan, FindsNanCodesOfEachDtype) {
  const std::array<uint8_t, 6> bytes = {0x7F, 0xFF, 0x00, 0x7E, 0xFF, 0x80};
  EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E8m0, {2, 3})), 2);
  EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E4m3, {2, 3})), 3);
  EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E5m2, {6})), 4);
  EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kU8, {6})), 0);
  const std::array<uint16_t, 4> halves = {0x7F80, 0x7F81, 0x7C01, 0xFFFF};
  EXPECT_EQ(count_nan(TensorView::read_only(halves.data(), DType::kBf16, {4})), 2);
  EXPECT_EQ(count_nan(TensorView::read_only(halves.data(), DType::kF16, {4})), 4);
  const std::array<float, 2> floats = {std::numeric_limits<float>::quiet_NaN(), 1.0f};
  EXPECT_EQ(count_nan(TensorView::read_only(floats.data(), DType::kF32, {2, 1})), 1);
  EXPECT_EQ(count_nan(TensorView::read_only(nullptr, DType::kF32, {0, 4})), 0);
}

TEST(CountNan, SeesEveryPlaceOfALongRow) {
  for (size_t place = 0; place < 27; ++place) {
    std::vector<uint8_t> bytes(27, 0x7E);
    EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E4m3, {1, 27})), 0);
    bytes[place] = 0x7F;
    EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E4m3, {1, 27})), 1);
    EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E8m0, {1, 27})), 0);
    bytes[place] = 0xFF;
    EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E4m3, {3, 9})), 1);
    EXPECT_EQ(count_nan(TensorView::read_only(bytes.data(), DType::kF8E8m0, {3, 9})), 1);
  }
}

}  // namespace
}  // namespace nibble::quant
