// The dense FP8 products of a DeepSeek-V4-Flash layer on a GPU: each alone, and for few tokens as a
// chain with real dependences, wq_b, wo_a, wo_b, the shared expert's gate and up, over the weights
// of several layers. Prints one JSON object per line.
//   usage: cuda_dense_bench [part of a measurement's name]...
#include <random>
#include <string>
#include <vector>

#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "kernels/cuda/quantize/launch.h"
#include "kernels/cuda/sm90/fp8_matmul/launch.h"
#include "kernels/fp8_panel64.h"
#include "kernels/kernel.h"

namespace nibble {
namespace {

using namespace kernels;        // NOLINT: a program of its own
using namespace kernels::cuda;  // NOLINT
using cuda_bench::Run;
using cuda_bench::Spread;

constexpr int32_t kNumLayers = 12;
constexpr int32_t kMaxTokens = 8192;

struct Product {
  const char* name;
  int64_t n, k;
  int32_t groups;
  bool quantize;
};
constexpr Product kProducts[] = {{"wq_b", 32768, 1024, 1, true},
                                 {"wo_a", 8192, 4096, 8, true},
                                 {"wo_b", 4096, 8192, 1, false},
                                 {"shared_w13", 4096, 4096, 1, false},
                                 {"shared_w2", 4096, 2048, 1, false},
                                 {"wq_a_wkv", 1536, 4096, 1, false}};
constexpr size_t kNumProducts = std::size(kProducts);

// Weights of all layers; random codes, which repeat where the memory cannot know.
struct Weights {
  device::Buffer storage;
  std::vector<PackedWeight> products[kNumProducts];  // by layer
};

Result<Weights> make_weights(device::Device& device) {
  constexpr int64_t kRandomBytes = 64 << 20;
  std::mt19937_64 random(1);
  std::vector<uint64_t> codes(kRandomBytes / 8);
  for (uint64_t& code : codes) code = random() & 0xBFBFBFBFBFBFBFBFULL;  // below 2: no NaN
  std::vector<float> scales(1 << 16, 0x1p-5f);
  int64_t layer_bytes = 0;
  for (const Product& product : kProducts) {
    layer_bytes += round_up(fp8_panel_bytes(product.n, product.k).total(), 256);
  }
  Weights weights;
  TRY_ASSIGN(weights.storage, device.allocate(kNumLayers * layer_bytes));
  std::byte* next = weights.storage.data();
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    for (size_t p = 0; p < kNumProducts; ++p) {
      const Fp8PanelBytes bytes = fp8_panel_bytes(kProducts[p].n, kProducts[p].k);
      TRY(device::copy_to_device(next, codes.data(), bytes.codes, device.stream()));
      TRY(device::copy_to_device(next + bytes.codes, scales.data(), bytes.scales, device.stream()));
      PackedWeight& weight = weights.products[p].emplace_back();
      weight.format = quant::Format::kFp8E4m3Block128x128;
      weight.layout = PackedLayout::kFp8Panel64;
      weight.n = kProducts[p].n;
      weight.k = kProducts[p].k;
      weight.codes = next;
      weight.scales = next + bytes.codes;
      next += round_up(bytes.total(), 256);
    }
  }
  TRY(device::synchronize(device.stream()));
  return weights;
}

// Activations between the products: blocks by turns, partial sums.
struct Activations {
  device::Buffer storage;
  std::byte* blocks[2];
  float* sums;
};

Result<Activations> make_activations(device::Device& device) {
  constexpr int64_t kBlocks = 32768 / 128 * fp8_block_bytes(kMaxTokens);
  constexpr int64_t kSums = int64_t{kMaxTokens} * 32768 * 4;
  Activations x;
  TRY_ASSIGN(x.storage, device.allocate(2 * kBlocks + kSums));
  x.blocks[0] = x.storage.data();
  x.blocks[1] = x.blocks[0] + kBlocks;
  x.sums = reinterpret_cast<float*>(x.blocks[1] + kBlocks);
  for (std::byte* blocks : x.blocks) {  // small numbers, as codes and as scales
    TRY(device::fill_device(blocks, 0x30, kBlocks, device.stream()));
  }
  return x;
}

// The kernels of one product by number of tokens.
Result<std::vector<RangedRoute>> route_product(const Product& product, device::Device& device) {
  return route_by_rows({.op = Op::kMatMul,
                        .has_weight = true,
                        .weight = quant::Format::kFp8E4m3Block128x128,
                        .activation = Activation::kFp8,
                        .n = product.n,
                        .k = product.k},
                       device.info());
}

class Dense final {
 public:
  static Result<Dense> make(device::Device& device, const Weights& weights, const Activations& x) {
    Dense dense(device, weights, x);
    for (size_t p = 0; p < kNumProducts; ++p) {
      TRY_ASSIGN(dense.routes_[p], route_product(kProducts[p], device));
    }
    return dense;
  }

