// How a quantised matrix may be cut between devices: blocks, groups and packed words stay whole,
// and scales are cut where their weights are. Arithmetic only; nothing is moved.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "quant/scheme.h"

namespace nibble::quant {

enum class ShardAxis : uint8_t { kN, kK };  // column-parallel cuts output rows, row-parallel inputs

struct ShardRequest {
  Scheme scheme = {};
  int64_t n = 0;  // of the whole matrix [n, k]
  int64_t k = 0;
  ShardAxis axis = ShardAxis::kN;
  int32_t parts = 1;
  // FP8 blocks may be cut; both neighbours then keep the scale of the edge.
  bool may_cut_blocks = false;
};

// What one device holds.
struct Shard {
  int64_t n = 0;
  int64_t k = 0;
  int64_t scale_rows = 0;  // of [n, k] blocks of scheme.block; 0 without scales
  int64_t scale_columns = 0;
  bool cuts_blocks = false;
};

// The largest length that may not be cut along `axis`: the block, group or packed word.
int64_t shard_unit(const Scheme& scheme, ShardAxis axis);

// kUnsupported, with the code in Error::reason: Q-P3 a part is no multiple of the unit (the valid
// counts are listed), Q-P5 act-order along k, Q-P6 zero points that cannot be cut like the weight.
// Messages have no subject; the caller names the module.
Result<Shard> shard_of(const ShardRequest& request);

}  // namespace nibble::quant
