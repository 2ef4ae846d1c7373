// How names from files appear in messages: printable, on one line, and bounded.
#pragma once

#include <string>
#include <string_view>

namespace nibble::json {
class Value;
}

namespace nibble::checkpoint {

// `text` with control characters and ill-formed bytes as \xNN, cut after 160 bytes.
std::string display_name(std::string_view text);

// A JSON value for "found ...": its kind and its text, cut after 80 bytes.
std::string display_value(const json::Value& value);

}  // namespace nibble::checkpoint
