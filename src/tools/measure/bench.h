// Benchmarks of a loaded model: decode steps, prefill, and each of its kernels alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "device/device.h"
#include "models/model.h"
#include "tools/measure/launches.h"
#include "tools/measure/roofs.h"

namespace nibble::tools {

struct Spread {
  double median = 0, low = 0, high = 0;
};

// Microseconds from the call of `pass` until its results are there; three passes more warm up.
Result<Spread> time_passes(const Pass& pass, int32_t repeats);

struct DecodeRow {
  int32_t batch = 0;
  int32_t context = 0;    // tokens of each sequence before the first step
  Spread us;              // of a step
  double step_bytes = 0;  // that a step must read, by the plan

  double tok_s() const { return us.median > 0 ? batch / us.median * 1e6 : 0; }
};
std::string decode_text(const Roofs& roofs,
                        const models::RecordedGraphs& graphs,
                        const std::vector<DecodeRow>& rows);
json::Value decode_json(const Roofs& roofs,
                        const models::RecordedGraphs& graphs,
                        const std::vector<DecodeRow>& rows);

struct PrefillRow {
  int32_t chunk = 0;
  int32_t prompt = 0;
  Spread us;         // of the whole prompt
  double flops = 0;  // likewise, by the records

  double tok_s() const { return us.median > 0 ? prompt / us.median * 1e6 : 0; }
};
std::string prefill_text(const Roofs& roofs, const PrefillRow& row);
json::Value prefill_json(const Roofs& roofs, const PrefillRow& row);

// Launches of one kernel, and for products one shape, of a pass: on a GPU those of all layers in a
// graph that is replayed, so that weights are cold where all of them together are large.
struct KernelRow {
  std::string name;
  int64_t m = 0, n = 0, k = 0;  // of products
  int64_t launches = 0;         // timed together
  Spread us;                    // of one
  double bytes = 0;             // likewise
  double flops = 0;
  bool is_cold = false;  // more than kColdBytes before a weight comes again
  std::string note;      // of peers that could not be run
};
inline constexpr double kColdBytes = 300e6;

// Those whose name contains `only`.
Result<std::vector<KernelRow>> bench_kernels(device::Device& device,
                                             const Pass& pass,
                                             std::string_view only,
                                             int32_t repeats);
// The same products in BF16 and FP8 by cublasLt, with weights in turn; on a GPU.
Result<std::vector<KernelRow>> bench_peers(device::Device& device,
                                           const std::vector<KernelRow>& ours,
                                           int32_t repeats);
std::string kernels_text(const Roofs& roofs, const std::vector<KernelRow>& rows);
json::Value kernels_json(const Roofs& roofs, const std::vector<KernelRow>& rows);

}  // namespace nibble::tools
