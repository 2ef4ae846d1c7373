#include <cublasLt.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "device/cuda.h"
#include "device/cuda/cuda_try.h"
#include "device/cuda/run_time_library.h"
#include "kernels/cuda/peers.h"

namespace nibble::kernels::cuda {
namespace {

constexpr const char* kLibraries[] = {"libcublasLt.so.13",
                                      "libcublasLt.so",
                                      "/usr/local/cuda/lib64/libcublasLt.so.13",
                                      "libcublasLt.so.12"};
constexpr int64_t kWorkspaceBytes = 64 << 20;

// The functions that are used, by name.
struct BlasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  cublasLtHandle_t handle = nullptr;
};

Result<void> check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return unavailable(std::string(call) + ": status " + std::to_string(static_cast<int>(status)));
}
#define BLAS_TRY(call) TRY(check((call), #call))

Result<BlasLt> load_blas() {
  TRY_ASSIGN(const device::RunTimeLibrary library,
             device::RunTimeLibrary::open("cublasLt", kLibraries));
  BlasLt blas;
  TRY(library.find("cublasLtCreate", blas.create));
  TRY(library.find("cublasLtMatmul", blas.matmul));
  TRY(library.find("cublasLtMatmulDescCreate", blas.create_desc));
  TRY(library.find("cublasLtMatmulDescSetAttribute", blas.set_desc));
  TRY(library.find("cublasLtMatmulDescDestroy", blas.destroy_desc));
  TRY(library.find("cublasLtMatrixLayoutCreate", blas.create_layout));
  TRY(library.find("cublasLtMatrixLayoutDestroy", blas.destroy_layout));
  TRY(library.find("cublasLtMatmulPreferenceCreate", blas.create_preference));
  TRY(library.find("cublasLtMatmulPreferenceSetAttribute", blas.set_preference));
  TRY(library.find("cublasLtMatmulPreferenceDestroy", blas.destroy_preference));
  TRY(library.find("cublasLtMatmulAlgoGetHeuristic", blas.get_heuristic));
  BLAS_TRY(blas.create(&blas.handle));
  return blas;
}

// Loaded once, with a context of its own that lives as long as the process.
const Result<BlasLt>& blas() {
  static const Result<BlasLt> loaded = load_blas();
  return loaded;
}

Result<device::Buffer> ones(device::Device& device, int64_t count) {
  const std::vector<float> values(static_cast<size_t>(count), 1.0F);
  TRY_ASSIGN(device::Buffer buffer, device.allocate(count * 4));
  TRY(device::copy_to_device(buffer.data(), values.data(), count * 4, device.stream()));
  TRY(device::synchronize(device.stream()));
  return buffer;
}

}  // namespace

// cublasLt's matrices are column-major: it computes y^T [n, m] from W^T and x^T as they lie.
struct BlasProduct::State {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  device::Buffer workspace, weight_scales, x_scales;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (desc != nullptr) blas()->destroy_desc(desc);
    for (cublasLtMatrixLayout_t layout : {weight, x, y}) {
      if (layout != nullptr) blas()->destroy_layout(layout);
    }
  }

  template <class T>
  Result<void> set(cublasLtMatmulDescAttributes_t attribute, T value) {
    BLAS_TRY(blas()->set_desc(desc, attribute, &value, sizeof(value)));
    return {};
  }

  Result<void> describe(BlasType type, int64_t m, int64_t n, int64_t k) {
    const cudaDataType_t in = type == BlasType::kBf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    BLAS_TRY(blas()->create_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
    const auto um = static_cast<uint64_t>(m), un = static_cast<uint64_t>(n);
    const auto uk = static_cast<uint64_t>(k);
    BLAS_TRY(blas()->create_layout(&weight, in, uk, un, k));
    BLAS_TRY(blas()->create_layout(&x, in, uk, um, k));
    BLAS_TRY(blas()->create_layout(&y, CUDA_R_16BF, un, um, n));
    return {};
  }

  Result<void> scale(device::Device& device, BlasType type, int64_t m, int64_t n, int64_t k) {
    if (type == BlasType::kBf16) return {};
    const bool has_blocks = type == BlasType::kFp8Blocks;
    // Blocks of 128; columns of W's scales are padded to four.
    const int64_t k_blocks = round_up(ceil_div(k, int64_t{128}), int64_t{4});
    TRY_ASSIGN(weight_scales, ones(device, has_blocks ? k_blocks * ceil_div(n, int64_t{128}) : 1));
    TRY_ASSIGN(x_scales, ones(device, has_blocks ? k_blocks * round_up(m, int64_t{4}) : 1));
    const void* const weight_at = weight_scales.data();
    const void* const x_at = x_scales.data();
    TRY(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight_at));
    TRY(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_at));
    if (!has_blocks) return {};
    TRY(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
    return set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
  }

  Result<void> choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    BLAS_TRY(blas()->create_preference(&preference));
    const auto bytes = static_cast<uint64_t>(kWorkspaceBytes);
    cublasStatus_t status = blas()->set_preference(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = blas()->get_heuristic(
          blas()->handle, desc, weight, x, y, y, preference, 1, &best, &found);
    }
    blas()->destroy_preference(preference);
    TRY(check(status, "cublasLtMatmulAlgoGetHeuristic"));
    if (found == 0) return unavailable("cublasLt has no algorithm for this product");
    algorithm = best.algo;
    return {};
  }
};

BlasProduct::BlasProduct(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlasProduct::BlasProduct(BlasProduct&&) noexcept = default;
BlasProduct& BlasProduct::operator=(BlasProduct&&) noexcept = default;
BlasProduct::~BlasProduct() = default;

Result<BlasProduct> BlasProduct::make(
    device::Device& device, BlasType type, int64_t m, int64_t n, int64_t k) {
  if (!blas().ok()) return blas().error();
  auto state = std::make_unique<State>();
  TRY(state->describe(type, m, n, k));
  TRY(state->scale(device, type, m, n, k));
  TRY(state->choose());
  TRY_ASSIGN(state->workspace, device.allocate(kWorkspaceBytes));
  return BlasProduct(std::move(state));
}

Result<void> BlasProduct::launch(const void* x,
                                 const void* weight,
                                 void* y,
                                 device::Stream& stream) const {
  const float one = 1, zero = 0;
  BLAS_TRY(blas()->matmul(blas()->handle,
                          state_->desc,
                          &one,
                          weight,
                          state_->weight,
                          x,
                          state_->x,
                          &zero,
                          y,
                          state_->y,
                          y,
                          state_->y,
                          &state_->algorithm,
                          state_->workspace.data(),
                          static_cast<size_t>(kWorkspaceBytes),
                          static_cast<cudaStream_t>(stream.native)));
  return {};
}

}  // namespace nibble::kernels::cuda
