// Standard output and standard error of the program. Everything that did not come from us is made
// printable before it reaches a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nibble::cli {

// "nibble: error: MESSAGE" on one line of standard error.
void print_error(const Error& error);
void print_note(std::string_view line);  // one line on standard error

// Writes to standard output at once. kUnavailable when it is closed or full.
Result<void> write_output(std::string_view text);
// As write_output, for text of a model: control characters other than newline and tab come out as
// \xNN when standard output is a terminal.
Result<void> write_model_text(std::string_view text);

bool output_is_terminal();
bool errors_are_terminal();

// All of standard input, at most `max_bytes`.
Result<std::string> read_input(int64_t max_bytes);

// A bar on standard error while a model loads; nothing unless it is a terminal.
class ProgressBar final {
 public:
  explicit ProgressBar(std::string_view label);
  ~ProgressBar();  // removes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(int64_t done_bytes, int64_t total_bytes);

 private:
  std::string label_;
  bool is_shown_;
  int32_t percent_ = -1;
};

// "LABEL 12 of 100" on standard error while something runs; nothing unless it is a terminal.
class CountDisplay final {
 public:
  explicit CountDisplay(std::string_view label);
  ~CountDisplay();  // removes it
  CountDisplay(const CountDisplay&) = delete;
  CountDisplay& operator=(const CountDisplay&) = delete;

  void update(int64_t done, int64_t total);
  void clear();

 private:
  const std::string label_;
  const bool is_shown_;
  bool is_drawn_ = false;
};

}  // namespace nibble::cli
