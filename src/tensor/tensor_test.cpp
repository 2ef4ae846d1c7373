#include <gtest/gtest.h>

#include <limits>

#include "tensor/tensor_view.h"

namespace nibble {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kF8E8m0); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("F4"), std::nullopt);
}

TEST(Shape, ReportsOverflow) {
  EXPECT_EQ((Shape{2, 3, 4}).num_elements(), 24);
  EXPECT_EQ((Shape{}).num_elements(), 1);
  const int64_t big = std::numeric_limits<int64_t>::max();
  EXPECT_EQ((Shape{big, 2}).checked_num_elements(), std::nullopt);
  const int64_t negative[] = {-1};
  EXPECT_EQ(Shape::from(negative), std::nullopt);
  EXPECT_EQ((Shape{2, 64}).to_string(), "[2, 64]");
}

TEST(TensorView, SlicesRows) {
  float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  TensorView view = TensorView::contiguous(data, DType::kF32, {4, 3});
  const TensorView middle = view.rows(1, 2);
  EXPECT_EQ(middle.shape, (Shape{2, 3}));
  EXPECT_EQ(middle.row<float>(1)[0], 6);
  EXPECT_TRUE(middle.is_contiguous());
  view.shape = {4, 2};
  EXPECT_FALSE(view.is_contiguous());
}

TEST(TensorView, SlicesColumnsAndKeepsRowSpacing) {
  float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const TensorView view = TensorView::contiguous(data, DType::kF32, {3, 4});
  const TensorView right = view.columns(2, 2);
  EXPECT_EQ(right.shape, (Shape{3, 2}));
  EXPECT_FALSE(right.is_contiguous());
  EXPECT_EQ(right.row<float>(2)[1], 11);
  const TensorView heads = right.reshaped({3, 2, 1});
  EXPECT_EQ(heads.row<float>(1)[0], 6);
  EXPECT_EQ(view.reshaped({6, 2}).row<float>(5)[1], 11);
}

}  // namespace
}  // namespace nibble
