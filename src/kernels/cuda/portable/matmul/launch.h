// Products on the tensor cores of any GPU since sm_80, for any n: dense, with output groups, and of
// routed experts. One launcher for each weight format and form of activations; weights in
// kRowMajor.
//
// Limits: k a multiple of 32 for 4-bit weights, of 128 for FP8 activations, otherwise of 16; slots
// of any number of rows. Every product is exact and every output's sums have an order of their own,
// so results depend neither on m nor on neighbours.
#pragma once

#include "device/device.h"
#include "kernels/kernel.h"

namespace nibble::kernels::cuda {

Result<void> launch_portable_mxfp4_bf16(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_mxfp4_fp8(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_nvfp4_bf16(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_int4_bf16(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_fp8_bf16(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_fp8_fp8(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_bf16_bf16(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_f16_bf16(const DeviceMatMulArgs& args, device::Stream& stream);
// In f32: activations are sums of three BF16, F32 weights are multiplied by CUDA cores.
Result<void> launch_portable_bf16_f32(const DeviceMatMulArgs& args, device::Stream& stream);
Result<void> launch_portable_f32_f32(const DeviceMatMulArgs& args, device::Stream& stream);

Result<void> launch_portable_grouped_mxfp4_bf16(const DeviceGroupedMatMulArgs& args,
                                                device::Stream& stream);
Result<void> launch_portable_grouped_mxfp4_fp8(const DeviceGroupedMatMulArgs& args,
                                               device::Stream& stream);
Result<void> launch_portable_grouped_nvfp4_bf16(const DeviceGroupedMatMulArgs& args,
                                                device::Stream& stream);
Result<void> launch_portable_grouped_int4_bf16(const DeviceGroupedMatMulArgs& args,
                                               device::Stream& stream);
Result<void> launch_portable_grouped_fp8_bf16(const DeviceGroupedMatMulArgs& args,
                                              device::Stream& stream);
Result<void> launch_portable_grouped_fp8_fp8(const DeviceGroupedMatMulArgs& args,
                                             device::Stream& stream);
Result<void> launch_portable_grouped_bf16_bf16(const DeviceGroupedMatMulArgs& args,
                                               device::Stream& stream);
Result<void> launch_portable_grouped_f16_bf16(const DeviceGroupedMatMulArgs& args,
                                              device::Stream& stream);
Result<void> launch_portable_grouped_f32_f32(const DeviceGroupedMatMulArgs& args,
                                             device::Stream& stream);

}  // namespace nibble::kernels::cuda
