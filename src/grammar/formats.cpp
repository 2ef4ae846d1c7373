#include "grammar/formats.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace nibble::grammar {
namespace {

// A pattern may hold the names of earlier ones, as "<name>".
struct NamedPattern {
  std::string_view name;
  std::string_view pattern;
  bool is_format = true;
};

constexpr NamedPattern kPatterns[] = {
    // Years begin at 0001. February has 29 days in years divisible by 4 but not by 100, or by 400.
    {"date",
     "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(?:"
     "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
     "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
     "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
     "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
     "|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"},
    {"time",
     "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
     "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"},
    {"date-time", "<date>T<time>"},
    // RFC 3339, appendix A.
    {"count", "[0-9]{1,9}", false},
    {"clock", "T(?:<count>H(?:<count>M(?:<count>S)?)?|<count>M(?:<count>S)?|<count>S)", false},
    {"days", "(?:<count>D|<count>M(?:<count>D)?|<count>Y(?:<count>M(?:<count>D)?)?)", false},
    {"duration", "P(?:<days>(?:<clock>)?|<clock>|<count>W)"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"octet", "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])", false},
    {"ipv4", "(?:<octet>\\.){3}<octet>"},
    // RFC 4291, without a dotted tail: "::" stands for one group or more.
    {"group", "[0-9a-fA-F]{1,4}", false},
    {"ipv6",
     "(?:(?:<group>:){7}<group>|(?:<group>:){1,7}:|(?:<group>:){1,6}:<group>"
     "|(?:<group>:){1,5}(?::<group>){2}|(?:<group>:){1,4}(?::<group>){3}"
     "|(?:<group>:){1,3}(?::<group>){4}|(?:<group>:){1,2}(?::<group>){5}"
     "|<group>:(?::<group>){6}|:(?:(?::<group>){1,7}|:))"},
    // RFC 1123: up to eight labels of letters, digits and single hyphens between them, in all at
    // most 239 characters. The last begins with a letter, so that no address is a name.
    {"rest", "(?:-?[a-zA-Z0-9]){0,14}", false},
    {"hostname", "(?:[a-zA-Z0-9]<rest>\\.){0,7}[a-zA-Z]<rest>"},
    // RFC 5321: a dot-string of at most 63 characters before the "@".
    {"atom", "[a-zA-Z0-9!#$%&'*+/=?\\^_`\\{|\\}~-]", false},
    {"email", "<atom>(?:\\.?<atom>){0,31}@<hostname>"},
    // RFC 3986, http and https.
    {"pchar", "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})", false},
    {"uri",
     "https?://<hostname>(?::[1-9][0-9]{0,3})?(?:/<pchar>*)*(?:\\?(?:<pchar>|[/?])*)?"
     "(?:#(?:<pchar>|[/?])*)?"}};

const NamedPattern* find_pattern(std::string_view name) {
  const auto* found = std::find_if(std::begin(kPatterns),
                                   std::end(kPatterns),
                                   [&](const NamedPattern& entry) { return entry.name == name; });
  return found == std::end(kPatterns) ? nullptr : found;
}

// Its names replaced by what they stand for.
std::string expanded(std::string_view pattern) {
  std::string result;
  while (true) {
    const size_t open = std::min(pattern.find('<'), pattern.size());
    result += pattern.substr(0, open);
    if (open == pattern.size()) return result;
    const size_t close = pattern.find('>', open);
    result += expanded(find_pattern(pattern.substr(open + 1, close - open - 1))->pattern);
    pattern.remove_prefix(close + 1);
  }
}

}  // namespace

std::optional<std::string> pattern_of_format(std::string_view format) {
  const NamedPattern* found = find_pattern(format);
  if (found == nullptr || !found->is_format) return std::nullopt;
  return expanded(found->pattern);
}

std::string supported_formats() {
  std::string names;
  for (const NamedPattern& entry : kPatterns) {
    if (!entry.is_format) continue;
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

}  // namespace nibble::grammar
