// The dense products of a DeepSeek-V4-Flash layer and its head on a GPU: each alone, those that
// share a launch for few tokens, and the FP8 ones of a layer with real dependences, in the model's
// launches, over the weights of several layers. Prints one JSON object per line.
//   usage: cuda_dense_bench [part of a measurement's name]...
// A peer is measured beside a product when both are wanted.
#include <algorithm>
#include <string>
#include <vector>

#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "kernels/cuda/peers.h"
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
  quant::Format format;
  Activation activation;
  int64_t n, k;
  int32_t groups = 1;
  int32_t copies = kNumLayers;  // of the weight, taken by turns
};
constexpr auto kFp8Block = quant::Format::kFp8E4m3Block128x128;
constexpr auto kBf16 = quant::Format::kBf16;
constexpr Product kProducts[] = {
    {"wq_b", kFp8Block, Activation::kFp8, 32768, 1024},
    {"wo_a", kFp8Block, Activation::kFp8, 8192, 4096, 8},
    {"wo_b", kFp8Block, Activation::kFp8, 4096, 8192},
    {"shared_w13", kFp8Block, Activation::kFp8, 4096, 4096},
    {"shared_w2", kFp8Block, Activation::kFp8, 4096, 2048},
    {"wq_a_wkv", kFp8Block, Activation::kFp8, 1536, 4096},
    {"compressor", kBf16, Activation::kF32, 2624, 4096},
    {"router", kBf16, Activation::kF32, 256, 4096},
    {"head", kBf16, Activation::kBf16, 129280, 4096, 1, 1},
    {"head_f32", kBf16, Activation::kF32, 129280, 4096, 1, 1},
    {"index_wq_b", kFp8Block, Activation::kFp8, 8192, 1024},
};
constexpr size_t kNumProducts = std::size(kProducts);
constexpr size_t kChainProducts = 4;  // the first ones, one after the other in a layer

// Products that the model has in one launch for few tokens.
struct Pair {
  const char* name;
  size_t first, second;
};
constexpr Pair kPairs[] = {
    {"pair_latents_compressor", 5, 6}, {"pair_shared_router", 3, 7}, {"pair_queries", 0, 10}};

int64_t weight_bytes(size_t product) {
  const Product& shape = kProducts[product];
  return packed_weight_bytes(
      shape.format,
      shape.n,
      shape.k,
      DType::kF32,
      shape.format == kFp8Block ? PackedLayout::kFp8Panel64 : PackedLayout::kBf16Panel64);
}

// Weights of all layers.
struct Weights {
  device::Buffer storage;
  std::vector<PackedWeight> products[kNumProducts];  // by layer
};

Result<Weights> make_weights(device::Device& device) {
  const std::vector<float> scales(1 << 16, 0x1p-5f);
  int64_t bytes = 0;
  for (size_t p = 0; p < kNumProducts; ++p) {
    bytes += kProducts[p].copies * round_up(weight_bytes(p), 256);
  }
  Weights weights;
  TRY_ASSIGN(weights.storage, device.allocate(bytes));
  TRY(cuda_bench::fill_randomly(weights.storage.data(), bytes, device.stream()));
  std::byte* next = weights.storage.data();
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    for (size_t p = 0; p < kNumProducts; ++p) {
      const Product& shape = kProducts[p];
      if (layer >= shape.copies) continue;
      PackedWeight& weight = weights.products[p].emplace_back();
      weight.format = shape.format;
      weight.n = shape.n;
      weight.k = shape.k;
      weight.codes = next;
      weight.layout = PackedLayout::kBf16Panel64;
      if (shape.format == kFp8Block) {
        const Fp8PanelBytes parts = fp8_panel_bytes(shape.n, shape.k);
        weight.layout = PackedLayout::kFp8Panel64;
        weight.scales = next + parts.codes;
        TRY(device::copy_to_device(
            next + parts.codes, scales.data(), parts.scales, device.stream()));
      }
      next += round_up(weight_bytes(p), 256);
    }
  }
  TRY(device::synchronize(device.stream()));
  return weights;
}

// Activations between the products: blocks by turns, plain ones, partial sums.
struct Activations {
  device::Buffer storage;
  std::byte* blocks[2];
  std::byte* plain;  // BF16 blocks or terms
  float* sums;
};

