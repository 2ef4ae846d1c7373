// Errors as values. Result<T> holds a T or an Error; TRY and TRY_ASSIGN propagate the Error to the
// caller. Every fault of the world (files, configs, requests, limits, peers) travels this way; our
// own bugs use CHECK.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace nibble {

// Closed set of error classes. server/ maps them to HTTP statuses and cli/ to exit codes, each in
// one function.
enum class Errc {
  kInvalidArgument,  // the caller's input is wrong
  kNotFound,         // a named thing does not exist
  kUnsupported,      // valid, but this build or device cannot do it right
  kDataLoss,         // stored bytes are damaged or contradict each other
  kExhausted,        // a limit (memory, queue, disk) is reached; trying later may work
  kUnavailable,      // not ready or shutting down
  kCancelled,        // the caller withdrew
  kInternal,         // our fault
};

const char* errc_name(Errc code);

struct [[nodiscard]] Error {
  Errc code = Errc::kInternal;
  std::string message;  // what, where, found, expected, what to do
  std::string
      reason;  // machine-readable slug for API clients, e.g. "context_length_exceeded"; often empty
  std::string param;  // the request field or flag at fault; often empty
};

inline Error invalid_argument(std::string message) {
  return Error{Errc::kInvalidArgument, std::move(message), {}, {}};
}
inline Error not_found(std::string message) {
  return Error{Errc::kNotFound, std::move(message), {}, {}};
}
inline Error unsupported(std::string message) {
  return Error{Errc::kUnsupported, std::move(message), {}, {}};
}
inline Error data_loss(std::string message) {
  return Error{Errc::kDataLoss, std::move(message), {}, {}};
}
inline Error exhausted(std::string message) {
  return Error{Errc::kExhausted, std::move(message), {}, {}};
}
inline Error unavailable(std::string message) {
  return Error{Errc::kUnavailable, std::move(message), {}, {}};
}
inline Error internal_error(std::string message) {
  return Error{Errc::kInternal, std::move(message), {}, {}};
}

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  // Implicit on purpose: `return value;` and `return invalid_argument(...)` both read naturally.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CHECK(ok()) << error_message();
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CHECK(ok()) << error_message();
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CHECK(ok()) << error_message();
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    CHECK(!ok());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    CHECK(!ok());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::string error_message() const {
    return ok() ? std::string() : std::get_if<1>(&state_)->message;
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  void value() const { CHECK(ok()) << error_->message; }

  const Error& error() const& {
    CHECK(!ok());
    return *error_;
  }
  Error&& error() && {
    CHECK(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace nibble

// TRY(expression): returns the Error from the enclosing function if the Result failed; discards the
// value.
#define TRY(...)                                                           \
  do {                                                                     \
    if (auto nibble_try_result = (__VA_ARGS__); !nibble_try_result.ok()) { \
      return std::move(nibble_try_result).error();                         \
    }                                                                      \
  } while (false)

// TRY_ASSIGN(declaration, expression): as TRY, and initialises `declaration` with the value.
#define TRY_ASSIGN(declaration, ...) \
  TRY_ASSIGN_IMPL_(NIBBLE_CONCAT_(nibble_try_result_, __LINE__), declaration, __VA_ARGS__)
#define TRY_ASSIGN_IMPL_(temporary, declaration, ...)       \
  auto temporary = (__VA_ARGS__);                           \
  if (!temporary.ok()) return std::move(temporary).error(); \
  declaration = std::move(temporary).value()
#define NIBBLE_CONCAT_(a, b) NIBBLE_CONCAT_IMPL_(a, b)
#define NIBBLE_CONCAT_IMPL_(a, b) a##b
