// What is asked: prompts with the lengths of prompt and answer, made from a seed or read from a
// file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "bench_client/prompt_words.h"
#include "bench_client/random.h"
#include "bench_client/target.h"
#include "text/tokenizer.h"

namespace nibble::bench_client {

struct Turn {
  std::string text;             // of the user
  int64_t prompt_tokens = 0;    // of the whole request, as asked for; 0: not known beforehand
  int32_t output_tokens = 128;  // max_tokens of the request
};

// Turns follow each other, each with the answers before it in its prompt.
struct Conversation {
  std::vector<Message> opening;  // what stands before the first turn
  std::vector<Turn> turns;
};

enum class DatasetKind { kRandom, kSharedPrefix, kMultiTurn, kFile };

// Lengths are in tokens and count what the server adds (the chat template).
struct DatasetOptions {
  DatasetKind kind = DatasetKind::kRandom;
  int32_t num_prompts = 100;  // conversations

  int32_t input_len = 512;
  int32_t output_len = 128;
  double range_ratio = 0.0;  // lengths are uniform in [len * (1 - r), len * (1 + r)]

  int32_t num_groups = 8;         // shared prefix: prompts with the same beginning
  int32_t prompts_per_group = 8;  // num_prompts does not count there
  int32_t prefix_len = 512;

  int32_t num_turns = 4;  // multi-turn

  Path file;                    // of kFile
  int32_t file_output_len = 0;  // 0: the file's, or the length of its answer
};

const char* dataset_name(DatasetKind kind);

// kInvalidArgument when a length leaves no room for the template.
Result<std::vector<Conversation>> make_dataset(const DatasetOptions& options,
                                               const PromptWords& words,
                                               Random& random);

// JSON Lines or one JSON array; an entry is {"prompt"}, {"messages"} or ShareGPT's
// {"conversations"}, with "output_tokens" or "max_tokens" where known. The order is drawn from
// `random`; entries without a user's turn are left out. `tokenizer` (may be null) measures
// ShareGPT's answers. kInvalidArgument names the line.
Result<std::vector<Conversation>> read_dataset(const DatasetOptions& options,
                                               const text::Tokenizer* tokenizer,
                                               Random& random);

// Fingerprint of all prompts and lengths, 16 hexadecimal digits.
std::string dataset_hash(const std::vector<Conversation>& conversations);

int64_t count_turns(const std::vector<Conversation>& conversations);

}  // namespace nibble::bench_client
