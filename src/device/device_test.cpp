#include "device/device.h"

#include <gtest/gtest.h>

#include "device/cpu_topology.h"

namespace nibble::device {
namespace {

TEST(Isa, LevelsHaveNames) {
  EXPECT_EQ(isa_level_from_name("scalar"), IsaLevel::kScalar);
  EXPECT_EQ(isa_level_from_name("avx2"), IsaLevel::kAvx2);
  EXPECT_EQ(isa_level_from_name("avx512"), IsaLevel::kAvx512);
  EXPECT_EQ(isa_level_from_name("native"), IsaLevel::kNative);
  EXPECT_EQ(isa_level_from_name("AVX2"), std::nullopt);
}

TEST(Isa, SetsAreNamedBitByBit) {
  EXPECT_EQ(isa_set_name(0), "scalar");
  EXPECT_EQ(isa_set_name(kIsaAvx2), "avx2");
  EXPECT_EQ(isa_set_name(kIsaAvx2 | kIsaAvx512 | kIsaAvx512Bf16), "avx2+avx512+avx512_bf16");
}

TEST(Isa, WiderSetsIncludeNarrowerOnes) {
  const IsaSet isa = detect_isa();
  const auto implies = [&](IsaSet wider, IsaSet narrower) {
    return (isa & wider) == 0 || (isa & narrower) != 0;
  };
  EXPECT_TRUE(implies(kIsaAvx512, kIsaAvx2));
  EXPECT_TRUE(implies(kIsaAvx512Bf16 | kIsaAvx512Vnni, kIsaAvx512));
}

TEST(HostDevice, LimitsTheInstructionSet) {
  const auto scalar = make_host_device({.num_threads = 1, .isa = IsaLevel::kScalar}).value();
  EXPECT_EQ(scalar->info().isa, 0u);
  const auto avx2 = make_host_device({.num_threads = 1, .isa = IsaLevel::kAvx2});
  if ((detect_isa() & kIsaAvx2) != 0) {
    EXPECT_EQ((*avx2)->info().isa, IsaSet{kIsaAvx2});
  } else {
    EXPECT_EQ(avx2.error().code, Errc::kUnsupported);
  }
}

TEST(HostDevice, DescribesTheMachine) {
  const auto device = make_host_device({.num_threads = 2}).value();
  EXPECT_EQ(device->info().kind, DeviceKind::kCpu);
  EXPECT_EQ(device->info().isa, detect_isa());
  EXPECT_EQ(device->info().num_units, 2);
  EXPECT_GT(device->info().memory_bytes, 0);
  EXPECT_FALSE(device->info().name.empty());
  EXPECT_EQ(device->stream().pool->num_threads(), 2);
  EXPECT_EQ(device->allocate(128).value().num_bytes(), 128);
}

TEST(HostDevice, RefusesNegativeThreadCounts) {
  const auto device = make_host_device({.num_threads = -1});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, Errc::kInvalidArgument);
}

TEST(CpuTopology, NamesAtLeastOneCoreOnce) {
  const std::vector<int32_t> cores = physical_cores();
  ASSERT_FALSE(cores.empty());
  for (size_t i = 1; i < cores.size(); ++i) EXPECT_LT(cores[i - 1], cores[i]);
}

}  // namespace
}  // namespace nibble::device
