// How the blocks of one launch share the products of DeviceMatMulChainArgs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {

// What blocks work on one after the other: the halves of the first product's outputs, what the
// second product makes of the halves.
struct ChainPart {
  int64_t items = 0;  // panels times parts of k
  int64_t bytes = 0;  // of an item
};
inline constexpr size_t kNumChainParts = 4;

// For each part the first item of every block, and the number of items.
using ChainShares = std::array<std::vector<uint16_t>, kNumChainParts>;
// Equal shares of the first part; later parts even out what the ones before left uneven.
ChainShares share_chain_items(const std::array<ChainPart, kNumChainParts>& parts,
                              int32_t num_blocks);

// Whether the first product's outputs, of which the second has `second_k`, are computed in two
// halves or in one: a half is a multiple of 128 and of the second's parts of k.
constexpr int32_t chain_halves(int64_t second_k, int32_t second_splits) {
  return second_k % 256 == 0 && second_splits % 2 == 0 ? 2 : 1;
}

struct MatMulChainPlan {
  std::array<int32_t, 2> splits = {1, 1};  // of the first product and the second
};
// Two halves where shapes allow it, and as few splits of k as give nearly every block an item of
// each. Of shapes alone.
//   kernels: the rows that have the products alone
MatMulChainPlan plan_matmul_chain(const std::array<const KernelInfo*, 2>& kernels,
                                  const std::array<const PackedWeight*, 2>& weights,
                                  int32_t num_units);

}  // namespace nibble::kernels
