// The CPU as a device: memory from the system, work on a thread pool.
#include <cpuid.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "device/device.h"
#include "device/emulated_gpu.h"

namespace nibble::device {
namespace {

// The processor's own name, or "cpu".
std::string cpu_name() {
  constexpr uint32_t kFirstLeaf = 0x80000002, kLastLeaf = 0x80000004;
  std::array<char, 49> text{};
  for (uint32_t leaf = kFirstLeaf; leaf <= kLastLeaf; ++leaf) {
    std::array<uint32_t, 4> words{};
    if (__get_cpuid(leaf, &words[0], &words[1], &words[2], &words[3]) == 0) return "cpu";
    std::memcpy(text.data() + (leaf - kFirstLeaf) * sizeof(words), words.data(), sizeof(words));
  }
  std::string name(text.data());
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "cpu" : name;
}

int64_t physical_memory_bytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
}

int64_t available_memory_bytes() {
  return int64_t{sysconf(_SC_AVPHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
}

Result<IsaSet> limit_isa(IsaSet detected, IsaLevel level) {
  switch (level) {
    case IsaLevel::kScalar:
      return IsaSet{0};
    case IsaLevel::kAvx2:
      if ((detected & kIsaAvx2) == 0) return unsupported("this CPU lacks avx2 (with fma and f16c)");
      return IsaSet{kIsaAvx2};
    case IsaLevel::kAvx512:
      if ((detected & kIsaAvx512) == 0) {
        return unsupported("this CPU lacks avx512 (f, bw, vl, dq, vbmi); it has " +
                           isa_set_name(detected));
      }
      return detected;
    case IsaLevel::kNative:
      return detected;
  }
  return internal_error("unknown ISA level");
}

class HostDevice final : public Device {
 public:
  HostDevice(const HostOptions& options, DeviceInfo info)
      : info_(std::move(info)),
        pool_({.num_threads = options.num_threads, .pin = options.pin}),
        stream_{.pool = &pool_} {
    info_.num_units = pool_.num_threads();
    info_.memory_bytes = physical_memory_bytes();
  }

  const DeviceInfo& info() const override { return info_; }
  Result<Buffer> allocate(int64_t num_bytes) override { return Buffer::allocate(num_bytes); }
  Result<Buffer> allocate_host(int64_t num_bytes) override { return Buffer::allocate(num_bytes); }
  Result<int64_t> free_bytes() const override { return available_memory_bytes(); }
  Stream& stream() override { return stream_; }
  Result<void> copy_in(void* device, const void* host, int64_t num_bytes) override {
    std::memcpy(device, host, static_cast<size_t>(num_bytes));
    return {};
  }
  Result<void> copy_out(void* host, const void* device, int64_t num_bytes) override {
    std::memcpy(host, device, static_cast<size_t>(num_bytes));
    return {};
  }
  Result<void> synchronize() override { return {}; }

 private:
  DeviceInfo info_;
  ThreadPool pool_;
  Stream stream_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_host_device(const HostOptions& options) {
  if (options.num_threads < 0) {
    return invalid_argument("threads: " + std::to_string(options.num_threads) +
                            ", expected 0 (one per core) or more");
  }
  TRY_ASSIGN(const IsaSet isa, limit_isa(detect_isa(), options.isa));
  return std::unique_ptr<Device>(std::make_unique<HostDevice>(
      options, DeviceInfo{.kind = DeviceKind::kCpu, .name = cpu_name(), .isa = isa}));
}

Result<std::unique_ptr<Device>> make_emulated_gpu(int32_t num_threads) {
  return std::unique_ptr<Device>(std::make_unique<HostDevice>(
      HostOptions{.num_threads = num_threads},
      DeviceInfo{.kind = DeviceKind::kCuda, .name = "emulated GPU", .sm = kEmulatedSm}));
}

}  // namespace nibble::device
