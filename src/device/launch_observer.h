// What profiles and benchmarks see of the launches on a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::device {

// What a launch moves from and to memory and computes; a multiply-add is two operations.
struct Work {
  double bytes = 0;
  double flops = 0;
  // Of products: the shape of one matrix.
  int64_t n = 0;
  int64_t k = 0;
};

// `count` integers of the device's memory. Waits for the work that writes them.
using ReadInts = std::function<std::vector<int32_t>(const int32_t* data, int64_t count)>;

struct ObservedLaunch {
  std::string_view kernel;  // the name of its record
  // Puts it on the stream; again, too, as long as the memory of its arguments lives.
  std::function<Result<void>()> run;
  // What depends on counts and ids in the device's memory is read there; without a reader, it is
  // the most that the arguments allow.
  std::function<Work(const ReadInts& read)> work;
};

// Called instead of each launch; must run it once, or never where launches are only counted.
struct LaunchObserver {
  std::function<Result<void>(const ObservedLaunch& launch)> launch;
};

}  // namespace nibble::device
