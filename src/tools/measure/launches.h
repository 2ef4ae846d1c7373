// The launches of a pass of a model, one by one: their kernels, work and times. The pass runs with
// an observer on its device's stream; a model then launches one kernel after the other and replays
// no graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "device/kernel_trace.h"
#include "device/launch_observer.h"
#include "kernels/kernel.h"

namespace nibble::tools {

using Pass = std::function<Result<void>()>;

struct TimedLaunch {
  const kernels::KernelInfo* kernel = nullptr;
  device::Work work;
  double us = 0;
  int64_t blocks = 0;  // of its widest kernel on a GPU; 0: not known
  int64_t num_kernels = 1;
};

enum class Timing {
  kClock,   // host: around each launch
  kEvents,  // a GPU without CUPTI: events around each launch, which add what starting one takes
  kEager,   // CUPTI, launched one by one
  kReplay,  // CUPTI, in the graph that serves
};
std::string_view timing_name(Timing timing);

struct PassLaunches {
  std::vector<TimedLaunch> launches;  // in their order
  Timing timing = Timing::kClock;
  std::string note;  // why not a better timing; often empty
};

// Runs `pass` about `repeats` + 3 times, all of equal shape; times are medians. kInternal when the
// passes launch different kernels.
Result<PassLaunches> time_launches(device::Device& device, const Pass& pass, int32_t repeats);

// Runs `pass` with `on_launch` in place of each launch.
Result<void> observe_launches(
    device::Device& device,
    const Pass& pass,
    const std::function<Result<void>(const device::ObservedLaunch&)>& on_launch);

// What reads counts and ids of launches; empty on the host, which needs none.
device::ReadInts int_reader(device::Device& device);

// The work of a pass, by its records.
Result<device::Work> work_of_pass(device::Device& device, const Pass& pass);

}  // namespace nibble::tools
