// Ctrl-C as a flag. While a guard lives, SIGINT sets the flag instead of ending the process, and
// interrupts blocking reads.
#pragma once

#include <csignal>

namespace nibble::cli {

class InterruptGuard final {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool is_set() const;
  void clear();

 private:
  struct sigaction previous_ = {};
};

}  // namespace nibble::cli
