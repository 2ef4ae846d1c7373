// Log lines. The sink is the only global mutable state of the program. Text from outside is
// escaped, so that a request cannot forge a line or move a terminal's cursor. Libraries log, but
// never print.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace nibble {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Sends lines at `level` and above to standard error.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
// Writes one line; control characters and ill-formed UTF-8 in `line` come out as \xNN.
void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) {
    log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo)) {
    log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarning)) {
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kError)) {
    log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace nibble
