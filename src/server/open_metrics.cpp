#include "server/open_metrics.h"

#include <algorithm>

namespace nibble::server {
namespace {

std::string_view next_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  return line;
}

// "# TYPE name counter"
bool is_counter_type(std::string_view line) {
  return line.starts_with("# TYPE ") && line.ends_with(" counter");
}

// "# HELP name_total ..." and "# TYPE name_total counter" without "_total".
std::string without_total(std::string_view line) {
  constexpr std::string_view kSuffix = "_total";
  const size_t name_end = line.find(' ', std::string_view("# HELP ").size());
  std::string out(line);
  const bool has_suffix =
      name_end != std::string_view::npos && line.substr(0, name_end).ends_with(kSuffix);
  if (has_suffix) out.erase(name_end - kSuffix.size(), kSuffix.size());
  return out;
}

}  // namespace

std::string to_open_metrics(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = next_line(rest);
    // HELP stands before TYPE, which tells what it is about.
    const std::string_view following = rest.substr(0, rest.find('\n'));
    const bool is_of_counter =
        is_counter_type(line) || (line.starts_with("# HELP ") && is_counter_type(following));
    out += is_of_counter ? without_total(line) : std::string(line);
    out += '\n';
  }
  return out + "# EOF\n";
}

}  // namespace nibble::server
