#include "quant/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/checked_math.h"

namespace nibble::quant {
namespace {

using ::testing::HasSubstr;

constexpr Scheme kBlocks = {.kind = SchemeKind::kFp8Block, .block = {128, 128}};
constexpr Scheme kMx = {.kind = SchemeKind::kMxfp4, .block = {1, 32}};
constexpr Scheme kGptq4 = {.kind = SchemeKind::kInt,
                           .carrier = Carrier::kGptq,
                           .block = {1, 128},
                           .bits = 4,
                           .has_zero_point = true};

std::string code(const ShardRequest& request) {
  const Result<Shard> shard = shard_of(request);
  return shard.ok() ? "" : shard.error().reason;
}

// The example of a shared expert that 16 devices cannot split.
TEST(Shard, CutBlocksAreP3AndNameTheWayOut) {
  ShardRequest request = {
      .scheme = kBlocks, .n = 4096, .k = 3072, .axis = ShardAxis::kK, .parts = 16};
  const Result<Shard> refused = shard_of(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().reason, "Q-P3");
  EXPECT_THAT(refused.error().message,
              HasSubstr("K=3072 over tp=16 leaves 192 per device, not a multiple of the 128 FP8 "
                        "block; valid tp: 1, 2, 4, 8. Fix: use one of them, or --pad-fp8-blocks"));
  request.may_cut_blocks = true;
  const Shard shard = shard_of(request).value();
  EXPECT_TRUE(shard.cuts_blocks);
  EXPECT_EQ(shard.k, 192);
  EXPECT_EQ(shard.scale_columns, 2);
  request.parts = 5;  // padding does not help what does not divide at all
  EXPECT_EQ(code(request), "Q-P3");
}

TEST(Shard, GroupsAndWordsStayWhole) {
  EXPECT_EQ(shard_unit(kMx, ShardAxis::kK), 32);
  EXPECT_EQ(shard_unit(kMx, ShardAxis::kN), 1);
  Scheme odd_group = kGptq4;
  odd_group.block.k = 12;
  EXPECT_EQ(shard_unit(odd_group, ShardAxis::kK), 24);  // lcm of group 12 and word 8
  EXPECT_EQ(code({.scheme = kMx, .n = 64, .k = 2048, .axis = ShardAxis::kK, .parts = 8}), "");
  EXPECT_EQ(code({.scheme = kMx, .n = 64, .k = 160, .axis = ShardAxis::kK, .parts = 2}), "Q-P3");
  EXPECT_EQ(code({.n = 64, .k = 7, .axis = ShardAxis::kK, .parts = 2}), "Q-P3");
}

TEST(Shard, ActOrderAlongKIsP5) {
  Scheme ordered = kGptq4;
  ordered.is_reordered = true;
  const auto along = [&](ShardAxis axis, int32_t parts) {
    return code({.scheme = ordered, .n = 1024, .k = 1024, .axis = axis, .parts = parts});
  };
  EXPECT_EQ(along(ShardAxis::kK, 2), "Q-P5");
  EXPECT_EQ(along(ShardAxis::kK, 1), "");
  EXPECT_EQ(along(ShardAxis::kN, 2), "");
}

TEST(Shard, ZeroPointsThatCannotFollowAreP6) {
  const auto split_n = [&](int64_t n) {
    return code({.scheme = kGptq4, .n = n, .k = 1024, .axis = ShardAxis::kN, .parts = 4});
  };
  EXPECT_EQ(split_n(1024), "");
  EXPECT_EQ(split_n(1008), "Q-P6");  // 252 rows, 8 zero points to a word
}

// Q-P6's rule: local scales are what the local weight calls for, and together they are all scales.
TEST(Shard, LocalScalesFollowFromLocalWeights) {
  for (const Scheme& scheme :
       {kBlocks, kMx, Scheme{.kind = SchemeKind::kNvfp4, .block = {1, 16}}}) {
    for (const ShardAxis axis : {ShardAxis::kN, ShardAxis::kK}) {
      for (const int32_t parts : {1, 2, 4, 8}) {
        const Shard shard =
            shard_of({.scheme = scheme, .n = 2048, .k = 4096, .axis = axis, .parts = parts})
                .value();
        EXPECT_EQ(shard.scale_rows, ceil_div(shard.n, int64_t{scheme.block.n}));
        EXPECT_EQ(shard.scale_columns, ceil_div(shard.k, int64_t{scheme.block.k}));
        EXPECT_EQ(shard.scale_rows * shard.scale_columns * parts,
                  2048 / scheme.block.n * (4096 / scheme.block.k));
        EXPECT_FALSE(shard.cuts_blocks);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::quant
