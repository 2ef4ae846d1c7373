#include "grammar/configurations.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace nibble::grammar {
namespace {

constexpr int32_t kUnknown = -1;
// Tails united inside each other; deeper only in grammars made for it.
constexpr int32_t kMaxUnionDepth = 500;
constexpr size_t kMaxReserved = 1024;

}  // namespace

size_t Configurations::Hash::operator()(int32_t id) const {
  return hash_bytes(std::as_bytes(owner->entries(id)));
}

bool Configurations::Equal::operator()(int32_t a, int32_t b) const {
  const std::span<const Entry> x = owner->entries(a);
  const std::span<const Entry> y = owner->entries(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const Entry& p, const Entry& q) {
    return p.state == q.state && p.tail == q.tail;
  });
}

Configurations::Configurations(const Automaton& automaton,
                               const Vocabulary& vocabulary,
                               const Limits& limits)
    : automaton_(automaton),
      vocabulary_(vocabulary),
      limits_(limits),
      full_bytes_(limits.max_cached_bytes),
      index_(64, Hash{this}, Equal{this}),
      path_(static_cast<size_t>(vocabulary.max_token_bytes()) + 1) {
  reset();
}

// Everything that exists without any text.
void Configurations::reset() {
  index_.clear();
  configurations_.clear();
  entries_.clear();
  transitions_.clear();
  masks_.clear();
  unions_.clear();
  work_left_ = limits_.max_work_per_byte;
  const int32_t dead = intern({});
  CHECK(dead == kDead.value);
  const int32_t end = intern({{.state = Automaton::kEnd, .tail = kDead.value}});
  CHECK(end == kEnd.value);
  std::vector<Entry> start;
  const int32_t start_state = automaton_.rule(automaton_.root()).start;
  start.push_back({.state = start_state, .tail = kEnd.value});
  if (automaton_.accepts_empty()) start.push_back({.state = Automaton::kEnd, .tail = kDead.value});
  initial_ = ConfigurationId{intern(std::move(start))};
}

bool Configurations::spend(int64_t work) {
  work_left_ -= work;
  if (work_left_ < 0) is_exhausted_ = true;
  return !is_exhausted_;
}

Error Configurations::too_ambiguous() const {
  return {Errc::kInvalidArgument,
          "the grammar has too many readings of the text so far; make its alternatives and "
          "repetitions more distinct",
          "grammar_too_ambiguous",
          {}};
}

// --- sets of stacks

// Adds what follows where a rule may end, unites tails of equal states, drops states that can only
// end. Tails are closed in this way already, so that one round is enough.
int32_t Configurations::intern(std::vector<Entry> raw) {
  const size_t num_raw = raw.size();
  for (size_t i = 0; i < num_raw; ++i) {
    const Entry entry = raw[i];
    if (entry.state == Automaton::kEnd || !automaton_.state(entry.state).is_accepting) continue;
    const std::span<const Entry> tail = entries(entry.tail);
    raw.insert(raw.end(), tail.begin(), tail.end());
  }
  std::erase_if(raw, [&](const Entry& entry) {
    const AutomatonState& state = automaton_.state(entry.state);
    return entry.state != Automaton::kEnd && state.bytes_begin == state.bytes_end &&
           state.calls_begin == state.calls_end;
  });
  std::sort(raw.begin(), raw.end(), [](const Entry& a, const Entry& b) {
    return a.state != b.state ? a.state < b.state : a.tail < b.tail;
  });
  if (!spend(static_cast<int64_t>(raw.size()))) return kDead.value;
  std::vector<Entry> united;
  for (const Entry& entry : raw) {
    if (united.empty() || united.back().state != entry.state) {
      united.push_back(entry);
    } else {
      united.back().tail = unite(united.back().tail, entry.tail);
    }
  }
  return is_exhausted_ ? kDead.value : intern_canonical(united);
}

int32_t Configurations::unite(int32_t a, int32_t b) {
  if (a == b || is_exhausted_) return a;
  const uint64_t key = uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
  if (const auto known = unions_.find(key); known != unions_.end()) return known->second;
  if (union_depth_ == kMaxUnionDepth) {
    is_exhausted_ = true;
    return a;
  }
  std::vector<Entry> both(entries(a).begin(), entries(a).end());
  both.insert(both.end(), entries(b).begin(), entries(b).end());
  ++union_depth_;
  const int32_t result = intern(std::move(both));
  --union_depth_;
  if (!is_exhausted_) unions_.emplace(key, result);
  return result;
}

