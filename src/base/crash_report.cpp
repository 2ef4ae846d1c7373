#include "base/crash_report.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kMaxFrames = 64;
constexpr size_t kMaxNameBytes = 63;

struct Slot {
  std::atomic<bool> is_used = false;
  char name[kMaxNameBytes + 1] = {};
};
std::array<Slot, 256> g_slots;

// Everything the handler needs is prepared here, because it may neither allocate nor lock.
struct {
  char path[1024] = {};
  char version[128] = {};
  alignas(16) char stack[64 << 10];  // for the main thread, whose own may have overflowed
} g_report;

void copy_text(char* to, size_t capacity, std::string_view text) {
  const size_t count = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

void put(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t num_written = ::write(fd, text.data(), text.size());
    if (num_written <= 0) return;
    text.remove_prefix(static_cast<size_t>(num_written));
  }
}

void put_number(int fd, long value) {
  char digits[24];
  char* at = digits + sizeof(digits);
  auto rest = static_cast<unsigned long>(value < 0 ? -value : value);
  do {
    *--at = static_cast<char>('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (value < 0) *--at = '-';
  put(fd, {at, static_cast<size_t>(digits + sizeof(digits) - at)});
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    case SIGABRT:
      return "SIGABRT";
    default:
      return "signal";
  }
}

void write_report(int fd, int signal) {
  put(fd, "nibble ");
  put(fd, g_report.version);
  put(fd, "\nsignal: ");
  put(fd, signal_name(signal));
  put(fd, "\npid: ");
  put_number(fd, ::getpid());
  put(fd, "\nthread: ");
  put_number(fd, ::gettid());
  put(fd, "\nunix time: ");
  put_number(fd, ::time(nullptr));
  put(fd, "\nin flight:\n");
  for (const Slot& slot : g_slots) {
    if (!slot.is_used.load(std::memory_order_acquire)) continue;
    put(fd, "  ");
    put(fd, {slot.name, ::strnlen(slot.name, kMaxNameBytes)});
    put(fd, "\n");
  }
  put(fd, "backtrace:\n");
  void* frames[kMaxFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kMaxFrames), fd);
}

void on_crash(int signal) {
  static std::atomic<bool> has_begun = false;
  if (!has_begun.exchange(true)) {
    const int fd =
        ::open(g_report.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    put(STDERR_FILENO, "nibble: crashed; ");
    put(STDERR_FILENO, fd >= 0 ? "report in " : "cannot write ");
    put(STDERR_FILENO, g_report.path);
    put(STDERR_FILENO, "\n");
    write_report(fd >= 0 ? fd : STDERR_FILENO, signal);
    if (fd >= 0) ::close(fd);
  }
  ::raise(signal);  // SA_RESETHAND: the default action now
}

}  // namespace

void install_crash_report(const Path& dir, std::string_view version) {
  const Path path = dir / ("nibble-crash-" + std::to_string(::getpid()) + ".txt");
  copy_text(g_report.path, sizeof(g_report.path), path.string());
  copy_text(g_report.version, sizeof(g_report.version), version);
  void* frames[1];
  ::backtrace(frames, 1);  // loads libgcc now: the handler must not
  const stack_t stack = {.ss_sp = g_report.stack, .ss_flags = 0, .ss_size = sizeof(g_report.stack)};
  CHECK(::sigaltstack(&stack, nullptr) == 0);
  struct sigaction action = {};
  action.sa_handler = on_crash;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER | SA_ONSTACK);
  for (const int signal : kSignals) CHECK(::sigaction(signal, &action, nullptr) == 0);
}

CrashScope::CrashScope(std::string_view name) {
  for (size_t i = 0; i < g_slots.size(); ++i) {
    bool is_used = false;
    Slot& slot = g_slots[i];
    if (!slot.is_used.compare_exchange_strong(is_used, true, std::memory_order_acq_rel)) continue;
    copy_text(slot.name, sizeof(slot.name), name);
    slot_ = static_cast<int>(i);
    return;
  }
}

CrashScope::~CrashScope() {
  if (slot_ < 0) return;
  g_slots[static_cast<size_t>(slot_)].is_used.store(false, std::memory_order_release);
}

}  // namespace nibble
