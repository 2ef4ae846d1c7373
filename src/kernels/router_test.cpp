#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/device_args.h"
#include "kernels/kernel.h"

namespace nibble::kernels {
namespace {

using ::testing::HasSubstr;

constexpr KernelInfo kSpecialised = {
    .name = "matmul.mxfp4.bf16.avx512_bf16.simd.test",
    .op = Op::kMatMul,
    .has_weight = true,
    .weight = quant::Format::kMxfp4,
    .activation = Activation::kBf16,
    .unit = ComputeUnit::kSimd,
    .target = {.kind = device::DeviceKind::kCpu,
               .isa = device::kIsaAvx512 | device::kIsaAvx512Bf16},
    .limits = {.m_max = 8, .n_multiple = 16, .k_multiple = 128, .k_max = 4096},
    .launch =
        Launcher<MatMulArgs>{[](const MatMulArgs&, device::Stream&) { return Result<void>(); }},
};

const Problem kProblem = {.op = Op::kMatMul,
                          .has_weight = true,
                          .weight = quant::Format::kMxfp4,
                          .activation = Activation::kBf16,
                          .m_max = 4,
                          .n = 64,
                          .k = 256};

device::DeviceInfo cpu(device::IsaSet isa) {
  device::DeviceInfo info;
  info.name = "test CPU";
  info.isa = isa;
  return info;
}
const device::DeviceInfo kWideCpu =
    cpu(device::kIsaAvx2 | device::kIsaAvx512 | device::kIsaAvx512Bf16);

std::string reason(const Problem& problem, const device::DeviceInfo& device = kWideCpu) {
  const std::optional<Refusal> refusal = check(kSpecialised, problem, device);
  return refusal ? refusal->reason : "";
}

TEST(Check, AcceptsWhatTheRecordStates) { EXPECT_EQ(reason(kProblem), ""); }

TEST(Check, RefusesWithValues) {
  Problem problem = kProblem;
  problem.k = 96;
  EXPECT_EQ(reason(problem), "k 96, needs a multiple of 128");
  problem = kProblem;
  problem.n = 40;
  EXPECT_EQ(reason(problem), "n 40, needs a multiple of 16");
  problem = kProblem;
  problem.m_max = 9;
  EXPECT_EQ(reason(problem), "m 9, at most 8");
  problem.m_max = 0;
  EXPECT_EQ(reason(problem), "m unbounded, at most 8");
  problem = kProblem;
  problem.k = 8192;
  EXPECT_EQ(reason(problem), "k 8192, at most 4096");
  problem = kProblem;
  problem.weight = quant::Format::kNvfp4;
  EXPECT_EQ(reason(problem), "weight nvfp4, takes mxfp4");
  problem = kProblem;
  problem.activation = Activation::kF32;
  EXPECT_EQ(reason(problem), "activation f32 asked for, multiplies in bf16");
  problem = kProblem;
  problem.op = Op::kGroupedMatMul;
  EXPECT_EQ(reason(problem), "op grouped_matmul, computes matmul");
  EXPECT_EQ(reason(kProblem, cpu(device::kIsaAvx2 | device::kIsaAvx512)),
            "needs avx512_bf16, device has avx2+avx512");
  device::DeviceInfo gpu;
  gpu.kind = device::DeviceKind::kCuda;
  EXPECT_EQ(reason(kProblem, gpu), "runs on a CPU");
}

TEST(Check, RefusesRowsWithoutCode) {
  KernelInfo kernel = kSpecialised;
  kernel.launch = {};
  EXPECT_EQ(check(kernel, kProblem, kWideCpu)->reason, "not in this build");
  kernel.status = Status::kPlanned;
  EXPECT_EQ(check(kernel, kProblem, kWideCpu)->reason, "planned, not written yet");
}

TEST(Route, TakesTheReferenceOnABareCpuWhereAllowedAndSaysWhy) {
  const Route found = route(kProblem, cpu(0), {.allow_reference = true}).value();
  EXPECT_EQ(found.kernel->name, "matmul.mxfp4.f32.cpu.scalar");
  for (const Refusal& refusal : found.refused) EXPECT_THAT(refusal.reason, HasSubstr("needs avx"));
}

// Invariant 15: no op and no format falls back to the reference by itself.
TEST(Route, NeverTakesTheReferenceUnasked) {
  for (const KernelInfo* kernel : all_kernels()) {
    if (kernel->target.kind != device::DeviceKind::kCpu) continue;
    const Problem problem = {.op = kernel->op,
                             .has_weight = kernel->has_weight,
                             .weight = kernel->weight,
                             .activation = kernel->activation,
                             .n = 8,
                             .k = 256};
    const Result<Route> bare = route(problem, cpu(0));
    ASSERT_FALSE(bare.ok()) << kernel->name;
    EXPECT_EQ(bare.error().code, Errc::kUnsupported);
    EXPECT_THAT(bare.error().message, HasSubstr("the scalar reference, which --allow-reference"));
    EXPECT_THAT(bare.error().message, HasSubstr("needs avx2"));
    EXPECT_TRUE(is_reference(*route(problem, cpu(0), {.allow_reference = true})->kernel));
    // Allowed is not preferred.
    EXPECT_FALSE(is_reference(*route(problem, kWideCpu, {.allow_reference = true})->kernel));
  }
}

TEST(Route, OptionsRestrictTheChoice) {
  const Route only = route(kProblem, kWideCpu, {.only = "scalar", .allow_reference = true}).value();
  EXPECT_EQ(only.kernel->name, "matmul.mxfp4.f32.cpu.scalar");
  const Result<Route> none = route(kProblem, kWideCpu, {.only = "cuda", .allow_reference = true});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Errc::kUnsupported);
  EXPECT_THAT(none.error().message,
              HasSubstr("no kernel for matmul.mxfp4.bf16 (m 4, n 64, k 256) on test CPU"));
  EXPECT_THAT(none.error().message,
              HasSubstr("matmul.mxfp4.f32.cpu.scalar: restricted to names with \"cuda\""));
}

TEST(Route, FindsEveryOpAndFormatOnEveryCpu) {
  for (const quant::FormatInfo& info : quant::kFormats) {
    for (const Op op : {Op::kMatMul, Op::kGroupedMatMul}) {
      Problem problem = kProblem;
      problem.op = op;
      problem.weight = info.format;
      EXPECT_TRUE(route(problem, cpu(0), {.allow_reference = true}).ok()) << info.name;
    }
  }
}

device::DeviceInfo gpu(int32_t sm) {
  device::DeviceInfo info;
  info.kind = device::DeviceKind::kCuda;
  info.name = "sm_" + std::to_string(sm);
  info.sm = sm;
  return info;
}

std::string planned(Op op, quant::Format weight, Activation activation, int32_t sm) {
  const Problem problem = {.op = op,
                           .has_weight = true,
                           .weight = weight,
                           .activation = activation,
                           .n = 4096,
                           .k = 4096};
  const Result<Route> found = route(problem, gpu(sm), {.for_plan = true});
  return found.ok() ? std::string(found->kernel->name) : "";
}

// B33: FP8 experts on every generation, and nothing for one that is not known.
TEST(PlannedRoute, HasNoGapBetweenGenerationsB33) {
  for (const int32_t sm : {80, 86, 89, 90, 100, 103, 110, 120, 121}) {
    for (const quant::Format format : {quant::Format::kFp8E4m3Block128x128,
                                       quant::Format::kFp8E4m3Block32x32,
                                       quant::Format::kFp8E4m3Tensor,
                                       quant::Format::kFp8E4m3Channel,
                                       quant::Format::kMxfp8,
                                       quant::Format::kMxfp4,
                                       quant::Format::kNvfp4,
                                       quant::Format::kInt4Group32,
                                       quant::Format::kInt4Group128,
                                       quant::Format::kInt8Channel,
                                       quant::Format::kBf16}) {
      for (const Op op : {Op::kMatMul, Op::kGroupedMatMul}) {
        EXPECT_THAT(planned(op, format, Activation::kNvfp4, sm), HasSubstr("tensor_core"))
            << quant::format_name(format) << " on " << sm;
      }
    }
  }
  for (const int32_t sm : {75, 101 - 10, 112, 130}) {
    EXPECT_EQ(planned(Op::kGroupedMatMul, quant::Format::kMxfp4, Activation::kFp8, sm), "") << sm;
  }
}

// What a route multiplies in, on tensor cores: "bf16", "fp8", "nvfp4", "int8"; else the kernel's
// name.
std::string multiplies_in(quant::Format weight, Activation activation, int32_t sm) {
  const Problem problem = {.op = Op::kGroupedMatMul,
                           .has_weight = true,
                           .weight = weight,
                           .activation = activation,
                           .n = 4096,
                           .k = 4096};
  const Result<Route> found = route(problem, gpu(sm), {.for_plan = true});
  if (!found.ok()) return "none";
  const KernelInfo& kernel = *found->kernel;
  return std::string(kernel.unit == ComputeUnit::kTensorCore ? activation_name(kernel.activation)
                                                             : kernel.name);
}

// Spec "quantization" 3.2, every row that a detected format leads to, on every generation.
TEST(PlannedRoute, TakesTheBestPathOfEachGeneration) {
  using quant::Format;
  constexpr int32_t kGenerations[] = {80, 86, 89, 90, 100, 103, 110, 120, 121};
  struct Row {
    Format format;
    Activation activation;
    std::string_view paths[9];
  };
  const Row rows[] = {
      {Format::kBf16,
       Activation::kNvfp4,
       {"bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      {Format::kF16,
       Activation::kNvfp4,
       {"bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      {Format::kFp8E4m3Tensor,
       Activation::kNvfp4,
       {"bf16", "bf16", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8"}},
      {Format::kFp8E4m3Channel,
       Activation::kNvfp4,
       {"bf16", "bf16", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8"}},
      {Format::kFp8E4m3Block128x128,
       Activation::kNvfp4,
       {"bf16", "bf16", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8"}},
      {Format::kMxfp4,
       Activation::kNvfp4,
       {"bf16", "bf16", "bf16", "fp8", "fp8", "fp8", "fp8", "fp8", "fp8"}},
      {Format::kMxfp4,
       Activation::kBf16,
       {"bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      // What is written for FP4 tensor cores multiplies NVFP4 weights in BF16.
      {Format::kNvfp4,
       Activation::kNvfp4,
       {"bf16", "bf16", "bf16", "fp8", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      {Format::kNvfp4,
       Activation::kBf16,
       {"bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      {Format::kInt4Group32,
       Activation::kNvfp4,
       {"bf16", "bf16", "bf16", "fp8", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      {Format::kInt4Group128,
       Activation::kNvfp4,
       {"bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16", "bf16"}},
      {Format::kInt8Channel,
       Activation::kNvfp4,
       {"int8", "int8", "int8", "int8", "int8", "int8", "int8", "int8", "int8"}},
  };
  for (const Row& row : rows) {
    for (size_t i = 0; i < std::size(kGenerations); ++i) {
      EXPECT_EQ(multiplies_in(row.format, row.activation, kGenerations[i]), row.paths[i])
          << quant::format_name(row.format) << " on sm_" << kGenerations[i];
    }
  }
  // The spec leaves FP8 or wider open below sm_100 and asks for FP8 from there on.
  for (const Format format : {Format::kFp8E4m3Block32x32, Format::kMxfp8}) {
    EXPECT_EQ(multiplies_in(format, Activation::kNvfp4, 80), "bf16");
    for (const int32_t sm : {100, 103, 110, 120, 121}) {
      EXPECT_EQ(multiplies_in(format, Activation::kNvfp4, sm), "fp8") << sm;
    }
  }
}

TEST(PlannedRoute, RefusesMoreChoicesThanAGpuMakes) {
  device::DeviceInfo gpu;
  gpu.kind = device::DeviceKind::kCuda;
  gpu.sm = 90;
  Problem problem{
      .op = Op::kSelectExperts, .activation = Activation::kBf16, .n = kMaxChoices, .k = 256};
  EXPECT_TRUE(route(problem, gpu, {.for_plan = true}).ok());
  problem.n = kMaxChoices + 1;
  const Result<Route> refused = route(problem, gpu, {.for_plan = true});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("select_experts.cuda.simt: n 33, at most 32"));
}

// DeepSeek-V4-Flash's streams and V4-Pro's.
TEST(PlannedRoute, TurnsWideStreamsOfFewerTokens) {
  device::DeviceInfo gpu;
  gpu.kind = device::DeviceKind::kCuda;
  gpu.sm = 90;
  const auto most_tokens = [&](int64_t hidden) {
    const Problem problem{.op = Op::kStreamTurn, .m_max = 1, .n = 4, .k = hidden};
    return route(problem, gpu, {.for_plan = true}).value().kernel->limits.m_max;
  };
  EXPECT_EQ(most_tokens(4096), 16);
  EXPECT_EQ(most_tokens(7168), 8);
}

// DeepSeek-V4-Flash's latents with compressors, and shared experts with the router.
TEST(PlanMatMulPair, DividesBlocksByBytesWithFewSplits) {
  const auto plan = [](int64_t first_n, int64_t second_n) {
    PackedWeight first, second;
    first.format = quant::Format::kFp8E4m3Block128x128;
    first.layout = PackedLayout::kFp8Panel64;
    first.scale_dtype = DType::kF32;
    first.n = first_n;
    second.format = quant::Format::kBf16;
    second.layout = PackedLayout::kBf16Panel64;
    second.n = second_n;
    first.k = second.k = 4096;
    KernelInfo kernel;
    kernel.k_splits = {.rows = 64, .k = 256};
    return plan_matmul_pair({&kernel, &kernel}, {&first, &second}, 132);
  };
  const MatMulPairPlan compressor = plan(1536, 2624);
  EXPECT_EQ(compressor.splits[0], 1);
  EXPECT_EQ(compressor.splits[1], 2);
  EXPECT_EQ(compressor.first_blocks, 24);
  const MatMulPairPlan router = plan(4096, 256);
  EXPECT_EQ(router.splits[0], 4);
  EXPECT_EQ(router.splits[1], 4);
  EXPECT_EQ(router.first_blocks, 86);
}

}  // namespace
}  // namespace nibble::kernels
