// The ops without weights for AVX2.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/ops_launch.h"
#include "kernels/cpu/ops_leaves.h"
#include "kernels/cpu/ops_part.h"
#include "kernels/registry.h"

namespace nibble::kernels::cpu {
namespace {

// clang-format off
NIBBLE_ISA_BEGIN("avx2,fma,f16c")
namespace avx2 {
#include "kernels/cpu/ops_vec_avx2-inl.h"
#include "kernels/cpu/ops_math-inl.h"
#include "kernels/cpu/ops_keys-inl.h"
#include "kernels/cpu/ops_top_k-inl.h"
#include "kernels/cpu/ops_norm_rope-inl.h"
#include "kernels/cpu/ops_hyper-inl.h"
#include "kernels/cpu/ops_elementwise-inl.h"
}  // namespace avx2
NIBBLE_ISA_END
// clang-format on

constexpr OpLeaves kLeaves = {.attend = &avx2::attend,
                              .indexer_scores = &avx2::indexer_scores,
                              .top_k = &avx2::top_k,
                              .rms_norm = &avx2::rms_norm,
                              .rope = &avx2::rope,
                              .hyper_mix = &avx2::hyper_mix,
                              .hyper_pre = &avx2::hyper_pre,
                              .hyper_post = &avx2::hyper_post,
                              .hyper_head = &avx2::hyper_head,
                              .compress = &avx2::compress,
                              .expert_scores = &avx2::expert_scores,
                              .swiglu = &avx2::swiglu,
                              .combine = &avx2::combine,
                              .widen_bf16 = &avx2::widen_bf16,
                              .widen_f16 = &avx2::widen_f16};
using Launchers = OpLaunchers<kLeaves>;

constexpr KernelInfo row(std::string_view name, Op op, Launch launch, Limits limits = {}) {
  return {.name = name,
          .op = op,
          .unit = ComputeUnit::kSimd,
          .target = {.isa = device::kIsaAvx2},
          .limits = limits,
          .verified = kCpuVerified,
          .launch = launch};
}

constexpr KernelInfo fp8_keys(std::string_view name, Op op, Launch launch) {
  KernelInfo kernel = row(name, op, launch, {.k_max = kMaxKeyWidth});
  kernel.keys = KeyForm::kFp8;
  return kernel;
}

// clang-format off
constexpr KernelInfo kTable[] = {
    row("sparse_attention.avx2.simd", Op::kSparseAttention, &Launchers::sparse_attention, {.k_max = kMaxKeyWidth}),
    row("indexer_score.avx2.simd", Op::kIndexerScore, &Launchers::indexer_score, {.k_max = kMaxKeyWidth}),
    fp8_keys("sparse_attention.fp8_keys.avx2.simd", Op::kSparseAttention, &Launchers::sparse_attention),
    fp8_keys("indexer_score.fp8_keys.avx2.simd", Op::kIndexerScore, &Launchers::indexer_score),
    row("top_k.avx2.simd", Op::kTopK, &Launchers::top_k),
    row("rms_norm.avx2.simd", Op::kRmsNorm, &Launchers::rms_norm),
    row("rope.avx2.simd", Op::kRope, &Launchers::rope),
    row("hyper_pre.avx2.simd", Op::kHyperPre, &Launchers::hyper_pre, {.n_max = kMaxHyperStreams}),
    row("hyper_post.avx2.simd", Op::kHyperPost, &Launchers::hyper_post, {.n_max = kMaxHyperStreams}),
    row("hyper_head.avx2.simd", Op::kHyperHead, &Launchers::hyper_head, {.n_max = kMaxHyperStreams}),
    row("compress.avx2.simd", Op::kCompress, &Launchers::compress),
    row("select_experts.avx2.simd", Op::kSelectExperts, &Launchers::select_experts, {.k_max = kMaxExperts}),
    row("swiglu.avx2.simd", Op::kSwiglu, &Launchers::swiglu),
    row("combine_experts.avx2.simd", Op::kCombineExperts, &Launchers::combine_experts),
    row("embed.avx2.simd", Op::kEmbed, &Launchers::embed),
};
// clang-format on

}  // namespace
}  // namespace nibble::kernels::cpu

namespace nibble::kernels {

std::span<const KernelInfo> cpu_avx2_ops_kernels() { return cpu::kTable; }

}  // namespace nibble::kernels
