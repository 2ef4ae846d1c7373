// When each kernel of a GPU ran, by CUPTI's activity records. The library is loaded at run time,
// where it is installed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace nibble::device {

struct KernelActivity {
  std::string symbol;  // as the compiler wrote it
  uint64_t label = 0;  // of KernelTrace::set_label(); 0: none, or launched by a graph
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t blocks = 0;
  int32_t threads = 0;  // of a block
  int32_t registers = 0;
  int64_t shared_bytes = 0;
};

// Records from start() to finish(). One at a time in a process. Graphs that are to be seen kernel
// by kernel must be captured after the first start().
class KernelTrace final {
 public:
  // kUnavailable where libcupti is not found, with the names that were tried, or where it refuses.
  // kUnsupported in a build without CUDA.
  static Result<KernelTrace> start();

  // Kernels that this thread launches from now on carry `label`; 0: none.
  Result<void> set_label(uint64_t label);

  // Every kernel that ran, in the order in which they began. The work must be over.
  Result<std::vector<KernelActivity>> finish();

  KernelTrace(KernelTrace&& other) noexcept
      : is_running_(std::exchange(other.is_running_, false)),
        is_labelled_(std::exchange(other.is_labelled_, false)) {}
  KernelTrace& operator=(KernelTrace&&) = delete;
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;
  ~KernelTrace();  // NOLINT(performance-trivially-destructible): only without the backend

 private:
  KernelTrace() = default;

  bool is_running_ = true;
  bool is_labelled_ = false;
};

}  // namespace nibble::device
