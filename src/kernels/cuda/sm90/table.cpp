// The kernels of H100 and H200 (sm_90a) that are written.
#include "kernels/cuda/launchers.h"
#include "kernels/planned/targets.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using quant::Format;

// Where tests/cuda last passed, with the sanitizers of the toolkit.
constexpr std::string_view kH200Verified = "NVIDIA H200, 2026-11-29";

// clang-format off
constexpr KernelInfo kTable[] = {
    {.name = "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.decode",
     .op = Op::kGroupedMatMul, .has_weight = true, .weight = Format::kMxfp4,
     .activation = Activation::kFp8, .unit = ComputeUnit::kTensorCore, .target = kSm90,
     .limits = {.m_max = 256, .n_multiple = 64, .k_multiple = 256, .k_max = 4096,
                .shared_bytes = 227 << 10},
     .layout = PackedLayout::kPanel64, .status = Status::kCompiled, .verified = kH200Verified},
};
// clang-format on

}  // namespace

std::span<const KernelInfo> cuda_sm90_kernels() {
  static const std::vector<KernelInfo> table = cuda::with_launchers(kTable);
  return table;
}

}  // namespace nibble::kernels
