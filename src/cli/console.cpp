#include "cli/console.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/utf8.h"

namespace nibble::cli {
namespace {

void write_error_line(std::string_view line) {
  const std::string text = escape_for_display(line) + '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Escapes between the newlines and tabs, which stay.
std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find_first_of("\n\t");
    out += escape_for_display(text.substr(0, end));
    if (end == std::string_view::npos) break;
    out += text[end];
    text.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace

void print_error(const Error& error) {
  const bool has_code = error.reason.starts_with("Q-");  // docs/plan.md
  write_error_line((has_code ? "nibble: error[" + error.reason + "] " : "nibble: error: ") +
                   error.message);
}

void print_note(std::string_view line) { write_error_line(line); }

Result<void> write_output(std::string_view text) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!is_written || std::fflush(stdout) != 0) {
    return unavailable(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  }
  return {};
}

Result<void> write_model_text(std::string_view text) {
  return output_is_terminal() ? write_output(printable(text)) : write_output(text);
}

bool output_is_terminal() { return ::isatty(STDOUT_FILENO) != 0; }
bool errors_are_terminal() { return ::isatty(STDERR_FILENO) != 0; }

Result<std::string> read_input(int64_t max_bytes) {
  std::string text;
  char buffer[65536];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, stdin)) {
    text.append(buffer, count);
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return invalid_argument(fmt::format("standard input: more than {} bytes", max_bytes));
    }
  }
  if (std::ferror(stdin) != 0) return unavailable("cannot read standard input");
  return text;
}

ProgressBar::ProgressBar(std::string_view label)
    : label_(label), is_shown_(errors_are_terminal()) {}

ProgressBar::~ProgressBar() {
  if (is_shown_ && percent_ >= 0) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::update(int64_t done_bytes, int64_t total_bytes) {
  if (!is_shown_ || total_bytes <= 0) return;
  const auto percent = static_cast<int32_t>(done_bytes * 100 / total_bytes);
  if (percent == percent_) return;
  percent_ = percent;
  constexpr int32_t kWidth = 40;
  const auto filled = static_cast<size_t>(percent * kWidth / 100);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  fmt::print(stderr,
             "\r{} [{}] {:3}% of {:.1f} MB",
             label_,
             bar,
             percent,
             static_cast<double>(total_bytes) / 1e6);
  std::fflush(stderr);
}

CountDisplay::CountDisplay(std::string_view label)
    : label_(label), is_shown_(errors_are_terminal()) {}

CountDisplay::~CountDisplay() { clear(); }

void CountDisplay::update(int64_t done, int64_t total) {
  if (!is_shown_) return;
  fmt::print(stderr, "\r\x1b[K{} {} of {}", label_, done, total);
  std::fflush(stderr);
  is_drawn_ = true;
}

void CountDisplay::clear() {
  if (is_drawn_) fmt::print(stderr, "\r\x1b[K");
  is_drawn_ = false;
}

}  // namespace nibble::cli
