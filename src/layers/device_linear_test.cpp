#include "layers/device_linear.h"

#include <gtest/gtest.h>

namespace nibble::layers {
namespace {

// An FP8 product on a GPU of 132 multiprocessors.
DeviceLinear plan_fp8(int32_t sm, int64_t n, int32_t groups) {
  const device::DeviceInfo gpu{
      .kind = device::DeviceKind::kCuda, .name = "test GPU", .sm = sm, .num_units = 132};
  return DeviceLinear::plan(
             {.format = quant::Format::kFp8E4m3Block128x128, .n = n, .k = 4096, .groups = groups},
             kernels::Activation::kFp8,
             gpu,
             {.for_plan = true})
      .value();
}

TEST(DeviceLinear, GivesBlocksWhereItsKernelDividesKItself) {
  const DeviceLinear linear = plan_fp8(90, 4096, 8);
  EXPECT_EQ(linear.num_splits(1), 2);
  EXPECT_TRUE(linear.gives_blocks(1));
  EXPECT_TRUE(linear.gives_blocks(16));
  EXPECT_FALSE(linear.gives_blocks(17));
  EXPECT_FALSE(plan_fp8(90, 4096, 64).gives_blocks(1)) << "groups of 64 rows";
}

TEST(DeviceLinear, GivesBlocksOfOneSplitElsewhere) {
  const DeviceLinear wide = plan_fp8(120, 4096, 8);
  EXPECT_EQ(wide.num_splits(1), 1);
  EXPECT_TRUE(wide.gives_blocks(1));
  const DeviceLinear narrow = plan_fp8(120, 1024, 8);
  EXPECT_EQ(narrow.num_splits(1), 2);
  EXPECT_FALSE(narrow.gives_blocks(1));
}

}  // namespace
}  // namespace nibble::layers
