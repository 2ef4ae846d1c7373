#include "device/cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/graph.h"

namespace nibble::device {
namespace {

using ::testing::HasSubstr;

TEST(Cuda, ABuildWithoutTheBackendSaysWhatToDo) {
  if (has_cuda_backend()) GTEST_SKIP() << "this build has the CUDA backend";
  const auto devices = list_cuda_devices();
  ASSERT_FALSE(devices.ok());
  EXPECT_EQ(devices.error().code, Errc::kUnsupported);
  EXPECT_THAT(devices.error().message, HasSubstr("cmake --preset cuda"));
  EXPECT_EQ(make_cuda_device(0).error().code, Errc::kUnsupported);
  Stream stream;
  EXPECT_EQ(Graph::capture(stream, [] { return Result<void>(); }).error().code, Errc::kUnsupported);
}

void count_release(std::byte* data, int64_t num_bytes) {
  *reinterpret_cast<int64_t*>(data) += num_bytes;
}

TEST(Buffer, GivesAdoptedMemoryBackOnce) {
  int64_t released = 0;
  {
    Buffer first = Buffer::adopt(reinterpret_cast<std::byte*>(&released), 8, &count_release);
    Buffer second = std::move(first);
    first = std::move(second);
    EXPECT_EQ(first.num_bytes(), 8);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 8);
}

}  // namespace
}  // namespace nibble::device
