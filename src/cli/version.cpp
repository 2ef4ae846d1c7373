#include "cli/version.h"

namespace nibble::cli {

std::string_view version_number() { return NIBBLE_VERSION; }
std::string_view version_text() { return "nibble " NIBBLE_VERSION; }

}  // namespace nibble::cli
