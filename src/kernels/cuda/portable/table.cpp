// Kernels for every GPU since sm_80 and for any shape: what runs where no row is written for a
// generation or for a size.
#include "kernels/cuda/launchers.h"
#include "kernels/planned/targets.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using quant::Format;

// Where tests/cuda last passed, with memcheck on small shapes.
constexpr HardwareRun kVerified = {.where = "NVIDIA H200, 2026-12-01", .sm = 90};

// Where benchmarks timed the products: docs/performance.md, "Portable products on an H200".
constexpr HardwareRun kTimed = {.where = "NVIDIA H200, 2026-12-01", .sm = 90};

constexpr Target since(int32_t sm) {
  return {.kind = device::DeviceKind::kCuda, .sm_min = sm, .sm_max = kSm120.sm_max};
}
constexpr std::array<int32_t, 6> kSlotRows = {1, 8, 16, 32, 64, 128};

constexpr KernelInfo product(std::string_view name,
                             Op op,
                             Format weight,
                             Activation activation,
                             ActivationForm form,
                             int64_t k_multiple,
                             const std::array<double, 4>& shares,
                             int32_t sm_min = 80) {
  KernelInfo info;
  info.name = name;
  info.op = op;
  info.has_weight = true;
  info.weight = weight;
  info.activation = activation;
  info.unit = weight == Format::kF32 ? ComputeUnit::kSimt : ComputeUnit::kTensorCore;
  info.target = since(sm_min);
  info.limits = {.k_multiple = k_multiple,
                 .shared_bytes = weight == Format::kF32 ? 0 : kLeastSharedBytes};
  info.layout = PackedLayout::kRowMajor;
  info.x_form = form;
  if (op == Op::kGroupedMatMul) info.slot_rows = kSlotRows;
  info.status = Status::kCompiled;
  info.verified = kVerified;
  info.timed = {.on = kTimed, .shares = shares};
  return info;
}

