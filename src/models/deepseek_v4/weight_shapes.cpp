#include "models/deepseek_v4/weight_shapes.h"

namespace nibble::models::deepseek_v4 {

int64_t WeightShape::n() const {
  int64_t rows = 0;
  for (const Projection& projection : projections) rows += projection.n;
  return rows;
}

WeightShape head_shape(const Config& config) {
  return {.projections = {{"head", config.vocab_size}}, .k = config.hidden_size};
}

WeightShape latents_shape(const Config& config) {
  return {.projections = {{"wq_a", config.q_lora_rank}, {"wkv", config.head_dim}},
          .k = config.hidden_size,
          .label = "wq_a+wkv"};
}

WeightShape queries_shape(const Config& config) {
  return {.projections = {{"wq_b", int64_t{config.num_attention_heads} * config.head_dim}},
          .k = config.q_lora_rank};
}

// Groups lie one below the other: o_lora_rank rows each.
WeightShape output_groups_shape(const Config& config) {
  return {.projections = {{"wo_a", int64_t{config.o_groups} * config.o_lora_rank}},
          .k = int64_t{config.num_attention_heads} / config.o_groups * config.head_dim,
          .groups = config.o_groups};
}

WeightShape output_shape(const Config& config) {
  return {.projections = {{"wo_b", config.hidden_size}},
          .k = int64_t{config.o_groups} * config.o_lora_rank};
}

WeightShape compressors_shape(const Config& config, int32_t compress_ratio) {
  const bool has_index = compress_ratio == 4;
  const int64_t channels = has_index ? int64_t{2} * config.head_dim : config.head_dim;
  WeightShape shape{.projections = {{"compressor.wkv", channels}, {"compressor.wgate", channels}},
                    .k = config.hidden_size,
                    .is_exact = true,
                    .label = "compressor.wkv+wgate"};
  if (has_index) {
    const int64_t index_channels = int64_t{2} * config.index_head_dim;
    shape.projections.push_back({"indexer.compressor.wkv", index_channels});
    shape.projections.push_back({"indexer.compressor.wgate", index_channels});
    shape.projections.push_back({"indexer.weights_proj", config.index_n_heads});
    shape.label = "compressor.wkv+wgate, indexer.compressor.wkv+wgate, indexer.weights_proj";
  }
  return shape;
}

WeightShape index_queries_shape(const Config& config) {
  return {.projections = {{"indexer.wq_b", int64_t{config.index_n_heads} * config.index_head_dim}},
          .k = config.q_lora_rank};
}

WeightShape gate_shape(const Config& config) {
  return {.projections = {{"gate", config.n_routed_experts}},
          .k = config.hidden_size,
          .is_exact = true};
}

WeightShape expert_up_shape(const Config& config) {
  const int64_t width = config.moe_intermediate_size;
  return {.projections = {{"w1", width}, {"w3", width}}, .k = config.hidden_size, .label = "w1+w3"};
}

WeightShape expert_down_shape(const Config& config) {
  return {.projections = {{"w2", config.hidden_size}}, .k = config.moe_intermediate_size};
}

WeightShape shared_up_shape(const Config& config) {
  const int64_t width = int64_t{config.moe_intermediate_size} * config.n_shared_experts;
  return {.projections = {{"shared_experts.w1", width}, {"shared_experts.w3", width}},
          .k = config.hidden_size,
          .label = "shared_experts.w1+w3"};
}

WeightShape shared_down_shape(const Config& config) {
  return {.projections = {{"shared_experts.w2", config.hidden_size}},
          .k = int64_t{config.moe_intermediate_size} * config.n_shared_experts};
}

WeightShape mtp_shape(const Config& config, std::string_view module) {
  return {.projections = {{module, config.hidden_size}}, .k = config.hidden_size};
}

}  // namespace nibble::models::deepseek_v4
