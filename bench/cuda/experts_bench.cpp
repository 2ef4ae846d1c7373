// Routed experts of one DeepSeek-V4-Flash layer on a GPU: FC1 with SwiGLU, quantisation, FC2, as a
// graph of dependent launches over rotated weights, held against the read stream of the same run.
// Prints one JSON object per line.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sm90/expert_matmul/launch.h"
#include "kernels/kernel.h"
#include "kernels/panel64.h"
#include "quant/reference.h"

namespace nibble {
namespace {

using namespace kernels;        // NOLINT: a program of its own
using namespace kernels::cuda;  // NOLINT
using cuda_bench::Run;
using cuda_bench::Spread;
using cuda_bench::time_graph_us;

constexpr int64_t kHidden = 4096, kIntermediate = 2048;
constexpr int32_t kNumExperts = 256, kChoices = 6, kNumLayers = 2;

// A few random experts, packed.
Result<PackedWeight> pack_random(
    quant::Format format, int64_t n, int64_t k, PanelOrder order, uint32_t seed) {
  const quant::FormatInfo& info = quant::format_info(format);
  std::mt19937 random(seed);
  quant::QuantizedWeight stored{
      .format = format, .n = n, .k = k, .scale_dtype = info.scale_dtypes.dtypes[0]};
  stored.codes.resize(static_cast<size_t>(n * k / 2));
  for (std::byte& code : stored.codes) code = static_cast<std::byte>(random() & 0xFFU);
  for (int64_t i = 0; i < n * k / info.block_shape.k; ++i) {
    if (format == quant::Format::kInt4Group32) stored.scales.push_back(std::byte{0x10});
    const uint32_t base = format == quant::Format::kMxfp4   ? 118
                          : format == quant::Format::kNvfp4 ? 0x20
                                                            : 0x3A;
    stored.scales.push_back(static_cast<std::byte>(base + random() % 8));
  }
  const WeightRows rows{.weight = stored.view(), .row_begin = 0, .row_end = n};
  return pack_panel64({&rows, 1}, order);
}

// All experts of kNumLayers layers; a few distinct ones repeated, which the memory cannot know.
struct Weights {
  device::Buffer storage;
  std::vector<PackedWeight> layers;
};
Result<Weights> make_weights(
    device::Device& device, quant::Format format, int64_t n, int64_t k, PanelOrder order) {
  constexpr int32_t kDistinct = 4;
  const int64_t package = panel_bytes(format, n, k), multipliers = n * 4;
  const int64_t layer_bytes = kNumExperts * (package + multipliers);
  Weights weights;
  TRY_ASSIGN(weights.storage, device.allocate(kNumLayers * layer_bytes));
  std::vector<PackedWeight> distinct;
  for (uint32_t seed = 1; seed <= kDistinct; ++seed) {
    TRY_ASSIGN(PackedWeight packed, pack_random(format, n, k, order, seed));
    distinct.push_back(std::move(packed));
  }
  for (int32_t l = 0; l < kNumLayers; ++l) {
    std::byte* const codes = weights.storage.data() + l * layer_bytes;
    std::byte* const rows = codes + kNumExperts * package;
    for (int32_t e = 0; e < kNumExperts; ++e) {
      const PackedWeight& source = distinct[static_cast<size_t>((e + l) % kDistinct)];
      TRY(device::copy_to_device(codes + e * package, source.codes, package, device.stream()));
      TRY(device::copy_to_device(
          rows + e * multipliers, source.global_scales, multipliers, device.stream()));
    }
    PackedWeight& layer = weights.layers.emplace_back();
    layer.format = format;
    layer.layout = PackedLayout::kPanel64;
    layer.n = n;
    layer.k = k;
    layer.codes = codes;
    layer.global_scales = reinterpret_cast<const float*>(rows);
  }
  TRY(device::synchronize(device.stream()));
  return weights;
}

// Token choices of one step, its slots and its activations, on the device.
struct Step {
  device::Buffer storage;
  int32_t num_pairs = 0;
  int64_t distinct_experts = 0;
  int32_t* ids = nullptr;
  int32_t *count = nullptr, *experts = nullptr, *pairs = nullptr;
  std::byte *x_codes = nullptr, *h_codes = nullptr;
  float *x_scales = nullptr, *h_scales = nullptr, *y = nullptr, *out = nullptr;
  int32_t* counters = nullptr;
  void* h = nullptr;
  ExpertSlots slots;
};

Result<Step> make_step(device::Device& device, int32_t tokens, int32_t rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  std::vector<bool> hit(kNumExperts);
  for (int32_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> own;
    while (own.size() < kChoices) {
      const auto e = static_cast<int32_t>(random() % kNumExperts);
      if (std::find(own.begin(), own.end(), e) == own.end()) own.push_back(e);
      hit[static_cast<size_t>(e)] = true;
    }
    ids.insert(ids.end(), own.begin(), own.end());
  }
  std::vector<std::byte> codes(static_cast<size_t>(tokens * kHidden));
  for (std::byte& code : codes)
    code = static_cast<std::byte>((random() & 0x80U) | random() % 0x70U);
  std::vector<float> scales(codes.size() / 128, 0.0078125f);

  Step step;
  step.num_pairs = tokens * kChoices;
  step.distinct_experts = std::count(hit.begin(), hit.end(), true);
  const int32_t most = max_slots(step.num_pairs, kNumExperts, rows);
  TRY_ASSIGN(step.storage, device.allocate(int64_t{tokens} * (1 << 18) + (16 << 20)));
  int64_t used = 0;
  const auto take = [&](int64_t num_bytes) {
    std::byte* const part = step.storage.data() + used;
    used = round_up(used + num_bytes, 256);
    CHECK(used <= step.storage.num_bytes()) << used;
    return part;
  };
  const int64_t pairs = step.num_pairs;
  step.ids = reinterpret_cast<int32_t*>(take(pairs * 4));
  step.count = reinterpret_cast<int32_t*>(take(4));
  step.experts = reinterpret_cast<int32_t*>(take(most * 4));
  step.pairs = reinterpret_cast<int32_t*>(take(int64_t{most} * rows * 4));
  step.x_codes = take(tokens * kHidden);
  step.x_scales = reinterpret_cast<float*>(take(tokens * kHidden / 128 * 4));
  step.h = take(pairs * kIntermediate * 2);
  step.h_codes = take(pairs * kIntermediate);
  step.h_scales = reinterpret_cast<float*>(take(pairs * kIntermediate / 128 * 4));
  step.y = reinterpret_cast<float*>(take(pairs * kHidden * 4));
  step.out = reinterpret_cast<float*>(take(tokens * kHidden * 4));
  step.counters = reinterpret_cast<int32_t*>(take((kMaxRowSlots + 1) * 4));
  step.slots = {.rows = rows,
                .count = step.count,
                .experts = rows == kOneSlotRow ? step.ids : step.experts,
                .pairs = step.pairs,
                .max_slots = most};
  device::Stream& stream = device.stream();
  const std::vector<int32_t> zeros(kMaxRowSlots + 1);
  TRY(device::copy_to_device(step.counters, zeros.data(), (kMaxRowSlots + 1) * 4, stream));
  TRY(device::copy_to_device(step.ids, ids.data(), pairs * 4, stream));
  TRY(device::copy_to_device(
      step.x_codes, codes.data(), static_cast<int64_t>(codes.size()), stream));
  TRY(device::copy_to_device(
      step.x_scales, scales.data(), static_cast<int64_t>(scales.size() * 4), stream));
  TRY(device::synchronize(stream));
  return step;
}

// Slots of one row are the choices themselves.
Result<void> make_slots(const Step& step, device::Stream& stream) {
  if (step.slots.rows == kOneSlotRow) return {};
  return launch_make_expert_slots({.ids = step.ids,
                                   .num_pairs = step.num_pairs,
                                   .num_experts = kNumExperts,
                                   .rows = step.slots.rows,
                                   .count = step.count,
                                   .experts = step.experts,
                                   .pairs = step.pairs,
                                   .is_dependent = true},
                                  stream);
}

// Steps with choices of their own, their slots made; the distinct experts of all together.
struct Steps {
  std::vector<Step> all;
  int64_t num_experts = 0;
};
Result<Steps> make_steps(device::Device& device, int32_t count, int32_t tokens, int32_t rows) {
  Steps steps;
  for (int32_t i = 0; i < count; ++i) {
    TRY_ASSIGN(Step step, make_step(device, tokens, rows, static_cast<uint32_t>(100 * tokens + i)));
    TRY(make_slots(step, device.stream()));
    steps.num_experts += step.distinct_experts;
    steps.all.push_back(std::move(step));
  }
  return steps;
}

DeviceGroupedMatMulArgs up_args(const Step& step,
                                const PackedWeight& weight,
                                const device::Device& device) {
  return {.x = {.fp8 = step.x_codes, .fp8_scales = step.x_scales},
          .pairs_per_row = kChoices,
          .weight = &weight,
          .slots = step.slots,
          .swiglu = true,
          .limit = 10.0f,
          .y = step.h,
          .num_units = device.info().num_units,
          .is_dependent = true};
}

DeviceGroupedMatMulArgs down_args(const Step& step,
                                  const PackedWeight& weight,
                                  const device::Device& device) {
  return {.x = {.bf16 = step.slots.rows <= kLargeSlotRows ? step.h : nullptr,
                .fp8 = step.h_codes,
                .fp8_scales = step.h_scales},
          .pairs_per_row = 1,
          .weight = &weight,
          .slots = step.slots,
          .slots_are_ready = step.slots.rows == kOneSlotRow,
          .y = step.y,
          .num_units = device.info().num_units,
          .is_dependent = true};
}

// Both products of one token in one launch.
Result<void> join(const Step& step,
                  const PackedWeight& fc1,
                  const PackedWeight& fc2,
                  bool slots_are_ready,
                  device::Device& device) {
  DeviceGroupedMatMulArgs args = up_args(step, fc1, device);
  args.slots_are_ready = slots_are_ready;
  args.down = {.weight = &fc2, .y = step.y, .counters = step.counters};
  return launch_expert_matmul_sm90(args, device.stream());
}

Launcher<DeviceGroupedMatMulArgs> product_of(const Step& step) {
  return step.slots.rows > kLargeSlotRows ? &launch_expert_prefill_sm90
                                          : &launch_expert_matmul_sm90;
}

Result<void> up(const Step& step, const PackedWeight& weight, device::Device& device) {
  return product_of(step)(up_args(step, weight, device), device.stream());
}

// Products of few rows quantise them themselves.
Result<void> quantize(const Step& step, device::Stream& stream) {
  if (step.slots.rows <= kLargeSlotRows) return {};
  return launch_quantize({.x_bf16 = step.h,
                          .m = step.num_pairs,
                          .k = kIntermediate,
                          .y = {.fp8 = step.h_codes, .fp8_scales = step.h_scales},
                          .is_dependent = true},
                         stream);
}

Result<void> down(const Step& step, const PackedWeight& weight, device::Device& device) {
  return product_of(step)(down_args(step, weight, device), device.stream());
}

// Tokens and slot rows that are measured, and how many layers a graph holds.
struct Shape {
  int32_t tokens, rows, count;
};
constexpr Shape kShapes[] = {{1, 1, 24},
                             {2, 1, 12},
                             {4, 1, 6},
                             {16, 8, 6},
                             {64, 8, 6},
                             {256, 16, 6},
                             {512, 64, 4},
                             {1024, 64, 4},
                             {2048, 64, 4},
                             {4096, 128, 2},
                             {8192, 256, 2}};

Result<void> run_format(device::Device& device,
                        quant::Format format,
                        const Run& bench,
                        const Weights& fc1,
                        const Weights& fc2) {
  device::Stream& stream = device.stream();
  const int64_t fc1_bytes = panel_bytes(format, 2 * kIntermediate, kHidden);
  const int64_t fc2_bytes = panel_bytes(format, kHidden, kIntermediate);
  const std::string prefix = std::string(quant::format_name(format)) + "_";
  for (Shape shape : kShapes) {
    if (format != quant::Format::kMxfp4) shape.rows = std::min(shape.rows, kPrefillSlotRows[0]);
    const std::string suffix = "_t" + std::to_string(shape.tokens) + "_";
    const auto wants = [&](std::string_view what) {
      return bench.wants(prefix + std::string(what) + suffix);
    };
    if (!wants("fc1") && !wants("fc2") && !wants("experts")) continue;
    const int32_t count = shape.count;
    TRY_ASSIGN(const Steps steps, make_steps(device, count, shape.tokens, shape.rows));
    const auto layer = [](int32_t i) { return static_cast<size_t>(i % kNumLayers); };
    const auto step_of = [&](int32_t i) -> const Step& {
      return steps.all[static_cast<size_t>(i)];
    };
    const auto print = [&](std::string_view what, int64_t expert_bytes, const Spread& us) {
      bench.print(prefix + std::string(what) + suffix,
                  shape.tokens,
                  steps.num_experts * expert_bytes / count,
                  us);
    };
    if (wants("fc1")) {
      TRY_ASSIGN(const Spread us, time_graph_us(stream, count, [&](int32_t i) {
                   return up(step_of(i), fc1.layers[layer(i)], device);
                 }));
      print("fc1", fc1_bytes, us);
    }
    if (wants("fc2")) {
      TRY_ASSIGN(const Spread us, time_graph_us(stream, count, [&](int32_t i) {
                   return down(step_of(i), fc2.layers[layer(i)], device);
                 }));
      print("fc2", fc2_bytes, us);
    }
    if (!wants("experts")) continue;
    if (shape.rows == kOneSlotRow) {
      for (const bool are_ready : {false, true}) {
        TRY_ASSIGN(const Spread us, time_graph_us(stream, count, [&](int32_t i) {
                     const size_t l = layer(i);
                     return join(step_of(i), fc1.layers[l], fc2.layers[l], are_ready, device);
                   }));
        print(are_ready ? "experts_ready" : "experts", fc1_bytes + fc2_bytes, us);
      }
      continue;
    }
    TRY_ASSIGN(const Spread us, time_graph_us(stream, count, [&](int32_t i) -> Result<void> {
                 TRY(make_slots(step_of(i), stream));
                 TRY(up(step_of(i), fc1.layers[layer(i)], device));
                 TRY(quantize(step_of(i), stream));
                 return down(step_of(i), fc2.layers[layer(i)], device);
               }));
    print("experts", fc1_bytes + fc2_bytes, us);
    const double flops = 2.0 * shape.tokens * kChoices * 3 * kHidden * kIntermediate;
    fmt::print("{{\"tflops\": {:.0f}, \"of\": \"{}experts{}\"}}\n",
               flops / us.median / 1e6,
               prefix,
               suffix);
  }
  return {};
}

// Every portable row over memory that it takes for the weights of 256 experts: both products of a
// step. Their shares are in KernelInfo::timed.
Result<void> run_portable(device::Device& device, const std::vector<std::string>& names) {
  const auto rows = cuda_bench::portable_rows(Op::kGroupedMatMul, names);
  if (rows.empty()) return {};
  TRY_ASSIGN(const device::Buffer data, device.allocate(int64_t{26} << 30));
  TRY(cuda_bench::fill_randomly(data.data(), data.num_bytes(), device.stream()));
  TRY_ASSIGN(const Run bench, Run::start(device, data, names));
  for (const KernelInfo* kernel : rows) {
    const PackedWeight fc1 = cuda_bench::row_major_weight(
        kernel->weight, 2 * kIntermediate, kHidden, kNumExperts, data.data());
    const int64_t fc1_bytes = cuda_bench::row_major_bytes(fc1);
    const PackedWeight fc2 = cuda_bench::row_major_weight(
        kernel->weight, kHidden, kIntermediate, kNumExperts, data.data() + kNumExperts * fc1_bytes);
    for (const int32_t tokens : kTimedTokens) {
      const int32_t count = tokens == 1 ? 24 : 4;
      const int32_t slot_rows = choose_slot_rows(*kernel, tokens, kChoices, kNumExperts);
      TRY_ASSIGN(const Steps steps, make_steps(device, count, tokens, slot_rows));
      const auto both = [&](int32_t i) -> Result<void> {
        const Step& step = steps.all[static_cast<size_t>(i)];
        DeviceGroupedMatMulArgs up = up_args(step, fc1, device),
                                down = down_args(step, fc2, device);
        up.x = down.x = cuda_bench::all_forms(data.data());
        const auto launch = std::get<Launcher<DeviceGroupedMatMulArgs>>(kernel->launch);
        TRY(launch(up, device.stream()));
        return launch(down, device.stream());
      };
      TRY_ASSIGN(const Spread us, time_graph_us(device.stream(), count, both));
      bench.print(kernel->name,
                  tokens,
                  steps.num_experts * (fc1_bytes + cuda_bench::row_major_bytes(fc2)) / count,
                  us);
    }
  }
  return {};
}

Result<void> run(const std::vector<std::string>& names) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  TRY(run_portable(*device, names));
  for (const quant::Format format :
       {quant::Format::kMxfp4, quant::Format::kNvfp4, quant::Format::kInt4Group32}) {
    const std::string name(quant::format_name(format));
    const bool is_wanted =
        names.empty() || std::any_of(names.begin(), names.end(), [&](auto& n) {
          return n.find(name) != std::string::npos ||
                 (n.find("mxfp4") == std::string::npos && n.find("nvfp4") == std::string::npos &&
                  n.find("int4") == std::string::npos && n.find("sm_") == std::string::npos);
        });
    if (!is_wanted) continue;
    TRY_ASSIGN(const Weights fc1,
               make_weights(*device, format, 2 * kIntermediate, kHidden, PanelOrder::kGateUp));
    TRY_ASSIGN(const Weights fc2,
               make_weights(*device, format, kHidden, kIntermediate, PanelOrder::kNatural));
    TRY_ASSIGN(const Run bench, Run::start(*device, fc1.storage, names));
    TRY(run_format(*device, format, bench, fc1, fc2));
  }
  return {};
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run({argv + 1, argv + argc}));
}
