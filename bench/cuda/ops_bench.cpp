// The small ops between the products of a DeepSeek-V4-Flash layer on a GPU: graphs of launches,
// each after the one before it. Prints one JSON object per line.
//   usage: cuda_ops_bench [part of a measurement's name]...
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/quantize/launch.h"

namespace nibble {
namespace {

using namespace kernels;        // NOLINT: a program of its own
using namespace kernels::cuda;  // NOLINT
using cuda_bench::Run;

constexpr int64_t kHidden = 4096, kStreams = 4, kMix = (2 + kStreams) * kStreams;
constexpr int64_t kHeads = 64, kHeadDim = 512, kFreqs = 32, kExperts = 256, kChoices = 6;
constexpr int32_t kCount = 32;  // launches in a graph

// Parts of one zeroed buffer.
class Memory final {
 public:
  explicit Memory(device::Buffer buffer) : buffer_(std::move(buffer)) {}

  const device::Buffer& buffer() const { return buffer_; }
  void reset() { used_ = 0; }
  float* floats(int64_t count) {
    std::byte* const data = buffer_.data() + used_;
    used_ = round_up(used_ + count * 4, 256);
    CHECK(used_ <= buffer_.num_bytes()) << used_;
    return reinterpret_cast<float*>(data);
  }
  TensorView tensor(Shape shape, DType dtype = DType::kF32) {
    return TensorView::contiguous(floats(shape.num_elements()), dtype, shape);
  }

 private:
  device::Buffer buffer_;
  int64_t used_ = 0;
};

Result<void> measure(const Run& bench,
                     device::Stream& stream,
                     std::string_view what,
                     int64_t tokens,
                     int64_t bytes,
                     const std::function<Result<void>()>& launch) {
  if (!bench.wants(what)) return {};
  TRY_ASSIGN(const cuda_bench::Spread us,
             cuda_bench::time_graph_us(stream, kCount, [&](int32_t) { return launch(); }));
  bench.print(what, tokens, bytes, us);
  return {};
}

Result<void> measure_norms(const Run& bench, device::Stream& stream, Memory& memory, int64_t m) {
  memory.reset();
  const RmsNormArgs norm{.x = memory.tensor({m, kHidden}),
                         .gamma = memory.floats(kHidden),
                         .eps = 1e-6f,
                         .y = memory.tensor({m, kHidden})};
  TRY(measure(bench, stream, "rms_norm", m, 8 * m * kHidden, [&] {
    return launch_rms_norm(norm, stream);
  }));
  const RopeArgs rope{
      .x = memory.tensor({m, kHeads, kHeadDim}),
      .positions = {reinterpret_cast<const int32_t*>(memory.floats(m)), static_cast<size_t>(m)},
      .freqs = {memory.floats(kFreqs), static_cast<size_t>(kFreqs)}};
  TRY(measure(bench, stream, "rope", m, 16 * m * kHeads * kFreqs, [&] {
    return launch_rope(rope, stream);
  }));
  const QuantizeSumsArgs quantize{
      .sums = memory.floats(2 * m * kHidden),
      .splits = 2,
      .m = m,
      .n = kHidden,
      .y = reinterpret_cast<std::byte*>(memory.floats(m * kHidden / 2))};
  return measure(bench, stream, "quantize_sums", m, 9 * m * kHidden, [&] {
    return launch_quantize_sums(quantize, stream);
  });
}

Result<void> measure_hyper(const Run& bench, device::Stream& stream, Memory& memory, int64_t m) {
  memory.reset();
  const TensorView state = memory.tensor({m, kStreams * kHidden});
  const TensorView x = memory.tensor({m, kHidden});
  const TensorView post = memory.tensor({m, kStreams});
  const TensorView comb = memory.tensor({m, kStreams * kStreams});
  const HyperPreArgs pre{.state = state,
                         .fn = memory.floats(kMix * kStreams * kHidden),
                         .base = memory.floats(kMix),
                         .scale = memory.floats(3),
                         .hc_mult = kStreams,
                         .sinkhorn_iters = 20,
                         .hc_eps = 1e-6f,
                         .norm_eps = 1e-6f,
                         .x = x,
                         .post = post,
                         .comb = comb};
  const int64_t state_bytes = m * kStreams * kHidden * 4;
  TRY(measure(bench,
              stream,
              "hyper_pre",
              m,
              state_bytes + kMix * kStreams * kHidden * 4 + m * kHidden * 4,
              [&] { return launch_hyper_pre(pre, stream); }));
  const HyperPostArgs write{
      .y = x, .post = post, .comb = comb, .hc_mult = kStreams, .state = state};
  return measure(bench, stream, "hyper_post", m, 2 * state_bytes + m * kHidden * 4, [&] {
    return launch_hyper_post(write, stream);
  });
}

Result<void> measure_experts(const Run& bench, device::Stream& stream, Memory& memory, int64_t m) {
  memory.reset();
  const SelectExpertsArgs select{.logits = memory.tensor({m, kExperts}),
                                 .bias = memory.floats(kExperts),
                                 .routed_scaling_factor = 1.5f,
                                 .ids = memory.tensor({m, kChoices}, DType::kI32),
                                 .weights = memory.tensor({m, kChoices})};
  return measure(bench, stream, "select_experts", m, 4 * m * kExperts, [&] {
    return launch_select_experts(select, stream);
  });
}

Result<void> run(std::vector<std::string> names) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  TRY_ASSIGN(device::Buffer buffer, device->allocate(int64_t{1} << 30));
  Memory memory(std::move(buffer));
  TRY_ASSIGN(const Run bench, Run::start(*device, memory.buffer(), std::move(names)));
  for (const int64_t tokens : {1, 16, 256}) {
    TRY(measure_norms(bench, device->stream(), memory, tokens));
    TRY(measure_hyper(bench, device->stream(), memory, tokens));
    TRY(measure_experts(bench, device->stream(), memory, tokens));
  }
  return {};
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run({argv + 1, argv + argc}));
}
