// Compiles a stretch of a file for an instruction set that the rest of the program may not use:
//
//   #include <...>                    all includes first
//   namespace nibble::kernels::avx512 {
//   NIBBLE_ISA_BEGIN("avx512f,avx512bw")
//   #include "kernels/cpu/..-inl.h"   algorithms compiled once per ISA
//   NIBBLE_ISA_END
//   }
//
// Never compile whole files with -mavx512*: wide instructions then leak into library templates,
// which the linker may pick for every CPU. For the same reason code in a region calls no function
// templates of the standard library, and intrinsics do not appear in lambdas (Clang does not give
// those the region's target).
#pragma once

#define NIBBLE_PRAGMA_(text) _Pragma(#text)

#if defined(__clang__)
#define NIBBLE_ISA_BEGIN(target_features) \
  NIBBLE_PRAGMA_(                         \
      clang attribute push(__attribute__((target(target_features))), apply_to = function))
#define NIBBLE_ISA_END NIBBLE_PRAGMA_(clang attribute pop)
#define NIBBLE_UNROLL NIBBLE_PRAGMA_(unroll)
#else
// GCC 12 reports the undefined operands inside its own intrinsics as uninitialised.
#define NIBBLE_ISA_BEGIN(target_features)                        \
  NIBBLE_PRAGMA_(GCC diagnostic push)                            \
  NIBBLE_PRAGMA_(GCC diagnostic ignored "-Wuninitialized")       \
  NIBBLE_PRAGMA_(GCC diagnostic ignored "-Wmaybe-uninitialized") \
  NIBBLE_PRAGMA_(GCC push_options)                               \
  NIBBLE_PRAGMA_(GCC target(target_features))
#define NIBBLE_ISA_END            \
  NIBBLE_PRAGMA_(GCC pop_options) \
  NIBBLE_PRAGMA_(GCC diagnostic pop)
#define NIBBLE_UNROLL NIBBLE_PRAGMA_(GCC unroll 32)
#endif
