// Vendor libraries that only some reports need: opened when asked for, never linked
// (docs/adr/0013).
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>

#include "base/result.h"

namespace nibble::device {

// A library that stays open until the process ends.
class RunTimeLibrary final {
 public:
  // The first of `names` that the loader finds. kUnavailable lists what was tried.
  static Result<RunTimeLibrary> open(const char* what, std::span<const char* const> names) {
    std::string tried;
    for (const char* name : names) {
      void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) return RunTimeLibrary(name, handle);
      tried += tried.empty() ? name : std::string(", ") + name;
    }
    return unavailable(std::string(what) + " is not installed; tried " + tried);
  }

  // kUnavailable when the library lacks it.
  template <class Function>
  Result<void> find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(::dlsym(handle_, symbol));
    if (function != nullptr) return {};
    return unavailable(std::string(name_) + " has no " + symbol);
  }

 private:
  RunTimeLibrary(const char* name, void* handle) : name_(name), handle_(handle) {}

  const char* name_;
  void* handle_;
};

}  // namespace nibble::device
