// The tables of kernel records, one function per table. registry.cpp puts them in order; a new
// table is a line here and a line there.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/kernel.h"

namespace nibble::kernels {

// Where the differential test last ran every CPU row.
inline constexpr HardwareRun kCpuVerified = {.where = "AMD EPYC (Zen 5), 2026-11-29"};

std::span<const KernelInfo> cpu_avx512_bf16_matmul_kernels();
std::span<const KernelInfo> cpu_avx512_matmul_kernels();
std::span<const KernelInfo> cpu_avx2_matmul_kernels();
std::span<const KernelInfo> cpu_avx512_ops_kernels();
std::span<const KernelInfo> cpu_avx2_ops_kernels();
std::span<const KernelInfo> cuda_sm90_kernels();
std::span<const KernelInfo> cuda_portable_kernels();
std::span<const KernelInfo> cuda_sm120_kernels();
std::span<const KernelInfo> cuda_ops_kernels();
std::span<const KernelInfo> cuda_planned_grouped_matmul_kernels();
std::span<const KernelInfo> cuda_planned_matmul_kernels();
std::span<const KernelInfo> reference_matmul_kernels();
std::span<const KernelInfo> reference_ops_kernels();
// For the emulated GPU.
std::span<const KernelInfo> reference_device_matmul_kernels();
std::span<const KernelInfo> reference_device_attention_kernels();
std::span<const KernelInfo> reference_device_ops_kernels();

// The record's name, with what hardware_mark() says.
std::string marked_name(const KernelInfo& kernel, const device::DeviceInfo& device);

// The text of docs/kernel-table.md: every record as a row of a Markdown table.
std::string kernel_table_markdown();

}  // namespace nibble::kernels
