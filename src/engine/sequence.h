// One accepted request on its way through the engine. Owner: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/sip_hash.h"
#include "cache/prefix_tree.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "grammar/grammar.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace nibble::engine {

// Tokens are computed strictly in order; a sequence is in prefill while more than one known token
// is not computed yet, in decode otherwise. Preemption sets num_computed back to 0 and keeps the
// tokens.
struct Sequence {
  Sequence(Request accepted_request,
           OutputSink output_sink,
           const text::Tokenizer& tokenizer,
           int32_t resolved_max_tokens,
           uint64_t default_seed,
           TimePoint arrival);

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t num_prompt() const { return static_cast<int32_t>(request.prompt_ids.size()); }
  int32_t num_generated() const { return num_tokens() - num_prompt(); }
  int32_t num_pending() const { return num_tokens() - num_computed; }
  bool is_decoding() const { return num_pending() == 1 && num_generated() > 0; }
  // Prompt logprobs are wanted and not all there: rows of this many prompt tokens are missing.
  bool wants_prompt_logprobs() const;
  // What the next token is, whatever the model says: the end of reasoning whose budget is used.
  std::optional<int32_t> forced_token() const;

  // The text that `token_id` makes certain; stop strings count when `can_stop`.
  std::string push_text(int32_t token_id, bool can_stop);
  // What is still held back, at the end.
  std::string flush_text();

  Request request;
  OutputSink sink;
  int32_t max_tokens;
  uint64_t seed;

  std::vector<int32_t> token_ids;  // prompt, then output; at most max_context
  int32_t num_computed = 0;        // leading tokens whose state the model holds
  // Decode steps that the device was given and whose tokens are not known yet: the next tokens of
  // `token_ids`, once they are. The model's state is ahead by as many.
  int32_t num_queued = 0;

  SlotId slot;                      // valid while running
  std::vector<PageId> block_table;  // covers num_computed tokens and what the next step adds
  // The KV manager's: nodes of the prefix tree that the sequence references, the root first; the
  // i-th after it owns page i of the block table.
  std::vector<cache::NodeId> path;
  std::vector<Hash128> page_names;  // of the pages looked up so far
  // The slot's state must be read from it before a step; pinned, of the path's last node.
  std::optional<cache::SnapshotId> resume;
  cache::NodeId rolling;       // holds the snapshot of the last generated page
  std::vector<int32_t> forks;  // where other prompts part from this one, in tokens at page ends

  bool has_fetched = false;  // the tiers were asked for its prefix

  // The scheduler's.
  int64_t arrival_index = 0;  // order of arrival
  bool is_following = false;  // waits for the prefix that a running sequence computes

  TokenCounts counts;
  text::Detokenizer detokenizer;
  StopMatcher stop_matcher;
  // Finds the end of reasoning, also where it is not written with its token; empty: there is no
  // budget, or the reasoning has ended.
  std::optional<StopMatcher> reasoning_end;
  std::unique_ptr<grammar::Matcher> matcher;  // of the output so far; null: unconstrained
  std::vector<TokenLogprob> prompt_logprobs;  // of prompt tokens 1, 2, ...

  TimePoint arrived;
  TimePoint start_by = TimePoint::max();
  std::optional<TimePoint> started;      // first scheduled
  std::optional<int32_t> num_cached;     // prompt tokens that the first start found cached
  std::optional<TimePoint> first_token;  // first token sampled
  TimePoint last_token;                  // valid after the first
  Duration longest_gap{};                // between two tokens
  int32_t num_preemptions = 0;
};

}  // namespace nibble::engine
