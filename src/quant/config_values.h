// Values of quantization sections, read with suspicion: one of another kind, or out of range, is
// reported as Q-D1 and counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "quant/diagnostic.h"
#include "quant/scheme.h"

namespace nibble::quant {

// Empty when the key is absent or no string.
std::string_view string_at(const json::Value& object, std::string_view key);

class ConfigValues final {
 public:
  // Reports go to `diagnostics`, which must outlive this.
  explicit ConfigValues(std::vector<Diagnostic>& diagnostics) : diagnostics_(diagnostics) {}

  void error(std::string_view code, std::string message);
  // Q-D1: a name that this version does not know. `known` lists those that it does.
  void unknown(std::string_view key,
               std::string_view value,
               std::string_view file,
               std::string_view known);

  // From -1 to 2^20.
  int32_t integer_at(const json::Value& object, std::string_view key, int32_t fallback);
  // The width of integer codes: 2 to 8, or 16 for "not quantised".
  int32_t bits_at(const json::Value& object, std::string_view key, int32_t fallback);
  bool bool_at(const json::Value& object, std::string_view key);
  // Two integers [n, k].
  std::optional<BlockShape> block_at(const json::Value& object, std::string_view key);

 private:
  void wrong(std::string_view key, const json::Value& value, std::string_view expected);

  std::vector<Diagnostic>& diagnostics_;
};

}  // namespace nibble::quant
