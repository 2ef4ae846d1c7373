#include "golden/golden_testing.h"

namespace nibble::golden {

std::vector<std::string> models_under_test() {
  return {"flash_like",
          "pro_like",
          "tiny_v4",
          "tiny_v4_fp8",
          "flash_like_emulated",
          "pro_like_emulated"};
}

On gpu_under_test() { return On::kEmulatedGpu; }

}  // namespace nibble::golden
