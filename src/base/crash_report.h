// What is left after a crash: a file with signal, version, the requests that were being computed
// and a backtrace, but nothing that a client wrote except the ids that it chose. Signal handlers
// are a property of the process, so this is global by nature.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace nibble {

// Handles SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT from now on: writes
// DIR/nibble-crash-PID.txt (mode 0600), names it on standard error, and lets the signal end the
// process. Once per process.
void install_crash_report(const Path& dir, std::string_view version);

// Names a piece of work in the report while it lives. Cheap; any thread. Beyond 256 at a time the
// further ones are not named.
class CrashScope final {
 public:
  explicit CrashScope(std::string_view name);
  CrashScope(const CrashScope&) = delete;
  CrashScope& operator=(const CrashScope&) = delete;
  ~CrashScope();

 private:
  int slot_ = -1;
};

}  // namespace nibble
