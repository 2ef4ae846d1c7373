// Planned CUDA kernels for single matrices, by GPU generation.
// Nothing here is written yet: `plan` routes over these rows, execution refuses them. A kernel that
// is written moves its row to the table beside its code.
#include "kernels/planned/targets.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using quant::Format;

// clang-format off
constexpr KernelInfo kTable[] = {
    planned("matmul.mxfp4.fp8.sm_120.tensor_core.decode", Format::kMxfp4, Activation::kFp8, kSm120, {.m_max = 256, .n_multiple = 32, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.mxfp4.fp8.sm_120.tensor_core", Format::kMxfp4, Activation::kFp8, kSm120, {.n_multiple = 32, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.mxfp4.bf16.sm_120.simt", Format::kMxfp4, Activation::kBf16, kSm120),
    planned("matmul.nvfp4.nvfp4.sm_120.tensor_core", Format::kNvfp4, Activation::kNvfp4, kSm120, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.nvfp4.bf16.sm_120.simt", Format::kNvfp4, Activation::kBf16, kSm120),
    planned("matmul.fp8_block128x128.fp8.sm_120.tensor_core", Format::kFp8E4m3Block128x128, Activation::kFp8, kSm120, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_block128x128.bf16.sm_120.simt", Format::kFp8E4m3Block128x128, Activation::kBf16, kSm120),
    planned("matmul.fp8_block32x32.fp8.sm_120.tensor_core", Format::kFp8E4m3Block32x32, Activation::kFp8, kSm120, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 96 << 10}),
    planned("matmul.mxfp8.fp8.sm_120.tensor_core", Format::kMxfp8, Activation::kFp8, kSm120, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_tensor.fp8.sm_120.tensor_core", Format::kFp8E4m3Tensor, Activation::kFp8, kSm120, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_channel.fp8.sm_120.tensor_core", Format::kFp8E4m3Channel, Activation::kFp8, kSm120, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.int4_g32.bf16.sm_120.simt", Format::kInt4Group32, Activation::kBf16, kSm120),
    planned("matmul.int4_g128.bf16.sm_120.tensor_core", Format::kInt4Group128, Activation::kBf16, kSm120, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.int8.int8.sm_120.tensor_core", Format::kInt8Channel, Activation::kInt8, kSm120, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.bf16.f32.sm_120.simt", Format::kBf16, Activation::kF32, kSm120),
    planned("matmul.f16.f32.sm_120.simt", Format::kF16, Activation::kF32, kSm120),
    planned("matmul.mxfp4.fp8.sm_110.tensor_core", Format::kMxfp4, Activation::kFp8, kSm110, {.n_multiple = 32, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp4.bf16.sm_110.simt", Format::kMxfp4, Activation::kBf16, kSm110),
    planned("matmul.nvfp4.nvfp4.sm_110.tensor_core", Format::kNvfp4, Activation::kNvfp4, kSm110, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.nvfp4.bf16.sm_110.simt", Format::kNvfp4, Activation::kBf16, kSm110),
    planned("matmul.fp8_block128x128.fp8.sm_110.tensor_core", Format::kFp8E4m3Block128x128, Activation::kFp8, kSm110, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_block128x128.bf16.sm_110.simt", Format::kFp8E4m3Block128x128, Activation::kBf16, kSm110),
    planned("matmul.fp8_block32x32.fp8.sm_110.tensor_core", Format::kFp8E4m3Block32x32, Activation::kFp8, kSm110, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp8.fp8.sm_110.tensor_core", Format::kMxfp8, Activation::kFp8, kSm110, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_tensor.fp8.sm_110.tensor_core", Format::kFp8E4m3Tensor, Activation::kFp8, kSm110, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_channel.fp8.sm_110.tensor_core", Format::kFp8E4m3Channel, Activation::kFp8, kSm110, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.int4_g32.bf16.sm_110.simt", Format::kInt4Group32, Activation::kBf16, kSm110),
    planned("matmul.int4_g128.bf16.sm_110.tensor_core", Format::kInt4Group128, Activation::kBf16, kSm110, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.int8.int8.sm_110.tensor_core", Format::kInt8Channel, Activation::kInt8, kSm110, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.bf16.f32.sm_110.simt", Format::kBf16, Activation::kF32, kSm110),
    planned("matmul.f16.f32.sm_110.simt", Format::kF16, Activation::kF32, kSm110),
    planned("matmul.mxfp4.fp8.sm_100.tensor_core.decode", Format::kMxfp4, Activation::kFp8, kSm100, {.m_max = 256, .n_multiple = 32, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp4.fp8.sm_100.tensor_core", Format::kMxfp4, Activation::kFp8, kSm100, {.n_multiple = 32, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp4.bf16.sm_100.simt", Format::kMxfp4, Activation::kBf16, kSm100),
    planned("matmul.nvfp4.nvfp4.sm_100.tensor_core", Format::kNvfp4, Activation::kNvfp4, kSm100, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.nvfp4.bf16.sm_100.simt", Format::kNvfp4, Activation::kBf16, kSm100),
    planned("matmul.fp8_block128x128.fp8.sm_100.tensor_core.decode", Format::kFp8E4m3Block128x128, Activation::kFp8, kSm100, {.m_max = 256, .n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_block128x128.fp8.sm_100.tensor_core", Format::kFp8E4m3Block128x128, Activation::kFp8, kSm100, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_block128x128.bf16.sm_100.simt", Format::kFp8E4m3Block128x128, Activation::kBf16, kSm100),
    planned("matmul.fp8_block32x32.fp8.sm_100.tensor_core", Format::kFp8E4m3Block32x32, Activation::kFp8, kSm100, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp8.fp8.sm_100.tensor_core", Format::kMxfp8, Activation::kFp8, kSm100, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_tensor.fp8.sm_100.tensor_core", Format::kFp8E4m3Tensor, Activation::kFp8, kSm100, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_channel.fp8.sm_100.tensor_core", Format::kFp8E4m3Channel, Activation::kFp8, kSm100, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.int4_g32.bf16.sm_100.simt", Format::kInt4Group32, Activation::kBf16, kSm100),
    planned("matmul.int4_g128.bf16.sm_100.tensor_core", Format::kInt4Group128, Activation::kBf16, kSm100, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.int8.int8.sm_100.tensor_core", Format::kInt8Channel, Activation::kInt8, kSm100, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.bf16.f32.sm_100.simt", Format::kBf16, Activation::kF32, kSm100),
    planned("matmul.f16.f32.sm_100.simt", Format::kF16, Activation::kF32, kSm100),
    planned("matmul.mxfp4.fp8.sm_90.tensor_core.decode", Format::kMxfp4, Activation::kFp8, kSm90, {.m_max = 256, .n_multiple = 16, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp4.fp8.sm_90.tensor_core", Format::kMxfp4, Activation::kFp8, kSm90, {.n_multiple = 16, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_block128x128.fp8.sm_90.tensor_core", Format::kFp8E4m3Block128x128, Activation::kFp8, kSm90, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_block32x32.fp8.sm_90.tensor_core", Format::kFp8E4m3Block32x32, Activation::kFp8, kSm90, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 200 << 10}),
    planned("matmul.mxfp8.fp8.sm_90.tensor_core", Format::kMxfp8, Activation::kFp8, kSm90, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_tensor.fp8.sm_90.tensor_core", Format::kFp8E4m3Tensor, Activation::kFp8, kSm90, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_channel.fp8.sm_90.tensor_core", Format::kFp8E4m3Channel, Activation::kFp8, kSm90, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.int4_g128.bf16.sm_90.tensor_core", Format::kInt4Group128, Activation::kBf16, kSm90, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 200 << 10}),
    planned("matmul.int8.int8.sm_90.tensor_core", Format::kInt8Channel, Activation::kInt8, kSm90, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 200 << 10}),
    planned("matmul.fp8_block128x128.fp8.sm_89.tensor_core", Format::kFp8E4m3Block128x128, Activation::kFp8, kSm89, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_block32x32.fp8.sm_89.tensor_core", Format::kFp8E4m3Block32x32, Activation::kFp8, kSm89, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 96 << 10}),
    planned("matmul.mxfp8.fp8.sm_89.tensor_core", Format::kMxfp8, Activation::kFp8, kSm89, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_tensor.fp8.sm_89.tensor_core", Format::kFp8E4m3Tensor, Activation::kFp8, kSm89, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_channel.fp8.sm_89.tensor_core", Format::kFp8E4m3Channel, Activation::kFp8, kSm89, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.int4_g128.bf16.sm_89.tensor_core", Format::kInt4Group128, Activation::kBf16, kSm89, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.int8.int8.sm_89.tensor_core", Format::kInt8Channel, Activation::kInt8, kSm89, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_block32x32.bf16.sm_80.tensor_core", Format::kFp8E4m3Block32x32, Activation::kBf16, kSm80, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 96 << 10}),
    planned("matmul.mxfp8.bf16.sm_80.tensor_core", Format::kMxfp8, Activation::kBf16, kSm80, {.n_multiple = 32, .k_multiple = 32, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_tensor.bf16.sm_80.tensor_core", Format::kFp8E4m3Tensor, Activation::kBf16, kSm80, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.fp8_channel.bf16.sm_80.tensor_core", Format::kFp8E4m3Channel, Activation::kBf16, kSm80, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
    planned("matmul.int4_g128.bf16.sm_80.tensor_core", Format::kInt4Group128, Activation::kBf16, kSm80, {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 96 << 10}),
    planned("matmul.int8.int8.sm_80.tensor_core", Format::kInt8Channel, Activation::kInt8, kSm80, {.n_multiple = 32, .k_multiple = 64, .shared_bytes = 96 << 10}),
};
// clang-format on

}  // namespace

std::span<const KernelInfo> cuda_planned_matmul_kernels() { return kTable; }

}  // namespace nibble::kernels
