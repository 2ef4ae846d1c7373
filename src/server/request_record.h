// What a completion was like, for logs: numbers and names, never text of prompts or answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "engine/request.h"

namespace nibble::server {

// A choice as far as the server has seen it, for those that the engine did not end.
struct ChoiceProgress {
  int64_t prompt_tokens = 0;  // 0: not submitted
  int64_t completion_tokens = 0;
  std::optional<TimePoint> first_output = {};
  std::optional<TimePoint> last_output = {};
  double longest_gap_seconds = 0;
  bool has_ended = false;

  void note_output(int64_t num_tokens, TimePoint now);
};

struct RequestRecord {
  bool stream = false;
  int32_t num_choices = 0;  // sequences that were asked for
  // Sums over the choices. Of one that was left before its end: without the cached tokens and the
  // times before its first token, which only the engine knows.
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
  void add(const ChoiceProgress& choice);
};

// Members of a JSON object, without its braces.
std::string to_json_members(const RequestRecord& record);

}  // namespace nibble::server
