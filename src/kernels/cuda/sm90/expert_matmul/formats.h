// The expert product by weight format: one file each, as they take long to compile.
#pragma once

#include "device/device.h"
#include "kernels/device_args.h"

namespace nibble::kernels::cuda {

Result<void> launch_mxfp4_experts(const DeviceGroupedMatMulArgs& args, device::Stream& stream);
Result<void> launch_nvfp4_experts(const DeviceGroupedMatMulArgs& args, device::Stream& stream);
Result<void> launch_nvfp4_prefill(const DeviceGroupedMatMulArgs& args, device::Stream& stream);
Result<void> launch_int4_experts(const DeviceGroupedMatMulArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
