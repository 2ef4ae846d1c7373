// What the GPU tests share: the device, arrays on it, random data.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "device/cuda.h"
#include "device/device.h"
#include "quant/format.h"
#include "quant/reference.h"

namespace nibble::cuda_testing {

// GPU 0, opened once; null where there is none.
device::Device* gpu();

// Skips, loudly, where there is no GPU.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu() == nullptr) GTEST_SKIP() << "no GPU: NOT RUN ON HARDWARE";
  }
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    device::copy_to_device(data(), values.data(), num_bytes(), gpu()->stream()).value();
    device::synchronize(gpu()->stream()).value();
  }
  // Every byte is 0xFF: NaN, or -1.
  explicit DeviceArray(size_t size)
      : size_(size), buffer_(gpu()->allocate(static_cast<int64_t>(size * sizeof(T))).value()) {
    device::fill_device(data(), 0xFF, num_bytes(), gpu()->stream()).value();
  }

  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  int64_t num_bytes() const { return static_cast<int64_t>(size_ * sizeof(T)); }
  std::vector<T> to_host() const {
    std::vector<T> values(size_);
    device::copy_to_host(values.data(), data(), num_bytes(), gpu()->stream()).value();
    device::synchronize(gpu()->stream()).value();
    return values;
  }

 private:
  size_t size_;
  device::Buffer buffer_;
};

// Normally distributed.
std::vector<float> random_values(int64_t size, uint32_t seed);

// Random E2M1 codes of every value; group exponents spread over `spread` steps.
quant::QuantizedWeight random_mxfp4(int64_t n, int64_t k, int32_t spread, uint32_t seed);

// Random codes; positive E4M3 scales of every size but NaN.
quant::QuantizedWeight random_nvfp4(int64_t n, int64_t k, uint32_t seed);
// Random codes; BF16 scales of either sign.
quant::QuantizedWeight random_int4(int64_t n, int64_t k, uint32_t seed);

// Random E4M3 codes, no NaN; block scales over a few powers of two.
quant::QuantizedWeight random_fp8(int64_t n, int64_t k, uint32_t seed);

// Activations as E4M3 codes with one power-of-two scale per row and 128 values.
struct HostFp8Rows {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<double> values;  // what they mean
};
HostFp8Rows random_fp8_rows(int64_t rows, int64_t k, uint32_t seed);

}  // namespace nibble::cuda_testing
