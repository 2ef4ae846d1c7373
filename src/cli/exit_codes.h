// The exit codes of the program: one table, which `nibble --help` prints and scripts rely on.
#pragma once

#include <string_view>

#include "base/result.h"
#include "hub/errors.h"

namespace nibble::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitInternal = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnsupported = 3;
inline constexpr int kExitNotFound = 4;
inline constexpr int kExitDataLoss = 5;
inline constexpr int kExitExhausted = 6;
inline constexpr int kExitUnavailable = 7;
inline constexpr int kExitDenied = 8;
inline constexpr int kExitInterrupted = 130;  // what shells report for SIGINT

struct ExitCode {
  int code;
  std::string_view meaning;
};

inline constexpr ExitCode kExitCodes[] = {
    {kExitOk, "success"},
    {kExitInternal, "internal fault; please report it"},
    {kExitUsage, "wrong usage or invalid input"},
    {kExitUnsupported, "not supported by this build, device or model"},
    {kExitNotFound, "a file or name does not exist"},
    {kExitDataLoss, "damaged or contradictory files"},
    {kExitExhausted, "out of memory, disk or another limit"},
    {kExitUnavailable, "not ready, or the network failed"},
    {kExitDenied, "the hub denied access: token or rights"},
    {kExitInterrupted, "interrupted"},
};

constexpr int exit_code(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return kExitUsage;
    case Errc::kNotFound:
      return kExitNotFound;
    case Errc::kUnsupported:
      return kExitUnsupported;
    case Errc::kDataLoss:
      return kExitDataLoss;
    case Errc::kExhausted:
      return kExitExhausted;
    case Errc::kUnavailable:
      return kExitUnavailable;
    case Errc::kCancelled:
      return kExitInterrupted;
    case Errc::kInternal:
      return kExitInternal;
  }
  return kExitInternal;
}

inline int exit_code(const Error& error) {
  return error.reason == hub::kReasonAuth ? kExitDenied : exit_code(error.code);
}

}  // namespace nibble::cli
