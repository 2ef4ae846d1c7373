#include "device/cuda_generations.h"

#include <charconv>

namespace nibble::device {
namespace {

bool runs_on(std::string_view generation, int32_t sm) {
  int32_t compiled_for = 0;
  const char* const end = generation.data() + generation.size();
  const auto [suffix, error] = std::from_chars(generation.data(), end, compiled_for);
  if (error != std::errc{}) return false;
  if (suffix != end && *suffix == 'a') return sm == compiled_for;
  // A family is a major version as well: 100f covers sm_103, 120f sm_121.
  return sm / 10 == compiled_for / 10 && sm >= compiled_for;
}

}  // namespace

bool has_code_for(std::string_view generations, int32_t sm) {
  while (!generations.empty()) {
    const size_t comma = generations.find(',');
    if (runs_on(generations.substr(0, comma), sm)) return true;
    if (comma == std::string_view::npos) return false;
    generations.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace nibble::device
