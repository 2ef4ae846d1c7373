// The kernels of H100 and H200 (sm_90a) that are written.
#include "kernels/cuda/launchers.h"
#include "kernels/planned/targets.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using quant::Format;

// Where tests/cuda last passed, with the sanitizers of `tools/gpu run sanitize`.
constexpr std::string_view kH200Verified = "NVIDIA H200, 2026-11-29";
constexpr std::string_view kH200Later = "NVIDIA H200, 2026-11-30";
// tests/cuda with memcheck only: the kernel was changed that day.
constexpr std::string_view kH200Memcheck = "NVIDIA H200, 2026-11-30, memcheck only";
// tests/cuda with memcheck and racecheck; the kernel was made simpler since.
constexpr std::string_view kH200Earlier = "NVIDIA H200, 2026-11-30, in an earlier form";
// The same sums in double, by a program of its own; the sanitizers have not seen this form yet.
constexpr std::string_view kH200Alone = "NVIDIA H200, 2026-11-30, without sanitizers";
// Tests and memcheck ran before its last change.
constexpr std::string_view kH200Before = "NVIDIA H200, 2026-11-30, memcheck only, in an earlier form";

// clang-format off
constexpr KernelInfo kTable[] = {
    {.name = "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.decode",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kMxfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 512, .n_multiple = 64, .k_multiple = 256, .k_max = 7168,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {1, 8, 16}, .joins_down = true,
     .status = Status::kCompiled, .verified = kH200Memcheck},
    // Sums in another order than the row before, so that a token depends on how many there are.
    {.name = "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.prefill",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kMxfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 256, .shared_bytes = 226 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {64, 128, 256}, .is_batch_invariant = false,
     .status = Status::kCompiled, .verified = kH200Alone},
    // The kernel of the first row for any number of tokens.
    {.name = "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.invariant",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kMxfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 256, .k_max = 7168,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {1, 8, 16}, .joins_down = true,
     .status = Status::kCompiled, .verified = kH200Memcheck},
    // Slots of one row sum in another order than the others. Beyond that many tokens slots of 64 rows
    // are faster.
    {.name = "grouped_matmul.nvfp4.fp8.sm_90.tensor_core.decode",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kNvfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 1024, .n_multiple = 64, .k_multiple = 256, .k_max = 7168,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {1, 8, 16}, .joins_down = true, .is_batch_invariant = false,
     .status = Status::kCompiled, .verified = kH200Memcheck},
    {.name = "grouped_matmul.nvfp4.fp8.sm_90.tensor_core.prefill",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kNvfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 256, .shared_bytes = 226 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {64}, .is_batch_invariant = false,
     .status = Status::kCompiled, .verified = kH200Memcheck},
    {.name = "grouped_matmul.nvfp4.fp8.sm_90.tensor_core.invariant",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kNvfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 256, .k_max = 7168,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {8, 16},
     .status = Status::kCompiled, .verified = kH200Memcheck},
    {.name = "grouped_matmul.int4_g32.fp8.sm_90.tensor_core.decode",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kInt4Group32,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 1024, .n_multiple = 64, .k_multiple = 256, .k_max = 7168,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {1, 8, 16}, .joins_down = true, .is_batch_invariant = false,
     .status = Status::kCompiled, .verified = kH200Alone},
    {.name = "grouped_matmul.int4_g32.fp8.sm_90.tensor_core.prefill",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kInt4Group32,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 256, .shared_bytes = 226 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {64}, .is_batch_invariant = false,
     .status = Status::kCompiled, .verified = kH200Alone},
    {.name = "grouped_matmul.int4_g32.fp8.sm_90.tensor_core.invariant",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kInt4Group32,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 256, .k_max = 7168,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .x_form = ActivationForm::kFp8Rows,
     .slot_rows = {8, 16},
     .status = Status::kCompiled, .verified = kH200Alone},
    // A token's split depends on how many there are.
    {.name = "sparse_attention.bf16.sm_90.tensor_core.d512", .op = Op::kSparseAttention,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 16, .k_multiple = 512, .k_max = 512, .shared_bytes = 211 << 10},
     .gives_forms = true, .max_sum_rows = 2, .is_batch_invariant = false, .status = Status::kCompiled, .verified = kH200Before},
    {.name = "sparse_attention.bf16.sm_90.tensor_core.d512_fixed", .op = Op::kSparseAttention,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 16, .k_multiple = 512, .k_max = 512, .shared_bytes = 96 << 10},
     .gives_forms = true, .max_sum_rows = 2, .status = Status::kCompiled, .verified = kH200Memcheck},
    {.name = "sparse_attention.fp8_keys.bf16.sm_90.tensor_core.d512", .op = Op::kSparseAttention,
     .activation = Activation::kBf16, .keys = KeyForm::kFp8, .unit = ComputeUnit::kTensorCore,
     .target = kSm90,
     .limits = {.n_multiple = 16, .k_multiple = 512, .k_max = 512, .shared_bytes = 211 << 10},
     .gives_forms = true, .max_sum_rows = 2, .is_batch_invariant = false, .status = Status::kCompiled, .verified = kH200Before},
    {.name = "sparse_attention.fp8_keys.bf16.sm_90.tensor_core.d512_fixed",
     .op = Op::kSparseAttention, .activation = Activation::kBf16, .keys = KeyForm::kFp8,
     .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 16, .k_multiple = 512, .k_max = 512, .shared_bytes = 96 << 10},
     .gives_forms = true, .max_sum_rows = 2, .status = Status::kCompiled, .verified = kH200Memcheck},
    {.name = "indexer_score.bf16.sm_90.tensor_core.d128", .op = Op::kIndexerScore,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_max = 64, .n_multiple = 64, .k_multiple = 128, .k_max = 128,
                .shared_bytes = 209 << 10},
     .max_sum_rows = 2, .selects = {.rows = 64, .columns = 16384},
     .status = Status::kCompiled, .verified = kH200Memcheck},
    {.name = "top_k.sm_90.simt", .op = Op::kTopK,
     .activation = Activation::kF32, .unit = ComputeUnit::kSimt, .target = kSm90,
     .limits = {.k_multiple = 4, .k_max = 1024, .shared_bytes = 66 << 10},
     .status = Status::kCompiled, .verified = kH200Alone},
    {.name = "matmul.fp8_block128x128.fp8.sm_90.tensor_core.decode",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kFp8E4m3Block128x128,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 16, .n_multiple = 64, .k_multiple = 256, .k_max = 8192,
                .shared_bytes = 113 << 10},
     .layout = PackedLayout::kFp8Panel64, .x_form = ActivationForm::kFp8Blocks,
     .k_splits = {.rows = 64, .k = 256},
     .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul_pair.sm_90.tensor_core", .op = Op::kMatMulPair,
     .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 16, .shared_bytes = 113 << 10},
     .pair = {"matmul.fp8_block128x128.fp8.sm_90.tensor_core.decode",
              "matmul.bf16.f32.sm_90.tensor_core.decode"},
     .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul_chain.sm_90.tensor_core", .op = Op::kMatMulChain,
     .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 8, .shared_bytes = 113 << 10},
     .pair = {"matmul.fp8_block128x128.fp8.sm_90.tensor_core.decode",
              "matmul.fp8_block128x128.fp8.sm_90.tensor_core.decode"},
     .status = Status::kCompiled, .verified = kH200Earlier},
    // Splits of k keep all multiprocessors at work where there are few ranges of tokens.
    {.name = "matmul.fp8_block128x128.fp8.sm_90.tensor_core.batch",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kFp8E4m3Block128x128,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 128, .n_multiple = 64, .k_multiple = 128, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kFp8Panel64, .x_form = ActivationForm::kFp8Blocks,
     .k_splits = {.rows = 128, .k = 128}, .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul.fp8_block128x128.fp8.sm_90.tensor_core.chunk",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kFp8E4m3Block128x128,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 512, .n_multiple = 64, .k_multiple = 128, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kFp8Panel64, .x_form = ActivationForm::kFp8Blocks,
     .k_splits = {.rows = 128, .k = 128}, .status = Status::kCompiled, .verified = kH200Alone},
    {.name = "matmul.fp8_block128x128.fp8.sm_90.tensor_core.prefill",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kFp8E4m3Block128x128,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 128, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kFp8Panel64, .x_form = ActivationForm::kFp8Blocks,
     .status = Status::kCompiled, .verified = kH200Alone},
    {.name = "matmul.bf16.bf16.sm_90.tensor_core.batch",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kBf16,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 512, .n_multiple = 64, .k_multiple = 64, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kBf16Panel64, .x_form = ActivationForm::kBf16Blocks,
     .k_splits = {.rows = 128, .k = 256}, .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul.bf16.bf16.sm_90.tensor_core.prefill",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kBf16,
     .activation = Activation::kBf16, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 64, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kBf16Panel64, .x_form = ActivationForm::kBf16Blocks,
     .k_splits = {.rows = 16, .k = 512}, .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul.bf16.f32.sm_90.tensor_core.decode",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kBf16,
     .activation = Activation::kF32, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 16, .n_multiple = 64, .k_multiple = 256, .shared_bytes = 113 << 10},
     .layout = PackedLayout::kBf16Panel64, .x_form = ActivationForm::kBf16Terms,
     .k_splits = {.rows = 64, .k = 256}, .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul.bf16.f32.sm_90.tensor_core.batch",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kBf16,
     .activation = Activation::kF32, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 512, .n_multiple = 64, .k_multiple = 64, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kBf16Panel64, .x_form = ActivationForm::kBf16Terms,
     .k_splits = {.rows = 128, .k = 256}, .status = Status::kCompiled, .verified = kH200Later},
    {.name = "matmul.bf16.f32.sm_90.tensor_core.prefill",
     .op = Op::kMatMul, .has_weight = true, .weight = Format::kBf16,
     .activation = Activation::kF32, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.n_multiple = 64, .k_multiple = 64, .shared_bytes = 227 << 10},
     .layout = PackedLayout::kBf16Panel64, .x_form = ActivationForm::kBf16Terms,
     .k_splits = {.rows = 16, .k = 512}, .status = Status::kCompiled, .verified = kH200Later},
};
// clang-format on

}  // namespace

std::span<const KernelInfo> cuda_sm90_kernels() {
  static const std::vector<KernelInfo> table = cuda::with_launchers(kTable);
  return table;
}

}  // namespace nibble::kernels
