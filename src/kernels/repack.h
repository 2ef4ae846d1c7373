// Packing on the device: from stored rows in its memory to the layouts of kernels, byte for byte
// what pack_weight() gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/device.h"
#include "kernels/packed_weight.h"
#include "kernels/panel64.h"
#include "quant/format.h"
#include "tensor/dtype.h"

namespace nibble::kernels {

// Consecutive rows of one source, and the weight that they become a part of. Device memory.
struct RepackArgs {
  const std::byte* codes = nullptr;  // [num_rows, k] as stored, aligned to 16 bytes
  // From the block row of the first row on, as stored, aligned to 16 bytes; null without scales.
  const std::byte* scales = nullptr;
  DType scale_dtype = DType::kF32;
  float global_scale = 1.0f;
  quant::BlockShape block_shape;  // of the format
  int64_t first_row = 0;          // in the source: which rows share a block row
  int64_t num_rows = 0;
  int64_t k = 0;

  int64_t stack_row = 0;  // where the first row lies in the weight, before `order`
  int64_t n = 0;          // rows of the weight
  PanelOrder order = PanelOrder::kNatural;
  std::byte* packed_codes = nullptr;  // zero-filled before the first launch for the weight
  std::byte* packed_scales = nullptr;
  float* packed_global_scales = nullptr;
  // Takes the largest (ticket << 32 | what is wrong) of the rows that the layout cannot hold: by
  // how much the exponents of a row differ, or one of the constants below.
  uint64_t* failure = nullptr;
  uint32_t ticket = 0;
};

// What may be wrong with a scale, beyond any difference of exponents.
inline constexpr uint32_t kScaleIsNan = 0x10000;     // or infinite
inline constexpr uint32_t kScaleIsNoBf16 = 0x20000;  // where the layout has BF16 scales

// A kernel that packs.
struct RepackInfo {
  quant::Format format = quant::Format::kF32;
  PackedLayout layout = PackedLayout::kNone;
  // Whether codes keep their order: they are then copied, and only scales go through launch(),
  // which is null for formats without.
  bool copies_codes = false;
  Result<void> (*launch)(const RepackArgs& args, device::Stream& stream) = nullptr;
};

// Null when the host has to pack: no kernel, or a build without the CUDA backend.
const RepackInfo* find_repack(quant::Format format, PackedLayout layout);

}  // namespace nibble::kernels
