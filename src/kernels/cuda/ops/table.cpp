// The small ops of a step, for every GPU since sm_80.
#include "kernels/cuda/launchers.h"
#include "kernels/device_args.h"
#include "kernels/planned/targets.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

// Where tests/cuda passed, under memcheck and initcheck, too.
constexpr HardwareRun kVerified = {.where = "NVIDIA H200, 2026-12-01", .sm = 90};

constexpr KernelInfo row(std::string_view name, Op op, Limits limits = {}) {
  return {.name = name,
          .op = op,
          .unit = ComputeUnit::kSimt,
          .target = {.kind = device::DeviceKind::kCuda,
                     .sm_min = kSm80.sm_min,
                     .sm_max = kSm120.sm_max},
          .limits = limits,
          .status = Status::kCompiled,
          .verified = kVerified};
}

constexpr KernelInfo tensor_row(std::string_view name, Op op, Limits limits) {
  KernelInfo info = row(name, op, limits);
  info.unit = ComputeUnit::kTensorCore;
  return info;
}

// clang-format off
constexpr KernelInfo kTable[] = {
    row("plan.cuda.simt", Op::kPlan),
    row("copy_rows.cuda.simt", Op::kCopyRows),
    row("embed.cuda.simt", Op::kEmbed),
    tensor_row("stream_update.cuda.tensor_core", Op::kStreamUpdate, {.n_max = 4, .k_multiple = 4, .k_max = 8192}),
    row("stream_mix.cuda.simt", Op::kStreamMix, {.n_max = 4, .k_multiple = 4, .k_max = 8192}),
    row("rms_norm.cuda.simt", Op::kRmsNorm, {.k_max = 8192}),
    row("join_mtp.cuda.simt", Op::kJoinMtp),
    row("latents.cuda.simt", Op::kLatents, {.n_max = 2048, .k_multiple = 2, .k_max = 2048}),
    row("queries.cuda.simt", Op::kQueries, {.k_multiple = 2, .k_max = 512}),
    row("attended.cuda.simt", Op::kAttended, {.k_multiple = 4}),
    row("select_experts.cuda.simt", Op::kSelectExperts, {.n_max = kMaxChoices, .k_max = 512}),
    row("make_slots.cuda.simt", Op::kMakeSlots, {.k_max = 1024}),
    row("quantize.cuda.simt", Op::kQuantize),
    row("sample.cuda.simt", Op::kSample),
};
// clang-format on

}  // namespace

std::span<const KernelInfo> cuda_ops_kernels() {
  static const std::vector<KernelInfo> table = cuda::with_launchers(kTable);
  return table;
}

}  // namespace nibble::kernels
