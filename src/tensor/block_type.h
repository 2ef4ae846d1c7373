// Element blocks as GGUF files store them: a type id, and how many bytes a run of elements takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

struct BlockType {
  int32_t id = 0;             // in the file
  std::string_view name;      // "q4_k"
  int64_t num_elements = 1;   // of a block
  int64_t num_bytes = 0;      // of a block
  bool is_quantized = false;  // false: plain numbers
};

std::span<const BlockType> block_types();
// nullptr for ids that this version does not know.
const BlockType* find_block_type(int64_t id);

}  // namespace nibble
