// CHECK(cond) << values: stops the process when our own invariant is broken. Never for input.
// DCHECK is the same in debug builds and compiles to nothing under NDEBUG, for hot loops.
#pragma once

#include <sstream>

namespace nibble::internal {

// Collects the operands of a failed CHECK; its destructor prints file, line, text and aborts.
class CheckFailure final {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives both branches of the conditional in CHECK the type void.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace nibble::internal

// The replacement must stay open to the right, for the operands that follow with <<.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define CHECK(condition)                        \
  (condition) ? static_cast<void>(0)            \
              : ::nibble::internal::Voidify() & \
                    ::nibble::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()
// NOLINTEND(bugprone-macro-parentheses)

#ifdef NDEBUG
#define DCHECK(condition) CHECK(true || (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif
