#include "device/cuda_generations.h"

#include <gtest/gtest.h>

namespace nibble::device {
namespace {

TEST(CudaGenerations, CodeRunsOnLaterMinorVersionsUnlessItIsSpecific) {
  constexpr std::string_view kAll = "80,89,90a,100f,120f";
  for (const int32_t sm : {80, 86, 87, 89, 90, 100, 103, 120, 121}) {
    EXPECT_TRUE(has_code_for(kAll, sm)) << sm;
  }
  for (const int32_t sm : {75, 110, 130}) EXPECT_FALSE(has_code_for(kAll, sm)) << sm;
  EXPECT_TRUE(has_code_for("120a", 120));
  EXPECT_FALSE(has_code_for("120a", 121));
  EXPECT_FALSE(has_code_for("89", 86));
  EXPECT_FALSE(has_code_for("90a", 100));
  EXPECT_FALSE(has_code_for("", 90));
}

}  // namespace
}  // namespace nibble::device
