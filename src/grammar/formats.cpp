#include "grammar/formats.h"

#include <algorithm>
#include <iterator>

namespace nibble::grammar {
namespace {

// Years begin at 0001. February has 29 days in years divisible by 4 but not by 100, or by 400.
constexpr std::string_view kDate =
    "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]"
    "[0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
    "|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
constexpr std::string_view kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr std::string_view kUuid =
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
constexpr std::string_view kIpv4 =
    "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}"
    "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
constexpr std::string_view kIpv6 = "(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}";

struct NamedPattern {
  std::string_view name;
  std::string_view first;
  std::string_view second;  // behind a "T"
};
constexpr NamedPattern kFormats[] = {{"date", kDate, {}},
                                     {"date-time", kDate, kTime},
                                     {"time", kTime, {}},
                                     {"uuid", kUuid, {}},
                                     {"ipv4", kIpv4, {}},
                                     {"ipv6", kIpv6, {}}};

}  // namespace

std::optional<std::string> pattern_of_format(std::string_view format) {
  const auto* found = std::find_if(std::begin(kFormats),
                                   std::end(kFormats),
                                   [&](const NamedPattern& entry) { return entry.name == format; });
  if (found == std::end(kFormats)) return std::nullopt;
  std::string pattern(found->first);
  if (!found->second.empty()) pattern.append("T").append(found->second);
  return pattern;
}

std::string supported_formats() {
  std::string names;
  for (const NamedPattern& entry : kFormats) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

}  // namespace nibble::grammar
