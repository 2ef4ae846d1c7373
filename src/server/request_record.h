// What a completion was like, for logs: numbers and names, never text of prompts or answers.
#pragma once

#include <cstdint>
#include <string>

#include "engine/request.h"

namespace nibble::server {

struct RequestRecord {
  bool stream = false;
  int32_t num_choices = 0;  // sequences that were asked for
  // Sums over the choices that have ended.
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int32_t num_preemptions = 0;
  // The longest of the choices, in seconds; the first token counts from the arrival.
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  double first_token_seconds = 0;
  double longest_gap_seconds = 0;
  bool is_cut = false;  // a choice ended at its token limit
  // How it ended: "stop", "length", "disconnect", "slow_reader", "shutdown", or an error's code.
  std::string end = {};

  void add(const engine::Finish& finish);
};

// Members of a JSON object, without its braces.
std::string to_json_members(const RequestRecord& record);

}  // namespace nibble::server
