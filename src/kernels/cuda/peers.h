// What a GPU reaches without our kernels: the read stream and NVIDIA's cublasLt, which is loaded at
// run time where it is installed. Denominators and opponents of measurements; nothing is computed
// with them.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/device.h"

namespace nibble::kernels::cuda {

// Reads `data` (device memory) once: the rate that kernels bound by memory are held against.
class ReadStream final {
 public:
  // kUnsupported in a build without CUDA.
  static Result<ReadStream> make(device::Device& device);
  Result<void> launch(const std::byte* data, int64_t num_bytes, device::Stream& stream) const;

 private:
  ReadStream() = default;

  device::Buffer sink_;
  [[maybe_unused]] int32_t num_units_ = 0;  // read where the backend is built
};

// A product y = W x of cublasLt: x [m, k], W [n, k], y [m, n] bf16, f32 sums; all row-major in
// device memory, aligned to 16 bytes.
enum class BlasType : uint8_t {
  kBf16,
  kFp8,        // E4M3, one scale (1) per tensor
  kFp8Blocks,  // E4M3, f32 scales of 128 values of x and 128x128 of W (all 1)
};

class BlasProduct final {
 public:
  // kUnavailable where cublasLt is not found, with the names that were tried, or has no algorithm.
  static Result<BlasProduct> make(
      device::Device& device, BlasType type, int64_t m, int64_t n, int64_t k);
  Result<void> launch(const void* x, const void* weight, void* y, device::Stream& stream) const;

  BlasProduct(BlasProduct&&) noexcept;
  BlasProduct& operator=(BlasProduct&&) noexcept;
  ~BlasProduct();

 private:
  struct State;
  explicit BlasProduct(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace nibble::kernels::cuda
