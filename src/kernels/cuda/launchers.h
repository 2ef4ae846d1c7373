// Binds the records of CUDA kernels to their launchers where the backend is built.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace nibble::kernels::cuda {

// The rows of `table`; in a build with the CUDA backend each that has a launcher gets it and the
// status kRuns.
std::vector<KernelInfo> with_launchers(std::span<const KernelInfo> table);

struct NamedLaunch {
  std::string_view kernel;
  Launch launch;
};
// Launchers of generations that a build may leave out (cmake/NibbleCuda.cmake); empty where it
// does.
std::span<const NamedLaunch> sm120_launchers();

}  // namespace nibble::kernels::cuda
