#include "cli/machine.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>
#include <vector>

#include "device/cuda.h"

namespace nibble::cli {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  constexpr std::string_view kKey = "model name";
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind(kKey, 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

double memory_gib() {
  const auto bytes =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return bytes / (1 << 30);
}

// ", 2 x NVIDIA H200": GPUs that this build can use; nothing without any.
std::string gpu_names() {
  const Result<std::vector<device::DeviceInfo>> gpus = device::list_cuda_devices();
  if (!gpus.ok() || gpus->empty()) return "";
  const std::string& name = gpus->front().name;
  return gpus->size() == 1 ? ", " + name : fmt::format(", {} x {}", gpus->size(), name);
}

double load_average() {
  double minute = 0;
  return ::getloadavg(&minute, 1) == 1 ? minute : 0.0;
}

}  // namespace

std::string describe_machine() {
  utsname system = {};
  ::uname(&system);
  return fmt::format("{}, {} CPUs{}, {:.1f} GiB, {} {}, load {:.2f}",
                     processor_name(),
                     std::thread::hardware_concurrency(),
                     gpu_names(),
                     memory_gib(),
                     system.sysname,
                     system.release,
                     load_average());
}

}  // namespace nibble::cli
