#include "quant/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>

#include "base/checked_math.h"

namespace nibble::quant {
namespace {

constexpr int32_t kMaxParts = 64;

// Integer codes in a 32-bit word along k.
int64_t codes_per_word(const Scheme& scheme) {
  return scheme.bits > 0 && 32 % scheme.bits == 0 ? 32 / scheme.bits : 32;
}

bool is_packed_along_n(const Scheme& scheme) { return scheme.carrier == Carrier::kAwq; }

std::string_view unit_name(const Scheme& scheme, ShardAxis axis) {
  if (scheme.kind == SchemeKind::kFp8Block) return "FP8 block";
  if (axis == ShardAxis::kN) return "rows that share a word";
  return "scale group";
}

// "1, 2, 4": the counts that leave whole units.
std::string valid_parts(int64_t size, int64_t unit) {
  std::string text;
  for (int32_t parts = 1; parts <= kMaxParts; parts *= 2) {
    if (size % parts != 0 || (size / parts) % unit != 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", parts);
  }
  return text.empty() ? "none" : text;
}

Error refuse(std::string_view code, std::string message) {
  Error error = unsupported(std::move(message));
  error.reason = std::string(code);
  return error;
}

// Zero points are packed along n whatever the weights are.
Result<void> check_zero_points(const ShardRequest& r) {
  const int64_t word = codes_per_word(r.scheme);
  const bool has_packed_zeros = r.scheme.has_zero_point && r.axis == ShardAxis::kN;
  if (!has_packed_zeros || (r.n / r.parts) % word == 0) return {};
  return refuse("Q-P6",
                fmt::format("N={} over tp={} leaves {} per device, but {} zero points share a word "
                            "along N; expected parts that scales and weights can be cut into "
                            "alike; valid tp: {}. Fix: use one of them.",
                            r.n,
                            r.parts,
                            r.n / r.parts,
                            word,
                            valid_parts(r.n, word)));
}

Result<void> check_size(const ShardRequest& r, int64_t size, int64_t unit) {
  const bool is_whole = size % r.parts == 0 && (size / r.parts) % unit == 0;
  const bool may_cut = r.scheme.kind == SchemeKind::kFp8Block && size % r.parts == 0;
  if (is_whole || (may_cut && r.may_cut_blocks)) return {};
  return refuse(
      "Q-P3",
      fmt::format("{}={} over tp={} leaves {} per device, not a multiple of the {} {}; valid tp: "
                  "{}. Fix: use one of them{}.",
                  r.axis == ShardAxis::kK ? "K" : "N",
                  size,
                  r.parts,
                  size % r.parts == 0 ? std::to_string(size / r.parts)
                                      : fmt::format("{:.1f}", static_cast<double>(size) / r.parts),
                  unit,
                  unit_name(r.scheme, r.axis),
                  valid_parts(size, unit),
                  may_cut ? ", or --pad-fp8-blocks (neighbours share the edge scales)" : ""));
}

}  // namespace

int64_t shard_unit(const Scheme& scheme, ShardAxis axis) {
  const int64_t block_k = std::max(scheme.block.k, 1);
  switch (scheme.kind) {
    case SchemeKind::kFp8Block:
      return axis == ShardAxis::kN ? std::max(scheme.block.n, 1) : block_k;
    case SchemeKind::kMxfp8:
    case SchemeKind::kMxfp4:
    case SchemeKind::kNvfp4:
      return axis == ShardAxis::kN ? 1 : std::lcm(block_k, int64_t{2});
    case SchemeKind::kInt:
      if (scheme.carrier == Carrier::kModelOptAwq) return axis == ShardAxis::kN ? 2 : block_k;
      if (is_packed_along_n(scheme))
        return axis == ShardAxis::kN ? codes_per_word(scheme) : block_k;
      return axis == ShardAxis::kN ? 1 : std::lcm(block_k, codes_per_word(scheme));
    case SchemeKind::kNf4:
    case SchemeKind::kBnbFp4:
      return axis == ShardAxis::kN ? 1 : block_k;  // blocks run over flattened memory
    default:
      return 1;
  }
}

Result<Shard> shard_of(const ShardRequest& r) {
  CHECK(r.parts >= 1) << r.parts;
  const int64_t size = r.axis == ShardAxis::kN ? r.n : r.k;
  const int64_t unit = shard_unit(r.scheme, r.axis);
  if (r.parts > 1) {
    if (r.scheme.is_reordered && r.axis == ShardAxis::kK) {
      return refuse(
          "Q-P5",
          fmt::format("act-order scatters the groups of K={} over all devices; expected "
                      "whole groups on each of tp={}. Fix: use tp=1, or --ep for experts.",
                      r.k,
                      r.parts));
    }
    TRY(check_size(r, size, unit));
    TRY(check_zero_points(r));
  }
  const int64_t part = size / r.parts;
  Shard shard = {.n = r.n, .k = r.k, .cuts_blocks = part % unit != 0};
  (r.axis == ShardAxis::kN ? shard.n : shard.k) = part;
  if (!r.scheme.is_quantized()) return shard;
  // A cut block's edge scale lies on both sides, so that local scales follow from local weights.
  shard.scale_rows = ceil_div(shard.n, std::max(r.scheme.block.n, 1));
  shard.scale_columns = ceil_div(shard.k, std::max(r.scheme.block.k, 1));
  return shard;
}

}  // namespace nibble::quant
