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

TEST(Route, FallsToTheReferenceOnABareCpuAndSaysWhy) {
  const Route found = route(kProblem, cpu(0)).value();
  EXPECT_EQ(found.kernel->name, "matmul.mxfp4.f32.cpu.scalar");
  for (const Refusal& refusal : found.refused) EXPECT_THAT(refusal.reason, HasSubstr("needs avx"));
}

TEST(Route, OptionsRestrictTheChoice) {
  const Route only = route(kProblem, kWideCpu, {.deterministic = false, .only = "scalar"}).value();
  EXPECT_EQ(only.kernel->name, "matmul.mxfp4.f32.cpu.scalar");
  const Result<Route> none = route(kProblem, kWideCpu, {.deterministic = false, .only = "cuda"});
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
      EXPECT_TRUE(route(problem, cpu(0)).ok()) << info.name;
    }
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
