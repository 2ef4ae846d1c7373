#include "tools/measure/launches.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "device/cuda.h"
#include "device/graph.h"
#include "tools/measure/roofs.h"

namespace nibble::tools {
namespace {

using device::KernelActivity;
using device::KernelTrace;
using device::ObservedLaunch;

// Sets a stream's observer for a scope.
class ObserverScope final {
 public:
  ObserverScope(device::Stream& stream, const device::LaunchObserver& observer) : stream_(stream) {
    stream_.observer = &observer;
  }
  ~ObserverScope() { stream_.observer = nullptr; }
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  device::Stream& stream_;
};

const kernels::KernelInfo* find_kernel(std::string_view name) {
  static const std::vector<const kernels::KernelInfo*> all = kernels::all_kernels();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const auto* kernel) { return kernel->name == name; });
  return found == all.end() ? nullptr : *found;
}

// Which kernels run, and their work.
Result<std::vector<TimedLaunch>> list_launches(device::Device& device, const Pass& pass) {
  std::vector<TimedLaunch> launches;
  const device::ReadInts read = int_reader(device);
  const auto list = [&](const ObservedLaunch& launch) -> Result<void> {
    TRY(launch.run());
    launches.push_back({.kernel = find_kernel(launch.kernel), .work = launch.work(read)});
    return {};
  };
  TRY(observe_launches(device, pass, list));
  return launches;
}

Error changed(size_t expected, size_t found) {
  return internal_error(
      fmt::format("equal passes made {} and {} launches; expected as many", expected, found));
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.empty() ? 0 : *middle;
}

// times[i]: of launch i in every pass.
Result<void> take_medians(std::vector<std::vector<double>>& times,
                          std::vector<TimedLaunch>& launches) {
  if (times.size() != launches.size()) return changed(launches.size(), times.size());
  for (size_t i = 0; i < times.size(); ++i) launches[i].us = median(times[i]);
  return {};
}

Result<double> time_one(device::Device& device, const ObservedLaunch& launch) {
  if (is_gpu(device)) return device::elapsed_us(device.stream(), launch.run);
  const auto begin = std::chrono::steady_clock::now();
  TRY(launch.run());
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

Result<void> time_one_by_one(device::Device& device,
                             const Pass& pass,
                             int32_t repeats,
                             std::vector<TimedLaunch>& launches) {
  std::vector<std::vector<double>> times;
  for (int32_t i = 0; i < repeats; ++i) {
    size_t next = 0;
    const auto time = [&](const ObservedLaunch& launch) -> Result<void> {
      if (next == times.size()) times.emplace_back();
      TRY_ASSIGN(const double us, time_one(device, launch));
      times[next++].push_back(us);
      return {};
    };
    TRY(observe_launches(device, pass, time));
    if (next != times.size()) return changed(times.size(), next);
  }
  return take_medians(times, launches);
}

// --- CUPTI ---

// Kernels of one stream may begin before the one ahead ends and then wait for it: each has the time
// from there on.
std::vector<double> own_us(const std::vector<KernelActivity>& kernels) {
  std::vector<double> times;
  int64_t end = 0;
  for (const KernelActivity& kernel : kernels) {
    const int64_t begin = std::max(kernel.begin_ns, end);
    end = std::max(end, kernel.end_ns);
    times.push_back(static_cast<double>(end - begin) * 1e-3);
  }
  return times;
}

// The kernels of an eager pass; labels are launch numbers from 1.
Result<std::vector<KernelActivity>> trace_eager(device::Device& device, const Pass& pass) {
  TRY_ASSIGN(KernelTrace trace, KernelTrace::start());
  uint64_t number = 0;
  const auto label = [&](const ObservedLaunch& launch) -> Result<void> {
    TRY(trace.set_label(++number));
    TRY(launch.run());
    return trace.set_label(0);
  };
  TRY(observe_launches(device, pass, label));
  TRY(device.synchronize());
  return trace.finish();
}

Result<std::vector<KernelActivity>> trace_replay(device::Device& device, const Pass& pass) {
  TRY_ASSIGN(KernelTrace trace, KernelTrace::start());
  TRY(pass());
  TRY(device.synchronize());
  return trace.finish();
}

// Adds the kernels' times to those of their launches.
void add_times(const std::vector<KernelActivity>& kernels,
               std::vector<std::vector<double>>& times) {
  const std::vector<double> own = own_us(kernels);
  std::vector<double> sums(times.size());
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].label > 0 && kernels[i].label <= sums.size())
      sums[kernels[i].label - 1] += own[i];
  }
  for (size_t i = 0; i < sums.size(); ++i) times[i].push_back(sums[i]);
}

