#include "cuda/cuda_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/checked_math.h"
#include "device/cuda.h"
#include "device/graph.h"
#include "kernels/cuda/stream_read/launch.h"

namespace nibble::cuda_bench {
namespace {

constexpr int32_t kRepeats = 15, kWarmUp = 3;
constexpr int64_t kReadBytes = int64_t{8} << 30;  // at least, to measure the read stream

bool are_named(const std::vector<std::string>& names, std::string_view what) {
  return names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
           return what.find(name) != std::string_view::npos;
         });
}

}  // namespace

Result<Spread> time_us(device::Stream& stream, const std::function<Result<void>()>& enqueue) {
  std::vector<double> times;
  for (int32_t i = 0; i < kWarmUp + kRepeats; ++i) {
    TRY_ASSIGN(const double us, device::elapsed_us(stream, enqueue));
    if (i >= kWarmUp) times.push_back(us);
  }
  std::sort(times.begin(), times.end());
  return Spread{times[times.size() / 2], times.front(), times.back()};
}

Result<Spread> time_graph_us(device::Stream& stream,
                             int32_t count,
                             const std::function<Result<void>(int32_t)>& step) {
  TRY_ASSIGN(const device::Graph graph, device::Graph::capture(stream, [&]() -> Result<void> {
               for (int32_t i = 0; i < count; ++i) TRY(step(i));
               return {};
             }));
  TRY_ASSIGN(const Spread spread, time_us(stream, [&] { return graph.launch(stream); }));
  return Spread{spread.median / count, spread.low / count, spread.high / count};
}

Result<Run> Run::start(device::Device& device,
                       const device::Buffer& data,
                       std::vector<std::string> names) {
  Run run(std::move(names));
  fmt::print("{{\"bench\":\"device\",\"name\":\"{}\",\"units\":{}}}\n",
             device.info().name,
             device.info().num_units);
  TRY_ASSIGN(const device::Buffer sink, device.allocate(4));
  const int64_t once = data.num_bytes() / 8192 * 8192;
  // Whatever a program has allocated, so much that the start of a launch does not count.
  const int64_t launches = ceil_div(kReadBytes, once);
  const int64_t bytes = launches * once;
  device::Stream& stream = device.stream();
  TRY_ASSIGN(const Spread read, time_us(stream, [&]() -> Result<void> {
               for (int64_t i = 0; i < launches; ++i) {
                 TRY(kernels::cuda::launch_stream_read(data.data(),
                                                       once,
                                                       device.info().num_units,
                                                       reinterpret_cast<uint32_t*>(sink.data()),
                                                       stream));
               }
               return {};
             }));
  run.roof_ = static_cast<double>(bytes) / read.median * 1e-6;
  run.print("stream_read", 0, bytes, read);
  return run;
}

bool Run::wants(std::string_view what) const { return are_named(names_, what); }

void Run::print(
    std::string_view what, int64_t tokens, int64_t bytes, const Spread& us, double flops) const {
  const double rate = static_cast<double>(bytes) / us.median * 1e-6;
  fmt::print(
      "{{\"what\":\"{}\",\"tokens\":{},\"bytes\":{},\"us\":{:.2f},\"us_low\":{:.2f},"
      "\"us_high\":{:.2f},\"tb_per_s\":{:.3f},\"roof_tb_per_s\":{:.3f},\"share\":{:.3f},\"tflops\":"
      "{:.1f}}}\n",
      what,
      tokens,
      bytes,
      us.median,
      us.low,
      us.high,
      rate,
      roof_,
      rate / roof_,
      flops / us.median * 1e-6);
  std::fflush(stdout);
}

Result<void> fill_randomly(std::byte* data, int64_t num_bytes, device::Stream& stream) {
  constexpr int64_t kRandomBytes = 64 << 20;
  static const std::vector<uint64_t> random = [] {
    std::mt19937_64 generator(1);
    std::vector<uint64_t> words(kRandomBytes / 8);
    for (uint64_t& word : words) word = generator() & 0xBFBFBFBFBFBFBFBFULL;
    return words;
  }();
  for (int64_t at = 0; at < num_bytes; at += kRandomBytes) {
    TRY(device::copy_to_device(
        data + at, random.data(), std::min(kRandomBytes, num_bytes - at), stream));
  }
  return {};
}

std::vector<const kernels::KernelInfo*> portable_rows(kernels::Op op,
                                                      const std::vector<std::string>& names) {
  std::vector<const kernels::KernelInfo*> rows;
  for (const kernels::KernelInfo* row : kernels::all_kernels()) {
    const bool is_portable = row->op == op && row->layout == kernels::PackedLayout::kRowMajor &&
                             row->target.kind == device::DeviceKind::kCuda;
    if (is_portable && row->status == kernels::Status::kRuns && !is_reference(*row) &&
        are_named(names, row->name)) {
      rows.push_back(row);
    }
  }
  return rows;
}

int64_t row_major_bytes(const kernels::PackedWeight& one) {
  return kernels::packed_weight_bytes(one.format, one.n, one.k, DType::kF32, one.layout);
}

kernels::PackedWeight row_major_weight(
    quant::Format format, int64_t n, int64_t k, int32_t count, const std::byte* data) {
  kernels::PackedWeight weight;
  weight.format = format;
  weight.layout = kernels::PackedLayout::kRowMajor;
  weight.n = n;
  weight.k = k;
  weight.codes = data;
  weight.scales =
      data + count * packed_weight_parts(format, n, k, DType::kF32, weight.layout).codes;
  return weight;
}

kernels::ActivationForms all_forms(std::byte* data) {
  auto* const values = reinterpret_cast<float*>(data);
  return {.f32 = values, .bf16 = data, .fp8 = data, .fp8_scales = values};
}

int exit_code(const Result<void>& done) {
  if (done.ok()) return 0;
  fmt::print(stderr, "{}\n", done.error().message);
  return 1;
}

}  // namespace nibble::cuda_bench
