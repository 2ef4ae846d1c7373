#include "kernels/reference/ops_launchers.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

constexpr KernelInfo row(std::string_view name, Op op, Launch launch) {
  return {.name = name, .op = op, .verified = kCpuVerified, .launch = launch};
}

constexpr KernelInfo fp8_keys(std::string_view name, Op op, Launch launch) {
  KernelInfo kernel = row(name, op, launch);
  kernel.keys = KeyForm::kFp8;
  return kernel;
}

// clang-format off
constexpr KernelInfo kTable[] = {
    row("sparse_attention.cpu.scalar", Op::kSparseAttention, &reference::sparse_attention),
    row("indexer_score.cpu.scalar", Op::kIndexerScore, &reference::indexer_score),
    fp8_keys("sparse_attention.fp8_keys.cpu.scalar", Op::kSparseAttention, &reference::sparse_attention),
    fp8_keys("indexer_score.fp8_keys.cpu.scalar", Op::kIndexerScore, &reference::indexer_score),
    row("top_k.cpu.scalar", Op::kTopK, &reference::top_k),
    row("rms_norm.cpu.scalar", Op::kRmsNorm, &reference::rms_norm),
    row("rope.cpu.scalar", Op::kRope, &reference::rope),
    row("hyper_pre.cpu.scalar", Op::kHyperPre, &reference::hyper_pre),
    row("hyper_post.cpu.scalar", Op::kHyperPost, &reference::hyper_post),
    row("hyper_head.cpu.scalar", Op::kHyperHead, &reference::hyper_head),
    row("compress.cpu.scalar", Op::kCompress, &reference::compress),
    row("select_experts.cpu.scalar", Op::kSelectExperts, &reference::select_experts),
    row("swiglu.cpu.scalar", Op::kSwiglu, &reference::swiglu),
    row("combine_experts.cpu.scalar", Op::kCombineExperts, &reference::combine_experts),
    row("embed.cpu.scalar", Op::kEmbed, &reference::embed),
};
// clang-format on

}  // namespace

std::span<const KernelInfo> reference_ops_kernels() { return kTable; }

}  // namespace nibble::kernels