int32_t Configurations::intern_canonical(std::span<const Entry> united) {
  Configuration made{.entries_begin = static_cast<int32_t>(entries_.size()),
                     .num_entries = static_cast<int32_t>(united.size())};
  for (const Entry& entry : united) {
    const bool is_end = entry.state == Automaton::kEnd;
    made.can_end |= is_end;
    const int32_t own = automaton_.state(entry.state).is_in_recursion ? 1 : 0;
    made.depth = std::max(made.depth, (is_end ? 0 : at(entry.tail).depth) + own);
  }
  const auto id = static_cast<int32_t>(configurations_.size());
  entries_.insert(entries_.end(), united.begin(), united.end());
  configurations_.push_back(made);
  const auto [place, is_new] = index_.insert(id);
  if (is_new) return id;
  configurations_.pop_back();
  entries_.resize(static_cast<size_t>(made.entries_begin));
  return *place;
}

// --- bytes

// The state's rule can end from here within the limit on recursion.
bool Configurations::fits_recursion(int32_t state, int32_t tail_depth) const {
  const AutomatonState& reached = automaton_.state(state);
  return tail_depth + (reached.is_in_recursion ? 1 : 0) + reached.needed_recursion <=
         limits_.max_recursion;
}

// What one entry does with a byte: edges go to `out`, calls of rules that can begin with it wait.
void Configurations::read_byte(Entry entry, int32_t byte_class, std::vector<Entry>& out) {
  if (entry.state == Automaton::kEnd) return;
  const AutomatonState& state = automaton_.state(entry.state);
  const int32_t depth = at(entry.tail).depth;
  const auto bytes = automaton_.byte_edges(state);
  const auto calls = automaton_.call_edges(state);
  if (!spend(static_cast<int64_t>(bytes.size() + calls.size()) + 1)) return;
  for (const ByteEdge& edge : bytes) {
    const bool fits = edge.first_class <= byte_class && byte_class <= edge.last_class;
    if (fits && fits_recursion(edge.target, depth)) out.push_back({edge.target, entry.tail});
  }
  for (const CallEdge& call : calls) {
    const AutomatonRule& rule = automaton_.rule(call.rule);
    if (!rule.first_classes[static_cast<size_t>(byte_class)]) continue;
    if (!fits_recursion(call.target, depth)) continue;
    pending_.push_back({rule.rank, call.rule, {call.target, entry.tail}});
    std::push_heap(pending_.begin(), pending_.end(), is_later);
  }
}

// Takes all callers of the pending rule of lowest rank: no rule still pending can call it. Returns
// the tail of its activation.
int32_t Configurations::take_callers(int32_t& rule) {
  rule = pending_.front().rule;
  std::vector<Entry> callers;
  while (!pending_.empty() && pending_.front().rule == rule) {
    std::pop_heap(pending_.begin(), pending_.end(), is_later);
    callers.push_back(pending_.back().caller);
    pending_.pop_back();
  }
  return intern(std::move(callers));
}

int32_t Configurations::compute_next(int32_t id, int32_t byte_class) {
  std::vector<Entry> out;
  pending_.clear();
  for (int32_t i = 0; i < at(id).num_entries && !is_exhausted_; ++i) {
    read_byte(entries(id)[static_cast<size_t>(i)], byte_class, out);
  }
  while (!pending_.empty() && !is_exhausted_) {
    int32_t rule = 0;
    const int32_t tail = take_callers(rule);
    const int32_t start = automaton_.rule(rule).start;
    if (is_exhausted_ || !fits_recursion(start, at(tail).depth)) continue;
    read_byte({.state = start, .tail = tail}, byte_class, out);
  }
  return is_exhausted_ ? kDead.value : intern(std::move(out));
}

int32_t Configurations::next(int32_t id, int32_t byte_class) {
  if (id == kDead.value) return id;
  const auto num_classes = static_cast<size_t>(automaton_.num_classes());
  if (at(id).transitions_begin == kUnknown) {
    at(id).transitions_begin = static_cast<int32_t>(transitions_.size());
    transitions_.resize(transitions_.size() + num_classes, kUnknown);
  }
  const size_t slot =
      static_cast<size_t>(at(id).transitions_begin) + static_cast<size_t>(byte_class);
  if (transitions_[slot] == kUnknown) {
    const int32_t computed = compute_next(id, byte_class);
    if (is_exhausted_) return kDead.value;
    transitions_[slot] = computed;
  }
  return transitions_[slot];
}

