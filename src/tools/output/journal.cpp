#include "tools/output/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/utf8.h"

namespace nibble::tools {
namespace {

constexpr int64_t kMaxJournalBytes = 256 << 20;

Error journal_error(const Path& path, std::string_view action) {
  const int saved = errno;
  std::string text = fmt::format(
      "{}: cannot {}: {}", escape_for_display(path.string()), action, std::strerror(saved));
  return saved == ENOSPC || saved == EDQUOT ? exhausted(std::move(text))
                                            : invalid_argument(std::move(text));
}

// The text up to the last line that is complete and valid; `visit` gets each of them.
template <class Visit>
size_t read_lines(std::string_view text, Visit visit) {
  size_t valid = 0;
  while (true) {
    const size_t end = text.find('\n', valid);
    if (end == std::string_view::npos) return valid;
    const Result<json::Value> line = json::parse(text.substr(valid, end - valid));
    if (!line.ok() || !visit(*line)) return valid;
    valid = end + 1;
  }
}

}  // namespace

json::Object statistics_to_json(const ClassStatistics& statistics) {
  json::Object object;
  for (const auto& [module_class, sums] : statistics) object.set(module_class, sums.to_json());
  return object;
}

Result<ClassStatistics> statistics_from_json(const json::Value& value) {
  if (!value.is_object()) return data_loss("statistics: no object");
  ClassStatistics statistics;
  for (const json::Member& member : *value.as_object()) {
    TRY_ASSIGN(statistics[member.key], ErrorStatistics::from_json(member.value));
  }
  return statistics;
}

Result<Journal> Journal::open(const Path& dir, const json::Object& identity) {
  Journal journal;
  journal.path_ = dir / kJournalName;
  journal.fd_ = ::open(journal.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (journal.fd_ < 0) return journal_error(journal.path_, "open");
  if (::flock(journal.fd_, LOCK_EX | LOCK_NB) != 0) {
    return unavailable(fmt::format("{}: another process is writing this checkpoint. Wait for it.",
                                   escape_for_display(dir.string())));
  }
  TRY_ASSIGN(const std::string text, read_file(journal.path_, kMaxJournalBytes));
  std::string found_identity;
  const size_t valid = read_lines(text, [&](const json::Value& line) {
    if (const json::Value* found = line.find("identity")) {
      found_identity = json::dump(*found, json::Style::kPython);
      return true;
    }
    const json::Value* shard = line.find("shard");
    const json::Value* sums = line.find("statistics");
    if (shard == nullptr || !shard->is_string() || sums == nullptr) return false;
    Result<ClassStatistics> statistics = statistics_from_json(*sums);
    if (!statistics.ok()) return false;
    journal.finished_[*shard->as_string()] = std::move(statistics).value();
    return true;
  });
  const std::string own_identity = json::dump(identity, json::Style::kPython);
  if (valid > 0 && found_identity != own_identity) {
    return invalid_argument(
        fmt::format("{}: holds the beginning of another job: {}; expected {}. Remove the directory "
                    "or repeat the command that made it.",
                    escape_for_display(dir.string()),
                    escape_for_display(found_identity),
                    escape_for_display(own_identity)));
  }
  if (::ftruncate(journal.fd_, static_cast<off_t>(valid)) != 0 ||
      ::lseek(journal.fd_, 0, SEEK_END) < 0) {
    return journal_error(journal.path_, "truncate");
  }
  if (valid == 0) {
    journal.finished_.clear();
    TRY(journal.append_line(json::make_object({{"identity", identity}})));
  }
  return journal;
}

Journal::Journal(Journal&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      finished_(std::move(other.finished_)) {}

Journal& Journal::operator=(Journal&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(finished_, other.finished_);
  return *this;
}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
}

const ClassStatistics* Journal::find(const std::string& shard) const {
  const auto found = finished_.find(shard);
  return found == finished_.end() ? nullptr : &found->second;
}

Result<void> Journal::append(const std::string& shard, const ClassStatistics& statistics) {
  TRY(append_line(
      json::make_object({{"shard", shard}, {"statistics", statistics_to_json(statistics)}})));
  finished_[shard] = statistics;
  return {};
}

Result<void> Journal::append_line(const json::Object& object) {
  const std::string line = json::dump(object, json::Style::kPython) + '\n';
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return journal_error(path_, "write");
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd_) != 0) return journal_error(path_, "sync");
  return {};
}

}  // namespace nibble::tools
