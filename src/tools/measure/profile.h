// Where the time of a pass goes: its launches by kernel and shape, held against the machine's
// roofs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/device.h"
#include "tools/measure/launches.h"
#include "tools/measure/roofs.h"

namespace nibble::tools {

// Launches of one kernel and, for products, one shape.
struct ProfileRow {
  const kernels::KernelInfo* kernel = nullptr;
  int64_t n = 0;  // 0: no product
  int64_t k = 0;
  int64_t count = 0;
  int64_t num_kernels = 0;
  int64_t blocks = 0;  // of the widest; 0: not known
  double us = 0;       // of all together
  double bytes = 0;
  double flops = 0;
};

struct Profile {
  std::string what;  // "decode of 16 sequences at 1024 tokens"
  device::DeviceInfo device;
  Roofs roofs;
  Timing timing = Timing::kClock;
  std::string note;
  double pass_us = 0;            // from call to return, without observers
  std::vector<ProfileRow> rows;  // the slowest first

  double launches_us() const;
};

// Groups the launches of a pass.
Profile make_profile(std::string what,
                     const device::DeviceInfo& device,
                     const Roofs& roofs,
                     const PassLaunches& pass,
                     double pass_us);

std::string profile_text(const Profile& profile);
json::Value profile_json(const Profile& profile);

}  // namespace nibble::tools
