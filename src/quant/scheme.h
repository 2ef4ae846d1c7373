// What a stored weight can be: every number format and carrier that detection knows, whether or not
// this program can compute with it. Format (format.h) is the part that kernels take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quant/format.h"
#include "tensor/dtype.h"

namespace nibble::quant {

enum class SchemeKind : uint8_t {
  kUnknown,
  kF32,
  kBf16,
  kF16,
  kIndex,       // integer tables that are no weights: expert ids, shapes
  kFp8Tensor,   // E4M3, one scale
  kFp8Channel,  // E4M3, one scale per output row
  kFp8Block,    // E4M3, one scale per block
  kMxfp8,       // E4M3, E8M0 per 32 along k
  kMxfp4,       // E2M1, E8M0 per 32 along k
  kNvfp4,       // E2M1, E4M3 per 16 along k and one F32
  kInt,         // integer codes of `bits` bits, one scale per group along k
  kInt8,        // one scale per output row, activations INT8 too
  kNf4,         // bitsandbytes, 64 per block over flattened memory
  kBnbFp4,      // bitsandbytes' own 4-bit table, not E2M1
  kGgufBlock,   // a block type of GGUF files
};

// Whose way of naming and packing the tensors follow.
enum class Carrier : uint8_t {
  kPlain,              // weight
  kDeepSeek,           // weight + scale
  kHuggingFaceFp8,     // weight + weight_scale_inv
  kModelOpt,           // weight + weight_scale (+ weight_scale_2, input_scale); Quark as well
  kModelOptAwq,        // two output rows per byte
  kCompressedTensors,  // weight_packed + weight_scale (+ weight_global_scale), weight_shape
  kGptOss,             // *_blocks + *_scales, all experts of a layer in one tensor
  kGptq,               // qweight packed along k
  kAwq,                // qweight packed along n
  kBitsAndBytes,
  kGguf,
};
std::string_view carrier_name(Carrier carrier);

struct Scheme {
  SchemeKind kind = SchemeKind::kUnknown;
  Carrier carrier = Carrier::kPlain;
  BlockShape block = {1, 1};         // weights that share a scale; only kFp8Block uses n
  int32_t bits = 0;                  // kInt
  std::string_view block_type = {};  // kGgufBlock: "q4_k", a literal
  bool has_input_scale = false;
  bool has_zero_point = false;
  bool has_pre_scale = false;  // an AWQ factor per input column
  bool is_reordered = false;   // act-order: groups are not runs along k but sets named by an index

  bool is_quantized() const { return kind >= SchemeKind::kFp8Tensor; }
  friend bool operator==(const Scheme&, const Scheme&) = default;
};

// As plans print it: "mxfp4", "fp8_block128x128", "int4_g32", "bf16".
std::string scheme_name(const Scheme& scheme);

// Same numbers, whatever the carrier and the extras are called.
bool is_same_numbers(const Scheme& a, const Scheme& b);

// The format that kernels know these numbers by; nullopt where there is none.
std::optional<Format> format_of(const Scheme& scheme);

}  // namespace nibble::quant
