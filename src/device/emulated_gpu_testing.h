// An emulated GPU for tests that watch or disturb some of its calls.
#pragma once

#include <memory>

#include "device/emulated_gpu.h"

namespace nibble::device {

// Passes every call on; tests override what they are about.
class EmulatedGpuWrapper : public Device {
 public:
  explicit EmulatedGpuWrapper(int32_t num_threads)
      : device_(make_emulated_gpu(num_threads).value()) {}

  const DeviceInfo& info() const override { return device_->info(); }
  Result<Buffer> allocate(int64_t num_bytes) override { return device_->allocate(num_bytes); }
  Result<Buffer> allocate_host(int64_t num_bytes) override {
    return device_->allocate_host(num_bytes);
  }
  Result<int64_t> free_bytes() const override { return device_->free_bytes(); }
  Stream& stream() override { return device_->stream(); }
  Result<void> copy_in(void* device, const void* host, int64_t num_bytes) override {
    return device_->copy_in(device, host, num_bytes);
  }
  Result<void> copy_out(void* host, const void* device, int64_t num_bytes) override {
    return device_->copy_out(host, device, num_bytes);
  }
  Result<void> synchronize() override { return device_->synchronize(); }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace nibble::device
