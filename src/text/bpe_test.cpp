#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/tokenizer_testing.h"

namespace nibble::text {
namespace {

using testing::NaiveBpe;

struct Table {
  std::array<int32_t, 256> byte_tokens{};
  std::vector<std::string> token_bytes;
  std::vector<Merge> merges;

  Table() {
    for (size_t b = 0; b < 256; ++b) {
      byte_tokens[b] = static_cast<int32_t>(b);
      token_bytes.emplace_back(1, static_cast<char>(b));
    }
  }
  // Joins two tokens at the next rank; the result is the token of the joined bytes, new or not.
  void add(int32_t left, int32_t right) {
    for (const Merge& m : merges) {
      if (m.left == left && m.right == right) return;
    }
    const std::string joined =
        token_bytes[static_cast<size_t>(left)] + token_bytes[static_cast<size_t>(right)];
    auto found = std::find(token_bytes.begin(), token_bytes.end(), joined);
    if (found == token_bytes.end()) found = token_bytes.insert(found, joined);
    merges.push_back({left, right, static_cast<int32_t>(found - token_bytes.begin())});
  }
};

// Merges of random pairs out of `letters` in random rank order: some use tokens before their own
// rank, some tokens have several derivations, some are never reached.
Table random_table(std::mt19937& random, std::string_view letters) {
  Table table;
  std::vector<int32_t> known;
  for (const char c : letters) known.push_back(c);
  const size_t num_merges = random() % 30;
  for (size_t i = 0; i < num_merges; ++i) {
    table.add(known[random() % known.size()], known[random() % known.size()]);
    known.push_back(table.merges.back().result);
  }
  std::shuffle(table.merges.begin(), table.merges.end(), random);
  return table;
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(piece, scratch, ids);
  return ids;
}

TEST(Bpe, AgreesWithTheNaiveMergeForShortAndLongPieces) {
  std::mt19937 random(2);
  for (int i = 0; i < 400; ++i) {
    const std::string_view letters = std::string_view("abcd").substr(0, 1 + random() % 4);
    const Table table = random_table(random, letters);
    const Bpe bpe(table.byte_tokens, table.merges, table.token_bytes);
    const NaiveBpe naive(table.byte_tokens, table.merges);
    for (int k = 0; k < 40; ++k) {
      std::string piece(1 + random() % 120, 'a');
      for (char& c : piece) c = letters[random() % letters.size()];
      ASSERT_EQ(encode(bpe, piece), naive.encode(piece)) << piece;
    }
    for (const std::string& bytes : table.token_bytes) {
      ASSERT_EQ(encode(bpe, bytes), naive.encode(bytes)) << bytes;
    }
  }
}

TEST(Bpe, TakesTheLeftmostOfEqualRanks) {
  Table table;
  table.add('a', 'a');
  const Bpe bpe(table.byte_tokens, table.merges, table.token_bytes);
  EXPECT_EQ(encode(bpe, "aaa"), (std::vector<int32_t>{256, 'a'}));
}

TEST(Bpe, DoesNotUseATokenThatMergingDoesNotReach) {
  Table table;
  table.add('b', 'c');
  table.add('a', 'b');
  table.add(257, 'c');  // "abc" from "ab" + "c"; but "bc" merges first and "a" + "bc" is no merge
  const Bpe bpe(table.byte_tokens, table.merges, table.token_bytes);
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
}

TEST(Bpe, ReusesScratchAndAppends) {
  Table table;
  table.add('a', 'b');
  const Bpe bpe(table.byte_tokens, table.merges, table.token_bytes);
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(std::string(100, 'a'), scratch, ids);
  bpe.encode(std::string(60, 'b'), scratch, ids);
  bpe.encode("ab", scratch, ids);
  ASSERT_EQ(ids.size(), 161U);
  EXPECT_EQ(ids[99], 'a');
  EXPECT_EQ(ids[100], 'b');
  EXPECT_EQ(ids[160], 256);
}

TEST(Bpe, MergesAHugeRunOfOneLetter) {
  Table table;
  int32_t run = 'a';
  for (int i = 0; i < 10; ++i) {
    table.add(run, run);
    run = table.merges.back().result;
  }
  const Bpe bpe(table.byte_tokens, table.merges, table.token_bytes);
  const auto ids = encode(bpe, std::string(1024 * 1024 + 3, 'a'));
  ASSERT_EQ(ids.size(), 1026U);  // 1024 runs of 1024, then "aa" and "a"
  EXPECT_EQ(ids[0], run);
  EXPECT_EQ(ids[1023], run);
  EXPECT_EQ(ids[1024], 256);
  EXPECT_EQ(ids[1025], 'a');
}

}  // namespace
}  // namespace nibble::text
