#include "tools/measure/roofs.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "device/cuda.h"
#include "device/emulated_gpu.h"
#include "device/graph.h"
#include "kernels/cuda/peers.h"
#include "kernels/kernel.h"

namespace nibble::tools {
namespace {

constexpr int32_t kRepeats = 8;

// Seconds of the fastest of kRepeats calls.
Result<double> best_seconds(device::Device& device, const std::function<Result<void>()>& enqueue) {
  double best = 0;
  for (int32_t i = 0; i < kRepeats; ++i) {
    double seconds = 0;
    if (is_gpu(device)) {
      TRY_ASSIGN(const double us, device::elapsed_us(device.stream(), enqueue));
      seconds = us * 1e-6;
    } else {
      const auto begin = std::chrono::steady_clock::now();
      TRY(enqueue());
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (i == 0 || seconds < best) best = seconds;
  }
  return best;
}

// BF16 numbers of a bell curve: zeros would draw less power than weights do.
std::vector<uint16_t> random_bf16(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) {
    const float x = normal(random);
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    value = static_cast<uint16_t>(bits >> 16);
  }
  return values;
}

Result<double> host_peak(device::Device& host, std::string& note) {
  constexpr int64_t kRows = 256, kWidth = 2048;
  TRY_ASSIGN(const kernels::Route route,
             kernels::route({.op = kernels::Op::kMatMul,
                             .has_weight = true,
                             .weight = quant::Format::kBf16,
                             .activation = kernels::Activation::kBf16,
                             .n = kWidth,
                             .k = kWidth},
                            host.info(),
                            {.allow_reference = true}));
  const std::vector<uint16_t> codes = random_bf16(kWidth * kWidth);
  quant::WeightView view;
  view.format = quant::Format::kBf16;
  view.n = view.k = kWidth;
  view.codes = TensorView::read_only(codes.data(), DType::kBf16, {kWidth, kWidth});
  const kernels::WeightRows rows{.weight = view, .row_begin = 0, .row_end = kWidth};
  TRY_ASSIGN(const kernels::PackedWeight weight,
             kernels::pack_weight(std::span(&rows, 1), route.kernel->layout));
  std::vector<float> x(kRows * kWidth, 0.5F), y(kRows * kWidth);
  const kernels::MatMulArgs args{
      .x = TensorView::contiguous(x.data(), DType::kF32, {kRows, kWidth}),
      .weight = &weight,
      .y = TensorView::contiguous(y.data(), DType::kF32, {kRows, kWidth})};
  TRY_ASSIGN(const double seconds,
             best_seconds(host, [&] { return route.launch(args, host.stream()); }));
  note = std::string(route.kernel->name);
  return 2.0 * kRows * kWidth * kWidth / seconds;
}

// Several launches in one measurement: a single one of half a millisecond would count its start.
Result<double> cuda_read_rate(device::Device& device) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  constexpr int32_t kLaunches = 8;
  TRY_ASSIGN(device::Buffer data, device.allocate(kBytes));
  TRY(device::fill_device(data.data(), 0x35, kBytes, device.stream()));
  TRY_ASSIGN(const auto read, kernels::cuda::ReadStream::make(device));
  TRY_ASSIGN(const double seconds, best_seconds(device, [&]() -> Result<void> {
               for (int32_t i = 0; i < kLaunches; ++i) {
                 TRY(read.launch(data.data(), kBytes, device.stream()));
               }
               return {};
             }));
  return static_cast<double>(kBytes) * kLaunches / seconds;
}

Result<double> cuda_peak(device::Device& device, std::string& note) {
  constexpr int64_t kSide = 8192, kBytes = kSide * kSide * 2;
  TRY_ASSIGN(const device::Buffer memory, device.allocate(3 * kBytes));
  const std::vector<uint16_t> values = random_bf16(kSide * kSide);
  for (const int64_t at : {int64_t{0}, kBytes}) {
    TRY(device::copy_to_device(memory.data() + at, values.data(), kBytes, device.stream()));
  }
  TRY(device::synchronize(device.stream()));
  TRY_ASSIGN(const auto product,
             kernels::cuda::BlasProduct::make(
                 device, kernels::cuda::BlasType::kBf16, kSide, kSide, kSide));
  TRY_ASSIGN(
      const double seconds, best_seconds(device, [&] {
        return product.launch(
            memory.data(), memory.data() + kBytes, memory.data() + 2 * kBytes, device.stream());
      }));
  note = "cublasLt, 8192 x 8192 x 8192";
  return 2.0 * kSide * kSide * kSide / seconds;
}

Result<double> product_peak(device::Device& device, std::string& note) {
  if (is_gpu(device)) return cuda_peak(device, note);
  if (device.info().kind == device::DeviceKind::kCpu) return host_peak(device, note);
  return unsupported("an emulated GPU has no products of its own");
}

}  // namespace

bool is_gpu(const device::Device& device) {
  const device::DeviceInfo& info = device.info();
  return info.kind == device::DeviceKind::kCuda && info.sm != device::kEmulatedSm;
}

double host_read_rate(device::Device& host) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int64_t kTasks = 64;
  const Result<device::Buffer> buffer = host.allocate(kBytes);
  if (!buffer.ok()) return 0;
  std::memset(buffer->data(), 1, static_cast<size_t>(kBytes));
  const auto* words = reinterpret_cast<const uint64_t*>(buffer->data());
  const int64_t per_task = kBytes / kTasks / int64_t{sizeof(uint64_t)};
  std::vector<uint64_t> sums(kTasks);
  double best = 0;
  for (int32_t pass = 0; pass < 4; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    host.stream().pool->parallel_for(kTasks, [&](int64_t task) {
      uint64_t sum[4] = {};
      const uint64_t* part = words + task * per_task;
      for (int64_t i = 0; i + 4 <= per_task; i += 4) {
        for (int64_t j = 0; j < 4; ++j) sum[j] += part[i + j];
      }
      sums[static_cast<size_t>(task)] = sum[0] + sum[1] + sum[2] + sum[3];
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    // The sums are needed, so that the reads are.
    if (sums[0] != 0) best = std::max(best, static_cast<double>(kBytes) / took.count());
  }
  return best;
}

Result<Roofs> measure_roofs(device::Device& device) {
  Roofs roofs;
  if (is_gpu(device)) {
    TRY_ASSIGN(roofs.read_bytes_per_s, cuda_read_rate(device));
  } else {
    roofs.read_bytes_per_s = host_read_rate(device);
  }
  const Result<double> peak = product_peak(device, roofs.bf16_note);
  if (peak.ok()) {
    roofs.bf16_flops_per_s = *peak;
  } else {
    roofs.bf16_note = peak.error().message;  // shares are then of the read stream alone
  }
  return roofs;
}

double share_of_roof(const Roofs& roofs, double bytes, double flops, double seconds) {
  if (seconds <= 0) return 0;
  const double reading = roofs.read_bytes_per_s > 0 ? bytes / roofs.read_bytes_per_s : 0;
  const double computing = roofs.bf16_flops_per_s > 0 ? flops / roofs.bf16_flops_per_s : 0;
  return std::max(reading, computing) / seconds;
}

}  // namespace nibble::tools
