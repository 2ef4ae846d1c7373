// Weights in the layout that a kernel wants. Made once at load by the repacker that the kernel's record names; the
// stored format is kept, so a packed MXFP4 weight is still 4 bits wide.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/buffer.h"
#include "quant/format.h"

namespace nibble::kernels {

enum class PackedLayout : uint8_t {
  kNone,           // the op has no packed weight
  kRowMajor,       // codes as stored, row after row; scales expanded to one per row and group, f32
  kInterleaved16,  // 16 rows side by side, so that one vector lane is one output row; padded with zero rows
};

struct PackedWeight {
  quant::Format format = quant::Format::kF32;
  PackedLayout layout = PackedLayout::kNone;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;  // null for formats without
  float global_scale = 1;             // NVFP4's per-tensor scale
  device::Buffer storage;             // what codes and scales point into
};

// Rows [row_begin, row_end) of a stored weight; several sources are stacked (w1 over w3, for example). All must share
// format and k.
struct WeightRows {
  quant::WeightView weight;
  int64_t row_begin = 0;
  int64_t row_end = 0;
};

Result<PackedWeight> pack_weight(std::span<const WeightRows> sources, PackedLayout layout);
// The inverse, for tests and `check`: decodes to f32 [n, k], row-major.
void unpack_weight(const PackedWeight& weight, std::span<float> out);

}  // namespace nibble::kernels