void describe_grids(const std::vector<KernelActivity>& kernels,
                    std::vector<TimedLaunch>& launches) {
  for (TimedLaunch& launch : launches) launch.num_kernels = 0;
  for (const KernelActivity& kernel : kernels) {
    if (kernel.label == 0 || kernel.label > launches.size()) continue;
    TimedLaunch& launch = launches[kernel.label - 1];
    launch.blocks = std::max(launch.blocks, kernel.blocks);
    ++launch.num_kernels;
  }
}

// Labels a replay's kernels as those of the eager pass, which ran the same ones in the same order.
// False when it did not. Kernels without a label in the eager pass have none here.
bool copy_labels(const std::vector<KernelActivity>& eager, std::vector<KernelActivity>& replay) {
  if (eager.size() != replay.size()) return false;
  for (size_t i = 0; i < eager.size(); ++i) {
    if (eager[i].symbol != replay[i].symbol) return false;
    replay[i].label = eager[i].label;
  }
  return true;
}

Result<void> time_by_cupti(device::Device& device,
                           const Pass& pass,
                           int32_t repeats,
                           PassLaunches& result) {
  TRY_ASSIGN(const std::vector<KernelActivity> eager, trace_eager(device, pass));
  describe_grids(eager, result.launches);
  std::vector<std::vector<double>> times(result.launches.size());
  result.timing = Timing::kReplay;
  for (int32_t i = 0; i < repeats && result.timing == Timing::kReplay; ++i) {
    TRY_ASSIGN(std::vector<KernelActivity> replay, trace_replay(device, pass));
    if (!copy_labels(eager, replay)) {
      result.timing = Timing::kEager;
      result.note = fmt::format(
          "the pass that serves ran {} kernels, the one launched by hand {}, in another order",
          replay.size(),
          eager.size());
    } else {
      add_times(replay, times);
    }
  }
  if (result.timing == Timing::kEager) {
    for (std::vector<double>& of_launch : times) of_launch.clear();
    for (int32_t i = 0; i < repeats; ++i) {
      TRY_ASSIGN(const std::vector<KernelActivity> kernels, trace_eager(device, pass));
      add_times(kernels, times);
    }
  }
  return take_medians(times, result.launches);
}

}  // namespace

std::string_view timing_name(Timing timing) {
  switch (timing) {
    case Timing::kClock:
      return "clock";
    case Timing::kEvents:
      return "events";
    case Timing::kEager:
      return "cupti, launched one by one";
    case Timing::kReplay:
      return "cupti, as it serves";
  }
  return "?";
}

Result<void> observe_launches(device::Device& device,
                              const Pass& pass,
                              const std::function<Result<void>(const ObservedLaunch&)>& on_launch) {
  const device::LaunchObserver observer{on_launch};
  const ObserverScope scope(device.stream(), observer);
  return pass();
}

device::ReadInts int_reader(device::Device& device) {
  if (device.info().kind != device::DeviceKind::kCuda) return {};
  return [&device](const int32_t* data, int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    const Result<void> copied =
        device.copy_out(values.data(), data, count * int64_t{sizeof(int32_t)});
    const Result<void> done = device.synchronize();
    return copied.ok() && done.ok() ? values : std::vector<int32_t>(values.size());
  };
}

Result<device::Work> work_of_pass(device::Device& device, const Pass& pass) {
  TRY_ASSIGN(const std::vector<TimedLaunch> launches, list_launches(device, pass));
  device::Work sum;
  for (const TimedLaunch& launch : launches) {
    sum.bytes += launch.work.bytes;
    sum.flops += launch.work.flops;
  }
  return sum;
}

Result<PassLaunches> time_launches(device::Device& device, const Pass& pass, int32_t repeats) {
  PassLaunches result;
  TRY(pass());  // what a first pass sets up is not timed
  TRY_ASSIGN(result.launches, list_launches(device, pass));
  if (!is_gpu(device)) {
    TRY(time_one_by_one(device, pass, repeats, result.launches));
    return result;
  }
  const Result<void> traced = time_by_cupti(device, pass, repeats, result);
  if (traced.ok()) return result;
  if (traced.error().code == Errc::kInternal) return traced.error();
  result.timing = Timing::kEvents;
  result.note = traced.error().message;
  TRY(time_one_by_one(device, pass, repeats, result.launches));
  return result;
}

}  // namespace nibble::tools
