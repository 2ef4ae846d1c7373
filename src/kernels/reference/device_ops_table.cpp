#include "device/emulated_gpu.h"
#include "kernels/device_args.h"
#include "kernels/reference/device_ops_launchers.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

constexpr KernelInfo row(std::string_view name, Op op, Launch launch, Limits limits = {}) {
  return {.name = name,
          .op = op,
          .target = {.kind = device::DeviceKind::kCuda,
                     .sm_min = device::kEmulatedSm,
                     .sm_max = device::kEmulatedSm},
          .limits = limits,
          .verified = kCpuVerified,
          .launch = launch};
}

// clang-format off
constexpr KernelInfo kTable[] = {
    row("plan.emulated.scalar", Op::kPlan, &reference::device_plan),
    row("copy_rows.emulated.scalar", Op::kCopyRows, &reference::device_copy_rows),
    row("make_slots.emulated.scalar", Op::kMakeSlots, &reference::device_make_slots),
    row("embed.emulated.scalar", Op::kEmbed, &reference::device_embed),
    row("stream_update.emulated.scalar", Op::kStreamUpdate, &reference::device_stream_update),
    row("stream_mix.emulated.scalar", Op::kStreamMix, &reference::device_stream_mix),
    // Of few tokens, so that models on the emulated GPU take its two halves, too.
    row("stream_turn.emulated.scalar", Op::kStreamTurn, &reference::device_stream_turn, {.m_max = 2}),
    row("rms_norm.emulated.scalar", Op::kRmsNorm, &reference::device_rms_norm),
    row("join_mtp.emulated.scalar", Op::kJoinMtp, &reference::device_join_mtp),
    row("latents.emulated.scalar", Op::kLatents, &reference::device_latents),
    row("queries.emulated.scalar", Op::kQueries, &reference::device_queries),
    row("attended.emulated.scalar", Op::kAttended, &reference::device_attended),
    row("select_experts.emulated.scalar", Op::kSelectExperts, &reference::device_select_experts, {.n_max = kMaxChoices}),
    row("quantize.emulated.scalar", Op::kQuantize, &reference::device_quantize),
    row("sample.emulated.scalar", Op::kSample, &reference::device_sample),
};
// clang-format on

}  // namespace

std::span<const KernelInfo> reference_device_ops_kernels() { return kTable; }

}  // namespace nibble::kernels
