// Checkpoints without weights for tests: headers and configuration files of any shape. Tensors are
// added module by module in the layout of a carrier.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked_math.h"
#include "quant/declaration.h"
#include "quant/format.h"
#include "tensor/tensor_view.h"

namespace nibble::quant {

struct Fixture {
  std::vector<ConfigText> configs;
  std::vector<TensorMeta> tensors;

  void config(std::string file_name, std::string text) {
    configs.push_back({.file_name = std::move(file_name), .text = std::move(text)});
  }
  void add(std::string name, DType dtype, Shape shape) {
    tensors.push_back({.name = std::move(name), .dtype = dtype, .shape = shape});
  }
  TensorMeta* find(std::string_view name) {
    for (TensorMeta& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  void remove(std::string_view name) {
    std::erase_if(tensors, [&](const TensorMeta& tensor) { return tensor.name == name; });
  }

  // --- modules; `m` is the module name ---

  void vector(const std::string& m, int64_t k, DType dtype = DType::kBf16) {
    add(m + ".weight", dtype, {k});
  }
  void dense(const std::string& m, int64_t n, int64_t k, DType dtype = DType::kBf16) {
    add(m + ".weight", dtype, {n, k});
  }
  void fp8_block(const std::string& m,
                 int64_t n,
                 int64_t k,
                 std::string_view scale = ".scale",
                 DType scale_dtype = DType::kF8E8m0,
                 BlockShape block = {128, 128}) {
    add(m + ".weight", DType::kF8E4m3, {n, k});
    add(m + std::string(scale), scale_dtype, {ceil_div(n, block.n), ceil_div(k, block.k)});
  }
  void fp8_tensor(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight", DType::kF8E4m3, {n, k});
    add(m + ".weight_scale", DType::kF32, {});
    add(m + ".input_scale", DType::kF32, {});
  }
  void fp8_channel(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight", DType::kF8E4m3, {n, k});
    add(m + ".weight_scale", DType::kBf16, {n, 1});
  }
  void mxfp4_native(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight", DType::kI8, {n, k / 2});
    add(m + ".scale", DType::kF8E8m0, {n, k / 32});
  }
  void mxfp4_ct(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight_packed", DType::kU8, {n, k / 2});
    add(m + ".weight_scale", DType::kU8, {n, k / 32});
  }
  void mxfp4_quark(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight", DType::kU8, {n, k / 2});
    add(m + ".weight_scale", DType::kU8, {n, k / 32});
  }
  void nvfp4_modelopt(const std::string& m, int64_t n, int64_t k, bool has_input_scale = true) {
    add(m + ".weight", DType::kU8, {n, k / 2});
    add(m + ".weight_scale", DType::kF8E4m3, {n, k / 16});
    add(m + ".weight_scale_2", DType::kF32, {});
    if (has_input_scale) add(m + ".input_scale", DType::kF32, {});
  }
  void nvfp4_ct(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight_packed", DType::kU8, {n, k / 2});
    add(m + ".weight_scale", DType::kF8E4m3, {n, k / 16});
    add(m + ".weight_global_scale", DType::kF32, {1});
    add(m + ".input_global_scale", DType::kF32, {1});
  }
  void int4_ct(const std::string& m, int64_t n, int64_t k, int64_t group = 32) {
    add(m + ".weight_packed", DType::kI32, {n, k / 8});
    add(m + ".weight_scale", DType::kBf16, {n, k / group});
    add(m + ".weight_shape", DType::kI64, {2});
  }
  void gptq(const std::string& m, int64_t n, int64_t k, int64_t group = 128) {
    add(m + ".qweight", DType::kI32, {k / 8, n});
    add(m + ".qzeros", DType::kI32, {k / group, n / 8});
    add(m + ".scales", DType::kF16, {k / group, n});
    add(m + ".g_idx", DType::kI32, {k});
  }
  void awq(const std::string& m, int64_t n, int64_t k, int64_t group = 128) {
    add(m + ".qweight", DType::kI32, {k, n / 8});
    add(m + ".qzeros", DType::kI32, {k / group, n / 8});
    add(m + ".scales", DType::kF16, {k / group, n});
  }
  void nf4(const std::string& m, int64_t n, int64_t k) {
    add(m + ".weight", DType::kU8, {n * k / 2, 1});
    add(m + ".weight.absmax", DType::kU8, {n * k / 64});
    add(m + ".weight.quant_map", DType::kF32, {16});
    add(m + ".weight.nested_absmax", DType::kF32, {ceil_div(n * k / 64, 256)});
    add(m + ".weight.nested_quant_map", DType::kF32, {256});
    add(m + ".weight.quant_state.bitsandbytes__nf4", DType::kU8, {120});
  }
};

// The numbers of a DeepSeek-V4 checkpoint.
struct V4Shape {
  int64_t hidden = 4096;
  int32_t layers = 43;
  int64_t heads = 64;
  int64_t head_dim = 512;
  int64_t q_rank = 1024;
  int64_t o_groups = 8;
  int64_t o_rank = 1024;
  int64_t index_heads = 64;
  int64_t index_dim = 128;
  int64_t index_topk = 512;
  int64_t experts = 256;
  int64_t experts_per_tok = 6;
  int64_t intermediate = 2048;
  int64_t vocab = 129280;
  int64_t streams = 4;
  int32_t hash_layers = 3;
  double routed_scaling_factor = 1.5;
  bool starts_with_128 = false;  // Pro: layers 0 and 1 have ratio 128, not 0

  int32_t ratio(int32_t layer) const {
    if (layer < 2) return starts_with_128 ? 128 : 0;
    return layer % 2 == 0 ? 4 : 128;
  }
};

inline V4Shape v4_flash() { return {}; }
inline V4Shape v4_pro() {
  return {.hidden = 7168,
          .layers = 61,
          .heads = 128,
          .q_rank = 1536,
          .o_groups = 16,
          .index_topk = 1024,
          .experts = 384,
          .intermediate = 3072,
          .routed_scaling_factor = 2.5,
          .starts_with_128 = true};
}
// Two layers, four experts, hidden 256: small enough to read, large enough for 128x128 blocks.
inline V4Shape v4_small() {
  return {.hidden = 256,
          .layers = 2,
          .heads = 4,
          .head_dim = 256,
          .q_rank = 256,
          .o_groups = 2,
          .o_rank = 256,
          .index_heads = 4,
          .experts = 4,
          .experts_per_tok = 2,
          .intermediate = 256,
          .vocab = 512,
          .hash_layers = 1};
}

enum class V4Weights { kFp8Block, kFp8BlockF32, kFp8Block32, kMxfp4, kNvfp4, kInt4, kBf16 };
enum class V4Draft { kNone, kMtp, kDspark };

struct V4Options {
  V4Weights linears = V4Weights::kFp8Block;
  V4Weights experts = V4Weights::kMxfp4;
  V4Weights draft_experts = V4Weights::kMxfp4;
  V4Draft draft = V4Draft::kMtp;
  bool has_engram = false;  // DSV4.1
};

// All tensors under their original names, layer by layer.
class V4Fixture final {
 public:
  V4Fixture(const V4Shape& shape, const V4Options& options) : s_(shape), o_(options) {}

  Fixture make() {
    f_.dense("embed", s_.vocab, s_.hidden);
    for (int32_t l = 0; l < s_.layers; ++l) {
      block("layers." + std::to_string(l) + ".", s_.ratio(l), l < s_.hash_layers, o_.experts);
    }
    f_.vector("norm", s_.hidden);
    f_.dense("head", s_.vocab, s_.hidden);
    head_hc("hc_head_");
    if (o_.draft == V4Draft::kMtp) mtp();
    if (o_.draft == V4Draft::kDspark) dspark();
    if (o_.has_engram) {
      f_.fp8_block("layers.0.engram.embed", 1024, 256, ".scale", DType::kF8E8m0, {1, 32});
    }
    return std::move(f_);
  }

 private:
  void quantised(const std::string& m, int64_t n, int64_t k, V4Weights weights) {
    switch (weights) {
      case V4Weights::kFp8Block:
        return f_.fp8_block(m, n, k);
      case V4Weights::kFp8BlockF32:
        return f_.fp8_block(m, n, k, ".scale", DType::kF32);
      case V4Weights::kFp8Block32:
        return f_.fp8_block(m, n, k, ".scale", DType::kF8E8m0, {32, 32});
      case V4Weights::kMxfp4:
        return f_.mxfp4_native(m, n, k);
      case V4Weights::kNvfp4:
        return f_.nvfp4_modelopt(m, n, k);
      case V4Weights::kInt4:
        return f_.int4_ct(m, n, k);
      case V4Weights::kBf16:
        return f_.dense(m, n, k);
    }
  }
  void linear(const std::string& m, int64_t n, int64_t k) { quantised(m, n, k, o_.linears); }

  void head_hc(const std::string& prefix) {
    f_.add(prefix + "fn", DType::kF32, {s_.streams, s_.streams * s_.hidden});
    f_.add(prefix + "base", DType::kF32, {s_.streams});
    f_.add(prefix + "scale", DType::kF32, {1});
  }
  void sub_block_hc(const std::string& prefix) {
    const int64_t rows = 2 * s_.streams + s_.streams * s_.streams;
    f_.add(prefix + "fn", DType::kF32, {rows, s_.streams * s_.hidden});
    f_.add(prefix + "base", DType::kF32, {rows});
    f_.add(prefix + "scale", DType::kF32, {3});
  }

  void block(const std::string& p, int32_t ratio, bool is_hash, V4Weights experts) {
    f_.vector(p + "attn_norm", s_.hidden);
    f_.vector(p + "ffn_norm", s_.hidden);
    sub_block_hc(p + "hc_attn_");
    sub_block_hc(p + "hc_ffn_");
    attention(p + "attn.", ratio);
    f_.dense(p + "ffn.gate", s_.experts, s_.hidden);
    if (is_hash) {
      f_.add(p + "ffn.gate.tid2eid", DType::kI64, {s_.vocab, s_.experts_per_tok});
    } else {
      f_.add(p + "ffn.gate.bias", DType::kF32, {s_.experts});
    }
    for (int64_t e = 0; e < s_.experts; ++e) {
      const std::string m = p + "ffn.experts." + std::to_string(e) + ".";
      quantised(m + "w1", s_.intermediate, s_.hidden, experts);
      quantised(m + "w3", s_.intermediate, s_.hidden, experts);
      quantised(m + "w2", s_.hidden, s_.intermediate, experts);
    }
    linear(p + "ffn.shared_experts.w1", s_.intermediate, s_.hidden);
    linear(p + "ffn.shared_experts.w3", s_.intermediate, s_.hidden);
    linear(p + "ffn.shared_experts.w2", s_.hidden, s_.intermediate);
  }

  void attention(const std::string& p, int32_t ratio) {
    f_.add(p + "attn_sink", DType::kF32, {s_.heads});
    linear(p + "wq_a", s_.q_rank, s_.hidden);
    f_.vector(p + "q_norm", s_.q_rank);
    linear(p + "wq_b", s_.heads * s_.head_dim, s_.q_rank);
    linear(p + "wkv", s_.head_dim, s_.hidden);
    f_.vector(p + "kv_norm", s_.head_dim);
    linear(p + "wo_a", s_.o_groups * s_.o_rank, s_.heads * s_.head_dim / s_.o_groups);
    linear(p + "wo_b", s_.hidden, s_.o_groups * s_.o_rank);
    if (ratio == 0) return;
    compressor(p + "compressor.", ratio, s_.head_dim);
    if (ratio != 4) return;
    linear(p + "indexer.wq_b", s_.index_heads * s_.index_dim, s_.q_rank);
    f_.dense(p + "indexer.weights_proj", s_.index_heads, s_.hidden);
    compressor(p + "indexer.compressor.", ratio, s_.index_dim);
  }

  void compressor(const std::string& p, int32_t ratio, int64_t width) {
    const int64_t channels = ratio == 4 ? 2 * width : width;
    f_.add(p + "ape", DType::kF32, {ratio, channels});
    f_.dense(p + "wkv", channels, s_.hidden);
    f_.dense(p + "wgate", channels, s_.hidden);
    f_.vector(p + "norm", width);
  }

  void mtp() {
    const std::string p = "mtp.0.";
    block(p, 0, false, o_.draft_experts);
    linear(p + "e_proj", s_.hidden, s_.hidden);
    linear(p + "h_proj", s_.hidden, s_.hidden);
    f_.vector(p + "enorm", s_.hidden);
    f_.vector(p + "hnorm", s_.hidden);
    f_.vector(p + "norm", s_.hidden);
    head_hc(p + "hc_head_");
  }

  void dspark() {
    for (int32_t stage = 0; stage < 3; ++stage) {
      block("mtp." + std::to_string(stage) + ".", 0, false, o_.draft_experts);
    }
    linear("mtp.0.main_proj", s_.hidden, 3 * s_.hidden);
    f_.vector("mtp.0.main_norm", s_.hidden);
    f_.vector("mtp.2.norm", s_.hidden);
    head_hc("mtp.2.hc_head_");
    f_.dense("mtp.2.markov_head.markov_w1", s_.vocab, 256);
    f_.dense("mtp.2.markov_head.markov_w2", s_.vocab, 256);
    f_.dense("mtp.2.confidence_head.proj", 1, s_.hidden + 256);
  }

  const V4Shape s_;
  const V4Options o_;
  Fixture f_;
};

inline Fixture v4_fixture(const V4Shape& shape, const V4Options& options) {
  return V4Fixture(shape, options).make();
}

// config.json of a V4 checkpoint; `members` is appended inside the object, with a leading comma.
inline std::string v4_config(const V4Shape& s,
                             std::string_view members,
                             std::string_view model_type = "deepseek_v4") {
  std::string ratios;
  for (int32_t l = 0; l < s.layers; ++l) ratios += std::to_string(s.ratio(l)) + ",";
  const auto field = [](std::string_view key, int64_t value) {
    return ",\"" + std::string(key) + "\":" + std::to_string(value);
  };
  std::string text = "{\"model_type\":\"" + std::string(model_type) + "\"";
  text += field("hidden_size", s.hidden) + field("num_hidden_layers", s.layers) +
          field("num_attention_heads", s.heads) + field("num_key_value_heads", 1) +
          field("head_dim", s.head_dim) + field("qk_rope_head_dim", 64) +
          field("q_lora_rank", s.q_rank) + field("o_groups", s.o_groups) +
          field("o_lora_rank", s.o_rank) + field("index_n_heads", s.index_heads) +
          field("index_head_dim", s.index_dim) + field("index_topk", s.index_topk) +
          field("n_routed_experts", s.experts) + field("n_shared_experts", 1) +
          field("num_experts_per_tok", s.experts_per_tok) +
          field("moe_intermediate_size", s.intermediate) + field("vocab_size", s.vocab) +
          field("hc_mult", s.streams) + field("num_hash_layers", s.hash_layers) +
          field("num_nextn_predict_layers", 1) + field("max_position_embeddings", 1048576);
  text += ",\"routed_scaling_factor\":" + std::to_string(s.routed_scaling_factor);
  text += ",\"compress_ratios\":[" + ratios + "0]";
  text += std::string(members) + "}";
  return text;
}

// The quantization sections of released files.
inline constexpr std::string_view kV4NativeSection =
    R"(,"expert_dtype":"fp4","quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e4m3","scale_fmt":"ue8m0","weight_block_size":[128,128]})";

// Form B of the NVFP4 release; `layers` lists the routed experts of each layer.
inline std::string v4_form_b_section(
    int32_t num_layers,
    std::string_view ignore = R"("*.attn.*","*.ffn.shared_experts.*","head","mtp.*")",
    std::string_view version = "dsv4-nvfp4-experts",
    std::string_view block = "[128,128]") {
  std::string layers;
  for (int32_t l = 0; l < num_layers; ++l) {
    layers += (l == 0 ? "\"layers." : ",\"layers.") + std::to_string(l) +
              R"(.ffn.experts":{"quant_algo":"NVFP4","group_size":16})";
  }
  return R"(,"expert_dtype":"fp4","quantization_config":{"quant_method":"fp8","activation_scheme":"dynamic","quant_algo":"MIXED_PRECISION","moe_quant_algo":"NVFP4","group_size":16,"weight_block_size":)" +
         std::string(block) +
         R"(,"scale_fmt":"ue8m0","kv_cache_quant_algo":null,"config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":4,"type":"float","group_size":16},"input_activations":{"dynamic":false}}},"quantized_layers":{)" +
         layers + R"(},"ignore":[)" + std::string(ignore) +
         R"(],"producer":{"name":"modelopt","version":")" + std::string(version) + R"("}})";
}
inline std::string v4_form_b_hf_quant_config(
    std::string_view ignore = R"("*.attn.*","*.ffn.shared_experts.*","head","mtp.*")",
    int32_t group_size = 16) {
  return R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"MIXED_PRECISION","kv_cache_quant_algo":null,"group_size":)" +
         std::to_string(group_size) + R"(,"exclude_modules":[)" + std::string(ignore) + "]}}";
}

}  // namespace nibble::quant
