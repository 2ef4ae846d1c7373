#include "kernels/matmul_chain.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quant/format.h"

namespace nibble::kernels {
namespace {

constexpr int32_t kUnits = 132;

std::vector<int64_t> bytes_of_blocks(const std::array<ChainPart, kNumChainParts>& parts,
                                     const ChainShares& shares) {
  std::vector<int64_t> bytes(kUnits);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (size_t block = 0; block < bytes.size(); ++block) {
      bytes[block] += (shares[p][block + 1] - shares[p][block]) * parts[p].bytes;
    }
  }
  return bytes;
}

using Parts = std::array<ChainPart, kNumChainParts>;

TEST(ShareChainItems, EveryItemHasOneBlock) {
  const Parts parts = {ChainPart{.items = 128, .bytes = 8},
                       {.items = 128, .bytes = 8},
                       {.items = 128, .bytes = 4},
                       {.items = 128, .bytes = 4}};
  const ChainShares shares = share_chain_items(parts, kUnits);
  for (size_t p = 0; p < parts.size(); ++p) {
    ASSERT_EQ(shares[p].size(), size_t{kUnits} + 1);
    EXPECT_EQ(shares[p].front(), 0);
    EXPECT_EQ(shares[p].back(), parts[p].items);
    EXPECT_TRUE(std::is_sorted(shares[p].begin(), shares[p].end())) << p;
  }
}

TEST(ShareChainItems, LaterPartsEvenOutTheFirst) {
  const Parts parts = {ChainPart{.items = 128, .bytes = 16},
                       {},
                       {.items = 256, .bytes = 2},
                       {.items = 256, .bytes = 2}};
  const std::vector<int64_t> bytes = bytes_of_blocks(parts, share_chain_items(parts, kUnits));
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most, 26);  // 23.3 on average, and blocks without a first item
  EXPECT_GE(*least, 20);
}

TEST(ShareChainItems, LeavesOutPartsThatAreNotThere) {
  const Parts parts = {ChainPart{.items = 3, .bytes = 16}, {}, {.items = 5, .bytes = 4}, {}};
  const ChainShares shares = share_chain_items(parts, 4);
  EXPECT_EQ(shares[0], (std::vector<uint16_t>{0, 0, 1, 2, 3}));
  EXPECT_EQ(shares[1], (std::vector<uint16_t>(5, 0)));
  EXPECT_EQ(shares[2], (std::vector<uint16_t>{0, 4, 5, 5, 5}));
}

PackedWeight weight_of(int64_t n, int64_t k) {
  PackedWeight weight;
  weight.format = quant::Format::kFp8E4m3Block128x128;
  weight.layout = PackedLayout::kFp8Panel64;
  weight.scale_dtype = DType::kF32;
  weight.n = n;
  weight.k = k;
  return weight;
}

// DeepSeek-V4-Flash's output projections.
TEST(PlanMatMulChain, GivesEveryBlockAnItemOfEachHalf) {
  KernelInfo kernel;
  kernel.k_splits = {.rows = 64, .k = 256};
  const PackedWeight wo_a = weight_of(8192, 4096), wo_b = weight_of(4096, 8192);
  const MatMulChainPlan plan = plan_matmul_chain({&kernel, &kernel}, {&wo_a, &wo_b}, kUnits);
  EXPECT_EQ(plan.splits, (std::array<int32_t, 2>{2, 4}));
}

TEST(PlanMatMulChain, HalvesAreOfWholeBlocksAndPartsOfK) {
  EXPECT_EQ(chain_halves(2048, 4), 2);
  EXPECT_EQ(chain_halves(256, 2), 2);
  EXPECT_EQ(chain_halves(384, 2), 1);
  EXPECT_EQ(chain_halves(2048, 1), 1);
}

}  // namespace
}  // namespace nibble::kernels
