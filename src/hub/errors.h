// The classes of failure that a user of the hub tells apart. The class travels in Error::reason;
// the command line has an exit code for each.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace nibble::hub {

inline constexpr std::string_view kReasonAuth = "hub_auth";  // token missing, wrong, no rights
inline constexpr std::string_view kReasonNotFound =
    "hub_not_found";                                               // repository, revision or file
inline constexpr std::string_view kReasonNetwork = "hub_network";  // may work later
inline constexpr std::string_view kReasonDisk = "hub_disk";        // space, quota, rights
inline constexpr std::string_view kReasonIntegrity =
    "hub_integrity";  // bytes are not what was promised

inline Error with_reason(Errc code, std::string_view reason, std::string message) {
  return Error{code, std::move(message), std::string(reason), {}};
}
inline Error auth_error(std::string message) {
  return with_reason(Errc::kInvalidArgument, kReasonAuth, std::move(message));
}
inline Error missing_error(std::string message) {
  return with_reason(Errc::kNotFound, kReasonNotFound, std::move(message));
}
inline Error network_error(std::string message) {
  return with_reason(Errc::kUnavailable, kReasonNetwork, std::move(message));
}
inline Error disk_error(std::string message) {
  return with_reason(Errc::kExhausted, kReasonDisk, std::move(message));
}
inline Error integrity_error(std::string message) {
  return with_reason(Errc::kDataLoss, kReasonIntegrity, std::move(message));
}
inline Error cancelled_error() {
  return Error{Errc::kCancelled,
               "interrupted. What arrived is kept; the same command goes on from there.",
               {},
               {}};
}

}  // namespace nibble::hub