// FP8 activations from the generation on that is served best with them (spec "quantization" 3.2);
// as BF16 numbers they would run on all.
// clang-format off
constexpr KernelInfo kTable[] = {
    {.name = "sparse_attention.bf16.sm_80.tensor_core", .op = Op::kSparseAttention,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = since(80),
     .limits = {.k_multiple = 16, .k_max = 512, .shared_bytes = kLeastSharedBytes},
     .status = Status::kCompiled, .verified = kVerified},
    {.name = "sparse_attention.fp8_keys.bf16.sm_80.tensor_core", .op = Op::kSparseAttention,
     .activation = Activation::kBf16, .keys = KeyForm::kFp8, .unit = ComputeUnit::kTensorCore,
     .target = since(80),
     .limits = {.k_multiple = 16, .k_max = 512, .shared_bytes = kLeastSharedBytes},
     .status = Status::kCompiled, .verified = kVerified},
    {.name = "indexer_score.bf16.sm_80.tensor_core", .op = Op::kIndexerScore,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = since(80),
     .limits = {.n_max = 64, .k_multiple = 16, .k_max = 240, .shared_bytes = kLeastSharedBytes},
     .status = Status::kCompiled, .verified = kVerified},
    {.name = "indexer_score.fp8_keys.bf16.sm_80.tensor_core", .op = Op::kIndexerScore,
     .activation = Activation::kBf16, .keys = KeyForm::kFp8, .unit = ComputeUnit::kTensorCore,
     .target = since(80),
     .limits = {.n_max = 64, .k_multiple = 16, .k_max = 240, .shared_bytes = kLeastSharedBytes},
     .status = Status::kCompiled, .verified = kVerified},
    {.name = "top_k.sm_80.simt", .op = Op::kTopK, .unit = ComputeUnit::kSimt,
     .target = since(80), .status = Status::kCompiled, .verified = kVerified},
    product("matmul.mxfp4.fp8.sm_90.tensor_core.portable", Op::kMatMul, Format::kMxfp4, Activation::kFp8, ActivationForm::kFp8Rows, 128, {0.255, 0.16, 0.0722, 0.0189}, 90),
    product("matmul.mxfp4.bf16.sm_80.tensor_core", Op::kMatMul, Format::kMxfp4, Activation::kBf16, ActivationForm::kBf16, 32, {0.245, 0.182, 0.0763, 0.02}),
    product("matmul.nvfp4.bf16.sm_80.tensor_core", Op::kMatMul, Format::kNvfp4, Activation::kBf16, ActivationForm::kBf16, 32, {0.229, 0.124, 0.0663, 0.019}),
    product("matmul.int4_g32.bf16.sm_80.tensor_core", Op::kMatMul, Format::kInt4Group32, Activation::kBf16, ActivationForm::kBf16, 32, {0.248, 0.183, 0.0781, 0.0203}),
    product("matmul.fp8_block128x128.fp8.sm_89.tensor_core.portable", Op::kMatMul, Format::kFp8E4m3Block128x128, Activation::kFp8, ActivationForm::kFp8Rows, 128, {0.359, 0.236, 0.104, 0.0271}, 89),
    product("matmul.fp8_block128x128.bf16.sm_80.tensor_core", Op::kMatMul, Format::kFp8E4m3Block128x128, Activation::kBf16, ActivationForm::kBf16, 16, {0.323, 0.265, 0.105, 0.0276}),
    product("matmul.bf16.bf16.sm_80.tensor_core", Op::kMatMul, Format::kBf16, Activation::kBf16, ActivationForm::kBf16, 16, {0.512, 0.453, 0.208, 0.0576}),
    product("matmul.bf16.f32.sm_80.tensor_core", Op::kMatMul, Format::kBf16, Activation::kF32, ActivationForm::kF32, 16, {0.556, 0.319, 0.152, 0.0397}),
    product("matmul.f16.bf16.sm_80.tensor_core", Op::kMatMul, Format::kF16, Activation::kBf16, ActivationForm::kBf16, 16, {0.484, 0.429, 0.188, 0.0517}),
    product("matmul.f32.f32.sm_80.simt", Op::kMatMul, Format::kF32, Activation::kF32, ActivationForm::kF32, 4, {0.0882, 0.0962, 0.0264, 0.00673}),
    product("grouped_matmul.mxfp4.fp8.sm_90.tensor_core.portable", Op::kGroupedMatMul, Format::kMxfp4, Activation::kFp8, ActivationForm::kFp8Rows, 128, {0.343, 0.422, 0.409, 0.266}, 90),
    product("grouped_matmul.mxfp4.bf16.sm_80.tensor_core", Op::kGroupedMatMul, Format::kMxfp4, Activation::kBf16, ActivationForm::kBf16, 32, {0.303, 0.324, 0.314, 0.293}),
    product("grouped_matmul.nvfp4.bf16.sm_80.tensor_core", Op::kGroupedMatMul, Format::kNvfp4, Activation::kBf16, ActivationForm::kBf16, 32, {0.301, 0.333, 0.322, 0.238}),
    product("grouped_matmul.int4_g32.bf16.sm_80.tensor_core", Op::kGroupedMatMul, Format::kInt4Group32, Activation::kBf16, ActivationForm::kBf16, 32, {0.311, 0.332, 0.323, 0.3}),
    product("grouped_matmul.fp8_block128x128.fp8.sm_89.tensor_core.portable", Op::kGroupedMatMul, Format::kFp8E4m3Block128x128, Activation::kFp8, ActivationForm::kFp8Rows, 128, {0.507, 0.603, 0.582, 0.388}, 89),
    product("grouped_matmul.fp8_block128x128.bf16.sm_80.tensor_core", Op::kGroupedMatMul, Format::kFp8E4m3Block128x128, Activation::kBf16, ActivationForm::kBf16, 16, {0.412, 0.448, 0.44, 0.401}),
    product("grouped_matmul.bf16.bf16.sm_80.tensor_core", Op::kGroupedMatMul, Format::kBf16, Activation::kBf16, ActivationForm::kBf16, 16, {0.59, 0.666, 0.667, 0.619}),
    product("grouped_matmul.f16.bf16.sm_80.tensor_core", Op::kGroupedMatMul, Format::kF16, Activation::kBf16, ActivationForm::kBf16, 16, {0.542, 0.603, 0.601, 0.586}),
    product("grouped_matmul.f32.f32.sm_80.simt", Op::kGroupedMatMul, Format::kF32, Activation::kF32, ActivationForm::kF32, 4, {0.135, 0.152, 0.162, 0.0855}),
};
// clang-format on

}  // namespace

std::span<const KernelInfo> cuda_portable_kernels() {
  static const std::vector<KernelInfo> table = cuda::with_launchers(kTable);
  return table;
}

}  // namespace nibble::kernels
