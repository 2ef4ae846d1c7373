#include "grammar/code_points.h"

#include <algorithm>
#include <string>

#include "base/utf8.h"

namespace nibble::grammar {
namespace {

constexpr CodePointRange kSurrogates = {0xD800, 0xDFFF};
constexpr char32_t kLengthEnds[] = {0x7F, 0x7FF, 0xFFFF, kLastCodePoint};

// Both ends have the same UTF-8 length. Splits until every trailing byte is either fixed or runs
// over its whole range behind the byte that varies.
void add_sequences(CodePointRange range, int32_t num_bytes, std::vector<Utf8Sequence>& out) {
  for (int32_t num_trailing = 1; num_trailing < num_bytes; ++num_trailing) {
    const char32_t mask = (char32_t{1} << (6 * num_trailing)) - 1;
    if ((range.first & ~mask) == (range.last & ~mask)) continue;
    if ((range.first & mask) != 0) {
      add_sequences({range.first, range.first | mask}, num_bytes, out);
      return add_sequences({(range.first | mask) + 1, range.last}, num_bytes, out);
    }
    if ((range.last & mask) != mask) {
      add_sequences({range.first, (range.last & ~mask) - 1}, num_bytes, out);
      return add_sequences({range.last & ~mask, range.last}, num_bytes, out);
    }
  }
  std::string first;
  std::string last;
  append_utf8(first, range.first);
  append_utf8(last, range.last);
  Utf8Sequence sequence{.num_bytes = num_bytes};
  for (size_t i = 0; i < first.size(); ++i) {
    sequence.bytes[i] = {static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])};
  }
  out.push_back(sequence);
}

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) add(range);
}

CodePointSet CodePointSet::of(std::u32string_view characters) {
  CodePointSet set;
  for (const char32_t character : characters) set.add({character, character});
  return set;
}

void CodePointSet::add(CodePointRange range) {
  if (range.first > range.last) return;
  const auto begin = std::find_if(ranges_.begin(), ranges_.end(), [&](const CodePointRange& old) {
    return old.last + 1 >= range.first;
  });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= range.last + 1; ++end) {
    range.first = std::min(range.first, end->first);
    range.last = std::max(range.last, end->last);
  }
  ranges_.insert(ranges_.erase(begin, end), range);
}

void CodePointSet::add(const CodePointSet& other) {
  for (const CodePointRange& range : other.ranges_) add(range);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) result.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) result.ranges_.push_back({next, kLastCodePoint});
  return result;
}

CodePointSet CodePointSet::intersection(const CodePointSet& other) const {
  CodePointSet result;
  for (size_t i = 0, k = 0; i < ranges_.size() && k < other.ranges_.size();) {
    const CodePointRange& a = ranges_[i];
    const CodePointRange& b = other.ranges_[k];
    const CodePointRange both = {std::max(a.first, b.first), std::min(a.last, b.last)};
    if (both.first <= both.last) result.ranges_.push_back(both);
    ++(a.last < b.last ? i : k);
  }
  return result;
}

CodePointSet CodePointSet::without(const CodePointSet& other) const {
  return intersection(other.complement());
}

bool CodePointSet::contains(char32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const CodePointRange& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

std::vector<Utf8Sequence> utf8_sequences(const CodePointSet& set) {
  const CodePointSet scalars = set.without({kSurrogates});
  std::vector<Utf8Sequence> out;
  for (CodePointRange range : scalars.ranges()) {
    for (int32_t num_bytes = 1; num_bytes <= 4; ++num_bytes) {
      const char32_t length_end = kLengthEnds[num_bytes - 1];
      if (range.first > length_end || range.first > range.last) continue;
      add_sequences({range.first, std::min(range.last, length_end)}, num_bytes, out);
      range.first = length_end + 1;
    }
  }
  return out;
}

}  // namespace nibble::grammar
