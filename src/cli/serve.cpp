#include "cli/commands.h"

namespace nibble::cli {

Result<void> run_serve(const ServeFlags&) { return unsupported("serve: not in this build"); }

}  // namespace nibble::cli
