// The machine in one line, for the reports of measurements.
#pragma once

#include <string>

namespace nibble::cli {

// E.g. "AMD EPYC 9355, 2 CPUs, NVIDIA H200, 23.4 GiB, Linux 6.1.0, load 0.67".
std::string describe_machine();

}  // namespace nibble::cli
