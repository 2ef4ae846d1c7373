#include "grammar/vocabulary.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/expression.h"

namespace nibble::grammar {
namespace {

// Longer tokens exist only as runs of one character; without them everything can still be spelled.
constexpr size_t kMaxTokenBytes = 256;

bool is_usable_text(std::string_view bytes) {
  return !bytes.empty() && bytes.size() <= kMaxTokenBytes &&
         bytes.find(static_cast<char>(kControlByte)) == std::string_view::npos;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  const auto [end, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end - a.begin());
}

}  // namespace

Vocabulary::Vocabulary(std::span<const VocabularyToken> tokens,
                       int32_t vocab_size,
                       std::vector<int32_t> eos_token_ids)
    : vocab_size_(vocab_size), eos_token_ids_(std::move(eos_token_ids)) {
  CHECK(vocab_size > 0 && vocab_size <= kMaxControlTokenId) << vocab_size;
  for (const int32_t id : eos_token_ids_) CHECK(id >= 0 && id < vocab_size) << id;
  spellings_.resize(static_cast<size_t>(vocab_size));
  const size_t num_tokens = std::min(tokens.size(), spellings_.size());
  for (size_t i = 0; i < num_tokens; ++i) {
    const auto id = static_cast<int32_t>(i);
    const VocabularyToken& token = tokens[i];
    if (is_eos(id)) continue;
    if (token.is_control) {
      spellings_[i] = control_token_spelling(id);
      control_tokens_.push_back(id);
      control_ids_.emplace(token.bytes, id);
    } else if (is_usable_text(token.bytes)) {
      spellings_[i] = token.bytes;
      if (token.bytes.size() == 1) single_bytes_[static_cast<uint8_t>(token.bytes.front())] = true;
    }
  }
  build_tree();
}

std::shared_ptr<const Vocabulary> Vocabulary::from_tokenizer(const text::Tokenizer& tokenizer,
                                                             int32_t vocab_size,
                                                             std::vector<int32_t> eos_token_ids) {
  std::vector<VocabularyToken> tokens(
      static_cast<size_t>(std::min(vocab_size, tokenizer.vocab_size())));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    tokens[i].bytes = tokenizer.token_bytes(id);
    tokens[i].is_control = tokenizer.is_special(id) || tokenizer.added_token(tokens[i].bytes) == id;
  }
  return std::make_shared<const Vocabulary>(tokens, vocab_size, std::move(eos_token_ids));
}

bool Vocabulary::is_eos(int32_t token_id) const {
  return std::find(eos_token_ids_.begin(), eos_token_ids_.end(), token_id) != eos_token_ids_.end();
}

std::string_view Vocabulary::spelling(int32_t token_id) const {
  if (token_id < 0 || token_id >= vocab_size_) return {};
  return spellings_[static_cast<size_t>(token_id)];
}

std::optional<int32_t> Vocabulary::control_token(std::string_view text) const {
  const auto found = control_ids_.find(std::string(text));
  if (found == control_ids_.end()) return std::nullopt;
  return found->second;
}

// Sorted spellings visit the tree in preorder: each adds the nodes that its predecessor lacks.
void Vocabulary::build_tree() {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (!spelling(id).empty()) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    const int order = spelling(a).compare(spelling(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<int32_t> path;  // open nodes, from the root down
  const auto close_to = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[static_cast<size_t>(path.back())].subtree_end = static_cast<int32_t>(nodes_.size());
    }
  };
  std::string_view previous;
  for (const int32_t id : ids) {
    const std::string_view bytes = spelling(id);
    close_to(common_prefix(previous, bytes));
    while (path.size() < bytes.size()) {
      Node node;
      node.byte = static_cast<uint8_t>(bytes[path.size()]);
      path.push_back(static_cast<int32_t>(nodes_.size()));
      node.depth = static_cast<uint16_t>(path.size());
      node.tokens_end = static_cast<int32_t>(node_tokens_.size());
      nodes_.push_back(node);
    }
    node_tokens_.push_back(id);
    nodes_.back().tokens_end = static_cast<int32_t>(node_tokens_.size());
    max_token_bytes_ = std::max(max_token_bytes_, static_cast<int32_t>(bytes.size()));
    previous = bytes;
  }
  close_to(0);
}

}  // namespace nibble::grammar
