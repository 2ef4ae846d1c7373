#include "golden/golden_testing.h"

namespace nibble::golden {

std::vector<std::string> models_under_test() {
  return {"flash_like_gpu", "pro_like_gpu", "tiny_v4_gpu", "tiny_v4_fp8_gpu"};
}

On gpu_under_test() { return On::kGpu; }

}  // namespace nibble::golden