Result<ConfigurationId> Configurations::advance(ConfigurationId id, std::string_view bytes) {
  int32_t current = id.value;
  is_exhausted_ = false;
  for (const char byte : bytes) {
    work_left_ = limits_.max_work_per_byte;
    current = next(current, automaton_.class_of(static_cast<uint8_t>(byte)));
    if (is_exhausted_) return too_ambiguous();
  }
  return ConfigurationId{current};
}

// --- masks

Result<std::span<const uint64_t>> Configurations::mask(ConfigurationId id) {
  const size_t num_words = vocabulary_.num_mask_words();
  if (at(id).mask_begin == kUnknown) {
    std::vector<uint64_t> words(num_words);
    is_exhausted_ = false;
    work_left_ = limits_.max_work_per_mask;
    fill_mask(id.value, words);
    if (is_exhausted_) return too_ambiguous();
    at(id.value).mask_begin = static_cast<int32_t>(masks_.size() / num_words);
    masks_.insert(masks_.end(), words.begin(), words.end());
  }
  return std::span<const uint64_t>(
      masks_.data() + static_cast<size_t>(at(id).mask_begin) * num_words, num_words);
}

// Walks the token tree in preorder; a dead byte skips everything below it.
void Configurations::fill_mask(int32_t id, std::span<uint64_t> words) {
  const std::span<const Vocabulary::Node> nodes = vocabulary_.nodes();
  const std::span<const int32_t> tokens = vocabulary_.node_tokens();
  path_[0] = id;
  for (size_t i = 0; i < nodes.size() && !is_exhausted_;) {
    const Vocabulary::Node& node = nodes[i];
    const int32_t reached = next(path_[size_t{node.depth} - 1], automaton_.class_of(node.byte));
    if (reached == kDead.value) {
      i = static_cast<size_t>(node.subtree_end);
      continue;
    }
    path_[node.depth] = reached;
    const int32_t tokens_begin = i == 0 ? 0 : nodes[i - 1].tokens_end;
    for (int32_t k = tokens_begin; k < node.tokens_end; ++k) {
      const auto token = static_cast<size_t>(tokens[static_cast<size_t>(k)]);
      words[token / 64] |= uint64_t{1} << (token % 64);
    }
    ++i;
  }
}

// --- memory

int64_t Configurations::cached_bytes() const {
  constexpr size_t kIndexEntry = 32;
  return static_cast<int64_t>(configurations_.size() * (sizeof(Configuration) + kIndexEntry) +
                              entries_.size() * sizeof(Entry) +
                              transitions_.size() * sizeof(int32_t) +
                              masks_.size() * sizeof(uint64_t) + unions_.size() * kIndexEntry);
}

// Tails are interned before what refers to them, so that one pass in order can rename.
void Configurations::keep_only(std::span<ConfigurationId* const> live) {
  std::vector<bool> is_live(configurations_.size());
  for (const ConfigurationId* id : live) is_live[static_cast<size_t>(id->value)] = true;
  for (auto id = static_cast<int32_t>(configurations_.size()) - 1; id > 0; --id) {
    if (!is_live[static_cast<size_t>(id)]) continue;
    for (const Entry& entry : entries(id)) is_live[static_cast<size_t>(entry.tail)] = true;
  }
  std::vector<std::vector<Entry>> kept;
  std::vector<int32_t> old_ids;
  for (size_t id = 0; id < is_live.size(); ++id) {
    if (!is_live[id]) continue;
    const std::span<const Entry> list = entries(static_cast<int32_t>(id));
    kept.emplace_back(list.begin(), list.end());
    old_ids.push_back(static_cast<int32_t>(id));
  }
  std::vector<int32_t> new_ids(is_live.size());
  is_exhausted_ = false;
  reset();
  for (size_t i = 0; i < kept.size(); ++i) {
    for (Entry& entry : kept[i]) entry.tail = new_ids[static_cast<size_t>(entry.tail)];
    new_ids[static_cast<size_t>(old_ids[i])] = intern_canonical(kept[i]);
  }
  for (ConfigurationId* id : live) id->value = new_ids[static_cast<size_t>(id->value)];
  // What sequences in progress need is bounded by their lengths; leave room beyond it.
  full_bytes_ = std::max(limits_.max_cached_bytes, 2 * cached_bytes());
  index_.reserve(std::min(configurations_.size(), kMaxReserved));
}

}  // namespace nibble::grammar
