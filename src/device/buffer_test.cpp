#include "device/buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nibble::device {
namespace {

bool is_zero(const Buffer& buffer) {
  return std::all_of(buffer.data(), buffer.data() + buffer.num_bytes(), [](std::byte b) {
    return b == std::byte{0};
  });
}

TEST(Buffer, IsAlignedAndZeroAtEverySize) {
  for (const int64_t num_bytes : {1, 63, 64, 65, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 17}) {
    const Buffer buffer = Buffer::allocate(num_bytes).value();
    EXPECT_EQ(buffer.num_bytes(), num_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u) << num_bytes;
    EXPECT_TRUE(is_zero(buffer)) << num_bytes;
    std::fill_n(buffer.data(), num_bytes, std::byte{0xFF});  // every byte is ours to write
  }
}

// Of the 4 KB pages that hold the buffer.
int64_t num_resident_pages(const Buffer& buffer) {
  constexpr size_t kPage = 4096;
  std::vector<unsigned char> pages((static_cast<size_t>(buffer.num_bytes()) + kPage - 1) / kPage);
  EXPECT_EQ(mincore(buffer.data(), pages.size() * kPage, pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

TEST(Buffer, BecomesResidentBeforeItIsWritten) {
  Buffer buffer = Buffer::allocate((5 << 20) + 17).value();
  EXPECT_EQ(num_resident_pages(buffer), 0);
  ASSERT_TRUE(buffer.make_resident().ok());
  EXPECT_EQ(num_resident_pages(buffer), (5 << 20) / 4096 + 1);
  EXPECT_TRUE(is_zero(buffer));
  Buffer small = Buffer::allocate(100).value();
  EXPECT_TRUE(small.make_resident().ok());
  EXPECT_TRUE(Buffer().make_resident().ok());
}

TEST(Buffer, OfZeroBytesHoldsNothing) {
  const Buffer buffer = Buffer::allocate(0).value();
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.num_bytes(), 0);
}

TEST(Buffer, RefusesMoreThanTheAddressSpace) {
  for (const int64_t num_bytes : {int64_t{1} << 58, INT64_MAX}) {
    const Result<Buffer> buffer = Buffer::allocate(num_bytes);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.error().code, Errc::kExhausted);
    EXPECT_NE(buffer.error().message.find(std::to_string(num_bytes)), std::string::npos);
  }
}

TEST(Buffer, MovesItsMemory) {
  Buffer first = Buffer::allocate(100).value();
  std::byte* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: moved-from buffers are empty by contract
  Buffer third = Buffer::allocate(3 << 20).value();
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.num_bytes(), 100);
}

TEST(Buffer, ViewsArePlacedByByteOffset) {
  const Buffer buffer = Buffer::allocate(64).value();
  const TensorView view = buffer.view(DType::kF32, {2, 3}, 16);
  EXPECT_EQ(view.as<float>(), reinterpret_cast<float*>(buffer.data() + 16));
  EXPECT_EQ(view.row_stride, 3);
}

}  // namespace
}  // namespace nibble::device
