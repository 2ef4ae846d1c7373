// Kernels that bring stored rows into the layouts of products. One per layout.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "kernels/repack.h"

namespace nibble::kernels::cuda {

// kRowMajor: expands scales to one f32 per row and group.
Result<void> launch_expand_scales(const RepackArgs& args, device::Stream& stream);
// kBf16Panel64 from BF16.
Result<void> launch_pack_bf16_panel64(const RepackArgs& args, device::Stream& stream);
// kFp8Panel64 from FP8 128x128.
Result<void> launch_pack_fp8_panel64(const RepackArgs& args, device::Stream& stream);
// kPanel64.
Result<void> launch_pack_mxfp4_panel64(const RepackArgs& args, device::Stream& stream);
Result<void> launch_pack_nvfp4_panel64(const RepackArgs& args, device::Stream& stream);
Result<void> launch_pack_int4_panel64(const RepackArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::cuda
