// Owning memory of a device. Moves only; released by the destructor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "tensor/tensor_view.h"

namespace nibble::device {

// From allocate(): host memory aligned to 64 bytes (one cache line, one AVX-512 vector),
// zero-filled. Large buffers ask for huge pages.
class Buffer final {
 public:
  Buffer() = default;
  // kExhausted with the size when the system refuses.
  static Result<Buffer> allocate(int64_t num_bytes);
  // Takes over `num_bytes` at `data`, given back by `release`: memory of another device.
  using Release = void (*)(std::byte* data, int64_t num_bytes);
  static Buffer adopt(std::byte* data, int64_t num_bytes, Release release);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // Makes every page of host memory resident, which the system otherwise does one by one as they
  // are first written. kExhausted when it has too few. Does nothing for other memory.
  Result<void> make_resident();

  std::byte* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  TensorView view(DType dtype, Shape shape, int64_t byte_offset = 0) const;

 private:
  void reset();

  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
  Release release_ = nullptr;  // null: host memory of allocate()
};

}  // namespace nibble::device
