// Matrix products of every row of the kernel table that this machine runs, against the machine's
// own read stream. Bytes are those of the packed weight, read once per launch; FLOPs are 2 m n k.
// `stream` is GB/s over the rate of ReadStream with the same threads, measured in the same run.
//
//   kernels_bench --benchmark_filter='fp8.*m:1/'
//
// Shapes: Flash-like (4096 x 4096, far beyond the caches), expert-like (2048 x 4096), and those of
// the bundled model.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "quant/format.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kStreamBytes = int64_t{512} << 20;

int32_t num_cores() { return device::ThreadPool({}).num_threads(); }

// Sum of the 64-bit words of a slice; the baseline instruction set saturates memory.
uint64_t read_words(const std::byte* data, int64_t num_bytes) {
  const auto* const words = reinterpret_cast<const __m128i*>(data);
  __m128i sums[4] = {};
  for (int64_t i = 0; i < num_bytes / 16; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] = _mm_add_epi64(sums[j], _mm_load_si128(words + i + j));
  }
  const __m128i sum =
      _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(sum));
}

void read_stream(benchmark::State& state) {
  const auto num_threads = static_cast<int32_t>(state.range(0));
  device::ThreadPool pool({.num_threads = num_threads});
  const device::Buffer buffer = device::Buffer::allocate(kStreamBytes).value();
  std::memset(buffer.data(), 1, static_cast<size_t>(kStreamBytes));
  constexpr int64_t kSlice = int64_t{1} << 20;
  for (auto _ : state) {
    pool.parallel_for(kStreamBytes / kSlice, [&](int64_t slice) {
      benchmark::DoNotOptimize(read_words(buffer.data() + slice * kSlice, kSlice));
    });
  }
  state.SetBytesProcessed(state.iterations() * kStreamBytes);
}

// A packed weight of random finite codes. `copies` of it are used in turn, so that none stays in a
// cache.
std::vector<PackedWeight> random_weights(const KernelInfo& kernel,
                                         int64_t n,
                                         int64_t k,
                                         int64_t copies) {
  const quant::FormatInfo& info = quant::format_info(kernel.weight);
  std::mt19937 random(1);
  std::vector<std::byte> codes(static_cast<size_t>(n * k * info.bits_per_weight / 8));
  for (std::byte& code : codes) code = static_cast<std::byte>(random() & 0x3F);
  const Shape scale_shape =
      info.has_scales() ? quant::scale_shape(kernel.weight, n, k) : Shape{0, 0};
  const DType scale_dtype = info.has_scales() ? info.scale_dtypes.dtypes[0] : DType::kF32;
  std::vector<std::byte> scales(
      static_cast<size_t>(scale_shape.num_elements() * dtype_size(scale_dtype)), std::byte{0x3F});
  quant::WeightView view{.format = kernel.weight, .n = n, .k = k};
  view.codes = TensorView::read_only(
      codes.data(), info.code_dtypes.dtypes[0], quant::code_shape(kernel.weight, n, k));
  view.scales = TensorView::read_only(scales.data(), scale_dtype, scale_shape);
  const WeightRows rows{.weight = view, .row_begin = 0, .row_end = n};
  std::vector<PackedWeight> packed;
  for (int64_t i = 0; i < copies; ++i) {
    packed.push_back(pack_weight({&rows, 1}, kernel.layout).value());
  }
  return packed;
}

struct MatMulShape {
  const char* name;
  int64_t n, k;
  int64_t min_bytes;  // of all copies together
};
constexpr MatMulShape kShapes[] = {
    {"flash_4096x4096", 4096, 4096, int64_t{256} << 20},
    {"expert_2048x4096", 2048, 4096, int64_t{256} << 20},
    {"tiny_256x256", 256, 256, 0},
    {"tiny_2048x256", 2048, 256, 0},
};

void multiply(benchmark::State& state, const KernelInfo& kernel, const MatMulShape& shape) {
  const int64_t m = state.range(0);
  device::ThreadPool pool({.num_threads = static_cast<int32_t>(state.range(1))});
  device::Stream stream{.pool = &pool};
  const int64_t weight_bytes =
      shape.n * shape.k * quant::format_info(kernel.weight).bits_per_weight / 8;
  const int64_t copies = std::max<int64_t>(1, shape.min_bytes / weight_bytes);
  const std::vector<PackedWeight> weights =
      random_weights(kernel, shape.n, shape.k, m > 16 ? 1 : copies);
  std::vector<float> x(static_cast<size_t>(m * shape.k), 0.5f);
  std::vector<float> y(static_cast<size_t>(m * shape.n));
  const auto launch = std::get<Launcher<MatMulArgs>>(kernel.launch);
  size_t next = 0;
  for (auto _ : state) {
    const MatMulArgs args{
        .x = TensorView::contiguous(x.data(), DType::kF32, {m, shape.k}),
        .weight = &weights[next],
        .y = TensorView::contiguous(y.data(), DType::kF32, {m, shape.n}),
    };
    benchmark::DoNotOptimize(launch(args, stream).ok());
    next = (next + 1) % weights.size();
  }
  state.SetBytesProcessed(state.iterations() * weights.front().num_bytes());
  state.counters["FLOPs"] =
      benchmark::Counter(2.0 * static_cast<double>(m * shape.n * shape.k * state.iterations()),
                         benchmark::Counter::kIsRate);
}

// One launch of nothing but its overhead: 16 empty tasks.
void empty_launch(benchmark::State& state) {
  device::ThreadPool pool({.num_threads = static_cast<int32_t>(state.range(0))});
  for (auto _ : state) pool.parallel_for(16, [](int64_t task) { benchmark::DoNotOptimize(task); });
}

void register_all() {
  const int32_t cores = num_cores();
  benchmark::RegisterBenchmark("ReadStream", &read_stream)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(cores)
      ->UseRealTime();
  benchmark::RegisterBenchmark("EmptyLaunch", &empty_launch)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(cores)
      ->UseRealTime();
  device::DeviceInfo device;
  device.isa = device::detect_isa();
  for (const KernelInfo* kernel : all_kernels()) {
    if (kernel->op != Op::kMatMul || kernel->unit == ComputeUnit::kScalar) continue;
    for (const MatMulShape& shape : kShapes) {
      const Problem problem{.op = Op::kMatMul,
                            .has_weight = true,
                            .weight = kernel->weight,
                            .activation = kernel->activation,
                            .n = shape.n,
                            .k = shape.k};
      if (check(*kernel, problem, device)) continue;
      benchmark::RegisterBenchmark(
          (std::string(kernel->name) + "/" + shape.name).c_str(),
          [kernel, &shape](benchmark::State& state) { multiply(state, *kernel, shape); })
          ->ArgNames({"m", "threads"})
          ->ArgsProduct({{1, 4, 16, 128, 512}, {1, cores}})
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace nibble::kernels

int main(int argc, char** argv) {
  nibble::kernels::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
