#include "models/deepseek_v4/row_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "base/utf8.h"
#include "layers/linear.h"
#include "models/deepseek_v4/config.h"
#include "models/deepseek_v4/gpu/row_products.h"
#include "models/deepseek_v4/inventory.h"
#include "models/deepseek_v4/numerics.h"
#include "models/deepseek_v4/weight_map.h"
#include "quant/activation.h"
#include "quant/detect.h"

namespace nibble::models::deepseek_v4 {
namespace {

constexpr int64_t kTokens = 3;
constexpr int64_t kRowsPerModule = 64;
constexpr uint32_t kSeed = 20260417;

// The matrices that kernels multiply with, by class: "layers.*.ffn.experts.*.w1".
using Classes = std::map<std::string, std::vector<ExpectedModule>>;

bool is_matrix_product(const ExpectedModule& module) {
  const auto holds = [&](std::string_view part) {
    return module.name.find(part) != std::string::npos;
  };
  return module.shape.rank() == 2 && module.name != "embed" && !holds("hc_") && !holds(".ape") &&
         !holds("tid2eid");
}

Classes classes_of(const Config& config, DraftKind draft) {
  Classes classes;
  for (ExpectedModule& module : expected_modules(config, draft)) {
    if (!is_matrix_product(module)) continue;
    classes[quant::without_numbers(module.name)].push_back(std::move(module));
  }
  return classes;
}

// The first, then evenly spaced ones, the last among them.
std::vector<ExpectedModule> sampled(const std::vector<ExpectedModule>& modules, size_t most) {
  const size_t count = std::min(modules.size(), most);
  std::vector<ExpectedModule> chosen;
  for (size_t i = 0; i < count; ++i) {
    const size_t gaps = std::max<size_t>(count - 1, 1);
    chosen.push_back(modules[(modules.size() - 1) * i / gaps]);
  }
  return chosen;
}

// Four runs of rows, spread over the weight; all of a small one.
std::vector<kernels::WeightRows> sampled_rows(const kernels::WeightRows& all) {
  constexpr int64_t kRuns = 4;
  constexpr int64_t kRunRows = kRowsPerModule / kRuns;
  const int64_t rows = all.row_end - all.row_begin;
  if (rows <= kRowsPerModule) return {all};
  std::vector<kernels::WeightRows> runs;
  for (int64_t i = 0; i < kRuns; ++i) {
    const int64_t begin = all.row_begin + (rows - kRunRows) * i / (kRuns - 1);
    runs.push_back({.weight = all.weight, .row_begin = begin, .row_end = begin + kRunRows});
  }
  return runs;
}

bool is_grouped(const std::string& module) {
  return module.find(".experts.") != std::string::npos || module.ends_with(".wo_a");
}

// What the loader multiplies a class in (spec 7.4).
kernels::Activation activation_of(const std::string& module, const Numerics& numerics) {
  if (module == "head") return numerics.head_activation;
  const bool is_selection = module.ends_with(".gate") ||
                            module.find("compressor.") != std::string::npos ||
                            module.ends_with("weights_proj");
  return is_selection ? kernels::Activation::kF32 : numerics.activation;
}

struct Product {
  std::vector<float> y;
  std::string_view kernel;
};

// As many rows as tile sizes of GPU kernels divide, where the weight's scales begin a block.
kernels::WeightRows aligned_rows(const kernels::WeightRows& all) {
  constexpr int64_t kAlignment = 128;
  constexpr int64_t kRows = 256;
  const int64_t rows = all.row_end - all.row_begin;
  if (rows <= kRows) return all;
  const int64_t begin = all.row_begin + (rows - kRows) / 2 / kAlignment * kAlignment;
  return {.weight = all.weight, .row_begin = begin, .row_end = begin + kRows};
}

// y = x W^T on the kernel that `options` lead to. x: [kTokens, k]
Result<Product> multiply(const std::vector<kernels::WeightRows>& rows,
                         bool is_grouped,
                         std::vector<float>& x,
                         const layers::LinearOptions& options,
                         device::Stream& stream) {
  Product product;
  const int64_t k = rows.front().weight.k;
  const TensorView input = TensorView::contiguous(x.data(), DType::kF32, {kTokens, k});
  const auto output = [&](int64_t n) {
    product.y.resize(static_cast<size_t>(kTokens * n));
    return TensorView::contiguous(product.y.data(), DType::kF32, {kTokens, n});
  };
  if (!is_grouped) {
    TRY_ASSIGN(const layers::Linear linear, layers::Linear::make(rows, options));
    TRY(linear.forward(input, output(linear.n()), stream));
    product.kernel = linear.parts().front().route.kernel->name;
    return product;
  }
  TRY_ASSIGN(const layers::GroupedLinear linear,
             layers::GroupedLinear::make(std::span(&rows, 1), options));
  const int32_t offsets[] = {0, static_cast<int32_t>(kTokens)};
  const int32_t in_rows[] = {0, 1, 2};
  TRY(linear.forward(input,
                     {.group_offsets = offsets, .in_rows = in_rows, .out_rows = in_rows},
                     output(linear.n()),
                     stream));
  product.kernel = linear.route().kernel->name;
  return product;
}

class RowChecker final {
 public:
  // gpu: null for the CPU. host: what runs the reference, and the kernels where there is no GPU.
  RowChecker(WeightMap& map,
             device::Device& host,
             RowMultiplier* gpu,
             const Numerics& numerics,
             const LoadOptions& options,
             int32_t modules_per_class)
      : map_(map),
        host_(host),
        gpu_(gpu),
        numerics_(numerics),
        modules_per_class_(static_cast<size_t>(modules_per_class)),
        options_{.device = host.info(), .routing = options.routing},
        reference_{.device = host.info(),
                   .routing = {.only = ".cpu.scalar", .allow_reference = true}} {}

