// What the machine itself reaches, measured in the run whose figures are divided by it.
#pragma once

#include <string>

#include "base/result.h"
#include "device/device.h"

namespace nibble::tools {

struct Roofs {
  double read_bytes_per_s = 0;
  double bf16_flops_per_s = 0;  // of one large product; 0: not measured
  std::string bf16_note;        // what computed it, or why nothing did
};

// Whether it has a clock of its own: a GPU, but not the emulated one.
bool is_gpu(const device::Device& device);

// Takes about half a second, and up to 2 GB of a GPU's memory.
Result<Roofs> measure_roofs(device::Device& device);

// Bytes per second that all cores read: the best of a few passes over memory beyond the caches. 0
// without memory.
double host_read_rate(device::Device& host);

// Share of the nearer roof that work of `bytes` and `flops` reaches in `seconds`.
double share_of_roof(const Roofs& roofs, double bytes, double flops, double seconds);

}  // namespace nibble::tools
