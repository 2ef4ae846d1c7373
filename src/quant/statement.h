// What a configuration file says about the format of some modules.
#pragma once

#include <cstdint>
#include <string>

#include "quant/scheme.h"

namespace nibble::quant {

// One statement about a format. What it leaves open is zero.
struct Statement {
  SchemeKind kind = SchemeKind::kUnknown;
  BlockShape block = {0, 0};
  int32_t bits = 0;
  bool is_dense = false;  // "not quantised"
  bool allows_dense =
      false;  // the method leaves modules alone by its own rules (HF fp8, GPTQ, ...)
  bool needs_zero_point = false;   // symmetric: false
  bool needs_group_index = false;  // act-order
  std::string text;                // "quant_algo NVFP4 (config.json)"
};

// Whether stored numbers are what a statement says, as far as it goes.
bool agrees(const Statement& statement, const Scheme& scheme);

}  // namespace nibble::quant
