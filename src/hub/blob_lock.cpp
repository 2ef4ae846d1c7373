#include "hub/blob_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "base/log.h"
#include "base/utf8.h"
#include "hub/errors.h"

namespace nibble::hub {
namespace {

constexpr std::chrono::milliseconds kPoll{200};
constexpr std::chrono::seconds kUnreadableTimeout{
    5};  // an owner file is written right after creation

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

std::string boot_id() {
  const Result<UniqueFd> fd = open_file("/proc/sys/kernel/random/boot_id", O_RDONLY);
  char text[64] = {};
  if (!fd.ok()) return "unknown";
  const ssize_t n = ::read(fd->get(), text, sizeof text - 1);
  std::string id(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id.empty() ? "unknown" : id;
}

// Field 22 of /proc/PID/stat; 0 when the process does not exist.
uint64_t start_ticks_of(int64_t pid) {
  const Result<UniqueFd> fd = open_file(fmt::format("/proc/{}/stat", pid), O_RDONLY);
  if (!fd.ok()) return 0;
  char buffer[1024] = {};
  const ssize_t n = ::read(fd->get(), buffer, sizeof buffer - 1);
  std::string_view text(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string_view::npos) return 0;
  text.remove_prefix(name_end + 1);
  for (int32_t field = 3; field <= 22; ++field) {
    const size_t blank = text.find(' ');
    if (blank == std::string_view::npos) return 0;
    text.remove_prefix(blank + 1);
  }
  uint64_t ticks = 0;
  std::from_chars(text.data(), text.data() + text.size(), ticks);
  return ticks;
}

// Whether flock was taken or cannot be had here at all.
Result<bool> flock_if_possible(const UniqueFd& fd, const Path& lock) {
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS) return true;
  return disk_fault(lock, "lock");
}

// Age of a file by the clock of its file system, which may be another machine's.
std::optional<std::chrono::seconds> age_of(const Path& path, const UniqueFd& clock) {
  struct stat then = {};
  struct stat now = {};
  if (::stat(path.c_str(), &then) != 0) return std::nullopt;
  if (::futimens(clock.get(), nullptr) != 0 || ::fstat(clock.get(), &now) != 0) return std::nullopt;
  return std::chrono::seconds(now.st_mtim.tv_sec - then.st_mtim.tv_sec);
}

bool is_gone(const std::string& text, std::chrono::seconds age) {
  const std::optional<LockOwner> owner = LockOwner::parse(text);
  return owner ? owner->is_gone(age) : age >= kUnreadableTimeout;
}

// Moves a dead owner's file aside. False when it is another's by now.
bool evict(const Path& owner, const std::string& expected_text) {
  Path aside = owner;
  aside += fmt::format(".{}.stale", ::getpid());
  if (::rename(owner.c_str(), aside.c_str()) != 0) return errno == ENOENT;
  const Result<std::string> moved = read_file(aside, 4096);
  const bool is_expected = moved.ok() && *moved == expected_text;
  // A living owner was faster: give the name back unless somebody has it again.
  if (!is_expected && ::link(aside.c_str(), owner.c_str()) != 0 && errno != EEXIST) {
    log_warning("{}: a living owner's lock could not be put back", owner.string());
  }
  ::unlink(aside.c_str());
  return is_expected;
}

}  // namespace

LockOwner LockOwner::self() {
  const int64_t pid = ::getpid();
  return LockOwner{pid, host_name(), boot_id(), start_ticks_of(pid)};
}

std::optional<LockOwner> LockOwner::parse(std::string_view text) {
  LockOwner owner;
  std::string_view fields[4];
  for (std::string_view& field : fields) {
    const size_t end = text.find_first_of(" \n");
    if (end == std::string_view::npos || end == 0) return std::nullopt;
    field = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  const auto number = [](std::string_view field, auto& value) {
    const auto [end, fault] = std::from_chars(field.data(), field.data() + field.size(), value);
    return fault == std::errc() && end == field.data() + field.size();
  };
  if (!number(fields[0], owner.pid) || owner.pid <= 0) return std::nullopt;
  if (!number(fields[3], owner.start_ticks)) return std::nullopt;
  owner.host = fields[1];
  owner.boot = fields[2];
  return owner;
}

std::string LockOwner::text() const {
  return fmt::format("{} {} {} {}\n", pid, host, boot, start_ticks);
}

bool LockOwner::is_gone(std::chrono::seconds age) const {
  const LockOwner here = self();
  if (host != here.host) return age >= kOwnerTimeout;
  if (boot != here.boot) return true;
  const uint64_t ticks = start_ticks_of(pid);
  return ticks == 0 || ticks != start_ticks;
}

BlobLock::BlobLock(Path owner, UniqueFd flocked)
    : owner_(std::move(owner)), flocked_(std::move(flocked)) {}

BlobLock::BlobLock(BlobLock&& other) noexcept
    : owner_(std::exchange(other.owner_, Path())), flocked_(std::move(other.flocked_)) {}

BlobLock::~BlobLock() {
  if (!owner_.empty()) ::unlink(owner_.c_str());
}

void BlobLock::beat() const { ::utimensat(AT_FDCWD, owner_.c_str(), nullptr, 0); }

Result<std::optional<BlobLock>> BlobLock::try_take(const Path& lock, std::string& holder) {
  holder = "another program";
  TRY_ASSIGN(UniqueFd fd, open_file(lock, O_RDWR | O_CREAT));
  TRY_ASSIGN(const bool is_flocked, flock_if_possible(fd, lock));
  Path owner = lock;
  owner += ".owner";
  for (int32_t attempt = 0; attempt < 2; ++attempt) {
    const UniqueFd created(
        is_flocked ? ::open(owner.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1);
    if (created.is_open()) {
      BlobLock taken(owner, std::move(fd));
      const std::string text = LockOwner::self().text();
      TRY(write_at(created, owner, 0, std::as_bytes(std::span(text))));
      return std::optional<BlobLock>(std::move(taken));
    }
    if (is_flocked && errno != EEXIST) return disk_fault(owner, "create");
    const Result<std::string> text = read_file(owner, 4096);
    if (!text.ok()) break;  // released just now, or never written by other tools
    if (const std::optional<LockOwner> who = LockOwner::parse(*text)) {
      holder = fmt::format("process {} on {}", who->pid, escape_for_display(who->host));
    }
    const std::optional<std::chrono::seconds> age = age_of(owner, fd);
    if (!is_flocked || !age || !is_gone(*text, *age) || !evict(owner, *text)) break;
  }
  return std::optional<BlobLock>();
}

Result<BlobLock> BlobLock::take(const Path& lock,
                                const Cancel& cancel,
                                const std::function<void(const std::string& holder)>& on_wait) {
  bool is_told = false;
  while (true) {
    std::string holder;
    TRY_ASSIGN(std::optional<BlobLock> taken, try_take(lock, holder));
    if (taken) return std::move(*taken);
    if (on_wait && !is_told) on_wait(holder);
    is_told = true;
    if (!cancel.sleep(kPoll)) return cancelled_error();
  }
}

}  // namespace nibble::hub
