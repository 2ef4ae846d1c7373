#include "server/chunked_body.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace nibble::server {
namespace {

using State = ChunkedBody::State;

struct Outcome {
  State state;
  std::string body;
  size_t num_used;
};

Outcome decode(std::string_view bytes, size_t step, uint64_t limit = 1000) {
  ChunkedBody decoder(limit);
  Outcome outcome = {State::kNeedMore, "", 0};
  while (outcome.state == State::kNeedMore && outcome.num_used < bytes.size()) {
    const auto progress = decoder.feed(bytes.substr(outcome.num_used, step), outcome.body);
    outcome.state = progress.state;
    outcome.num_used += progress.num_used;
  }
  return outcome;
}

void expect_for_every_split(std::string_view bytes, State state, std::string_view body) {
  const Outcome whole = decode(bytes, bytes.size());
  EXPECT_EQ(whole.state, state) << bytes;
  EXPECT_EQ(whole.body, body) << bytes;
  for (size_t step = 1; step < bytes.size(); ++step) {
    const Outcome pieces = decode(bytes, step);
    EXPECT_EQ(pieces.state, whole.state) << bytes << " by " << step;
    EXPECT_EQ(pieces.body, whole.body) << bytes << " by " << step;
    EXPECT_EQ(pieces.num_used, whole.num_used) << bytes << " by " << step;
  }
}

TEST(ChunkedBody, JoinsChunks) {
  expect_for_every_split(
      "3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\n", State::kDone, "abc0123456789");
  expect_for_every_split("0\r\n\r\n", State::kDone, "");
  expect_for_every_split("2;a=b;c=\"d\"\r\n\r\n\r\n0 ;x\r\n\r\n", State::kDone, "\r\n");
}

TEST(ChunkedBody, DropsTrailerFields) {
  expect_for_every_split(
      "1\r\nx\r\n0\r\nHt: v\r\nEmpty:\r\nDigest: \xc3\xa9\t1\r\n\r\n", State::kDone, "x");
}

TEST(ChunkedBody, LeavesWhatFollows) {
  EXPECT_EQ(decode("1\r\nx\r\n0\r\n\r\nGET / HTTP/1.1\r\n", 100).num_used, 11U);
}

TEST(ChunkedBody, RefusesMalformedFraming) {
  for (const char* bytes : {"\r\n",
                            "x\r\n",
                            "-1\r\n",
                            "+1\r\n",
                            "0x1\r\n",
                            " 1\r\n",
                            "1\na\n",
                            "1\rx",
                            "1;a\nb",
                            "1;a\x01",
                            "1,\r\n",
                            "00000000000000001\r\n",
                            "fffffffffffffffff\r\n"}) {
    expect_for_every_split(bytes, State::kMalformed, "");
  }
  for (const char* bytes : {"1\r\nab", "1\r\na\n", "1\r\na\r\r", "1\r\na\r\n\r\n", "1\r\na\r\nz"}) {
    expect_for_every_split(bytes, State::kMalformed, "a");
  }
}

TEST(ChunkedBody, RefusesMalformedTrailers) {
  for (const char* bytes : {"0\r\nHt\r\n\r\n",
                            "0\r\nHt:\r\n\n",
                            "0\r\nHt:\n\r\n",
                            "0\r\n: v\r\n\r\n",
                            "0\r\n folded: v\r\n\r\n",
                            "0\r\nA: b\r\n c\r\n\r\n",
                            "0\r\nH t: v\r\n\r\n",
                            "0\r\nHt: \x01\r\n\r\n",
                            "0\r\n\rx",
                            "0\r\n\n"}) {
    expect_for_every_split(bytes, State::kMalformed, "");
  }
}

TEST(ChunkedBody, BoundsDataExtensionsAndTrailers) {
  EXPECT_EQ(decode("3e8\r\n" + std::string(1000, 'x') + "\r\n0\r\n\r\n", 7).state, State::kDone);
  EXPECT_EQ(decode("3e9\r\nx", 1).state, State::kTooLarge);
  EXPECT_EQ(decode("3e8\r\n" + std::string(1000, 'x') + "\r\n1\r\n", 9).state, State::kTooLarge);
  EXPECT_EQ(decode("ffffffffffffffff\r\n", 1).state, State::kTooLarge);
  const std::string long_text(9000, 'x');
  EXPECT_EQ(decode("1;" + long_text + "\r\n", 100).state, State::kMalformed);
  EXPECT_EQ(decode("0\r\nA: " + long_text + "\r\n\r\n", 100).state, State::kMalformed);
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "1;abcde\r\nx\r\n";
  EXPECT_EQ(decode(many, 100, 1 << 20).state, State::kMalformed);
}

}  // namespace
}  // namespace nibble::server
