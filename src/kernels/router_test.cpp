#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

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

// Spec "quantization" 3.2: what each generation multiplies 4-bit and FP8 weights in.
TEST(PlannedRoute, TakesTheBestPathOfEachGeneration) {
  const auto grouped = [](quant::Format format, int32_t sm) {
    return planned(Op::kGroupedMatMul, format, Activation::kNvfp4, sm);
  };
  EXPECT_EQ(grouped(quant::Format::kMxfp4, 80), "grouped_matmul.mxfp4.bf16.sm_80.tensor_core");
  EXPECT_EQ(grouped(quant::Format::kMxfp4, 89), "grouped_matmul.mxfp4.bf16.sm_89.tensor_core");
  EXPECT_EQ(grouped(quant::Format::kMxfp4, 90), "grouped_matmul.mxfp4.fp8.sm_90.tensor_core");
  EXPECT_EQ(grouped(quant::Format::kMxfp4, 121), "grouped_matmul.mxfp4.fp8.sm_120.tensor_core");
  EXPECT_EQ(grouped(quant::Format::kNvfp4, 90), "grouped_matmul.nvfp4.bf16.sm_90.tensor_core");
  EXPECT_EQ(grouped(quant::Format::kNvfp4, 103), "grouped_matmul.nvfp4.nvfp4.sm_100.tensor_core");
  EXPECT_EQ(planned(Op::kMatMul, quant::Format::kFp8E4m3Block128x128, Activation::kFp8, 80),
            "matmul.fp8_block128x128.bf16.sm_80.tensor_core");
  // Without static scales NVFP4 activations are not asked for: W4A16.
  EXPECT_EQ(planned(Op::kGroupedMatMul, quant::Format::kNvfp4, Activation::kBf16, 120),
            "grouped_matmul.nvfp4.bf16.sm_120.tensor_core");
}

// B31: the candidates for MXFP4 on GB10, each with a reason.
TEST(PlannedRoute, NamesEveryOtherCandidateB31) {
  const Problem problem = {.op = Op::kGroupedMatMul,
                           .has_weight = true,
                           .weight = quant::Format::kMxfp4,
                           .activation = Activation::kFp8,
                           .n = 4096,
                           .k = 4096};
  const Result<Route> none = route(problem, gpu(75), {.for_plan = true});
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("sm_90.tensor_core: needs sm_90, device is sm_75"));
  EXPECT_THAT(none.error().message, testing::Not(HasSubstr("cpu")));
}

// B28: a tile that needs more than the device's shared memory is not offered.
TEST(Check, RefusesTilesBeyondSharedMemoryB28) {
  KernelInfo kernel = kSpecialised;
  kernel.target = {.kind = device::DeviceKind::kCuda, .sm_min = 120, .sm_max = 121};
  kernel.limits.shared_bytes = 128 << 10;
  device::DeviceInfo device = gpu(120);
  device.shared_bytes = 99 << 10;
  EXPECT_EQ(check(kernel, kProblem, device)->reason,
            "needs 128 KiB of shared memory, device has 99 KiB");
}

// B26: a kernel without the clamp does not get a model that needs it.
TEST(Check, RefusesKernelsWithoutClampB26) {
  KernelInfo kernel = kSpecialised;
  kernel.has_clamp = false;
  Problem problem = kProblem;
  EXPECT_FALSE(check(kernel, problem, kWideCpu));
  problem.needs_clamp = true;
  EXPECT_EQ(check(kernel, problem, kWideCpu)->reason, "has no SwiGLU clamp (swiglu_limit)");
}

