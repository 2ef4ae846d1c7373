#include "models/deepseek_v4/ops.h"

namespace nibble::models::deepseek_v4 {

Result<Ops> route_ops(const Config& config,
                      const Numerics& numerics,
                      const device::DeviceInfo& device,
                      const kernels::RouteOptions& routing) {
  using kernels::Op;
  const bool has_fp8_keys = numerics.kv_dtype == DType::kF8E4m3;
  const auto route = [&](Op op, int64_t n, int64_t k) {
    const bool reads_keys = op == Op::kSparseAttention || op == Op::kIndexerScore;
    return kernels::route(
        {.op = op,
         .activation = kernels::Activation::kF32,
         .keys = reads_keys && has_fp8_keys ? kernels::KeyForm::kFp8 : kernels::KeyForm::kPlain,
         .needs_clamp = op == Op::kSwiglu && config.swiglu_limit > 0,
         .n = n,
         .k = k},
        device,
        routing);
  };
  const int64_t hidden = config.hidden_size;
  const int64_t head = config.head_dim;
  const int64_t index = config.index_head_dim;
  const int64_t streams = config.hc_mult;

  Ops ops;
  TRY_ASSIGN(ops.embed, route(Op::kEmbed, config.vocab_size, hidden));
  TRY_ASSIGN(ops.hyper_pre, route(Op::kHyperPre, streams, hidden));
  TRY_ASSIGN(ops.hyper_post, route(Op::kHyperPost, streams, hidden));
  TRY_ASSIGN(ops.hyper_head, route(Op::kHyperHead, streams, hidden));
  TRY_ASSIGN(ops.norm_hidden, route(Op::kRmsNorm, hidden, hidden));
  TRY_ASSIGN(ops.norm_q_lora, route(Op::kRmsNorm, config.q_lora_rank, config.q_lora_rank));
  TRY_ASSIGN(ops.norm_head, route(Op::kRmsNorm, head, head));
  TRY_ASSIGN(ops.norm_index, route(Op::kRmsNorm, index, index));
  TRY_ASSIGN(ops.rope_head, route(Op::kRope, head, head));
  TRY_ASSIGN(ops.rope_index, route(Op::kRope, index, index));
  TRY_ASSIGN(ops.attention, route(Op::kSparseAttention, config.num_attention_heads, head));
  TRY_ASSIGN(ops.compress_head, route(Op::kCompress, head, head));
  TRY_ASSIGN(ops.compress_index, route(Op::kCompress, index, index));
  TRY_ASSIGN(ops.indexer_score, route(Op::kIndexerScore, config.index_n_heads, index));
  TRY_ASSIGN(ops.top_k, route(Op::kTopK, config.index_topk, config.index_topk));
  TRY_ASSIGN(ops.select_experts,
             route(Op::kSelectExperts, config.n_routed_experts, config.n_routed_experts));
  TRY_ASSIGN(ops.swiglu,
             route(Op::kSwiglu, config.moe_intermediate_size, config.moe_intermediate_size));
  TRY_ASSIGN(ops.combine_experts, route(Op::kCombineExperts, hidden, hidden));
  return ops;
}

}  // namespace nibble::models::deepseek_v4
