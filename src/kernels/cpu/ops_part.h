// Which lanes of a vector an access touches: loops run Full parts and at most one First at the end.
#pragma once

#include <cstdint>

namespace nibble::kernels::cpu {

struct Full {};
struct First {
  int64_t n = 0;  // below the number of lanes
};

}  // namespace nibble::kernels::cpu
