// The ops without weights for AVX512.
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
NIBBLE_ISA_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
namespace avx512 {
#include "kernels/cpu/ops_vec_avx512-inl.h"
#include "kernels/cpu/ops_math-inl.h"
#include "kernels/cpu/ops_keys-inl.h"
#include "kernels/cpu/ops_top_k-inl.h"
#include "kernels/cpu/ops_norm_rope-inl.h"
#include "kernels/cpu/ops_hyper-inl.h"
#include "kernels/cpu/ops_elementwise-inl.h"
}  // namespace avx512
NIBBLE_ISA_END
// clang-format on

constexpr OpLeaves kLeaves = {.attend = &avx512::attend,
                              .indexer_scores = &avx512::indexer_scores,
                              .top_k = &avx512::top_k,
                              .rms_norm = &avx512::rms_norm,
                              .rope = &avx512::rope,
                              .hyper_mix = &avx512::hyper_mix,
                              .hyper_pre = &avx512::hyper_pre,
                              .hyper_post = &avx512::hyper_post,
                              .hyper_head = &avx512::hyper_head,
                              .compress = &avx512::compress,
                              .expert_scores = &avx512::expert_scores,
                              .swiglu = &avx512::swiglu,
                              .combine = &avx512::combine,
                              .widen_bf16 = &avx512::widen_bf16,
                              .widen_f16 = &avx512::widen_f16};
using Launchers = OpLaunchers<kLeaves>;

constexpr KernelInfo row(std::string_view name, Op op, Launch launch, Limits limits = {}) {
  return {.name = name,
          .op = op,
          .unit = ComputeUnit::kSimd,
          .target = {.isa = device::kIsaAvx512},
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
    row("sparse_attention.avx512.simd", Op::kSparseAttention, &Launchers::sparse_attention, {.k_max = kMaxKeyWidth}),
    row("indexer_score.avx512.simd", Op::kIndexerScore, &Launchers::indexer_score, {.k_max = kMaxKeyWidth}),
    fp8_keys("sparse_attention.fp8_keys.avx512.simd", Op::kSparseAttention, &Launchers::sparse_attention),
    fp8_keys("indexer_score.fp8_keys.avx512.simd", Op::kIndexerScore, &Launchers::indexer_score),
    row("top_k.avx512.simd", Op::kTopK, &Launchers::top_k),
    row("rms_norm.avx512.simd", Op::kRmsNorm, &Launchers::rms_norm),
    row("rope.avx512.simd", Op::kRope, &Launchers::rope),
    row("hyper_pre.avx512.simd", Op::kHyperPre, &Launchers::hyper_pre, {.n_max = kMaxHyperStreams}),
    row("hyper_post.avx512.simd", Op::kHyperPost, &Launchers::hyper_post, {.n_max = kMaxHyperStreams}),
    row("hyper_head.avx512.simd", Op::kHyperHead, &Launchers::hyper_head, {.n_max = kMaxHyperStreams}),
    row("compress.avx512.simd", Op::kCompress, &Launchers::compress),
    row("select_experts.avx512.simd", Op::kSelectExperts, &Launchers::select_experts, {.k_max = kMaxExperts}),
    row("swiglu.avx512.simd", Op::kSwiglu, &Launchers::swiglu),
    row("combine_experts.avx512.simd", Op::kCombineExperts, &Launchers::combine_experts),
    row("embed.avx512.simd", Op::kEmbed, &Launchers::embed),
};
// clang-format on

}  // namespace
}  // namespace nibble::kernels::cpu

namespace nibble::kernels {

std::span<const KernelInfo> cpu_avx512_ops_kernels() { return cpu::kTable; }

}  // namespace nibble::kernels