  Result<RowComparison> check(const std::string& name, const std::vector<ExpectedModule>& modules) {
    RowComparison comparison{.module = name};
    options_.activation = activation_of(name, numerics_);
    for (const ExpectedModule& module : sampled(modules, modules_per_class_)) {
      TRY(check_module(module, comparison));
    }
    return comparison;
  }

 private:
  Result<void> check_module(const ExpectedModule& module, RowComparison& comparison) {
    TRY_ASSIGN(const kernels::WeightRows all,
               map_.matrix(module.name, module.shape[0], module.shape[1]));
    std::vector<float> x(static_cast<size_t>(kTokens * module.shape[1]));
    for (float& value : x) value = normal_(random_);
    ++comparison.num_modules;
    return gpu_ == nullptr ? check_on_host(module, all, x, comparison)
                           : check_on_gpu(module, all, x, comparison);
  }

  Result<void> check_on_host(const ExpectedModule& module,
                             const kernels::WeightRows& all,
                             std::vector<float>& x,
                             RowComparison& comparison) {
    const std::vector<kernels::WeightRows> rows = sampled_rows(all);
    const bool grouped = is_grouped(module.name);
    TRY_ASSIGN(const Product expected, multiply(rows, grouped, x, reference_, host_.stream()));
    TRY_ASSIGN(const Product found, multiply(rows, grouped, x, options_, host_.stream()));
    return compare(module, found.kernel, expected.y, found.y, comparison);
  }

  // On all kernels that a step may take, with activations that are equal in all their forms.
  Result<void> check_on_gpu(const ExpectedModule& module,
                            const kernels::WeightRows& all,
                            std::vector<float>& x,
                            RowComparison& comparison) {
    const kernels::WeightRows rows = aligned_rows(all);
    if (module.shape[1] % 128 == 0) quant::simulate_fp8(x, 128);
    TRY_ASSIGN(const Product expected,
               multiply({rows}, is_grouped(module.name), x, reference_, host_.stream()));
    TRY_ASSIGN(
        const std::vector<RowProduct> products,
        gpu_->multiply({.all = all,
                        .rows = rows,
                        .is_expert = module.name.find(".experts.") != std::string::npos,
                        .activation = gpu_activation(all.weight.format, options_.activation)},
                       x));
    for (const RowProduct& found : products) {
      TRY(compare(
          module, found.kernel, std::span(expected.y).first(found.y.size()), found.y, comparison));
    }
    return {};
  }

