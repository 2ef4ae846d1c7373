// Constrained generation. compile() makes a Grammar of what a request asks for; a Matcher follows
// one sequence, says which tokens may come next and takes the one that was chosen.
//
// The text so far can always be completed: a token is allowed exactly when some permitted text
// continues with it. End-of-sequence tokens are allowed exactly when the text is complete, and then
// alone when nothing else may follow.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/limits.h"
#include "grammar/spec.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {

class Matcher;

// Shared by all sequences with the same constraint, and what they learn about it with it: masks and
// transitions, up to Limits::max_cached_bytes. Any thread; sequences of one grammar take turns.
class Grammar final {
 public:
  ~Grammar();

  const Vocabulary& vocabulary() const;
  int32_t num_states() const;
  // Bytes in use now, caches included.
  int64_t size_bytes() const;

 private:
  friend class Matcher;
  friend Result<std::shared_ptr<const Grammar>> compile(const Spec&,
                                                        std::shared_ptr<const Vocabulary>,
                                                        const Limits&);
  struct State;
  explicit Grammar(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;  // locked; grows behind the const interface
};

// Time and memory are linear in the source and bounded by the limits. kInvalidArgument says what is
// wrong and where: the keyword and its JSON pointer, the character of a pattern, the line of a
// grammar. kUnsupported: the tokenizer lacks a token that the format needs.
Result<std::shared_ptr<const Grammar>> compile(const Spec& spec,
                                               std::shared_ptr<const Vocabulary> vocabulary,
                                               const Limits& limits = {});

// Owner: one sequence.
class Matcher final {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  ~Matcher();

  // Sets the bits of the allowed tokens, at least one, and clears all others.
  // `words`: Vocabulary::num_mask_words(). kInvalidArgument with the reason
  // "grammar_too_ambiguous": it has too many readings of the text so far.
  Result<void> fill_allowed(std::span<uint64_t> words);

  // Takes a token. kInvalidArgument when it is not allowed; then nothing changes. Too ambiguous
  // as above.
  Result<void> accept(int32_t token_id);
  // Takes the last tokens back. num_tokens: at most those accepted.
  void rollback(int32_t num_tokens);

  bool can_end() const;      // the text is complete
  bool is_complete() const;  // and nothing but the end may follow, or the end was accepted
  int32_t num_accepted() const;
  const Grammar& grammar() const { return *grammar_; }

 private:
  friend class Grammar;
  struct Position;
  bool is_ended() const;

  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<Position> position_;
};

}  // namespace nibble::grammar
