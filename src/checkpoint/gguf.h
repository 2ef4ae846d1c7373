// The header of a GGUF file: its architecture and every tensor's name, block type and place. For
// detection only; the weights are not read. Hostile input like safetensors headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/block_type.h"
#include "tensor/tensor_view.h"

namespace nibble::checkpoint {

struct GgufTensor {
  std::string name;
  Shape shape;  // logical, outermost first
  const BlockType* type = nullptr;
  int64_t begin = 0;  // byte range in the file
  int64_t end = 0;
};

struct GgufHeader {
  std::string architecture;  // general.architecture
  std::vector<GgufTensor> tensors;
  int64_t data_begin = 0;
};

// Parses versions 2 and 3 (little endian). `file` is the whole file. Checked: counts against what
// the file can hold, known types, rank, whole blocks along a row, ranges inside the file. kDataLoss
// with reason Q-F1 (data beyond the end) or none; kUnsupported with Q-F4 for unknown types.
Result<GgufHeader> parse_gguf_header(std::span<const std::byte> file, std::string_view file_name);

}  // namespace nibble::checkpoint
