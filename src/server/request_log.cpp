#include "server/request_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "base/json.h"
#include "base/log.h"

namespace nibble::server {

namespace {

// Every route's; more is what a client made up.
constexpr size_t kMaxPathBytes = 256;

}  // namespace

std::string to_json_line(const LoggedRequest& entry) {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::string line = fmt::format(R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","id":)",
                                 fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                                 milliseconds);
  const HttpRequest& request = entry.request;
  json::append_quoted(line, request.id);
  line += R"(,"method":)";
  json::append_quoted(line, request.method);
  line += R"(,"path":)";
  json::append_quoted(line, std::string_view(request.path).substr(0, kMaxPathBytes));
  fmt::format_to(std::back_inserter(line),
                 R"(,"status":{},"key":"{:016x}","ms":{:.1f})",
                 entry.status,
                 entry.owner.value,
                 to_seconds(entry.elapsed) * 1e3);
  if (!entry.work.empty()) line.append(",").append(entry.work);
  return line + "}";
}

Result<RequestLog> RequestLog::open(const std::optional<Path>& file) {
  RequestLog log;
  if (!file) return log;
  // Who may read the log of a service is for its operator to widen.
  const int fd = ::open(file->c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (fd >= 0) log.file_.reset(::fdopen(fd, "a"));
  if (log.file_ != nullptr) return log;
  const int fault = errno;
  if (fd >= 0) ::close(fd);
  return invalid_argument(
      fmt::format("{}: cannot write: {}", file->string(), std::strerror(fault)));
}

void RequestLog::write(const LoggedRequest& entry) {
  if (file_ == nullptr) {
    const bool is_notable = !entry.work.empty() || entry.status >= 400;
    const LogLevel level = is_notable ? LogLevel::kInfo : LogLevel::kDebug;
    if (log_enabled(level)) log_line(level, to_json_line(entry));
    return;
  }
  // One write per line; a full disk loses lines, not requests.
  const std::string line = to_json_line(entry) + "\n";
  std::fwrite(line.data(), 1, line.size(), file_.get());
  std::fflush(file_.get());
}

}  // namespace nibble::server
