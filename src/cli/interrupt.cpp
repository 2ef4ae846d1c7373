#include "cli/interrupt.h"

namespace nibble::cli {
namespace {

volatile std::sig_atomic_t g_is_interrupted = 0;  // signal handlers can reach nothing else

void on_interrupt(int) { g_is_interrupted = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  g_is_interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }

bool InterruptGuard::is_set() const { return g_is_interrupted != 0; }

void InterruptGuard::clear() { g_is_interrupted = 0; }

}  // namespace nibble::cli
