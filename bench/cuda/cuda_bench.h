// What the GPU benchmarks share: timing by graph replay, the read stream of the run, JSON lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"

namespace nibble::cuda_bench {

struct Spread {
  double median, low, high;
};

// Device time of what `enqueue` puts on the stream, over repeats.
Result<Spread> time_us(device::Stream& stream, const std::function<Result<void>()>& enqueue);
// The same for a graph of `count` steps; per step.
Result<Spread> time_graph_us(device::Stream& stream,
                             int32_t count,
                             const std::function<Result<void>(int32_t)>& step);

// A run of one program: its device, the read stream as roof, which measurements are wanted.
class Run final {
 public:
  // `names`: parts of the names of the measurements wanted; none: all. Measures the read stream
  // over `data` (at least 1 GB, device memory) and prints it.
  static Result<Run> start(device::Device& device,
                           const device::Buffer& data,
                           std::vector<std::string> names);

  bool wants(std::string_view what) const;
  const std::vector<std::string>& names() const { return names_; }
  // Prints a line: `bytes` moved in `us` as a rate and as a share of the read stream, and with
  // `flops` those as a rate.
  void print(std::string_view what,
             int64_t tokens,
             int64_t bytes,
             const Spread& us,
             double flops = 0) const;

 private:
  explicit Run(std::vector<std::string> names) : names_(std::move(names)) {}

  std::vector<std::string> names_;
  double roof_ = 0;  // TB/s
};

// Fills device memory with random bytes that no format takes for NaN or a large number.
Result<void> fill_randomly(std::byte* data, int64_t num_bytes, device::Stream& stream);

// The rows of products of this op that take any shape, on every generation, whose names are wanted
// as in Run.
std::vector<const kernels::KernelInfo*> portable_rows(kernels::Op op,
                                                      const std::vector<std::string>& names);
// `count` matrices, and what they take, in kRowMajor; whatever `data` holds.
kernels::PackedWeight row_major_weight(
    quant::Format format, int64_t n, int64_t k, int32_t count, const std::byte* data);
int64_t row_major_bytes(const kernels::PackedWeight& one);
// Activations in the forms that such rows read, whatever `data` holds.
kernels::ActivationForms all_forms(std::byte* data);

// What a program returns from main(); an error is printed.
int exit_code(const Result<void>& done);

}  // namespace nibble::cuda_bench
