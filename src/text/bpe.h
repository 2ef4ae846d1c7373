// Byte-pair merging over token ids: what one piece of text becomes. Knows neither files nor
// Unicode. Immutable after construction; safe to use from any number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// Joins the adjacent tokens `left` and `right` into `result`. A list of merges is ordered by rank,
// lowest first.
struct Merge {
  int32_t left = -1;
  int32_t right = -1;
  int32_t result = -1;
};

// Rank of a pair of adjacent tokens. Open addressing, at most half full.
class MergeRanks final {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit MergeRanks(std::span<const Merge> merges);  // pairs must be distinct
  uint32_t find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = 0;
    uint32_t rank = kNone;  // kNone: empty
  };

  size_t probe(uint64_t pair) const;

  std::vector<Slot> slots_;
};

class Bpe final {
 public:
  // Working memory of encode(), kept between calls to spare allocations. One per thread. Grows to
  // at most 48 bytes per byte of the longest piece.
  struct Scratch {
    struct Symbol {
      int32_t id = -1;
      uint32_t rank = MergeRanks::kNone;  // of the pair this symbol makes with the next one
      uint32_t previous = 0;
      uint32_t next = 0;
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol
  };

  // `byte_tokens[b]` is the token of the single byte b, `token_bytes[id]` the bytes of each token
  // (empty: no such token). Ids in the first two lie in [0, token_bytes.size()).
  Bpe(const std::array<int32_t, 256>& byte_tokens,
      std::span<const Merge> merges,
      std::vector<std::string> token_bytes);

  // Appends the tokens of `piece`: starting from its bytes, joins the adjacent pair of lowest rank,
  // the leftmost among equals, until no pair can merge. O(n log n) in the piece's length n for any
  // input. n < 2^32.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  const std::vector<std::string>& token_bytes() const { return token_bytes_; }

 private:
  void merge(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;
  void index_whole_pieces();
  int32_t find_whole_piece(std::string_view piece) const;

  std::array<int32_t, 256> byte_tokens_;
  MergeRanks ranks_;
  std::vector<int32_t> results_;  // by rank
  std::vector<std::string> token_bytes_;

  // Tokens whose own bytes merge to exactly that token; for these pieces a look-up provably equals
  // merging. Open addressing by the hash of the bytes, at most half full.
  struct WholePiece {
    uint32_t hash_high = 0;
    int32_t id = -1;  // negative: free slot
  };
  std::vector<WholePiece> whole_pieces_;
  size_t whole_piece_bytes_max_ = 0;
};

}  // namespace nibble::text
