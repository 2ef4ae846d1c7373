// Sets of Unicode scalar values, and their spelling in UTF-8 as ranges of bytes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace nibble::grammar {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;  // inclusive
};

// Sorted, disjoint, not adjacent ranges.
class CodePointSet final {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);
  static CodePointSet all() { return {{0, kLastCodePoint}}; }
  static CodePointSet of(std::u32string_view characters);

  void add(CodePointRange range);
  void add(const CodePointSet& other);
  CodePointSet complement() const;
  CodePointSet without(const CodePointSet& other) const;
  CodePointSet intersection(const CodePointSet& other) const;

  bool contains(char32_t code_point) const;
  bool is_empty() const { return ranges_.empty(); }
  std::span<const CodePointRange> ranges() const { return ranges_; }

 private:
  std::vector<CodePointRange> ranges_;
};

struct ByteRange8 {
  uint8_t first = 0;
  uint8_t last = 0;  // inclusive
};
// The UTF-8 sequences of `num_bytes` bytes whose i-th byte lies in bytes[i].
struct Utf8Sequence {
  int32_t num_bytes = 0;
  std::array<ByteRange8, 4> bytes{};
};
// Sequences that together spell exactly the set, without surrogates, disjoint, in order. Source:
// Unicode 15, table 3-6.
std::vector<Utf8Sequence> utf8_sequences(const CodePointSet& set);

}  // namespace nibble::grammar
