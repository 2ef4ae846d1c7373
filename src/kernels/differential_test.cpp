// Walks the kernel table: every row that this machine supports against the reference row of its op
// and format; every other row must refuse with a reason. Rows are launched directly, so each ISA is
// tested wherever it can run.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/differential_testing.h"
#include "kernels/ops_cases_testing.h"

namespace nibble::kernels {
namespace {

Comparison comparison_of(Op op) {
  switch (op) {
    case Op::kMatMul:
      return &compare_matmul;
    case Op::kGroupedMatMul:
      return &compare_grouped_matmul;
    default:
      return &compare_op;
  }
}

const KernelInfo* reference_of(const KernelInfo& kernel) {
  const KernelInfo* reference = nullptr;
  for (const KernelInfo* row : all_kernels()) {
    if (row->op == kernel.op && row->has_weight == kernel.has_weight &&
        row->weight == kernel.weight && row->keys == kernel.keys &&
        row->target.kind == kernel.target.kind && row->unit == ComputeUnit::kScalar) {
      reference = row;  // the last one: reference rows end the table
    }
  }
  return reference;
}

// The problem that the record itself describes.
Problem own_problem(const KernelInfo& kernel) {
  return {.op = kernel.op,
          .has_weight = kernel.has_weight,
          .weight = kernel.weight,
          .activation = kernel.activation,
          .keys = kernel.keys,
          .m_max = kernel.limits.m_max,
          .n = kernel.limits.n_multiple,
          .k = kernel.limits.k_multiple};
}

device::DeviceInfo this_device() {
  device::DeviceInfo info;
  info.name = "this machine";
  info.isa = device::detect_isa();
  return info;
}

class EveryKernel : public ::testing::TestWithParam<const KernelInfo*> {};

TEST_P(EveryKernel, AgreesWithTheReferenceOrRefusesWithAReason) {
  const KernelInfo& kernel = *GetParam();
  if (const std::optional<Refusal> refusal = check(kernel, own_problem(kernel), this_device())) {
    EXPECT_EQ(refusal->kernel, kernel.name);
    EXPECT_FALSE(refusal->reason.empty());
    GTEST_SKIP() << refusal->reason;
  }
  const KernelInfo* const reference = reference_of(kernel);
  ASSERT_NE(reference, nullptr);
  comparison_of(kernel.op)(kernel, *reference);
}

TEST_P(EveryKernel, RefusesADeviceWithoutItsTarget) {
  const KernelInfo& kernel = *GetParam();
  device::DeviceInfo bare = this_device();
  bare.isa = 0;
  const bool needs_more = kernel.target.kind != device::DeviceKind::kCpu || kernel.target.isa != 0;
  const std::optional<Refusal> refusal = check(kernel, own_problem(kernel), bare);
  EXPECT_EQ(refusal.has_value(), needs_more || kernel.status == Status::kPlanned);
  EXPECT_TRUE(!refusal || !refusal->reason.empty());
}

std::string test_name(const ::testing::TestParamInfo<const KernelInfo*>& info) {
  std::string name(info.param->name);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::vector<const KernelInfo*> rows_with_code() {
  std::vector<const KernelInfo*> rows = all_kernels();
  std::erase_if(rows, [](const KernelInfo* row) { return row->status == Status::kPlanned; });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryKernel, ::testing::ValuesIn(rows_with_code()), test_name);

TEST(PlannedKernels, AreRefusedForExecution) {
  for (const KernelInfo* row : all_kernels()) {
    if (row->status != Status::kPlanned) continue;
    EXPECT_TRUE(std::holds_alternative<std::monostate>(row->launch)) << row->name;
    EXPECT_TRUE(row->verified.where.empty()) << row->name;
    device::DeviceInfo device;
    device.kind = row->target.kind;
    device.sm = row->target.sm_min;
    EXPECT_FALSE(check(*row, own_problem(*row), device, true)) << row->name;
    const std::optional<Refusal> refusal = check(*row, own_problem(*row), device);
    ASSERT_TRUE(refusal) << row->name;
    EXPECT_EQ(refusal->reason, "planned, not written yet");
  }
}

}  // namespace
}  // namespace nibble::kernels
