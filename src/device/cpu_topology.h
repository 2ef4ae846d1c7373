// Which logical CPUs this process may run on, one per physical core.
#pragma once

#include <cstdint>
#include <vector>

namespace nibble::device {

// The lowest permitted logical CPU of each physical core, ascending. Honours the affinity mask of
// the process; where the system does not tell siblings, each logical CPU counts as a core. Never
// empty.
std::vector<int32_t> physical_cores();

// Lets the calling thread run on `cpu` only. False when the system refuses.
bool pin_this_thread(int32_t cpu);

}  // namespace nibble::device
