// All that an automaton can be doing after some text, as small numbers: the set of its stacks,
// interned, with transitions and token masks made when first asked for and kept. One sequence's
// state is one ConfigurationId, and a step of a known configuration is one table look-up.
//
// A configuration is a set of entries (state, tail); the tail is the configuration that continues
// when the state's rule ends. Entries of equal state are one, with the union of their tails, and
// wherever a rule may end, the entries of the tail are entries too. So a set of any number of
// stacks, which ambiguous grammars have, stays as small as its distinct states.
//
// Owner: whoever holds the grammar's lock.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "grammar/automaton.h"
#include "grammar/limits.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {

using ConfigurationId = Id<struct ConfigurationTag>;

class Configurations final {
 public:
  // Both must outlive it.
  Configurations(const Automaton& automaton, const Vocabulary& vocabulary, const Limits& limits);
  Configurations(const Configurations&) = delete;
  Configurations& operator=(const Configurations&) = delete;

  // Fits no text; every byte leads to it that is not allowed.
  static constexpr ConfigurationId kDead{0};
  // The whole text is read and nothing may follow.
  static constexpr ConfigurationId kEnd{1};

  ConfigurationId initial() const { return initial_; }
  bool can_end(ConfigurationId id) const { return at(id).can_end; }

  // The configuration after `bytes`, kDead when they do not fit. kInvalidArgument: the grammar is
  // too ambiguous here, one byte took more than the permitted work.
  Result<ConfigurationId> advance(ConfigurationId id, std::string_view bytes);

  // Bits of the tokens that fit; those for the end of the sequence are left to the caller. Valid
  // until the next call. kInvalidArgument as above.
  Result<std::span<const uint64_t>> mask(ConfigurationId id);

  // More is cached than permitted: time to keep_only() what is in use.
  bool is_full() const { return cached_bytes() > full_bytes_; }
  // Forgets everything that `live` does not need, all masks and all transitions, and renames
  // `live`.
  void keep_only(std::span<ConfigurationId* const> live);
  int64_t cached_bytes() const;

 private:
  struct Entry {
    int32_t state = 0;
    int32_t tail = 0;
  };
  struct Configuration {
    int32_t entries_begin = 0;
    int32_t num_entries = 0;
    int32_t transitions_begin = -1;
    int32_t mask_begin = -1;
    int32_t depth = 0;  // activations of recursive rules, at most
    bool can_end = false;
  };
  // A rule called while a byte is being read, and where one of its callers continues.
  struct PendingCall {
    int32_t rank = 0;
    int32_t rule = 0;
    Entry caller;
  };
  static bool is_later(const PendingCall& a, const PendingCall& b) { return a.rank > b.rank; }
  struct Hash {
    const Configurations* owner;
    size_t operator()(int32_t id) const;
  };
  struct Equal {
    const Configurations* owner;
    bool operator()(int32_t a, int32_t b) const;
  };
  using Index = std::unordered_set<int32_t, Hash, Equal>;

  const Configuration& at(ConfigurationId id) const {
    return configurations_[static_cast<size_t>(id.value)];
  }
  Configuration& at(int32_t id) { return configurations_[static_cast<size_t>(id)]; }
  const Configuration& at(int32_t id) const { return configurations_[static_cast<size_t>(id)]; }
  std::span<const Entry> entries(int32_t id) const {
    return {entries_.data() + at(id).entries_begin, static_cast<size_t>(at(id).num_entries)};
  }

  void reset();
  int32_t intern(std::vector<Entry> raw);
  int32_t unite(int32_t a, int32_t b);
  int32_t intern_canonical(std::span<const Entry> united);
  int32_t next(int32_t id, int32_t byte_class);
  int32_t compute_next(int32_t id, int32_t byte_class);
  void read_byte(Entry entry, int32_t byte_class, std::vector<Entry>& out);
  int32_t take_callers(int32_t& rule);
  bool fits_recursion(int32_t state, int32_t tail_depth) const;
  bool spend(int64_t work);
  Error too_ambiguous() const;
  void fill_mask(int32_t id, std::span<uint64_t> words);

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  const Limits& limits_;
  int64_t full_bytes_;
  ConfigurationId initial_;
  std::vector<Configuration> configurations_;
  std::vector<Entry> entries_;
  std::vector<int32_t> transitions_;  // num_classes per configuration that has them; -1: unknown
  std::vector<uint64_t> masks_;
  Index index_;
  std::unordered_map<uint64_t, int32_t> unions_;  // of two configurations, by their ids
  std::vector<PendingCall> pending_;              // of the byte being read
  std::vector<int32_t> path_;                     // of the walk over the token tree
  int64_t work_left_ = 0;
  int32_t union_depth_ = 0;
  bool is_exhausted_ = false;
};

}  // namespace nibble::grammar
