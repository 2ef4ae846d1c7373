#include "models/deepseek_v4/gpu/row_products.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/reference/forms.h"
#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::models::deepseek_v4 {

using kernels::ActivationForms;

// One matrix of activations in every form.
struct RowMultiplier::Input {
  int32_t m = 0;
  device::Buffer f32, bf16, fp8, fp8_scales, fp8_blocks, bf16_blocks, bf16_terms;

  ActivationForms forms() const {
    return {.f32 = reinterpret_cast<float*>(f32.data()),
            .bf16 = bf16.data(),
            .fp8 = fp8.data(),
            .fp8_scales = reinterpret_cast<float*>(fp8_scales.data()),
            .fp8_blocks = fp8_blocks.data(),
            .bf16_blocks = bf16_blocks.data(),
            .bf16_terms = bf16_terms.data()};
  }
};

namespace {

constexpr int64_t kFp8Group = 128;
constexpr int64_t kBf16Group = 64;

struct Fp8Matrix {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

std::vector<std::byte> blocks_of(const Fp8Matrix& x, int64_t m, int64_t k) {
  std::vector<std::byte> blocks(static_cast<size_t>(kernels::fp8_blocks_bytes(m, k)));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const kernels::Fp8BlockPlace place = kernels::fp8_block_place(m, k, row, column);
      blocks[static_cast<size_t>(place.code(column))] =
          static_cast<std::byte>(x.codes[static_cast<size_t>(row * k + column)]);
      std::memcpy(blocks.data() + place.scale(),
                  &x.scales[static_cast<size_t>((row * k + column) / kFp8Group)],
                  sizeof(float));
    }
  }
  return blocks;
}

std::vector<std::byte> bf16_blocks_of(std::span<const float> x,
                                      int64_t m,
                                      int64_t k,
                                      int64_t terms) {
  std::vector<std::byte> blocks(static_cast<size_t>(kernels::bf16_blocks_bytes(m, k, terms)));
  ActivationForms forms;
  (terms == 1 ? forms.bf16_blocks : forms.bf16_terms) = blocks.data();
  for (int64_t row = 0; row < m; ++row) {
    kernels::reference::write_forms(
        forms, m, row, x.subspan(static_cast<size_t>(row * k), static_cast<size_t>(k)));
  }
  return blocks;
}

// What a launch may take at a time: the kernel's slot widths, ascending.
std::vector<int32_t> slot_widths(const kernels::KernelInfo& kernel) {
  std::vector<int32_t> widths;
  for (const int32_t rows : kernel.slot_rows) {
    if (rows > 0) widths.push_back(rows);
  }
  return widths;
}

}  // namespace

Result<RowMultiplier> RowMultiplier::create(device::Device& device,
                                            const kernels::RouteOptions& routing) {
  TRY_ASSIGN(kernels::WeightUploader uploader,
             kernels::WeightUploader::create(
                 device, {.num_threads = 1, .num_buffers = 2, .buffer_bytes = 4 << 20}));
  return RowMultiplier(device, routing, std::move(uploader));
}

// m rows: those of `x`, repeated.
Result<RowMultiplier::Input> RowMultiplier::upload_input(std::span<const float> given,
                                                         int64_t k,
                                                         int32_t m) {
  Input input{.m = m};
  std::vector<float> repeated(static_cast<size_t>(m * k));
  for (size_t i = 0; i < repeated.size(); ++i) repeated[i] = given[i % given.size()];
  const std::span<const float> x = repeated;
  std::vector<uint16_t> halves(x.size());
  std::transform(x.begin(), x.end(), halves.begin(), quant::f32_to_bf16);
  TRY_ASSIGN(input.f32, upload(x));
  TRY_ASSIGN(input.bf16, upload(std::span<const uint16_t>(halves)));
  if (k % kBf16Group == 0) {
    const std::vector<std::byte> blocks = bf16_blocks_of(x, m, k, 1);
    const std::vector<std::byte> terms = bf16_blocks_of(x, m, k, kernels::kBf16Terms);
    TRY_ASSIGN(input.bf16_blocks, upload(std::span(blocks)));
    TRY_ASSIGN(input.bf16_terms, upload(std::span(terms)));
  }
  if (k % kFp8Group != 0) return input;
  Fp8Matrix fp8{.codes = std::vector<uint8_t>(x.size()),
                .scales = std::vector<float>(x.size() / static_cast<size_t>(kFp8Group))};
  quant::quantize_fp8(x, kFp8Group, fp8.codes, fp8.scales);
  TRY_ASSIGN(input.fp8, upload(std::span<const uint8_t>(fp8.codes)));
  TRY_ASSIGN(input.fp8_scales, upload(std::span<const float>(fp8.scales)));
  const std::vector<std::byte> blocks = blocks_of(fp8, input.m, k);
  TRY_ASSIGN(input.fp8_blocks, upload(std::span<const std::byte>(blocks)));
  return input;
}

// Adds the partial sums.
Result<std::vector<float>> RowMultiplier::read(const device::Buffer& sums,
                                               int64_t splits,
                                               int64_t count) {
  std::vector<float> parts(static_cast<size_t>(splits * count));
  TRY(device_->copy_out(parts.data(), sums.data(), splits * count * 4));
  TRY(device_->synchronize());
  std::vector<float> y(parts.begin(), parts.begin() + count);
  for (int64_t i = count; i < splits * count; ++i) {
    y[static_cast<size_t>(i % count)] += parts[static_cast<size_t>(i)];
  }
  return y;
}

Result<std::vector<float>> RowMultiplier::multiply_dense(const kernels::Route& route,
                                                         const kernels::PackedWeight& weight,
                                                         const Input& input) {
  const int32_t num_units = device_->info().num_units;
  const int32_t splits = kernels::num_splits(*route.kernel, weight.n, weight.k, num_units);
  TRY_ASSIGN(const device::Buffer y, device_->allocate(int64_t{splits} * input.m * weight.n * 4));
  TRY(route.launch(kernels::DeviceMatMulArgs{.x = input.forms(),
                                             .m = input.m,
                                             .weight = &weight,
                                             .splits = splits,
                                             .y = reinterpret_cast<float*>(y.data()),
                                             .num_units = num_units},
                   device_->stream()));
  return read(y, splits, input.m * weight.n);
}

// Every row is a pair of the one expert. Slots of one row take the first row only.
Result<std::vector<float>> RowMultiplier::multiply_expert(const kernels::Route& route,
                                                          int32_t slot_rows,
                                                          const kernels::PackedWeight& weight,
                                                          const Input& input) {
  const int32_t pairs = slot_rows == 1 ? 1 : input.m;
  const int32_t count = (pairs + slot_rows - 1) / slot_rows;
  const std::vector<int32_t> experts(static_cast<size_t>(count), 0);
  std::vector<int32_t> places(static_cast<size_t>(count * slot_rows), -1);
  for (int32_t pair = 0; pair < pairs; ++pair) places[static_cast<size_t>(pair)] = pair;
  TRY_ASSIGN(const device::Buffer device_count, upload(std::span<const int32_t>(&count, 1)));
  TRY_ASSIGN(const device::Buffer device_experts, upload(std::span<const int32_t>(experts)));
  TRY_ASSIGN(const device::Buffer device_pairs, upload(std::span<const int32_t>(places)));
  TRY_ASSIGN(const device::Buffer y, device_->allocate(pairs * weight.n * 4));
  const auto ints = [](const device::Buffer& buffer) {
    return reinterpret_cast<const int32_t*>(buffer.data());
  };
  TRY(route.launch(kernels::DeviceGroupedMatMulArgs{.x = input.forms(),
                                                    .weight = &weight,
                                                    .slots = {.rows = slot_rows,
                                                              .count = ints(device_count),
                                                              .experts = ints(device_experts),
                                                              .pairs = ints(device_pairs),
                                                              .max_slots = count},
                                                    .y = y.data(),
                                                    .num_units = device_->info().num_units},
                   device_->stream()));
  return read(y, 1, pairs * weight.n);
}

Result<std::vector<RowProduct>> RowMultiplier::multiply(const RowProblem& problem,
                                                        std::span<const float> x) {
  const quant::WeightView& weight = problem.all.weight;
  TRY_ASSIGN(const std::vector<kernels::RangedRoute> routes,
             kernels::route_by_rows(
                 {.op = problem.is_expert ? kernels::Op::kGroupedMatMul : kernels::Op::kMatMul,
                  .has_weight = true,
                  .weight = weight.format,
                  .activation = problem.activation,
                  .n = problem.all.row_end - problem.all.row_begin,
                  .k = weight.k},
                 device_->info(),
                 routing_));
  TRY_ASSIGN(const kernels::PackedWeight packed,
             uploader_.pack(
                 "self-test", std::span(&problem.rows, 1), routes.front().route.kernel->layout));
  TRY(uploader_.finish());
  const auto num_given = static_cast<int64_t>(x.size()) / weight.k;
  std::vector<RowProduct> products;
  const auto add = [&](std::string_view kernel, std::vector<float> y) {
    y.resize(std::min(y.size(), static_cast<size_t>(num_given * packed.n)));
    products.push_back({.kernel = kernel, .y = std::move(y)});
  };
  int64_t m = num_given;
  for (const kernels::RangedRoute& ranged : routes) {
    const kernels::KernelInfo& kernel = *ranged.route.kernel;
    TRY_ASSIGN(const Input input, upload_input(x, weight.k, static_cast<int32_t>(m)));
    m = std::max(m, ranged.m_max + 1);  // of the next kernel
    if (!problem.is_expert) {
      TRY_ASSIGN(std::vector<float> y, multiply_dense(ranged.route, packed, input));
      add(kernel.name, std::move(y));
      continue;
    }
    for (const int32_t width : slot_widths(kernel)) {
      TRY_ASSIGN(std::vector<float> y, multiply_expert(ranged.route, width, packed, input));
      add(kernel.name, std::move(y));
    }
  }
  return products;
}

}  // namespace nibble::models::deepseek_v4
