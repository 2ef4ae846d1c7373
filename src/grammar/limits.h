// What one grammar may cost. Every limit is checked while compiling, except the work limits, which
// hold for each step of a sequence. Exceeding one is kInvalidArgument, later with the reason
// "grammar_too_ambiguous".
#pragma once

#include <cstdint>

namespace nibble::grammar {

struct Limits {
  int64_t max_source_bytes = 256 << 10;  // schema, regex, EBNF text, or choices together
  int32_t max_expressions = 400'000;     // nodes of the syntax tree
  int32_t max_states = 200'000;          // of the byte automaton, before it is reduced
  int32_t max_edges = 1'000'000;
  // Activations of recursive rules inside each other in generated text, such as a schema's $ref to
  // itself or arrays in arrays of free JSON. Deeper texts are not generated.
  int32_t max_recursion = 32;
  // Edges looked at for one byte, and for one token mask.
  int64_t max_work_per_byte = 200'000;
  int64_t max_work_per_mask = 1'000'000;
  // Configurations, their transitions and their masks that a grammar keeps between steps.
  int64_t max_cached_bytes = 16 << 20;
};

}  // namespace nibble::grammar
