// Small vocabularies and questions to a compiled grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace nibble::grammar {

// Ids 0 to 255 are the bytes; then end of sequence and the control tokens of the chat format, then
// further tokens of several bytes.
inline constexpr int32_t kTestEos = 256;
inline constexpr int32_t kTestThinkEnd = 257;
inline constexpr int32_t kTestDsml = 258;
inline constexpr int32_t kTestFirstText = 259;
std::shared_ptr<const Vocabulary> test_vocabulary(const std::vector<std::string>& texts = {});

// Fails the test when it does not compile.
std::shared_ptr<const Grammar> compiled(
    const Spec& spec, const std::shared_ptr<const Vocabulary>& vocabulary = test_vocabulary());
std::shared_ptr<const Grammar> compiled_schema(std::string_view schema);
std::shared_ptr<const Grammar> compiled_regex(std::string_view pattern);
// The message of the error that compiling gives; empty when it compiles.
std::string compile_error(const Spec& spec);
std::string schema_error_of(std::string_view schema);

Spec schema_spec(std::string_view schema);

// The tokens that may follow, by their mask.
std::set<int32_t> allowed(Matcher& matcher);

// Byte by byte; what "\uff5cDSML\uff5c" and "</think>" spell goes in as their tokens.
enum class Fit { kRefused, kPrefix, kWhole };
Fit fit(const std::shared_ptr<const Grammar>& grammar, std::string_view text);
inline bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  return fit(grammar, text) == Fit::kWhole;
}

}  // namespace nibble::grammar
