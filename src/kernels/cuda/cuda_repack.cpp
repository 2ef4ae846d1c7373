#include <algorithm>
#include <iterator>

#include "kernels/cuda/repack/launch.h"
#include "kernels/repack.h"

namespace nibble::kernels {
namespace {

using quant::Format;

constexpr RepackInfo kTable[] = {
    {Format::kMxfp4, PackedLayout::kPanel64, false, &cuda::launch_pack_mxfp4_panel64},
    {Format::kNvfp4, PackedLayout::kPanel64, false, &cuda::launch_pack_nvfp4_panel64},
    {Format::kInt4Group32, PackedLayout::kPanel64, false, &cuda::launch_pack_int4_panel64},
    {Format::kFp8E4m3Block128x128,
     PackedLayout::kFp8Panel64,
     false,
     &cuda::launch_pack_fp8_panel64},
    {Format::kBf16, PackedLayout::kBf16Panel64, false, &cuda::launch_pack_bf16_panel64},
    {Format::kF32, PackedLayout::kRowMajor, true, nullptr},
    {Format::kBf16, PackedLayout::kRowMajor, true, nullptr},
    {Format::kF16, PackedLayout::kRowMajor, true, nullptr},
    {Format::kMxfp4, PackedLayout::kRowMajor, true, &cuda::launch_expand_scales},
    {Format::kNvfp4, PackedLayout::kRowMajor, true, &cuda::launch_expand_scales},
    {Format::kInt4Group32, PackedLayout::kRowMajor, true, &cuda::launch_expand_scales},
    {Format::kFp8E4m3Block128x128, PackedLayout::kRowMajor, true, &cuda::launch_expand_scales},
};

}  // namespace

const RepackInfo* find_repack(quant::Format format, PackedLayout layout) {
  const auto* const found =
      std::find_if(std::begin(kTable), std::end(kTable), [&](const RepackInfo& info) {
        return info.format == format && info.layout == layout;
      });
  return found == std::end(kTable) ? nullptr : found;
}

}  // namespace nibble::kernels
