#include "device/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::device {
namespace {

constexpr int64_t kAlignment = 64;
// From this size on a buffer is its own mapping, aligned so that the kernel can back it with huge
// pages.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kPageBytes = 4096;

bool is_mapped(int64_t num_bytes) { return num_bytes >= kHugePageBytes; }

// Writes to every page: by one call, or page by page where the kernel (before 5.14) lacks it.
bool populate(std::byte* data, int64_t num_bytes) {
  const auto size = static_cast<size_t>(num_bytes);
  if (madvise(data, size, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  volatile std::byte* const bytes = data;
  for (size_t at = 0; at < size; at += kPageBytes) bytes[at] = bytes[at];
  return true;
}

// Maps num_bytes at a multiple of kHugePageBytes: maps more, then gives the ends back.
std::byte* map_huge(int64_t num_bytes) {
  const std::optional<int64_t> mapped_bytes = checked_add(num_bytes, kHugePageBytes);
  if (!mapped_bytes) return nullptr;
  void* mapping = mmap(nullptr,
                       static_cast<size_t>(*mapped_bytes),
                       PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS,
                       -1,
                       0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapping);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto unaligned = static_cast<int64_t>(address % static_cast<uintptr_t>(kHugePageBytes));
  const int64_t head = (kHugePageBytes - unaligned) % kHugePageBytes;
  if (head > 0) munmap(begin, static_cast<size_t>(head));
  const int64_t tail = kHugePageBytes - head;
  if (tail > 0) munmap(begin + head + num_bytes, static_cast<size_t>(tail));
  madvise(begin + head, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);  // advice: may be refused
  return begin + head;
}

// Sizes in system calls are whole pages, so that the mapping's end is one too.
int64_t rounded(int64_t num_bytes) {
  return round_up(num_bytes, is_mapped(num_bytes) ? kPageBytes : kAlignment);
}

std::byte* take(int64_t num_bytes) {
  if (is_mapped(num_bytes)) return map_huge(rounded(num_bytes));
  const auto size = static_cast<size_t>(rounded(num_bytes));
  void* memory = std::aligned_alloc(static_cast<size_t>(kAlignment), size);
  if (memory != nullptr) std::memset(memory, 0, size);
  return static_cast<std::byte*>(memory);
}

void give_back_host(std::byte* data, int64_t num_bytes) {
  if (is_mapped(num_bytes)) {
    munmap(data, static_cast<size_t>(rounded(num_bytes)));
  } else {
    std::free(data);
  }
}

}  // namespace

Result<Buffer> Buffer::allocate(int64_t num_bytes) {
  CHECK(num_bytes >= 0) << num_bytes;
  Buffer buffer;
  if (num_bytes == 0) return buffer;
  constexpr int64_t kMaxBytes = int64_t{1} << 60;  // keeps rounding inside int64_t
  buffer.data_ = num_bytes > kMaxBytes ? nullptr : take(num_bytes);
  if (buffer.data_ == nullptr) {
    return exhausted("host memory: cannot allocate " + std::to_string(num_bytes) + " bytes");
  }
  buffer.num_bytes_ = num_bytes;
  return buffer;
}

Result<void> Buffer::make_resident() {
  // Smaller buffers were filled with zeros.
  if (release_ != nullptr || !is_mapped(num_bytes_)) return {};
  if (populate(data_, rounded(num_bytes_))) return {};
  return exhausted("host memory: cannot make " + std::to_string(num_bytes_) + " bytes resident");
}

Buffer Buffer::adopt(std::byte* data, int64_t num_bytes, Release release) {
  CHECK(data != nullptr && num_bytes > 0 && release != nullptr) << num_bytes;
  Buffer buffer;
  buffer.data_ = data;
  buffer.num_bytes_ = num_bytes;
  buffer.release_ = release;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)),
      release_(std::exchange(other.release_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  data_ = std::exchange(other.data_, nullptr);
  num_bytes_ = std::exchange(other.num_bytes_, 0);
  release_ = std::exchange(other.release_, nullptr);
  return *this;
}

Buffer::~Buffer() { reset(); }

void Buffer::reset() {
  if (data_ == nullptr) return;
  const Release release = release_ != nullptr ? release_ : &give_back_host;
  release(data_, num_bytes_);
  data_ = nullptr;
}

TensorView Buffer::view(DType dtype, Shape shape, int64_t byte_offset) const {
  CHECK(byte_offset >= 0 && byte_offset + shape.num_elements() * dtype_size(dtype) <= num_bytes_)
      << byte_offset << " + " << shape.to_string() << " in " << num_bytes_ << " bytes";
  return TensorView::contiguous(data_ + byte_offset, dtype, shape);
}

}  // namespace nibble::device
