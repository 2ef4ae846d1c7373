#include "hub/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Url url(std::string_view text) { return parse_url(text).value(); }

TEST(Url, HasAnOrigin) {
  EXPECT_EQ(url("https://Hub.Example/a?b=c#d").origin(), "https://hub.example:443");
  EXPECT_EQ(url("http://127.0.0.1:8080/a").origin(), "http://127.0.0.1:8080");
  EXPECT_EQ(url("https://hub.example:443").origin(), url("https://hub.example").origin());
  EXPECT_NE(url("https://hub.example:8443").origin(), url("https://hub.example").origin());
  EXPECT_NE(url("http://hub.example:443").origin(), url("https://hub.example").origin());
}

TEST(Url, ShowsNoQuery) {
  EXPECT_EQ(url("https://hub.example/a/b?signature=secret").display(), "https://hub.example/a/b");
  EXPECT_EQ(url("http://h.example:81/a?x").display(), "http://h.example:81/a");
}

TEST(Url, RefusesWhatIsNoHttpAddress) {
  for (const char* text : {"",
                           "ftp://hub.example/a",
                           "file:///etc/passwd",
                           "//hub.example",
                           "/a/b",
                           "https://",
                           "https://user@hub.example/",
                           "https://user:password@hub.example/",
                           "https://hub.example/a b",
                           "https://hub.example/\r\nHost: evil"}) {
    EXPECT_FALSE(parse_url(text).ok()) << text;
  }
  EXPECT_FALSE(parse_url("https://h.example/" + std::string(20'000, 'a')).ok());
}

TEST(Url, ErrorsShowNoSignature) {
  const Result<Url> bad = parse_url("ftp://hub.example/a?signature=secret");
  EXPECT_THAT(bad.error().message, Not(HasSubstr("secret")));
}

TEST(Url, ResolvesReferences) {
  const Url base = url("https://hub.example/a/b?c");
  EXPECT_EQ(resolve_url(base, "/d")->text, "https://hub.example/d");
  EXPECT_EQ(resolve_url(base, "d?e=f")->text, "https://hub.example/a/d?e=f");
  EXPECT_EQ(resolve_url(base, "//other.example/d")->text, "https://other.example/d");
  EXPECT_EQ(resolve_url(base, "http://other.example/d")->scheme, "http");
  EXPECT_FALSE(resolve_url(base, "gopher://other.example/d").ok());
  EXPECT_FALSE(resolve_url(base, "https://user@other.example/d").ok());
}

TEST(Url, KnowsThisMachine) {
  for (const char* text : {"http://localhost:1/",
                           "http://127.0.0.1/",
                           "http://127.9.9.9/",
                           "http://[::1]/",
                           "http://0x7f.1/"}) {
    EXPECT_TRUE(url(text).is_loopback()) << text;
  }
  for (const char* text :
       {"http://127.evil.example/", "http://localhost.example/", "http://10.0.0.1/"}) {
    EXPECT_FALSE(url(text).is_loopback()) << text;
  }
}

TEST(Redirects, NeverLeaveHttpsNorComeToThisMachine) {
  const Url remote = url("https://hub.example/");
  EXPECT_TRUE(check_redirect(remote, url("https://other.example/")).ok());
  EXPECT_FALSE(check_redirect(remote, url("http://hub.example/")).ok());
  EXPECT_FALSE(check_redirect(remote, url("https://127.0.0.1/")).ok());
  EXPECT_TRUE(check_redirect(url("http://127.0.0.1:1/"), url("http://127.0.0.2:2/")).ok());
  EXPECT_TRUE(check_redirect(url("http://mirror.example/"), url("https://cdn.example/")).ok());
}

TEST(PercentEncode, KeepsOnlyUnreservedCharacters) {
  EXPECT_EQ(percent_encode("refs/pr/1", Slashes::kEncode), "refs%2Fpr%2F1");
  EXPECT_EQ(percent_encode("a b/c?#%.txt", Slashes::kKeep), "a%20b/c%3F%23%25.txt");
  EXPECT_EQ(percent_encode("\xC3\xA9", Slashes::kKeep), "%C3%A9");
}

}  // namespace
}  // namespace nibble::hub
