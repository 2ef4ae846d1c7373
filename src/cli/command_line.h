// Flags and configuration files to one validated value. The only place that knows the flag library.
#pragma once

#include "base/result.h"
#include "cli/flags.h"

namespace nibble::cli {

// kInvalidArgument for unknown flags, unknown keys of the file that --config names, and bad values.
// Flags win over the file.
Result<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace nibble::cli
