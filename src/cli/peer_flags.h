// Flags of SGLang and vLLM that people have in their compose files, as one table: which act here
// and as what, which say what is so anyway, and which are refused because they cannot take effect.
// The parser, the help, docs/serve-flags.md and the tests read it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::cli {

enum class PeerEffect {
  kApplied,
  kHarmless,  // nothing to do; said once at start
  kRefused,   // at start, with the reason
};

struct PeerFlag {
  std::string_view spellings;  // separated by blanks
  PeerEffect effect = PeerEffect::kRefused;
  bool takes_value = false;
  // The values that this row is about, separated by blanks; empty: all that earlier rows of the
  // same flag leave over. A value that no row is about is refused with the note of the last row.
  std::string_view values = {};
  // kApplied: our flags. The value is appended, unless `values` is given. "MODEL": the argument.
  std::string_view native = {};
  std::string_view note = {};  // why it is harmless or refused
};

std::span<const PeerFlag> peer_flags();

struct TranslatedArguments {
  std::vector<std::string> arguments;  // in our spelling
  std::vector<std::string> notes;      // one line per translated flag
};

// The arguments of `nibble serve` in our spelling; unknown ones stay as they are. Takes '_' for '-'
// in names, as vLLM does. kInvalidArgument for refused flags, and flags without their value.
Result<TranslatedArguments> translate_peer_flags(std::span<const std::string> arguments);

// Page of the documentation, and paragraphs for the help.
std::string peer_flags_markdown();
std::string peer_flags_help();

}  // namespace nibble::cli
