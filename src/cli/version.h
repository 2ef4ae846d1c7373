// What this program calls itself.
#pragma once

#include <string_view>

namespace nibble::cli {

std::string_view version_number();  // "0.1.0"
std::string_view version_text();    // "nibble 0.1.0"

}  // namespace nibble::cli
