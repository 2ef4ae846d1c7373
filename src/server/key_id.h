// Who sent a request, as far as keys tell: owns stored responses, running work and cache
// namespaces.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace nibble::server {

// Derived from the key itself, so that it survives restarts and changes of other keys; the key
// cannot be computed from it. 0: a server without keys.
struct KeyId {
  uint64_t value = 0;
  friend constexpr auto operator<=>(KeyId, KeyId) = default;
};

}  // namespace nibble::server

template <>
struct std::hash<nibble::server::KeyId> {
  size_t operator()(nibble::server::KeyId id) const noexcept {
    return std::hash<uint64_t>()(id.value);
  }
};
