// The ordered list of all kernels: for each op the router takes the first row that accepts.
#include "kernels/registry.h"

namespace nibble::kernels {

std::vector<const KernelInfo*> all_kernels() {
  // Most specialised first, reference rows last.
  const std::span<const KernelInfo> tables[] = {
      cpu_avx512_bf16_matmul_kernels(),
      cpu_avx512_matmul_kernels(),
      cpu_avx2_matmul_kernels(),
      cpu_avx512_ops_kernels(),
      cpu_avx2_ops_kernels(),
      cuda_sm90_kernels(),
      cuda_sm120_kernels(),
      cuda_portable_kernels(),
      cuda_ops_kernels(),
      cuda_planned_grouped_matmul_kernels(),
      cuda_planned_matmul_kernels(),
      reference_matmul_kernels(),
      reference_ops_kernels(),
      reference_device_matmul_kernels(),
      reference_device_attention_kernels(),
      reference_device_ops_kernels(),
  };
  std::vector<const KernelInfo*> kernels;
  for (const std::span<const KernelInfo> table : tables) {
    for (const KernelInfo& kernel : table) kernels.push_back(&kernel);
  }
  return kernels;
}

std::string marked_name(const KernelInfo& kernel, const device::DeviceInfo& device) {
  const std::string mark = hardware_mark(kernel, device);
  return std::string(kernel.name) + (mark.empty() ? "" : " (" + mark + ")");
}

}  // namespace nibble::kernels
