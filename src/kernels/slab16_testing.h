// Random weights of the formats of kernels/slab16.h, for tests.
#pragma once

#include <cstdint>

#include "quant/format.h"
#include "quant/reference.h"

namespace nibble::kernels {

// Random codes, both zeros among them and no NaN; scales over a few powers of two, of every
// mantissa where the format has one; a global scale other than 1 where it has one.
quant::QuantizedWeight random_slab_weight(quant::Format format,
                                          int64_t n,
                                          int64_t k,
                                          uint32_t seed);

}  // namespace nibble::kernels
