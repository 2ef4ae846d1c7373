// The tokens that constrained text is made of, as a tree over their bytes. Made once per tokenizer;
// immutable, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace nibble::grammar {

struct VocabularyToken {
  std::string bytes;        // the text of a control token
  bool is_control = false;  // matches as a whole where a grammar names it, never as text
};

class Vocabulary final {
 public:
  // tokens[id]; ids up to `vocab_size` (the width of the logits) without a token are never allowed.
  // End-of-sequence tokens are allowed only by what a grammar's end says.
  Vocabulary(std::span<const VocabularyToken> tokens,
             int32_t vocab_size,
             std::vector<int32_t> eos_token_ids);

  // Added tokens of the tokenizer are control tokens.
  static std::shared_ptr<const Vocabulary> from_tokenizer(const text::Tokenizer& tokenizer,
                                                          int32_t vocab_size,
                                                          std::vector<int32_t> eos_token_ids);

  int32_t vocab_size() const { return vocab_size_; }
  // 64-bit words of a token mask: bit (id % 64) of word (id / 64) stands for a token.
  size_t num_mask_words() const { return (static_cast<size_t>(vocab_size_) + 63) / 64; }
  std::span<const int32_t> eos_token_ids() const { return eos_token_ids_; }
  bool is_eos(int32_t token_id) const;

  // What the automaton reads for the token; empty for unusable ones.
  std::string_view spelling(int32_t token_id) const;
  std::optional<int32_t> control_token(std::string_view text) const;
  std::span<const int32_t> control_tokens() const { return control_tokens_; }
  // A single token spells the byte. Text that needs others could get stuck, so automata avoid them.
  bool can_spell(uint8_t byte) const { return single_bytes_[byte]; }

  // The tree without its root, in preorder: node i's descendants are i + 1 to subtree_end - 1.
  struct Node {
    int32_t subtree_end = 0;
    int32_t tokens_end = 0;  // tokens that end here: from the previous node's tokens_end on
    uint16_t depth = 0;      // bytes from the root
    uint8_t byte = 0;
  };
  std::span<const Node> nodes() const { return nodes_; }
  // Token ids in the order of the nodes they end at.
  std::span<const int32_t> node_tokens() const { return node_tokens_; }
  int32_t max_token_bytes() const { return max_token_bytes_; }

 private:
  void build_tree();

  int32_t vocab_size_;
  std::vector<int32_t> eos_token_ids_;
  std::vector<std::string> spellings_;
  std::vector<int32_t> control_tokens_;
  std::unordered_map<std::string, int32_t> control_ids_;
  std::array<bool, 256> single_bytes_{};
  std::vector<Node> nodes_;
  std::vector<int32_t> node_tokens_;
  int32_t max_token_bytes_ = 0;
};

}  // namespace nibble::grammar
