#include "models/deepseek_v4/gpu/ops.h"

#include <utility>

namespace nibble::models::deepseek_v4::gpu {

const kernels::Route* Ops::turn(int32_t m) const {
  if (!stream_turn) return nullptr;
  const int64_t limit = stream_turn->kernel->limits.m_max;
  return limit == 0 || m <= limit ? &*stream_turn : nullptr;
}

std::vector<OpProblem> op_problems(const Config& config, const Numerics& numerics) {
  using kernels::Op;
  const int64_t hidden = config.hidden_size;
  const int64_t head = config.head_dim;
  const int64_t streams = config.hc_mult;
  const kernels::KeyForm keys =
      numerics.kv_dtype == DType::kF8E4m3 ? kernels::KeyForm::kFp8 : kernels::KeyForm::kPlain;
  std::vector<OpProblem> all;
  const auto add =
      [&](std::string_view module, kernels::Route Ops::*route, Op op, int64_t n, int64_t k) {
        const bool reads_keys = op == Op::kSparseAttention || op == Op::kIndexerScore;
        all.push_back(
            {.module = module,
             .problem = {.op = op,
                         .activation = kernels::Activation::kBf16,
                         .keys = reads_keys ? keys : kernels::KeyForm::kPlain,
                         .needs_clamp = op == Op::kSelectExperts && config.swiglu_limit > 0,
                         .n = n,
                         .k = k},
             .route = route});
      };
  add("plan", &Ops::plan, Op::kPlan, config.sliding_window, config.sliding_window);
  add("copy_rows", &Ops::copy_rows, Op::kCopyRows, head, head);
  add("make_slots",
      &Ops::make_slots,
      Op::kMakeSlots,
      config.n_routed_experts,
      config.n_routed_experts);
  add("embed", &Ops::embed, Op::kEmbed, config.vocab_size, hidden);
  add("stream_update", &Ops::stream_update, Op::kStreamUpdate, streams, hidden);
  add("stream_mix", &Ops::stream_mix, Op::kStreamMix, streams, hidden);
  add("latents", &Ops::latents, Op::kLatents, config.q_lora_rank, head);
  add("queries", &Ops::queries, Op::kQueries, config.num_attention_heads, head);
  add("attention", &Ops::attention, Op::kSparseAttention, config.num_attention_heads, head);
  add("attended", &Ops::attended, Op::kAttended, config.num_attention_heads, head);
  add("indexer_score",
      &Ops::indexer_score,
      Op::kIndexerScore,
      config.index_n_heads,
      config.index_head_dim);
  add("top_k", &Ops::top_k, Op::kTopK, config.index_topk, config.index_topk);
  add("select_experts",
      &Ops::select_experts,
      Op::kSelectExperts,
      config.num_experts_per_tok,
      config.n_routed_experts);
  add("quantize", &Ops::quantize, Op::kQuantize, hidden, hidden);
  add("rms_norm", &Ops::rms_norm, Op::kRmsNorm, hidden, hidden);
  add("join_mtp", &Ops::join_mtp, Op::kJoinMtp, streams, hidden);
  add("sample", &Ops::sample, Op::kSample, config.vocab_size, config.vocab_size);
  return all;
}

Result<Ops> route_ops(const Config& config,
                      const Numerics& numerics,
                      const device::DeviceInfo& device,
                      const kernels::RouteOptions& routing) {
  Ops ops;
  for (const OpProblem& op : op_problems(config, numerics)) {
    TRY_ASSIGN(ops.*op.route, kernels::route(op.problem, device, routing));
  }
  auto pair = kernels::route({.op = kernels::Op::kMatMulPair, .m_max = 1}, device, routing);
  if (pair.ok()) ops.matmul_pair = std::move(pair).value();
  auto turn = kernels::route({.op = kernels::Op::kStreamTurn,
                              .activation = kernels::Activation::kBf16,
                              .m_max = 1,
                              .n = config.hc_mult,
                              .k = config.hidden_size},
                             device,
                             routing);
  if (turn.ok()) ops.stream_turn = std::move(turn).value();
  return ops;
}

}  // namespace nibble::models::deepseek_v4::gpu
