#include <string_view>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/portable/indexer/launch.h"
#include "kernels/cuda/portable/matmul/launch.h"
#include "kernels/cuda/portable/sparse_attention/launch.h"
#include "kernels/cuda/portable/top_k/launch.h"
#include "kernels/cuda/sm90/bf16_matmul/launch.h"
#include "kernels/cuda/sm90/expert_matmul/launch.h"
#include "kernels/cuda/sm90/fp8_bulk_matmul/launch.h"
#include "kernels/cuda/sm90/indexer/launch.h"
#include "kernels/cuda/sm90/panel_matmul/launch.h"
#include "kernels/cuda/sm90/sparse_attention/launch.h"
#include "kernels/cuda/sm90/stream_turn/launch.h"
#include "kernels/cuda/sm90/top_k/launch.h"

namespace nibble::kernels::cuda {
namespace {

constexpr NamedLaunch kLaunchers[] = {
    {"grouped_matmul.mxfp4.fp8.sm_90.tensor_core.decode", &launch_expert_matmul_sm90},
    {"grouped_matmul.mxfp4.fp8.sm_90.tensor_core.prefill", &launch_expert_prefill_sm90},
    {"grouped_matmul.mxfp4.fp8.sm_90.tensor_core.invariant", &launch_expert_matmul_sm90},
    {"grouped_matmul.nvfp4.fp8.sm_90.tensor_core.decode", &launch_expert_matmul_sm90},
    {"grouped_matmul.nvfp4.fp8.sm_90.tensor_core.prefill", &launch_expert_prefill_sm90},
    {"grouped_matmul.nvfp4.fp8.sm_90.tensor_core.invariant", &launch_expert_matmul_sm90},
    {"grouped_matmul.int4_g32.fp8.sm_90.tensor_core.decode", &launch_expert_matmul_sm90},
    {"grouped_matmul.int4_g32.fp8.sm_90.tensor_core.prefill", &launch_expert_prefill_sm90},
    {"grouped_matmul.int4_g32.fp8.sm_90.tensor_core.invariant", &launch_expert_matmul_sm90},
    {"sparse_attention.bf16.sm_90.tensor_core.d512", &launch_sparse_attention_sm90},
    {"sparse_attention.bf16.sm_90.tensor_core.d512_fixed", &launch_sparse_attention_sm90_fixed},
    {"sparse_attention.fp8_keys.bf16.sm_90.tensor_core.d512", &launch_sparse_attention_sm90},
    {"sparse_attention.fp8_keys.bf16.sm_90.tensor_core.d512_fixed",
     &launch_sparse_attention_sm90_fixed},
    {"indexer_score.bf16.sm_90.tensor_core.d128", &launch_indexer_score_sm90},
    {"top_k.sm_90.simt", &launch_top_k},
    {"matmul.fp8_block128x128.fp8.sm_90.tensor_core.decode", &launch_fp8_matmul_sm90},
    {"matmul.bf16.f32.sm_90.tensor_core.decode", &launch_bf16_terms_matmul_sm90},
    {"matmul_pair.sm_90.tensor_core", &launch_matmul_pair_sm90},
    {"matmul.fp8_block128x128.fp8.sm_90.tensor_core.batch", &launch_fp8_batch_matmul_sm90},
    {"matmul.fp8_block128x128.fp8.sm_90.tensor_core.chunk", &launch_fp8_prefill_matmul_sm90},
    {"matmul.fp8_block128x128.fp8.sm_90.tensor_core.prefill", &launch_fp8_prefill_matmul_sm90},
    {"sparse_attention.bf16.sm_80.tensor_core", &launch_portable_sparse_attention},
    {"sparse_attention.fp8_keys.bf16.sm_80.tensor_core", &launch_portable_sparse_attention},
    {"indexer_score.bf16.sm_80.tensor_core", &launch_portable_indexer_score},
    {"indexer_score.fp8_keys.bf16.sm_80.tensor_core", &launch_portable_indexer_score},
    {"top_k.sm_80.simt", &launch_portable_top_k},
    {"matmul.mxfp4.fp8.sm_90.tensor_core.portable", &launch_portable_mxfp4_fp8},
    {"matmul.mxfp4.bf16.sm_80.tensor_core", &launch_portable_mxfp4_bf16},
    {"matmul.nvfp4.bf16.sm_80.tensor_core", &launch_portable_nvfp4_bf16},
    {"matmul.int4_g32.bf16.sm_80.tensor_core", &launch_portable_int4_bf16},
    {"matmul.fp8_block128x128.fp8.sm_89.tensor_core.portable", &launch_portable_fp8_fp8},
    {"matmul.fp8_block128x128.bf16.sm_80.tensor_core", &launch_portable_fp8_bf16},
    {"matmul.bf16.bf16.sm_80.tensor_core", &launch_portable_bf16_bf16},
    {"matmul.bf16.f32.sm_80.tensor_core", &launch_portable_bf16_f32},
    {"matmul.f16.bf16.sm_80.tensor_core", &launch_portable_f16_bf16},
    {"matmul.f32.f32.sm_80.simt", &launch_portable_f32_f32},
    {"grouped_matmul.mxfp4.fp8.sm_90.tensor_core.portable", &launch_portable_grouped_mxfp4_fp8},
    {"grouped_matmul.mxfp4.bf16.sm_80.tensor_core", &launch_portable_grouped_mxfp4_bf16},
    {"grouped_matmul.nvfp4.bf16.sm_80.tensor_core", &launch_portable_grouped_nvfp4_bf16},
    {"grouped_matmul.int4_g32.bf16.sm_80.tensor_core", &launch_portable_grouped_int4_bf16},
    {"grouped_matmul.fp8_block128x128.fp8.sm_89.tensor_core.portable",
     &launch_portable_grouped_fp8_fp8},
    {"grouped_matmul.fp8_block128x128.bf16.sm_80.tensor_core", &launch_portable_grouped_fp8_bf16},
    {"grouped_matmul.bf16.bf16.sm_80.tensor_core", &launch_portable_grouped_bf16_bf16},
    {"grouped_matmul.f16.bf16.sm_80.tensor_core", &launch_portable_grouped_f16_bf16},
    {"grouped_matmul.f32.f32.sm_80.simt", &launch_portable_grouped_f32_f32},
    {"matmul.bf16.bf16.sm_90.tensor_core.batch", &launch_bf16_matmul_sm90},
    {"matmul.bf16.bf16.sm_90.tensor_core.prefill", &launch_bf16_matmul_sm90},
    {"matmul.bf16.f32.sm_90.tensor_core.batch", &launch_bf16_matmul_f32_sm90},
    {"matmul.bf16.f32.sm_90.tensor_core.prefill", &launch_bf16_matmul_f32_sm90},
    {"plan.cuda.simt", &launch_plan},
    {"copy_rows.cuda.simt", &launch_copy_rows},
    {"embed.cuda.simt", &launch_embed},
    {"stream_update.cuda.tensor_core", &launch_stream_update},
    {"stream_mix.cuda.simt", &launch_stream_mix},
    {"stream_turn.sm_90.simt", &launch_stream_turn_sm90},
    {"stream_turn.sm_90.simt.wide", &launch_stream_turn_sm90},
    {"rms_norm.cuda.simt", &launch_rms_norm},
    {"join_mtp.cuda.simt", &launch_join_mtp},
    {"latents.cuda.simt", &launch_latents},
    {"queries.cuda.simt", &launch_queries},
    {"attended.cuda.simt", &launch_attended},
    {"select_experts.cuda.simt", &launch_select_experts},
    {"make_slots.cuda.simt", &launch_make_expert_slots},
    {"quantize.cuda.simt", &launch_quantize},
    {"sample.cuda.simt", &launch_sample},
};

void bind(KernelInfo& row, std::span<const NamedLaunch> launchers) {
  for (const NamedLaunch& named : launchers) {
    if (named.kernel != row.name) continue;
    row.launch = named.launch;
    row.status = Status::kRuns;
  }
}

}  // namespace

std::vector<KernelInfo> with_launchers(std::span<const KernelInfo> table) {
  std::vector<KernelInfo> rows(table.begin(), table.end());
  for (KernelInfo& row : rows) {
    bind(row, kLaunchers);
    bind(row, sm120_launchers());
  }
  return rows;
}

}  // namespace nibble::kernels::cuda
