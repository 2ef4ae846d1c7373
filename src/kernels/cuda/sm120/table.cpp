// The kernels of RTX 50, RTX PRO 6000 and GB10 (sm_120f) that are written for them. Their sources
// are tested on the host (tests/cuda_on_host); none has run on hardware.
#include "kernels/cuda/launchers.h"
#include "kernels/planned/targets.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using quant::Format;

// clang-format off
constexpr KernelInfo kTable[] = {
    {.name = "grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kMxfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm120,
     .limits = {.m_max = 256, .n_multiple = 16, .k_multiple = 256, .shared_bytes = 43 << 10},
     .layout = PackedLayout::kSlab16, .x_form = ActivationForm::kFp8Rows, .slot_rows = {1, 8, 16},
     .status = Status::kCompiled},
    {.name = "grouped_matmul.mxfp4.fp8.sm_120.tensor_core",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kMxfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm120,
     .limits = {.n_multiple = 16, .k_multiple = 256, .shared_bytes = 70 << 10},
     .layout = PackedLayout::kSlab16, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {1, 8, 16, 64}, .status = Status::kCompiled},
    {.name = "grouped_matmul.nvfp4.bf16.sm_120.tensor_core",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kNvfp4,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = kSm120,
     .limits = {.n_multiple = 16, .k_multiple = 256, .shared_bytes = 45 << 10},
     .layout = PackedLayout::kSlab16, .x_form = ActivationForm::kBf16, .slot_rows = {1, 8, 16},
     .status = Status::kCompiled},
    {.name = "matmul.fp8_block128x128.fp8.sm_120.tensor_core.decode",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kFp8E4m3Block128x128,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm120,
     .limits = {.m_max = 16, .n_multiple = 16, .k_multiple = 256, .shared_bytes = 49 << 10},
     .layout = PackedLayout::kSlab16, .x_form = ActivationForm::kFp8Blocks,
     .k_splits = {.rows = 16, .k = 256}, .gives_fp8 = true,
     .status = Status::kCompiled},
    {.name = "matmul.fp8_block128x128.fp8.sm_120.tensor_core",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kFp8E4m3Block128x128,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm120,
     .limits = {.n_multiple = 64, .k_multiple = 256, .shared_bytes = 68 << 10},
     .layout = PackedLayout::kSlab16, .x_form = ActivationForm::kFp8Blocks,
     .k_splits = {.rows = 16, .k = 256}, .status = Status::kCompiled},
};
// clang-format on

}  // namespace

std::span<const KernelInfo> cuda_sm120_kernels() {
  static const std::vector<KernelInfo> table = cuda::with_launchers(kTable);
  return table;
}

}  // namespace nibble::kernels
