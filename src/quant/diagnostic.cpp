#include "quant/diagnostic.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace nibble::quant {

std::string quoted(std::string_view text) {
  return fmt::format("\"{}\"", escape_for_display(text.substr(0, 160)));
}

}  // namespace nibble::quant
