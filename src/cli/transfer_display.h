// The progress of a download on standard error: one line that is redrawn on a terminal, otherwise a
// plain line now and then, so that log files stay readable.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "hub/rate.h"
#include "hub/transfer.h"

namespace nibble::cli {

// "45% 12.3 of 27.0 GB, 85.1 MB/s, 2 min 53 s left, 3 of 46 files"
std::string progress_text(const hub::TransferProgress& progress, const hub::RateMeter& meter);

class TransferDisplay final {
 public:
  explicit TransferDisplay(const Clock& clock);
  ~TransferDisplay();  // removes the line
  TransferDisplay(const TransferDisplay&) = delete;
  TransferDisplay& operator=(const TransferDisplay&) = delete;

  void update(const hub::TransferProgress& progress);
  // A whole line of its own.
  void note(std::string_view line);

 private:
  void clear_line();

  const Clock& clock_;
  const bool is_terminal_;
  hub::RateMeter meter_;
  TimePoint last_line_;
  bool is_drawn_ = false;
};

}  // namespace nibble::cli
