// What this program calls itself.
#pragma once

#include <string_view>

namespace nibble::cli {

std::string_view version_number();  // "0.1.0"
std::string_view version_text();    // "nibble 0.1.0"
// The source's revision, with "-dirty" for uncommitted changes, or "unknown" without git.
std::string_view version_commit();

}  // namespace nibble::cli
