// Compiled grammars by what they were compiled from, the most recently used ones. Compiling happens
// on the calling thread, never under the lock. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "grammar/grammar.h"

namespace nibble::grammar {

class GrammarCache final {
 public:
  // Holds at most `capacity` grammars, each of at most Limits::max_cached_bytes and its automaton.
  GrammarCache(std::shared_ptr<const Vocabulary> vocabulary,
               size_t capacity,
               const Limits& limits = {});

  // Errors are not kept.
  Result<std::shared_ptr<const Grammar>> get(const Spec& spec);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  size_t size() const;
  int64_t num_compiled() const;

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const Grammar>>;

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t capacity_;
  const Limits limits_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  int64_t num_compiled_ = 0;
};

}  // namespace nibble::grammar
