#include "quant/scheme.h"

#include <fmt/format.h>

namespace nibble::quant {

std::string_view carrier_name(Carrier carrier) {
  switch (carrier) {
    case Carrier::kPlain:
      return "plain";
    case Carrier::kDeepSeek:
      return "deepseek";
    case Carrier::kHuggingFaceFp8:
      return "hf-fp8";
    case Carrier::kModelOpt:
      return "modelopt";
    case Carrier::kModelOptAwq:
      return "modelopt-awq";
    case Carrier::kCompressedTensors:
      return "compressed-tensors";
    case Carrier::kGptOss:
      return "gpt-oss";
    case Carrier::kGptq:
      return "gptq";
    case Carrier::kAwq:
      return "awq";
    case Carrier::kBitsAndBytes:
      return "bitsandbytes";
    case Carrier::kGguf:
      return "gguf";
  }
  return "unknown";
}

std::string scheme_name(const Scheme& scheme) {
  switch (scheme.kind) {
    case SchemeKind::kUnknown:
      return "unknown";
    case SchemeKind::kF32:
      return "f32";
    case SchemeKind::kBf16:
      return "bf16";
    case SchemeKind::kF16:
      return "f16";
    case SchemeKind::kIndex:
      return "index";
    case SchemeKind::kFp8Tensor:
      return "fp8_tensor";
    case SchemeKind::kFp8Channel:
      return "fp8_channel";
    case SchemeKind::kFp8Block:
      return fmt::format("fp8_block{}x{}", scheme.block.n, scheme.block.k);
    case SchemeKind::kMxfp8:
      return "mxfp8";
    case SchemeKind::kMxfp4:
      return "mxfp4";
    case SchemeKind::kNvfp4:
      return "nvfp4";
    case SchemeKind::kInt:
      return fmt::format("int{}_g{}", scheme.bits, scheme.block.k);
    case SchemeKind::kInt8:
      return "int8";
    case SchemeKind::kNf4:
      return "nf4";
    case SchemeKind::kBnbFp4:
      return "bnb_fp4";
    case SchemeKind::kGgufBlock:
      return fmt::format("gguf_{}", scheme.block_type);
  }
  return "unknown";
}

bool is_same_numbers(const Scheme& a, const Scheme& b) {
  return a.kind == b.kind && a.block == b.block && a.bits == b.bits && a.block_type == b.block_type;
}

std::optional<Format> format_of(const Scheme& scheme) {
  // Carriers whose packing no kernel reads.
  const bool is_foreign = scheme.carrier == Carrier::kGptq || scheme.carrier == Carrier::kAwq ||
                          scheme.carrier == Carrier::kModelOptAwq ||
                          scheme.carrier == Carrier::kBitsAndBytes || scheme.has_zero_point ||
                          scheme.has_pre_scale || scheme.is_reordered;
  if (is_foreign) return std::nullopt;
  return format_from_name(scheme_name(scheme));
}

}  // namespace nibble::quant
