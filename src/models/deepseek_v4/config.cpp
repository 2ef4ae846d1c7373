#include "models/deepseek_v4/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "checkpoint/display.h"

namespace nibble::models::deepseek_v4 {
namespace {

using checkpoint::ConfigReader;
using checkpoint::FloatRange;
using checkpoint::IntRange;
using checkpoint::Keys;

// Upper bounds leave room for models far larger than any published one, yet keep every product of
// two sizes inside int64_t and heads x head_dim, streams x hidden_size inside int32_t.
constexpr IntRange kWidth = {.min = 1, .max = 1 << 18};
constexpr IntRange kHeads = {.min = 1, .max = 4096};
constexpr IntRange kHeadDim = {.min = 2, .max = 8192};
constexpr IntRange kLayers = {.min = 1, .max = 4096};
constexpr IntRange kExperts = {.min = 1, .max = 1 << 16};
constexpr IntRange kTokens = {.min = 1, .max = 1 << 28};
constexpr IntRange kVocabulary = {.min = 2, .max = 1 << 24};
// From 1e-12 up products of four sums with it, which GPU kernels invert at once, are normal floats.
constexpr FloatRange kEpsilon = {.min = 1e-12, .max = 1};
constexpr FloatRange kRopeBase = {.min = 1, .max = 1e12};
constexpr int64_t kMaxListSize = 2 * kLayers.max;

// YaRN of the released models, for keys that a scaling object leaves out.
constexpr RopeScaling kReleasedScaling = {};

Error not_implemented(const ConfigReader& reader,
                      std::string_view key,
                      std::string_view found,
                      std::string_view expected) {
  return unsupported(fmt::format(
      "{}: {}: found {}, expected {}. This variant of the architecture is not implemented.",
      reader.file_name(),
      key,
      found,
      expected));
}

Result<void> read(const ConfigReader& reader, Keys keys, IntRange range, int32_t& field) {
  TRY_ASSIGN(const int64_t value, reader.integer_or(keys, range, field));
  field = static_cast<int32_t>(value);
  return {};
}

Result<void> read_required(const ConfigReader& reader, Keys keys, IntRange range, int32_t& field) {
  TRY_ASSIGN(const int64_t value, reader.integer(keys, range));
  field = static_cast<int32_t>(value);
  return {};
}

Result<void> read(const ConfigReader& reader, Keys keys, FloatRange range, double& field) {
  TRY_ASSIGN(field, reader.number_or(keys, range, field));
  return {};
}

// The single value that a string key may have; absent is fine.
Result<void> expect_string(const ConfigReader& reader, Keys keys, std::string_view expected) {
  TRY_ASSIGN(const std::string value, reader.string_or(keys, expected));
  if (value == expected) return {};
  return not_implemented(reader, *keys.begin(), checkpoint::display_name(value), expected);
}

Result<void> expect_bool(const ConfigReader& reader, std::string_view key, bool expected) {
  TRY_ASSIGN(const bool value, reader.boolean_or({key}, expected));
  if (value == expected) return {};
  return not_implemented(reader, key, value ? "true" : "false", expected ? "true" : "false");
}

Result<void> check_variant(const ConfigReader& reader) {
  TRY(expect_string(reader, {"model_type"}, "deepseek_v4"));
  TRY(expect_string(reader, {"scoring_func", "score_func"}, "sqrtsoftplus"));
  TRY(expect_string(reader, {"topk_method"}, "noaux_tc"));
  TRY(expect_string(reader, {"hidden_act"}, "silu"));
  TRY(expect_bool(reader, "norm_topk_prob", true));
  TRY(expect_bool(reader, "attention_bias", false));
  TRY(expect_bool(reader, "mlp_bias", false));
  return expect_bool(reader, "tie_word_embeddings", false);
}

Result<void> read_attention(const ConfigReader& reader, Config& config) {
  TRY(read_required(
      reader, {"num_attention_heads", "n_heads"}, kHeads, config.num_attention_heads));
  TRY(read(reader, {"num_key_value_heads"}, {.min = 1, .max = 1}, config.num_key_value_heads));
  TRY(read(reader, {"head_dim"}, kHeadDim, config.head_dim));
  TRY(read(reader, {"q_lora_rank"}, kWidth, config.q_lora_rank));
  TRY(read(reader, {"o_groups"}, kHeads, config.o_groups));
  TRY(read(reader, {"o_lora_rank"}, kWidth, config.o_lora_rank));
  TRY(read(reader,
           {"sliding_window", "window_size"},
           {.min = 1, .max = 1 << 20},
           config.sliding_window));
  TRY(read(reader, {"index_n_heads"}, kHeads, config.index_n_heads));
  TRY(read(reader, {"index_head_dim"}, kHeadDim, config.index_head_dim));
  TRY(read(reader, {"index_topk"}, {.min = 1, .max = 1 << 20}, config.index_topk));
  if (config.num_attention_heads % config.o_groups != 0) {
    return reader.fault(
        "o_groups",
        std::to_string(config.o_groups),
        fmt::format("a divisor of num_attention_heads {}", config.num_attention_heads));
  }
  return {};
}

// transformers keeps only qk_rope_head_dim / head_dim, as partial_rotary_factor.
Result<void> read_rotary_dim(const ConfigReader& reader, Config& config) {
  const Keys keys = {"qk_rope_head_dim", "rope_head_dim"};
  TRY_ASSIGN(const bool is_direct, reader.contains(keys));
  TRY_ASSIGN(const bool is_factor, reader.contains({"partial_rotary_factor"}));
  if (!is_direct && is_factor) {
    TRY_ASSIGN(const double factor, reader.number({"partial_rotary_factor"}, {.min = 0, .max = 1}));
    config.qk_rope_head_dim = static_cast<int32_t>(config.head_dim * factor);
  }
  TRY(read(reader, keys, kHeadDim, config.qk_rope_head_dim));
  return {};
}

// Where layers have an indexer, its heads are rotated too. Needs the layers.
Result<void> check_rotary_dim(const ConfigReader& reader, const Config& config) {
  const bool has_indexer =
      std::count(config.compress_ratios.begin(), config.compress_ratios.end(), 4) > 0;
  const int32_t limit =
      has_indexer ? std::min(config.head_dim, config.index_head_dim) : config.head_dim;
  const int32_t dim = config.qk_rope_head_dim;
  if (dim >= 2 && dim % 2 == 0 && dim <= limit) return {};
  return reader.fault("qk_rope_head_dim",
                      std::to_string(dim),
                      fmt::format("an even number from 2 to {} (head_dim {}, index_head_dim {})",
                                  limit,
                                  config.head_dim,
                                  config.index_head_dim));
}

Result<void> read_experts(const ConfigReader& reader, Config& config) {
  TRY(read_required(
      reader, {"n_routed_experts", "num_local_experts"}, kExperts, config.n_routed_experts));
  TRY(read_required(
      reader, {"moe_intermediate_size", "moe_inter_dim"}, kWidth, config.moe_intermediate_size));
  TRY(read(reader, {"n_shared_experts"}, {.min = 1, .max = 64}, config.n_shared_experts));
  TRY(read(reader,
           {"num_experts_per_tok", "n_activated_experts"},
           kExperts,
           config.num_experts_per_tok));
  TRY(read(reader,
           {"routed_scaling_factor", "route_scale"},
           {.min = 1e-6, .max = 1e6},
           config.routed_scaling_factor));
  TRY(read(reader, {"swiglu_limit"}, {.min = 0, .max = 1e6}, config.swiglu_limit));
  if (config.num_experts_per_tok > config.n_routed_experts) {
    return reader.fault("num_experts_per_tok",
                        std::to_string(config.num_experts_per_tok),
                        fmt::format("at most n_routed_experts {}", config.n_routed_experts));
  }
  return {};
}

// Entry `i` of transformers' layer_types as a compress ratio.
Result<int32_t> ratio_of_layer_type(const ConfigReader& reader, const std::string& type, size_t i) {
  if (type == "sliding_attention") return 0;
  if (type == "compressed_sparse_attention") return 4;
  if (type == "heavily_compressed_attention") return 128;
  return reader.fault(
      fmt::format("layer_types[{}]", i),
      checkpoint::display_name(type),
      "sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
}

// The ratios that layer_types stands for are fixed by the architecture.
Result<void> check_compress_rates(const ConfigReader& reader) {
  int32_t sparse = 4;
  int32_t heavy = 128;
  TRY(read(reader,
           {"compress_rates.compressed_sparse_attention", "compress_rate_csa"},
           {.min = 4, .max = 4},
           sparse));
  return read(reader,
              {"compress_rates.heavily_compressed_attention", "compress_rate_hca"},
              {.min = 128, .max = 128},
              heavy);
}

Result<void> check_list_size(const ConfigReader& reader,
                             std::string_view key,
                             size_t size,
                             const Config& config) {
  if (size >= static_cast<size_t>(config.num_hidden_layers)) return {};
  return reader.fault(key,
                      fmt::format("{} entries", size),
                      fmt::format("at least num_hidden_layers {}", config.num_hidden_layers));
}

Result<std::optional<std::vector<int32_t>>> read_layer_types(const ConfigReader& reader,
                                                             const Config& config) {
  TRY_ASSIGN(const auto types, reader.strings({"layer_types"}, kMaxListSize));
  if (!types) return std::optional<std::vector<int32_t>>();
  TRY(check_list_size(reader, "layer_types", types->size(), config));
  std::vector<int32_t> ratios;
  for (size_t i = 0; i < types->size(); ++i) {
    TRY_ASSIGN(const int32_t ratio, ratio_of_layer_type(reader, (*types)[i], i));
    ratios.push_back(ratio);
  }
  return std::optional(std::move(ratios));
}

Result<std::optional<std::vector<int32_t>>> read_compress_ratios(const ConfigReader& reader,
                                                                 const Config& config) {
  TRY_ASSIGN(const auto values,
             reader.integers({"compress_ratios"}, {.min = 0, .max = 128}, kMaxListSize));
  if (!values) return std::optional<std::vector<int32_t>>();
  TRY(check_list_size(reader, "compress_ratios", values->size(), config));
  std::vector<int32_t> ratios;
  for (const int64_t value : *values) {
    if (value != 0 && value != 4 && value != 128) {
      return reader.fault(
          fmt::format("compress_ratios[{}]", ratios.size()), std::to_string(value), "0, 4 or 128");
    }
    ratios.push_back(static_cast<int32_t>(value));
  }
  return std::optional(std::move(ratios));
}

Result<void> read_layers(const ConfigReader& reader, Config& config) {
  TRY(check_compress_rates(reader));
  TRY_ASSIGN(auto ratios, read_compress_ratios(reader, config));
  TRY_ASSIGN(auto types, read_layer_types(reader, config));
  const auto num_layers = static_cast<std::ptrdiff_t>(config.num_hidden_layers);
  if (ratios && types &&
      !std::equal(ratios->begin(), ratios->begin() + num_layers, types->begin())) {
    return reader.fault("layer_types", "other layers", "those of compress_ratios");
  }
  if (!ratios) ratios = std::move(types);
  if (!ratios)
    return reader.fault("compress_ratios or layer_types", "nothing", "one entry per layer");
  config.compress_ratios = std::move(*ratios);
  for (size_t i = static_cast<size_t>(num_layers); i < config.compress_ratios.size(); ++i) {
    if (config.compress_ratios[i] == 0) continue;
    return not_implemented(reader,
                           fmt::format("compress_ratios[{}]", i),
                           std::to_string(config.compress_ratios[i]),
                           "0 for MTP layers");
  }
  return {};
}

// transformers' mlp_layer_types: hash_moe for the first layers, then moe.
Result<std::optional<int32_t>> count_hash_layers(const ConfigReader& reader, const Config& config) {
  TRY_ASSIGN(const auto types, reader.strings({"mlp_layer_types"}, kMaxListSize));
  if (!types) return std::optional<int32_t>();
  TRY(check_list_size(reader, "mlp_layer_types", types->size(), config));
  const auto first_scored =
      std::find_if(types->begin(), types->end(), [](const auto& t) { return t != "hash_moe"; });
  const auto odd =
      std::find_if(first_scored, types->end(), [](const auto& t) { return t != "moe"; });
  if (odd != types->end()) {
    return reader.fault(fmt::format("mlp_layer_types[{}]", odd - types->begin()),
                        checkpoint::display_name(*odd),
                        "hash_moe for the first layers, then moe");
  }
  return std::optional(
      std::min(static_cast<int32_t>(first_scored - types->begin()), config.num_hidden_layers));
}

Result<void> read_hash_layers(const ConfigReader& reader, Config& config) {
  const Keys keys = {"num_hash_layers", "n_hash_layers"};
  const IntRange range = {.min = 0, .max = config.num_hidden_layers};
  config.num_hash_layers = std::min(config.num_hash_layers, config.num_hidden_layers);
  TRY_ASSIGN(const std::optional<int32_t> counted, count_hash_layers(reader, config));
  if (counted) config.num_hash_layers = *counted;
  TRY(read(reader, keys, range, config.num_hash_layers));
  if (counted && *counted != config.num_hash_layers) {
    return reader.fault("mlp_layer_types",
                        fmt::format("{} hash_moe layers", *counted),
                        fmt::format("num_hash_layers {}", config.num_hash_layers));
  }
  return {};
}

// YaRN from one object, or nullopt where it asks for none. `prefix` ends in a dot.
Result<std::optional<RopeScaling>> read_scaling_object(const ConfigReader& reader,
                                                       const std::string& prefix) {
  const std::string type_key = prefix + "type";
  const std::string rope_type_key = prefix + "rope_type";
  TRY_ASSIGN(const bool has_factor, reader.contains({prefix + "factor"}));
  TRY_ASSIGN(const std::string type,
             reader.string_or({type_key, rope_type_key}, has_factor ? "" : "default"));
  if (type == "default") return std::optional<RopeScaling>();
  if (type != "yarn")
    return not_implemented(reader, type_key, checkpoint::display_name(type), "yarn or default");
  RopeScaling scaling = kReleasedScaling;
  TRY(read(reader, {prefix + "factor"}, {.min = 1, .max = 1e6}, scaling.factor));
  TRY_ASSIGN(scaling.original_max_position_embeddings,
             reader.integer_or({prefix + "original_max_position_embeddings"},
                               kTokens,
                               scaling.original_max_position_embeddings));
  TRY(read(reader, {prefix + "beta_fast"}, {.min = 1e-3, .max = 1e6}, scaling.beta_fast));
  TRY(read(reader, {prefix + "beta_slow"}, {.min = 1e-3, .max = 1e6}, scaling.beta_slow));
  double amplitude = 1;
  TRY(read(reader, {prefix + "attention_factor"}, {.min = 1, .max = 1}, amplitude));
  return std::optional(scaling);
}

// YaRN from the flat keys of the original inference config; original_seq_len 0 or absent means
// none.
Result<std::optional<RopeScaling>> read_flat_scaling(const ConfigReader& reader) {
  TRY_ASSIGN(const int64_t length,
             reader.integer_or({"original_seq_len"}, {.min = 0, .max = kTokens.max}, 0));
  if (length == 0) return std::optional<RopeScaling>();
  RopeScaling scaling = kReleasedScaling;
  scaling.original_max_position_embeddings = length;
  TRY(read(reader, {"rope_factor"}, {.min = 1, .max = 1e6}, scaling.factor));
  TRY(read(reader, {"beta_fast"}, {.min = 1e-3, .max = 1e6}, scaling.beta_fast));
  TRY(read(reader, {"beta_slow"}, {.min = 1e-3, .max = 1e6}, scaling.beta_slow));
  return std::optional(scaling);
}

Result<void> read_rope(const ConfigReader& reader, Config& config) {
  TRY(read(
      reader, {"rope_theta", "rope_parameters.main.rope_theta"}, kRopeBase, config.rope_theta));
  TRY(read(reader,
           {"compress_rope_theta", "rope_parameters.compress.rope_theta"},
           kRopeBase,
           config.compress_rope_theta));
  TRY(expect_string(reader, {"rope_parameters.main.rope_type"}, "default"));
  TRY_ASSIGN(const bool has_object, reader.contains({"rope_scaling"}));
  TRY_ASSIGN(const bool has_nested, reader.contains({"rope_parameters.compress"}));
  TRY_ASSIGN(const bool has_parameters, reader.contains({"rope_parameters"}));
  const std::string_view places[] = {"rope_scaling.",
                                     has_nested ? "rope_parameters.compress." : "rope_parameters."};
  const bool is_present[] = {has_object, has_parameters};
  for (size_t i = 0; i < std::size(places); ++i) {
    if (!is_present[i]) continue;
    TRY_ASSIGN(const auto scaling, read_scaling_object(reader, std::string(places[i])));
    if (config.rope_scaling && scaling != config.rope_scaling) {
      return reader.fault(
          places[i].substr(0, places[i].size() - 1), "another scaling", "that of rope_scaling");
    }
    if (scaling) config.rope_scaling = scaling;
  }
  TRY_ASSIGN(const auto flat, read_flat_scaling(reader));
  if (flat && config.rope_scaling && flat != config.rope_scaling) {
    return reader.fault("original_seq_len, rope_factor, beta_fast, beta_slow",
                        "another scaling",
                        "that of rope_scaling");
  }
  if (flat) config.rope_scaling = flat;
  if (config.rope_scaling && config.rope_scaling->beta_fast < config.rope_scaling->beta_slow) {
    return reader.fault("rope_scaling.beta_fast",
                        fmt::format("{}", config.rope_scaling->beta_fast),
                        fmt::format("at least beta_slow {}", config.rope_scaling->beta_slow));
  }
  return {};
}

Result<void> read_tokens(const ConfigReader& reader, Config& config) {
  const IntRange ids = {.min = 0, .max = config.vocab_size - 1};
  constexpr int64_t kMaxEosTokens = 64;
  TRY(read(reader, {"bos_token_id"}, ids, config.bos_token_id));
  TRY_ASSIGN(const auto eos, reader.integer_or_list({"eos_token_id"}, ids, kMaxEosTokens));
  if (!eos) return {};
  config.eos_token_ids.clear();
  for (const int64_t id : *eos) config.eos_token_ids.push_back(static_cast<int32_t>(id));
  return {};
}

Result<void> read_dspark(const ConfigReader& reader, Config& config) {
  TRY_ASSIGN(const bool is_present, reader.contains({"dspark_block_size"}));
  if (!is_present) return {};
  DsparkConfig dspark;
  TRY(read_required(
      reader, {"dspark_block_size"}, {.min = 1, .max = 64}, dspark.dspark_block_size));
  TRY(read_required(reader, {"dspark_markov_rank"}, kWidth, dspark.dspark_markov_rank));
  TRY(read_required(reader,
                    {"dspark_noise_token_id"},
                    {.min = 0, .max = config.vocab_size - 1},
                    dspark.dspark_noise_token_id));
  TRY_ASSIGN(const auto layers,
             reader.integers(
                 {"dspark_target_layer_ids"}, {.min = 0, .max = config.num_hidden_layers - 1}, 64));
  if (!layers || layers->empty()) {
    return reader.fault("dspark_target_layer_ids", "nothing", "at least one layer index");
  }
  for (const int64_t layer : *layers)
    dspark.dspark_target_layer_ids.push_back(static_cast<int32_t>(layer));
  config.dspark = std::move(dspark);
  return {};
}

}  // namespace

Result<Config> parse_config(const checkpoint::ConfigReader& reader) {
  Config config;
  TRY(check_variant(reader));
  TRY(read_required(reader, {"hidden_size", "dim"}, kWidth, config.hidden_size));
  TRY(read_required(reader, {"num_hidden_layers", "n_layers"}, kLayers, config.num_hidden_layers));
  TRY(read(reader, {"vocab_size"}, kVocabulary, config.vocab_size));
  TRY(read(reader, {"max_position_embeddings"}, kTokens, config.max_position_embeddings));
  TRY(read(reader, {"rms_norm_eps", "norm_eps"}, kEpsilon, config.rms_norm_eps));
  TRY(read_attention(reader, config));
  TRY(read_rotary_dim(reader, config));
  TRY(read_layers(reader, config));
  TRY(check_rotary_dim(reader, config));
  TRY(read_rope(reader, config));
  TRY(read(reader, {"hc_mult"}, {.min = 1, .max = 64}, config.hc_mult));
  TRY(read(reader, {"hc_sinkhorn_iters"}, {.min = 1, .max = 1000}, config.hc_sinkhorn_iters));
  TRY(read(reader, {"hc_eps"}, kEpsilon, config.hc_eps));
  TRY(read_experts(reader, config));
  TRY(read_hash_layers(reader, config));
  TRY(read(reader,
           {"num_nextn_predict_layers", "n_mtp_layers"},
           {.min = 0, .max = 64},
           config.num_nextn_predict_layers));
  TRY(read_dspark(reader, config));
  TRY(read_tokens(reader, config));
  TRY_ASSIGN(config.expert_dtype, reader.string_or({"expert_dtype"}, ""));
  return config;
}

}  // namespace nibble::models::deepseek_v4