Result<Activations> make_activations(device::Device& device) {
  constexpr int64_t kBlocks = 32768 / 128 * fp8_block_bytes(kMaxTokens);
  constexpr int64_t kPlain = int64_t{kMaxTokens} * 4096 * 6;  // terms
  constexpr int64_t kSums = int64_t{kMaxTokens} * 32768 * 4;
  Activations x;
  TRY_ASSIGN(x.storage, device.allocate(2 * kBlocks + kPlain + kSums));
  x.blocks[0] = x.storage.data();
  x.blocks[1] = x.blocks[0] + kBlocks;
  x.plain = x.blocks[1] + kBlocks;
  x.sums = reinterpret_cast<float*>(x.plain + kPlain);
  TRY(cuda_bench::fill_randomly(x.storage.data(), 2 * kBlocks + kPlain, device.stream()));
  return x;
}

// The kernels of one product by number of tokens.
Result<std::vector<RangedRoute>> route_product(const Product& product, device::Device& device) {
  return route_by_rows({.op = Op::kMatMul,
                        .has_weight = true,
                        .weight = product.format,
                        .activation = product.activation,
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
    TRY_ASSIGN(dense.pair_, route({.op = Op::kMatMulPair, .m_max = 1}, device.info()));
    return dense;
  }

  Result<void> multiply(size_t product, int32_t layer, int32_t tokens) const {
    DeviceMatMulArgs args = part(product, layer, tokens, 0);
    args.splits = splits(product, tokens);
    return route_for(routes_[product], tokens).launch(args, device_.stream());
  }

  Result<void> multiply_pair(const Pair& pair, int32_t layer, int32_t tokens) const {
    DeviceMatMulPairArgs args{.first = part(pair.first, layer, tokens, 0),
                              .second = part(pair.second, layer, tokens, 1)};
    const MatMulPairPlan plan = plan_matmul_pair({route_for(routes_[pair.first], tokens).kernel,
                                                  route_for(routes_[pair.second], tokens).kernel},
                                                 {args.first.weight, args.second.weight},
                                                 device_.info().num_units);
    args.first.splits = plan.splits[0];
    args.second.splits = plan.splits[1];
    args.first_blocks = plan.first_blocks;
    return pair_.launch(args, device_.stream());
  }

  // The FP8 products of a layer, each quantising what the next one reads.
  Result<void> layer_products(int32_t layer, int32_t tokens) const {
    for (size_t product = 0; product < kChainProducts; ++product) {
      TRY(multiply_for_next(product, layer, tokens, static_cast<int32_t>(product % 2)));
    }
    return {};
  }
  //   from: which blocks are read; the others are written
  Result<void> multiply_for_next(size_t product,
                                 int32_t layer,
                                 int32_t tokens,
                                 int32_t from) const {
    DeviceMatMulArgs args = part(product, layer, tokens, 0);
    args.x.fp8_blocks = x_.blocks[from];
    args.y = nullptr;
    args.y_fp8 = x_.blocks[1 - from];
    return route_for(routes_[product], tokens).launch(args, device_.stream());
  }

 private:
  float* sums(int32_t place) const { return x_.sums + place * (int64_t{1} << 22); }

  DeviceMatMulArgs part(size_t product, int32_t layer, int32_t tokens, int32_t place) const {
    const Product& shape = kProducts[product];
    return DeviceMatMulArgs{
        .x = {.fp8_blocks = x_.blocks[0], .bf16_blocks = x_.plain, .bf16_terms = x_.plain},
        .m = tokens,
        .weight = &weights_.products[product][static_cast<size_t>(layer % shape.copies)],
        .groups = shape.groups,
        .y = sums(place),
        .num_units = device_.info().num_units,
        .is_dependent = true};
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
  Route pair_;
};

// The same product by cublasLt where it is installed and can, with the activations and weights that
// it takes; nothing where it cannot.
Result<void> measure_peers(const Run& bench,
                           device::Device& device,
                           const Weights& weights,
                           const Activations& x,
                           size_t product,
                           int32_t tokens) {
  struct Peer {
    const char* name;
    BlasType type;
    quant::Format format;
  };
  constexpr Peer kPeers[] = {{"cublaslt_bf16", BlasType::kBf16, kBf16},
                             {"cublaslt_fp8_blocks", BlasType::kFp8Blocks, kFp8Block},
                             {"cublaslt_fp8_tensor", BlasType::kFp8, kFp8Block}};
  const Product& shape = kProducts[product];
  if (shape.groups > 1) return {};
  for (const Peer& peer : kPeers) {
    if (peer.format != shape.format || !bench.wants(peer.name)) continue;
    const auto made = BlasProduct::make(device, peer.type, tokens, shape.n, shape.k);
    if (!made.ok()) continue;
    TRY_ASSIGN(const Spread us,
               cuda_bench::time_graph_us(device.stream(), shape.copies, [&](int32_t layer) {
                 const PackedWeight& weight = weights.products[product][static_cast<size_t>(layer)];
                 return made.value().launch(x.plain, weight.codes, x.sums, device.stream());
               }));
    bench.print(std::string(shape.name) + " " + peer.name,
                tokens,
                weight_bytes(product),
                us,
                2.0 * tokens * static_cast<double>(shape.n * shape.k));
  }
  return {};
}

// Every portable row, whatever routing takes: products of the FP8 ones' shapes over memory that the
// row takes for its weights. Their shares are in KernelInfo::timed.
Result<void> measure_portable(const Run& bench,
                              device::Device& device,
                              const Weights& weights,
                              const Activations& x) {
  constexpr size_t kNumShapes = 6;
  constexpr int32_t kLayers = 3;
  for (const KernelInfo* kernel : cuda_bench::portable_rows(Op::kMatMul, bench.names())) {
    std::vector<PackedWeight> products;
    int64_t used = 0;
    for (size_t i = 0; i < kLayers * kNumShapes; ++i) {
      const Product& shape = kProducts[i % kNumShapes];
      std::byte* const data = weights.storage.data() + used;
      products.push_back(cuda_bench::row_major_weight(kernel->weight, shape.n, shape.k, 1, data));
      used += cuda_bench::row_major_bytes(products.back());
    }
    CHECK(used <= weights.storage.num_bytes());
    for (const int32_t tokens : kTimedTokens) {
      TRY_ASSIGN(
          const Spread us,
          cuda_bench::time_graph_us(device.stream(), kLayers, [&](int32_t layer) -> Result<void> {
            for (size_t p = 0; p < kNumShapes; ++p) {
              const DeviceMatMulArgs args{
                  .x = cuda_bench::all_forms(x.plain),
                  .m = tokens,
                  .weight = &products[static_cast<size_t>(layer) * kNumShapes + p],
                  .y = x.sums,
                  .num_units = device.info().num_units,
                  .is_dependent = true};
              TRY(std::get<Launcher<DeviceMatMulArgs>>(kernel->launch)(args, device.stream()));
            }
            return {};
          }));
      bench.print(kernel->name, tokens, used / kLayers, us);
    }
  }
  return {};
}

Result<void> run(std::vector<std::string> names) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  TRY_ASSIGN(const Weights weights, make_weights(*device));
  TRY_ASSIGN(const Activations x, make_activations(*device));
  TRY_ASSIGN(const Run bench, Run::start(*device, weights.storage, std::move(names)));
  TRY_ASSIGN(const Dense dense, Dense::make(*device, weights, x));
  TRY(measure_portable(bench, *device, weights, x));
  for (const int32_t tokens : {1, 4, 16, 32, 64, 128, 256, 512, 2048, 8192}) {
    if (tokens <= 16 && bench.wants("chain")) {
      TRY_ASSIGN(const Spread us,
                 cuda_bench::time_graph_us(device->stream(), kNumLayers, [&](int32_t layer) {
                   return dense.layer_products(layer, tokens);
                 }));
      int64_t bytes = 0;
      for (size_t p = 0; p < kChainProducts; ++p) bytes += weight_bytes(p);
      bench.print("chain", tokens, bytes, us);
    }
    for (size_t p = 0; p < kChainProducts; ++p) {
      if (tokens > 16 || !bench.wants("quantised")) continue;
      TRY_ASSIGN(const Spread us,
                 cuda_bench::time_graph_us(device->stream(), kNumLayers, [&](int32_t layer) {
                   return dense.multiply_for_next(p, layer, tokens, 0);
                 }));
      bench.print(std::string(kProducts[p].name) + " quantised", tokens, weight_bytes(p), us);
    }
    for (const Pair& pair : kPairs) {
      if (tokens > 16 || !bench.wants(pair.name)) continue;
      TRY_ASSIGN(const Spread us,
                 cuda_bench::time_graph_us(device->stream(), kNumLayers, [&](int32_t layer) {
                   return dense.multiply_pair(pair, layer, tokens);
                 }));
      bench.print(pair.name, tokens, weight_bytes(pair.first) + weight_bytes(pair.second), us);
    }
    for (size_t p = 0; p < kNumProducts; ++p) {
      if (!bench.wants(kProducts[p].name)) continue;
      const bool is_head = kProducts[p].n > 100000;
      if (is_head && tokens > 256) continue;
      TRY_ASSIGN(
          const Spread us,
          cuda_bench::time_graph_us(device->stream(), is_head ? 2 : kNumLayers, [&](int32_t layer) {
            return dense.multiply(p, layer, tokens);
          }));
      bench.print(kProducts[p].name,
                  tokens,
                  weight_bytes(p),
                  us,
                  2.0 * tokens * static_cast<double>(kProducts[p].n * kProducts[p].k));
      TRY(measure_peers(bench, *device, weights, x, p, tokens));
    }
  }
  return {};
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run({argv + 1, argv + argc}));
}