  static Result<void> compare(const ExpectedModule& module,
                              std::string_view kernel,
                              std::span<const float> expected,
                              std::span<const float> found,
                              RowComparison& comparison) {
    const Result<double> cosine = compare_rows(expected, found);
    if (!cosine.ok()) {
      return data_loss(fmt::format(
          "{} on {}: {}", escape_for_display(module.name), kernel, cosine.error().message));
    }
    if (*cosine <= comparison.cosine) comparison.kernel = kernel;
    comparison.cosine = std::min(comparison.cosine, *cosine);
    comparison.num_rows += static_cast<int64_t>(found.size()) / kTokens;
    return {};
  }

  WeightMap& map_;
  device::Device& host_;
  RowMultiplier* gpu_;
  const Numerics numerics_;
  const size_t modules_per_class_;
  layers::LinearOptions options_;
  const layers::LinearOptions reference_;
  std::mt19937 random_{kSeed};
  std::normal_distribution<float> normal_;
};

}  // namespace

Result<double> compare_rows(std::span<const float> expected, std::span<const float> found) {
  double product = 0, norm_expected = 0, norm_found = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto e = static_cast<double>(expected[i]);
    const auto f = static_cast<double>(found[i]);
    product += e * f;
    norm_expected += e * e;
    norm_found += f * f;
  }
  if (!std::isfinite(norm_found) || !std::isfinite(norm_expected)) {
    return data_loss("gives results that are not finite");
  }
  if (norm_expected == 0 && norm_found == 0) return 1.0;
  if (norm_found == 0) return data_loss("gives zeros where the scalar reference does not");
  const double cosine = product / std::sqrt(std::max(norm_expected * norm_found, 1e-300));
  if (cosine >= kMinRowCosine) return cosine;
  return data_loss(fmt::format(
      "cosine {:.6f} to the scalar reference, expected {} or more", cosine, kMinRowCosine));
}

Result<std::vector<RowComparison>> check_rows(const checkpoint::Checkpoint& checkpoint,
                                              device::Device& device,
                                              const LoadOptions& options,
                                              int32_t modules_per_class) {
  TRY_ASSIGN(const checkpoint::ConfigReader reader, checkpoint.read_config());
  TRY_ASSIGN(const Config config, parse_config(reader));
  TRY_ASSIGN(WeightMap map, WeightMap::build(checkpoint));
  DraftKind draft = DraftKind::kNone;
  if (options.load_mtp && map.contains("mtp.0.e_proj.weight")) draft = DraftKind::kMtp;
  const bool is_gpu = device.info().kind == device::DeviceKind::kCuda;
  std::unique_ptr<device::Device> host;
  std::optional<RowMultiplier> gpu;
  Numerics numerics = numerics_of(options.precision);
  if (is_gpu) {
    TRY_ASSIGN(host, device::make_host_device({}));
    TRY_ASSIGN(gpu, RowMultiplier::create(device, options.routing));
    TRY_ASSIGN(numerics, gpu_numerics_of(options.precision, options.kv_dtype));
  }
  RowChecker checker(
      map, is_gpu ? *host : device, is_gpu ? &*gpu : nullptr, numerics, options, modules_per_class);
  std::vector<RowComparison> comparisons;
  for (const auto& [name, modules] : classes_of(config, draft)) {
    TRY_ASSIGN(RowComparison comparison, checker.check(name, modules));
    comparisons.push_back(std::move(comparison));
  }
  checkpoint.drop_resident();
  return comparisons;
}

}  // namespace nibble::models::deepseek_v4
