#include "server/access_policy.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

HttpRequest request_with(std::vector<Header> headers) {
  HttpRequest request;
  request.method = "GET";
  request.headers = std::move(headers);
  return request;
}

int status_of(const AccessPolicy& policy,
              std::vector<Header> headers,
              Access access = Access::kUser) {
  const auto refusal = policy.refusal(request_with(std::move(headers)), access);
  return refusal ? refusal->status : 200;
}

ApiKeys two_keys() { return ApiKeys::parse("first-key\n\n  second-key \r\n", "keys").value(); }

TEST(BindAddress, NeedsAKeyBeyondLoopback) {
  EXPECT_TRUE(check_bind_address("127.0.0.1", {}, "--api-key-file").ok());
  EXPECT_TRUE(check_bind_address("::1", {}, "--api-key-file").ok());
  EXPECT_TRUE(check_bind_address("0.0.0.0", two_keys(), "--api-key-file").ok());
  for (const char* host : {"0.0.0.0", "::", "192.168.1.2"}) {
    const Result<void> result = check_bind_address(host, {}, "--api-key-file");
    ASSERT_FALSE(result.ok()) << host;
    EXPECT_NE(result.error().message.find("--api-key-file"), std::string::npos);
  }
}

TEST(AccessPolicy, WithoutKeysAnswersToLoopbackNamesOnly) {
  const AccessPolicy policy({.allowed_hosts = {"proxy.internal"}});
  for (const char* host :
       {"localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "Proxy.Internal:80"}) {
    EXPECT_EQ(status_of(policy, {{"Host", host}}), 200) << host;
  }
  for (const char* host : {"evil.test",
                           "evil.test:8000",
                           "127.0.0.1.evil.test",
                           "localhost@evil.test",
                           "::1",
                           "[::1",
                           ""}) {
    EXPECT_EQ(status_of(policy, {{"Host", host}}), 403) << host;
  }
}

TEST(AccessPolicy, WithoutKeysRefusesPagesOfOtherOrigins) {
  const AccessPolicy policy({});
  EXPECT_EQ(status_of(policy, {{"Host", "localhost:8000"}, {"Origin", "http://localhost:8000"}}),
            200);
  for (const char* origin :
       {"http://evil.test", "null", "http://localhost:3000", "http://localhost:8000.evil"}) {
    EXPECT_EQ(status_of(policy, {{"Host", "localhost:8000"}, {"Origin", origin}}), 403) << origin;
  }
}

TEST(AccessPolicy, ChecksEveryOriginField) {
  const AccessPolicy policy({});
  const Header own = {"Origin", "http://localhost"};
  const Header foreign = {"origin", "http://evil.test"};
  EXPECT_EQ(status_of(policy, {{"Host", "localhost"}, own, own}), 200);
  EXPECT_EQ(status_of(policy, {{"Host", "localhost"}, own, foreign}), 403);
  EXPECT_EQ(status_of(policy, {{"Host", "localhost"}, foreign, own}), 403);
}

TEST(AccessPolicy, ChecksHostAndOriginOnPublicRoutesToo) {
  EXPECT_EQ(status_of(AccessPolicy({}), {{"Host", "evil.test"}}, Access::kPublic), 403);
}

TEST(AccessPolicy, WantsExactlyOneHost) {
  const AccessPolicy policy({});
  EXPECT_EQ(status_of(policy, {}), 400);
  EXPECT_EQ(status_of(policy, {{"Host", "localhost"}, {"host", "localhost"}}), 400);
}

TEST(AccessPolicy, WithKeysWantsABearerToken) {
  const AccessPolicy policy({.keys = two_keys()});
  const auto status_for = [&](const char* authorization) {
    return status_of(policy, {{"Host", "any.test"}, {"Authorization", authorization}});
  };
  EXPECT_EQ(status_for("Bearer first-key"), 200);
  EXPECT_EQ(status_for("bearer  second-key "), 200);
  for (const char* wrong : {"Bearer wrong",
                            "Bearer first-key2",
                            "Bearer first-ke",
                            "Bearer ",
                            "Bearer",
                            "Basic first-key",
                            "first-key",
                            "",
                            "Bearer first-key\nsecond-key"}) {
    EXPECT_EQ(status_for(wrong), 401) << wrong;
  }
  EXPECT_EQ(status_of(policy, {{"Host", "any.test"}}), 401);
  EXPECT_EQ(status_of(policy, {{"Host", "any.test"}}, Access::kPublic), 200);
}

TEST(AccessPolicy, TakesAnthropicsKeyFieldToo) {
  const AccessPolicy policy({.keys = two_keys()});
  EXPECT_EQ(status_of(policy, {{"Host", "a"}, {"X-Api-Key", "second-key"}}), 200);
  EXPECT_EQ(status_of(policy, {{"Host", "a"}, {"X-Api-Key", "wrong"}}), 401);
  EXPECT_EQ(status_of(policy, {{"Host", "a"}, {"X-Api-Key", ""}}), 401);
}

TEST(AccessPolicy, KeepsAdminRoutesForAdminKeys) {
  const ApiKeys admin = ApiKeys::parse("root-key", "admin").value();
  const std::vector<Header> as_user = {{"Host", "a"}, {"Authorization", "Bearer first-key"}};
  const std::vector<Header> as_admin = {{"Host", "a"}, {"Authorization", "Bearer root-key"}};
  const AccessPolicy both({.keys = two_keys(), .admin_keys = admin});
  EXPECT_EQ(status_of(both, as_user, Access::kAdmin), 401);
  EXPECT_EQ(status_of(both, as_admin, Access::kAdmin), 200);
  EXPECT_EQ(status_of(both, as_admin, Access::kUser), 200);
  const AccessPolicy keys_only({.keys = two_keys()});
  EXPECT_EQ(status_of(keys_only, as_user, Access::kAdmin), 403);
  const AccessPolicy none({});
  EXPECT_EQ(status_of(none, {{"Host", "localhost"}}, Access::kAdmin), 200);
  EXPECT_EQ(status_of(none, {{"Host", "evil.test"}}, Access::kAdmin), 403);
}

TEST(AccessPolicy, TellsKeysApartByIdsThatOutliveOtherKeys) {
  const AccessPolicy policy({.keys = two_keys()});
  const auto owner = [&policy](const char* key) {
    return policy.owner_of(request_with({{"Authorization", std::string("Bearer ") + key}}));
  };
  EXPECT_NE(owner("first-key"), owner("second-key"));
  EXPECT_NE(owner("first-key"), KeyId{});
  EXPECT_EQ(owner("wrong"), KeyId{});
  EXPECT_EQ(owner("second-key"), *ApiKeys::parse("second-key", "keys").value().find("second-key"));
}

TEST(AccessPolicy, SendsNoCorsHeaders) {
  const AccessPolicy policy({.keys = two_keys()});
  const auto refusal =
      policy.refusal(request_with({{"Host", "a"}, {"Origin", "http://b"}}), Access::kUser);
  ASSERT_TRUE(refusal.has_value());
  for (const Header& field : refusal->headers) {
    EXPECT_FALSE(field.name.starts_with("access-control")) << field.name;
  }
}

TEST(ApiKeys, NamesTheBadLineButNotItsText) {
  const auto keys = ApiKeys::parse("good\nsecret with spaces\n", "keys.txt");
  ASSERT_FALSE(keys.ok());
  EXPECT_NE(keys.error().message.find("keys.txt: line 2"), std::string::npos);
  EXPECT_EQ(keys.error().message.find("secret"), std::string::npos);
}

TEST(ApiKeys, WantsAtLeastOneKey) {
  EXPECT_FALSE(ApiKeys::parse("", "keys").ok());
  EXPECT_FALSE(ApiKeys::parse("\n  \n", "keys").ok());
  EXPECT_EQ(two_keys().size(), 2U);
}

}  // namespace
}  // namespace nibble::server
