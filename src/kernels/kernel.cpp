#include "kernels/kernel.h"

#include <algorithm>

#include "device/emulated_gpu.h"
#include "kernels/planned/targets.h"

namespace nibble::kernels {

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kMatMul:
      return "matmul";
    case Op::kGroupedMatMul:
      return "grouped_matmul";
    case Op::kSparseAttention:
      return "sparse_attention";
    case Op::kIndexerScore:
      return "indexer_score";
    case Op::kTopK:
      return "top_k";
    case Op::kRmsNorm:
      return "rms_norm";
    case Op::kRope:
      return "rope";
    case Op::kHyperPre:
      return "hyper_pre";
    case Op::kHyperPost:
      return "hyper_post";
    case Op::kHyperHead:
      return "hyper_head";
    case Op::kCompress:
      return "compress";
    case Op::kSelectExperts:
      return "select_experts";
    case Op::kSwiglu:
      return "swiglu";
    case Op::kCombineExperts:
      return "combine_experts";
    case Op::kEmbed:
      return "embed";
    case Op::kPlan:
      return "plan";
    case Op::kCopyRows:
      return "copy_rows";
    case Op::kMakeSlots:
      return "make_slots";
    case Op::kStreamUpdate:
      return "stream_update";
    case Op::kStreamMix:
      return "stream_mix";
    case Op::kStreamTurn:
      return "stream_turn";
    case Op::kLatents:
      return "latents";
    case Op::kQueries:
      return "queries";
    case Op::kAttended:
      return "attended";
    case Op::kQuantize:
      return "quantize";
    case Op::kMatMulPair:
      return "matmul_pair";
    case Op::kJoinMtp:
      return "join_mtp";
    case Op::kSample:
      return "sample";
  }
  return "unknown";
}

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kF32:
      return "f32";
    case Activation::kBf16:
      return "bf16";
    case Activation::kFp8:
      return "fp8";
    case Activation::kInt8:
      return "int8";
    case Activation::kNvfp4:
      return "nvfp4";
  }
  return "unknown";
}

std::string_view key_form_name(KeyForm form) {
  return form == KeyForm::kPlain ? "f32 or bf16" : "fp8";
}

std::string_view unit_name(ComputeUnit unit) {
  switch (unit) {
    case ComputeUnit::kScalar:
      return "scalar";
    case ComputeUnit::kSimd:
      return "simd";
    case ComputeUnit::kSimt:
      return "simt";
    case ComputeUnit::kTensorCore:
      return "tensor_core";
  }
  return "unknown";
}

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kRuns:
      return "runs";
    case Status::kCompiled:
      return "compiled";
    case Status::kPlanned:
      return "planned";
  }
  return "unknown";
}

std::string target_name(const Target& target) {
  if (target.kind == device::DeviceKind::kCpu) {
    return target.isa == 0 ? "cpu" : device::isa_set_name(target.isa);
  }
  if (target.sm_max == device::kEmulatedSm) return "emulated GPU";
  const std::string lowest = "sm_" + std::to_string(target.sm_min);
  return target.sm_max == target.sm_min ? lowest : lowest + " to " + std::to_string(target.sm_max);
}

namespace {

bool is_of_generation(const HardwareRun& run, const device::DeviceInfo& device) {
  return run.sm == 0 || generation_of(run.sm) == generation_of(device.sm);
}

}  // namespace

std::string hardware_mark(const KernelInfo& kernel, const device::DeviceInfo& device) {
  const HardwareRun& run = kernel.verified;
  if (run.where.empty()) return "not run on hardware";
  if (is_of_generation(run, device)) return "";
  return "not run on hardware of sm_" + std::to_string(device.sm) + ", only on " +
         std::string(run.where);
}

std::optional<double> timed_share(const KernelInfo& kernel,
                                  const device::DeviceInfo& device,
                                  double tokens) {
  const auto& [on, shares] = kernel.timed;
  if (on.where.empty() || !is_of_generation(on, device)) return std::nullopt;
  if (tokens >= kTimedTokens.back()) return shares.back() * kTimedTokens.back() / tokens;
  size_t i = 0;
  while (tokens >= kTimedTokens[i + 1]) ++i;
  const double from = kTimedTokens[i], to = kTimedTokens[i + 1];
  const double part = std::max(tokens - from, 0.0) / (to - from);
  return 1 / ((1 - part) / shares[i] + part / shares[i + 1]);
}

}  // namespace nibble::kernels
