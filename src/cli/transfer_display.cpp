#include "cli/transfer_display.h"

#include <fmt/core.h>

#include <cstdio>

#include "base/utf8.h"
#include "cli/console.h"
#include "hub/disk.h"

namespace nibble::cli {
namespace {

constexpr std::chrono::seconds kLineSpacing{10};  // where there is no terminal

std::string format_duration(std::chrono::seconds time) {
  const int64_t s = time.count();
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

}  // namespace

std::string progress_text(const hub::TransferProgress& progress, const hub::RateMeter& meter) {
  const int64_t percent =
      progress.total_bytes == 0 ? 100 : progress.done_bytes * 100 / progress.total_bytes;
  std::string text = fmt::format("{}% {} of {}",
                                 percent,
                                 hub::format_bytes(progress.done_bytes),
                                 hub::format_bytes(progress.total_bytes));
  if (const auto rate = meter.bytes_per_second()) {
    text += fmt::format(", {}/s", hub::format_bytes(static_cast<int64_t>(*rate)));
  }
  if (const auto left = meter.time_for(progress.total_bytes - progress.done_bytes)) {
    text += fmt::format(", {} left", format_duration(*left));
  }
  return text + fmt::format(", {} of {} files", progress.num_files_done, progress.num_files);
}

TransferDisplay::TransferDisplay(const Clock& clock)
    : clock_(clock), is_terminal_(errors_are_terminal()), last_line_(clock.now()) {}

TransferDisplay::~TransferDisplay() { clear_line(); }

void TransferDisplay::clear_line() {
  if (is_drawn_) fmt::print(stderr, "\r\x1b[K");
  is_drawn_ = false;
}

void TransferDisplay::update(const hub::TransferProgress& progress) {
  const TimePoint now = clock_.now();
  meter_.add(now, progress.received_bytes);
  if (is_terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", progress_text(progress, meter_));
    std::fflush(stderr);
    is_drawn_ = true;
  } else if (now - last_line_ >= kLineSpacing) {
    print_note(progress_text(progress, meter_));
    last_line_ = now;
  }
}

void TransferDisplay::note(std::string_view line) {
  clear_line();
  print_note(line);
}

}  // namespace nibble::cli
