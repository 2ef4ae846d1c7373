#include "kernels/matmul_chain.h"

#include <algorithm>

#include "base/checked_math.h"

namespace nibble::kernels {
namespace {

// The least splits, of at least `least`, that make `wanted` items, or as many as there can be.
int32_t choose_splits(const PackedWeight& weight,
                      const KSplits& unit,
                      int64_t wanted,
                      int32_t least) {
  constexpr int32_t kMostSplits = 16;
  const int64_t panels = ceil_div(weight.n, unit.rows);
  int32_t splits = 1;
  while ((splits < least || panels * splits < wanted) && splits < kMostSplits &&
         weight.k % (2 * unit.k * splits) == 0) {
    splits *= 2;
  }
  return splits;
}

}  // namespace

ChainShares share_chain_items(const std::array<ChainPart, kNumChainParts>& parts,
                              int32_t num_blocks) {
  ChainShares shares;
  int64_t total = 0;  // bytes of the parts so far
  for (size_t p = 0; p < parts.size(); ++p) {
    const ChainPart& part = parts[p];
    total += part.items * part.bytes;
    int64_t last = 0;
    for (int32_t block = 0; block <= num_blocks; ++block) {
      int64_t begin = block == num_blocks ? part.items : 0;
      if (part.bytes > 0 && p == 0) {
        begin = part.items * block / num_blocks;
      } else if (part.bytes > 0 && block < num_blocks) {
        int64_t missing = total * block / num_blocks;
        for (size_t before = 0; before < p; ++before) {
          missing -= shares[before][static_cast<size_t>(block)] * parts[before].bytes;
        }
        begin = std::clamp((missing + part.bytes / 2) / part.bytes, last, part.items);
      }
      last = begin;
      shares[p].push_back(static_cast<uint16_t>(begin));
    }
  }
  return shares;
}

MatMulChainPlan plan_matmul_chain(const std::array<const KernelInfo*, 2>& kernels,
                                  const std::array<const PackedWeight*, 2>& weights,
                                  int32_t num_units) {
  const auto& [first, second] = weights;
  const int64_t nearly_all = num_units * int64_t{3} / 4;
  MatMulChainPlan plan;
  plan.splits[1] = choose_splits(*second, kernels[1]->k_splits, 2 * nearly_all, 2);
  const int32_t halves = chain_halves(second->k, plan.splits[1]);
  plan.splits[0] = choose_splits(*first, kernels[0]->k_splits, halves * nearly_all, 1);
  return plan;
}

}  // namespace nibble::kernels
