#include "models/deepseek_v4/simulate.h"

#include <gtest/gtest.h>

#include "device/device.h"
#include "models/deepseek_v4/decisions.h"

namespace nibble::models::deepseek_v4 {
namespace {

constexpr int64_t kWidth = 128;  // a block that shares a scale

// Values of a device whose product of layer 1 alone reads FP8: other formats round nothing.
TEST(ImposeRoundings, KeepsToSitesAndPositionsThatWereRounded) {
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const std::vector<int32_t> positions = {4, 5};
  DecisionTable<float> rounded;
  const RoundingSite with{.layer = 1, .input = RoundedInput::kPairs, .positions = positions};
  // 1.0 and 1.125 are the FP8 numbers around 1.05; the largest value, 448, gives a scale of 1.
  std::vector<float> taken(kWidth, 1.125F);
  taken[0] = 448;
  decision_slot(rounded, with.index(), 5) = taken;

  std::vector<float> x(2 * kWidth, 1.05F);
  x[0] = x[kWidth] = 448;
  const TensorView view = TensorView::contiguous(x.data(), DType::kF32, {2, kWidth});
  DecisionTable<float> own;
  impose_roundings(view, with, rounded, &own, device->stream());
  EXPECT_EQ(x[1], 1.05F);
  EXPECT_EQ(x[kWidth + 1], 1.125F);
  EXPECT_TRUE(decision_at(own, with.index(), 4).empty());
  const std::span<const float> nearest = decision_at(own, with.index(), 5);
  ASSERT_EQ(nearest.size(), static_cast<size_t>(kWidth));
  EXPECT_EQ(nearest[0], 448);
  EXPECT_EQ(nearest[1], 1);

  const RoundingSite without{.layer = 2, .input = RoundedInput::kPairs, .positions = positions};
  impose_roundings(view, without, rounded, &own, device->stream());
  EXPECT_EQ(x[kWidth + 1], 1.125F);
  EXPECT_TRUE(decision_at(own, without.index(), 5).empty());
}

}  // namespace
}  // namespace nibble::models::deepseek_v4
