#include "cli/hub_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

namespace nibble::cli {
namespace {

class HubEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HOME",
                             "HF_HUB_CACHE",
                             "HUGGINGFACE_HUB_CACHE",
                             "HF_ENDPOINT",
                             "HF_TOKEN",
                             "HUGGING_FACE_HUB_TOKEN",
                             "HF_TOKEN_PATH",
                             "HF_HUB_OFFLINE",
                             "HF_HUB_DISABLE_SYMLINKS",
                             "HF_HUB_DOWNLOAD_TIMEOUT",
                             "HF_HUB_ETAG_TIMEOUT",
                             "XDG_CACHE_HOME",
                             "https_proxy",
                             "HTTPS_PROXY",
                             "http_proxy",
                             "all_proxy",
                             "ALL_PROXY",
                             "no_proxy",
                             "NO_PROXY",
                             "SSL_CERT_FILE"}) {
      ::unsetenv(name);
    }
    set("HOME", "/nowhere/home");
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  static hub::HubConfig config() { return hub_config_from_environment().value(); }
};

TEST_F(HubEnvironment, HasTheDefaultsOfOtherTools) {
  EXPECT_EQ(config().cache_dir, "/nowhere/home/.cache/huggingface/hub");
  EXPECT_EQ(config().endpoint, "https://huggingface.co");
  EXPECT_EQ(config().token, "");
  EXPECT_FALSE(config().is_offline);
  EXPECT_EQ(config().transport.https_proxy, "");
}

TEST_F(HubEnvironment, TheNearestVariableNamesTheCache) {
  set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(config().cache_dir, "/x/huggingface/hub");
  set("HF_HOME", "~/models");
  EXPECT_EQ(config().cache_dir, "/nowhere/home/models/hub");
  set("HF_HUB_CACHE", "/cache");
  EXPECT_EQ(config().cache_dir, "/cache");
  ::unsetenv("HOME");
  ::unsetenv("HF_HOME");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(config().cache_dir, "/cache");
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(hub_config_from_environment().error().code, Errc::kInvalidArgument);
}

TEST_F(HubEnvironment, TheTokenComesFromAVariableOrAFile) {
  const Path file = Path(::testing::TempDir()) / "nibble_hub_token";
  std::ofstream(file) << " hf_file\n";
  set("HF_TOKEN_PATH", file.string());
  EXPECT_EQ(config().token, "hf_file");
  set("HF_TOKEN", "hf_variable\n");
  EXPECT_EQ(config().token, "hf_variable");
  ::unsetenv("HF_TOKEN");
  std::filesystem::remove(file);
  EXPECT_EQ(hub_config_from_environment().error().code, Errc::kInvalidArgument);
}

TEST_F(HubEnvironment, ProxiesComeFromTheUsualNamesButNotFromARequestHeader) {
  set("HTTPS_PROXY", "http://p:1");
  set("HTTP_PROXY", "http://evil:1");
  set("NO_PROXY", "a.example");
  EXPECT_EQ(config().transport.https_proxy, "http://p:1");
  EXPECT_EQ(config().transport.http_proxy, "");
  EXPECT_EQ(config().transport.no_proxy, "a.example");
  ::unsetenv("HTTP_PROXY");
}

TEST_F(HubEnvironment, FlagsAndTimesAreChecked) {
  set("HF_HUB_OFFLINE", "true");
  EXPECT_TRUE(config().is_offline);
  set("HF_HUB_OFFLINE", "0");
  EXPECT_FALSE(config().is_offline);
  EXPECT_TRUE(config().has_symlinks);
  set("HF_HUB_DISABLE_SYMLINKS", "yes");
  EXPECT_FALSE(config().has_symlinks);
  set("HF_HUB_DOWNLOAD_TIMEOUT", "7");
  set("HF_HUB_ETAG_TIMEOUT", "9");
  EXPECT_EQ(config().transport.stall_timeout, std::chrono::seconds(7));
  EXPECT_EQ(config().transport.connect_timeout, std::chrono::seconds(9));
  for (const char* text : {"0", "-1", "x", "7s", "99999999999"}) {
    set("HF_HUB_DOWNLOAD_TIMEOUT", text);
    EXPECT_FALSE(hub_config_from_environment().ok()) << text;
  }
}

}  // namespace
}  // namespace nibble::cli