// Error::reason names the one cause that all rows for the device share.
TEST(Route, FailsWithTheCodeOfItsCause) {
  const auto code = [](const Problem& problem, const device::DeviceInfo& device) {
    const Result<Route> found = route(problem, device, {.for_plan = true});
    return found.ok() ? "" : found.error().reason;
  };
  Problem experts = {.op = Op::kGroupedMatMul,
                     .has_weight = true,
                     .weight = quant::Format::kMxfp4,
                     .activation = Activation::kFp8,
                     .n = 4096,
                     .k = 4096};
  EXPECT_EQ(code(experts, gpu(90)), "");
  EXPECT_EQ(code(experts, gpu(75)), "Q-K1");
  EXPECT_EQ(code(experts, gpu(130)), "Q-K1");
  const Result<Route> built = route(experts, gpu(90));
  ASSERT_FALSE(built.ok());
  EXPECT_EQ(built.error().reason, "Q-K2");
  const Result<Route> named = route(experts, gpu(90), {.only = "marlin", .for_plan = true});
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.error().reason, "Q-K4");
}

TEST(Route, CodesOfSharedMemoryAlignmentAndClamp) {
  // Rows whose tiles are large, one by one: no other row takes the problem.
  for (const KernelInfo* kernel : all_kernels()) {
    if (!kernel->has_weight || kernel->limits.shared_bytes == 0) continue;
    device::DeviceInfo small = gpu(kernel->target.sm_min);
    small.shared_bytes = 1 << 10;
    const Problem problem = {.op = kernel->op,
                             .has_weight = kernel->has_weight,
                             .weight = kernel->weight,
                             .activation = kernel->activation,
                             .m_max = 1,
                             .n = 4096,
                             .k = 4096};
    const std::optional<Refusal> refusal = check(*kernel, problem, small, true);
    ASSERT_TRUE(refusal) << kernel->name;
    EXPECT_EQ(refusal->cause, Cause::kSharedMemory) << kernel->name;
  }
  const auto cause = [](KernelInfo kernel, const Problem& problem) {
    return check(kernel, problem, kWideCpu)->cause;
  };
  KernelInfo kernel = kSpecialised;
  kernel.limits.n_multiple = 7;
  EXPECT_EQ(cause(kernel, kProblem), Cause::kAlignment);
  kernel = kSpecialised;
  kernel.has_clamp = false;
  Problem clamped = kProblem;
  clamped.needs_clamp = true;
  EXPECT_EQ(cause(kernel, clamped), Cause::kClamp);
}

// B39: an n that tiles do not divide goes to a kernel that takes it.
TEST(PlannedRoute, OddSizesGetAnotherKernelB39) {
  const Problem problem = {.op = Op::kMatMul,
                           .has_weight = true,
                           .weight = quant::Format::kNvfp4,
                           .activation = Activation::kBf16,
                           .n = 4304,
                           .k = 1152};
  const Route found = route(problem, gpu(90), {.for_plan = true}).value();
  EXPECT_EQ(found.kernel->name, "matmul.nvfp4.bf16.sm_90.simt");
  EXPECT_EQ(found.refused.back().reason, "n 4304, needs a multiple of 64");
}

TEST(Registry, NamesSpellTheRecord) {
  for (const KernelInfo* kernel : all_kernels()) {
    if (kernel->status != Status::kPlanned) continue;
    std::string expected(op_name(kernel->op));
    if (kernel->has_weight) expected += "." + std::string(quant::format_name(kernel->weight));
    if (kernel->has_weight || kernel->activation != Activation::kF32) {
      expected += "." + std::string(activation_name(kernel->activation));
    }
    expected += ".sm_" + std::to_string(kernel->target.sm_min) + ".";
    expected += unit_name(kernel->unit);
    EXPECT_EQ(kernel->name.substr(0, expected.size()), expected);
  }
}

TEST(Registry, NamesAreUniqueAndStartWithTheOp) {
  std::set<std::string_view> names;
  for (const KernelInfo* kernel : all_kernels()) {
    EXPECT_TRUE(names.insert(kernel->name).second) << kernel->name;
    EXPECT_EQ(kernel->name.substr(0, op_name(kernel->op).size()), op_name(kernel->op));
    EXPECT_THAT(std::string(kernel->name), HasSubstr(std::string(unit_name(kernel->unit))));
  }
}

}  // namespace
}  // namespace nibble::kernels
