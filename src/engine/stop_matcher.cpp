#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nibble::engine {
namespace {

std::vector<size_t> borders_of(std::string_view text) {
  std::vector<size_t> borders(text.size() + 1, 0);
  size_t border = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) border = borders[border];
    if (text[i] == text[border]) ++border;
    borders[i + 1] = border;
  }
  return borders;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops, MatchedText matched_text)
    : matched_text_(matched_text) {
  for (const std::string& stop : stops) {
    CHECK(!stop.empty());
    patterns_.push_back({.text = stop, .borders = borders_of(stop), .num_matched = 0});
  }
}

void StopMatcher::advance(Pattern& pattern, char c) {
  size_t& n = pattern.num_matched;
  while (n > 0 && c != pattern.text[n]) n = pattern.borders[n];
  if (c == pattern.text[n]) ++n;
}

std::string StopMatcher::push(std::string_view piece) {
  CHECK(match_ < 0) << "text after a stop string";
  if (patterns_.empty()) return std::string(piece);
  for (const char c : piece) {
    held_ += c;
    size_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      advance(pattern, c);
      if (pattern.num_matched < pattern.text.size() || pattern.text.size() <= longest) continue;
      longest = pattern.text.size();
      match_ = static_cast<int32_t>(i);
    }
    if (match_ < 0) continue;
    if (matched_text_ == MatchedText::kDrop) held_.resize(held_.size() - longest);
    return std::exchange(held_, {});
  }
  size_t num_held = 0;
  for (const Pattern& pattern : patterns_) num_held = std::max(num_held, pattern.num_matched);
  std::string text = held_.substr(0, held_.size() - num_held);
  held_.erase(0, text.size());
  return text;
}

std::string StopMatcher::flush() {
  for (Pattern& pattern : patterns_) pattern.num_matched = 0;
  return std::exchange(held_, {});
}

std::string StopMatcher::pass(std::string_view piece) { return flush().append(piece); }

const std::string* StopMatcher::match() const {
  return match_ < 0 ? nullptr : &patterns_[static_cast<size_t>(match_)].text;
}

}  // namespace nibble::engine
