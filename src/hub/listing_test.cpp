#include "hub/listing.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

const std::string kOid(40, 'a');
const std::string kSha256(64, 'b');

TEST(Revision, IsACommit) {
  EXPECT_EQ(parse_revision(R"({"id": "a/b", "sha": ")" + kOid + "\"}").value(), kOid);
  for (const char* text :
       {"", "[]", "{}", R"({"sha": 1})", R"({"sha": "main"})", R"({"sha": "../../x"})"}) {
    EXPECT_EQ(parse_revision(text).error().code, Errc::kDataLoss) << text;
  }
}

TEST(TreePage, TakesLargeFilesBySha256AndSmallOnesByGit) {
  const std::vector<RepoFile> files =
      parse_tree_page(R"([{"type": "directory", "path": "d", "oid": "x"},
                          {"type": "file", "path": "d/small", "size": 3, "oid": ")" +
                      kOid + R"("}, {"type": "file", "path": "large", "size": 9, "oid": ")" + kOid +
                      R"(", "lfs": {"oid": ")" + kSha256 + R"(", "size": 9, "pointerSize": 1}}])")
          .value();
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].path, "d/small");
  EXPECT_EQ(files[0].size, 3);
  EXPECT_EQ(files[0].etag, kOid);
  EXPECT_EQ(files[1].etag, kSha256);
}

TEST(TreePage, RefusesEntriesThatCannotBeVerified) {
  const auto entry = [](const std::string& members) {
    return R"([{"type": "file", )" + members + "}]";
  };
  for (const std::string& text :
       {std::string("{}"),
        std::string("[1]"),
        entry(R"("size": 1, "oid": ")" + kOid + '"'),
        entry(R"("path": "a", "oid": ")" + kOid + '"'),
        entry(R"("path": "a", "size": -1, "oid": ")" + kOid + '"'),
        entry(R"("path": "a", "size": 1.5, "oid": ")" + kOid + '"'),
        entry(R"("path": "a", "size": 1)"),
        entry(R"("path": "a", "size": 1, "oid": "../x")"),
        entry(R"("path": "a", "size": 1, "oid": ")" + kSha256 + '"'),
        entry(R"("path": "../a", "size": 1, "oid": ")" + kOid + '"'),
        entry(R"("path": "a", "size": 1, "lfs": {"size": 1, "oid": ")" + kOid + "\"}")}) {
    EXPECT_EQ(parse_tree_page(text).error().code, Errc::kDataLoss) << text;
  }
}

TEST(Listing, RefusesNamesThatCannotStandBesideEachOther) {
  std::vector<RepoFile> twice = {{"a", 1, kOid}, {"b", 1, kOid}, {"a", 1, kOid}};
  EXPECT_FALSE(check_listing(twice).ok());
  std::vector<RepoFile> both = {{"a/b/c", 1, kOid}, {"a-b", 1, kOid}, {"a", 1, kOid}};
  EXPECT_FALSE(check_listing(both).ok());
  std::vector<RepoFile> good = {{"b", 1, kOid}, {"a/b", 1, kOid}};
  ASSERT_TRUE(check_listing(good).ok());
  EXPECT_EQ(good[0].path, "a/b");
}

TEST(NextLink, FindsTheNextPage) {
  EXPECT_EQ(next_link(R"(<https://h/x?a=1,2>; rel="next")"), "https://h/x?a=1,2");
  EXPECT_EQ(next_link(R"(<https://h/1>; rel="prev", <https://h/2>; title="x"; rel=next)"),
            "https://h/2");
  EXPECT_EQ(next_link(R"(<https://h/1>; rel="xet-auth")"), std::nullopt);
  EXPECT_EQ(next_link("<"), std::nullopt);
  EXPECT_EQ(next_link(""), std::nullopt);
}

TEST(Etag, LosesQuotesAndWeakness) {
  EXPECT_EQ(strip_etag("\"abc\""), "abc");
  EXPECT_EQ(strip_etag("W/\"abc\""), "abc");
  EXPECT_EQ(strip_etag("abc"), "abc");
  EXPECT_EQ(strip_etag("\""), "\"");
}

TEST(ContentRange, IsParsedExactly) {
  const ContentRange range = parse_content_range("bytes 10-19/100").value();
  EXPECT_EQ(range.begin, 10);
  EXPECT_EQ(range.end, 20);
  EXPECT_EQ(range.total, 100);
  EXPECT_EQ(parse_content_range("bytes 0-0/*")->total, -1);
  for (const char* text : {"",
                           "bytes */100",
                           "bytes 5-4/100",
                           "bytes 0-100/100",
                           "bytes -1-4/9",
                           "0-1/2",
                           "bytes 0-1",
                           "bytes 0-1/",
                           "bytes 0-1/2x",
                           "bytes 0-9223372036854775807/*",
                           "bytes 0-99999999999999999999/*"}) {
    EXPECT_EQ(parse_content_range(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace nibble::hub
