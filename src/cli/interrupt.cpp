#include "cli/interrupt.h"

#include <atomic>

namespace nibble::cli {
namespace {

// Signal handlers can reach nothing else. Other threads read it.
std::atomic<bool> g_is_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) { g_is_interrupted.store(true); }

}  // namespace

InterruptGuard::InterruptGuard() {
  g_is_interrupted.store(false);
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }

bool InterruptGuard::is_set() const { return g_is_interrupted.load(); }

void InterruptGuard::clear() { g_is_interrupted.store(false); }

}  // namespace nibble::cli
