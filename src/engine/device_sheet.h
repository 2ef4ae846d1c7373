// Data sheets of the machines that a plan can be made for, declared once. Sources: vendor data
// sheets; read rates are measured where the note says so and planning values elsewhere (spec
// "performance" 1, "kernels" 1).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "device/device.h"

namespace nibble::engine {

enum class LinkKind : uint8_t { kNone, kPcie, kNvlink };

struct DeviceSheet {
  std::string name;   // as --gpu takes it
  std::string title;  // as people know it
  device::DeviceKind kind = device::DeviceKind::kCuda;
  int32_t sm = 0;          // CUDA
  device::IsaSet isa = 0;  // CPU
  int32_t num_units = 0;   // multiprocessors or cores
  int64_t memory_bytes = 0;
  double peak_bytes_per_s = 0;  // data sheet
  double read_bytes_per_s = 0;  // what a read-only stream reaches; 0: not known
  int64_t shared_bytes = 0;     // per block of threads
  LinkKind link = LinkKind::kNone;
  std::string note;  // where read_bytes_per_s comes from

  device::DeviceInfo info() const;
};

// "1.45 TB/s", "27.3 GB/s"
std::string read_rate_text(const DeviceSheet& sheet);

// What --gpu accepts besides "local".
std::span<const DeviceSheet> device_sheets();

// kInvalidArgument lists the names.
Result<DeviceSheet> find_device_sheet(std::string_view name);

// The machine that this program runs on, by its CPU: instruction sets, cores, memory. Its read rate
// is measured for about a tenth of a second. Or one of its GPUs, with the rates of its data sheet
// where the name is known.
DeviceSheet local_sheet(const device::DeviceInfo& info, double read_bytes_per_s);

// Seconds that one all-reduce of a decode step takes between `num_devices` devices (spec
// "performance" 2.2).
double all_reduce_seconds(LinkKind link, int32_t num_devices);

}  // namespace nibble::engine
