#include "cli/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda.h"

namespace nibble::cli {
namespace {

using Kind = DeviceChoice::Kind;
using ::testing::HasSubstr;

TEST(DeviceChoice, NamesACpuOrAGpuByNumber) {
  EXPECT_EQ(parse_device_choice("auto")->kind, Kind::kAuto);
  EXPECT_EQ(parse_device_choice("cpu")->kind, Kind::kCpu);
  EXPECT_EQ(parse_device_choice("cuda")->kind, Kind::kCuda);
  EXPECT_EQ(parse_device_choice("cuda")->ordinal, 0);
  EXPECT_EQ(parse_device_choice("cuda:3")->ordinal, 3);
  EXPECT_EQ(parse_device_choice("emulated")->kind, Kind::kEmulated);
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cpu:0", "CUDA"}) {
    EXPECT_FALSE(parse_device_choice(text)) << text;
  }
}

TEST(DeviceChoice, ABuildWithoutGpusSaysHowToBuildOneAndWhatRunsWithout) {
  if (device::has_cuda_backend()) GTEST_SKIP() << "this build has the CUDA backend";
  const auto gpu = open_device({.kind = Kind::kCuda, .ordinal = 1}, {.num_threads = 1});
  ASSERT_FALSE(gpu.ok());
  EXPECT_EQ(gpu.error().code, Errc::kUnsupported);
  EXPECT_THAT(gpu.error().message, HasSubstr("--device cuda:1: "));
  EXPECT_THAT(gpu.error().message, HasSubstr("cmake --preset cuda"));
  EXPECT_THAT(gpu.error().message, HasSubstr("--device cpu"));
  const auto any = open_device({}, {.num_threads = 1});
  ASSERT_TRUE(any.ok());
  EXPECT_EQ((*any)->info().kind, device::DeviceKind::kCpu);
}

}  // namespace
}  // namespace nibble::cli