  Result<void> multiply(size_t product, int32_t layer, int32_t tokens, int32_t from) const {
    const Product& shape = kProducts[product];
    const Route& route = route_for(routes_[product], tokens);
    const bool quantize = shape.quantize && route.kernel->gives_fp8;
    return route.launch(
        DeviceMatMulArgs{
            .x = {.fp8_blocks = x_.blocks[from]},
            .m = tokens,
            .weight = &weights_.products[product][static_cast<size_t>(layer % kNumLayers)],
            .groups = shape.groups,
            .splits = quantize ? 1 : splits(product, tokens),
            .y = quantize ? nullptr : x_.sums,
            .y_fp8 = quantize ? x_.blocks[1 - from] : nullptr,
            .num_units = device_.info().num_units,
            .is_dependent = true},
        device_.stream());
  }

  Result<void> chain(int32_t layer, int32_t tokens) const {
    TRY(multiply(0, layer, tokens, 0));
    TRY(multiply(1, layer, tokens, 1));
    TRY(multiply(2, layer, tokens, 0));
    TRY(quantize(2, tokens, false));
    TRY(multiply(3, layer, tokens, 0));
    return quantize(3, tokens, true);
  }

 private:
  // The sums of a product to blocks 0. The next layer's wq_b takes the first k values of them.
  Result<void> quantize(size_t product, int32_t tokens, bool swiglu) const {
    const Product& shape = kProducts[product];
    return launch_quantize_sums({.sums = x_.sums,
                                 .splits = splits(product, tokens),
                                 .m = tokens,
                                 .n = shape.n,
                                 .swiglu = swiglu,
                                 .limit = 10.0f,
                                 .y = x_.blocks[0],
                                 .is_dependent = true},
                                device_.stream());
  }

  Dense(device::Device& device, const Weights& weights, const Activations& x)
      : device_(device), weights_(weights), x_(x) {}

  int32_t splits(size_t product, int32_t tokens) const {
    const KernelInfo& kernel = *route_for(routes_[product], tokens).kernel;
    return num_splits(kernel, kProducts[product].n, kProducts[product].k, device_.info().num_units);
  }

  device::Device& device_;
  const Weights& weights_;
  const Activations& x_;
  std::vector<RangedRoute> routes_[kNumProducts];
};

int64_t weight_bytes(size_t product) {
  return fp8_panel_bytes(kProducts[product].n, kProducts[product].k).total();
}

Result<void> run(std::vector<std::string> names) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  TRY_ASSIGN(const Weights weights, make_weights(*device));
  TRY_ASSIGN(const Activations x, make_activations(*device));
  TRY_ASSIGN(const Run bench, Run::start(*device, weights.storage, std::move(names)));
  TRY_ASSIGN(const Dense dense, Dense::make(*device, weights, x));
  for (const int32_t tokens : {1, 4, 16, 32, 64, 128, 256, 512, 2048, 8192}) {
    if (tokens <= 16 && bench.wants("chain")) {
      TRY_ASSIGN(const Spread us,
                 cuda_bench::time_graph_us(device->stream(), kNumLayers, [&](int32_t layer) {
                   return dense.chain(layer, tokens);
                 }));
      int64_t bytes = 0;
      for (size_t p = 0; p < 4; ++p) bytes += weight_bytes(p);
      bench.print("chain", tokens, bytes, us);
    }
    for (size_t p = 0; p < kNumProducts; ++p) {
      if (!bench.wants(kProducts[p].name)) continue;
      TRY_ASSIGN(const Spread us,
                 cuda_bench::time_graph_us(device->stream(), kNumLayers, [&](int32_t layer) {
                   return dense.multiply(p, layer, tokens, 0);
                 }));
      bench.print(kProducts[p].name,
                  tokens,
                  weight_bytes(p),
                  us,
                  2.0 * tokens * static_cast<double>(kProducts[p].n * kProducts[p].k));
    }
  }
  return {};
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run({argv + 1, argv + argc}));
}
