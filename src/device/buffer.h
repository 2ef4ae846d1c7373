// Owning memory of a device. Moves only; released by the destructor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "tensor/tensor_view.h"

namespace nibble::device {

// Host memory aligned to 64 bytes (one cache line, one AVX-512 vector), zero-filled. Large buffers
// ask for huge pages.
class Buffer final {
 public:
  Buffer() = default;
  // kExhausted with the size when the system refuses.
  static Result<Buffer> allocate(int64_t num_bytes);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  TensorView view(DType dtype, Shape shape, int64_t byte_offset = 0) const;

 private:
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace nibble::device
