// The JSON files of a checkpoint as hostile input: config.json, generation_config.json and the
// shard index. Every text goes through all three readers.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/shard_index.h"
#include "models/deepseek_v4/config.h"

namespace {

using nibble::Error;
using nibble::checkpoint::ConfigReader;
using nibble::checkpoint::ShardIndex;
using nibble::models::deepseek_v4::Config;

void check_message(const Error& error) {
  CHECK(error.message.starts_with("file.json: ") && error.message.ends_with('.')) << error.message;
  CHECK(error.message.find('\n') == std::string::npos && error.message.size() < 4000)
      << error.message;
}

// What model code relies on without asking again.
void check_promises(const Config& config) {
  CHECK(config.num_attention_heads % config.o_groups == 0);
  CHECK(config.qk_rope_head_dim % 2 == 0 && config.qk_nope_head_dim() >= 0);
  CHECK(config.num_experts_per_tok <= config.n_routed_experts);
  CHECK(config.num_hash_layers <= config.num_hidden_layers);
  CHECK(static_cast<int64_t>(config.compress_ratios.size()) >= config.num_hidden_layers);
  for (const int32_t ratio : config.compress_ratios)
    CHECK(ratio == 0 || ratio == 4 || ratio == 128) << ratio;
  for (const int32_t id : config.eos_token_ids) CHECK(id >= 0 && id < config.vocab_size) << id;
}

void check_promises(const ShardIndex& index) {
  for (const std::string& shard : index.shards) {
    CHECK(!shard.empty() && shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos)
        << shard;
  }
  for (const auto& [name, shard] : index.tensors) {
    CHECK(shard >= 0 && static_cast<size_t>(shard) < index.shards.size()) << name;
  }
}

void exercise_config(std::string_view text) {
  const auto reader = ConfigReader::parse(text, "file.json");
  if (!reader.ok()) return check_message(reader.error());
  const auto config = nibble::models::deepseek_v4::parse_config(*reader);
  if (!config.ok()) return check_message(config.error());
  check_promises(*config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  exercise_config(text);
  const auto generation = nibble::checkpoint::parse_generation_config(text, "file.json");
  if (!generation.ok()) check_message(generation.error());
  const auto index = nibble::checkpoint::parse_shard_index(text, "file.json");
  if (index.ok()) {
    check_promises(*index);
  } else {
    check_message(index.error());
  }
  return 0;
}
