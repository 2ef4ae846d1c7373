#include "device/cpu_topology.h"

#include <sched.h>

#include <fstream>
#include <set>
#include <string>

namespace nibble::device {
namespace {

// First number of the kernel's sibling list ("3", "3,67" or "3-4"): the same for all threads of a
// core.
int32_t first_sibling(int32_t cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
  int32_t first = -1;
  return file >> first ? first : cpu;
}

}  // namespace

std::vector<int32_t> physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return {0};
  std::vector<int32_t> cpus;
  std::set<int32_t> cores_seen;
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &mask) &&
        cores_seen.insert(first_sibling(cpu)).second) {
      cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

bool pin_this_thread(int32_t cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(cpu), &mask);
  return sched_setaffinity(0, sizeof(mask), &mask) == 0;
}

}  // namespace nibble::device
