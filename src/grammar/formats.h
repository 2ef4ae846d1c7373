// The `format`s of strings that can be generated exactly.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble::grammar {

// A regular expression of the whole string; nullopt for formats that are not supported. RFC 3339
// (date, time, date-time; no leap seconds), RFC 4122, dotted IPv4, IPv6 with all eight groups.
std::optional<std::string> pattern_of_format(std::string_view format);
// "date, date-time, ...", for messages.
std::string supported_formats();

}  // namespace nibble::grammar
