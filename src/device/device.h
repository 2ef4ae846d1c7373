// A device: what kernels may use on it, memory on it, and the order of work.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "device/buffer.h"
#include "device/thread_pool.h"

namespace nibble::device {

// CPU instruction sets as bits; "may run" is a subset test.
enum IsaBit : uint32_t {
  kIsaAvx2 = 1U << 0,    // AVX2, FMA, F16C
  kIsaAvx512 = 1U << 1,  // F, BW, VL, DQ, VBMI
  kIsaAvx512Bf16 = 1U << 2,
  kIsaAvx512Vnni = 1U << 3,
};
using IsaSet = uint32_t;

// The levels that --isa accepts, each with everything below it. kAvx512 includes BF16 and VNNI
// where the CPU has them.
enum class IsaLevel { kScalar, kAvx2, kAvx512, kNative };
std::optional<IsaLevel> isa_level_from_name(std::string_view name);
std::string isa_set_name(IsaSet isa);
IsaSet detect_isa();

enum class DeviceKind : uint8_t { kCpu, kCuda };

// What routing needs to know; a plain value, so that plans can be made for machines that are not
// here.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;
  IsaSet isa = 0;         // CPU
  int32_t sm = 0;         // CUDA: 90, 100, 120, ...
  int32_t num_units = 1;  // CPU threads or streaming multiprocessors
  int64_t memory_bytes = 0;
  int64_t shared_bytes = 0;  // CUDA: shared memory a block may ask for; 0: not known
};

struct LaunchObserver;

// The order of work on one device. On the host each launch runs to completion on the pool; nothing
// is pending.
struct Stream {
  ThreadPool* pool = nullptr;                // host
  void* native = nullptr;                    // another backend's stream
  const LaunchObserver* observer = nullptr;  // of launches through routes; none: they just run
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual Result<Buffer> allocate(int64_t num_bytes) = 0;
  // Host memory that this device copies from and to at full speed, beside other work: pinned for a
  // GPU. Not zero-filled.
  virtual Result<Buffer> allocate_host(int64_t num_bytes) = 0;
  // Bytes that allocate() can still give, at this moment.
  virtual Result<int64_t> free_bytes() const = 0;
  virtual Stream& stream() = 0;

  // Copies between host memory and this device's, ordered in the stream; the host side must stay
  // as it is until synchronize().
  virtual Result<void> copy_in(void* device, const void* host, int64_t num_bytes) = 0;
  virtual Result<void> copy_out(void* host, const void* device, int64_t num_bytes) = 0;
  // Waits for the work of the stream. kUnavailable names the first failed operation.
  virtual Result<void> synchronize() = 0;
};

struct HostOptions {
  int32_t num_threads = 0;  // 0: physical cores
  bool pin = false;
  IsaLevel isa = IsaLevel::kNative;  // an upper bound; kUnsupported when this CPU lacks it
};
Result<std::unique_ptr<Device>> make_host_device(const HostOptions& options);

}  // namespace nibble::device
