// What detection and planning have to say about a checkpoint: a stable code, how grave it is, and a
// sentence. Codes: F files, D declarations, C coverage, S scales, P shapes and sharding, K kernels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::quant {

enum class Severity { kInfo, kWarning, kError };

struct Diagnostic {
  Severity severity = Severity::kError;
  std::string code;     // "Q-S2"
  std::string message;  // module or file: found; expected and which file says so. Fix: one action.
};

constexpr std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "unknown";
}

// A text from outside as messages show it: in quotes, escaped, at most 160 bytes of it.
std::string quoted(std::string_view text);

// "error[Q-S2] layers.0.attn.wq_a: ..."
inline std::string to_text(const Diagnostic& diagnostic) {
  return std::string(severity_name(diagnostic.severity)) + "[" + diagnostic.code + "] " +
         diagnostic.message;
}

inline bool has_errors(const std::vector<Diagnostic>& diagnostics) {
  for (const Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.severity == Severity::kError) return true;
  }
  return false;
}

}  // namespace nibble::quant
