#include "tools/measure/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/measure/bench.h"

namespace nibble::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const kernels::KernelInfo kProduct{.name = "matmul.test",
                                   .op = kernels::Op::kMatMul,
                                   .has_weight = true,
                                   .unit = kernels::ComputeUnit::kSimt};
const kernels::KernelInfo kNorm{.name = "rms_norm.test", .op = kernels::Op::kRmsNorm};

// 1 TB/s and 100 TFLOP/s.
constexpr double kRead = 1e12, kPeak = 100e12;
Roofs test_roofs() {
  return {.read_bytes_per_s = kRead, .bf16_flops_per_s = kPeak, .bf16_note = "test"};
}

Profile test_profile() {
  const TimedLaunch product{.kernel = &kProduct,
                            .work = {.bytes = 8e6, .flops = 4e6, .n = 2048, .k = 1024},
                            .us = 10,
                            .blocks = 132};
  TimedLaunch other = product;
  other.work.n = 512;
  const TimedLaunch norm{
      .kernel = &kNorm, .work = {.bytes = 1e4, .flops = 1e4}, .us = 4, .blocks = 1};
  const PassLaunches pass{
      .launches = {norm, product, norm, product, other}, .timing = Timing::kReplay, .note = ""};
  const device::DeviceInfo device{
      .kind = device::DeviceKind::kCuda, .name = "GPU", .sm = 90, .num_units = 132};
  return make_profile("decode", device, test_roofs(), pass, 50);
}

TEST(Profile, GroupsLaunchesByKernelAndShape) {
  const Profile profile = test_profile();
  ASSERT_EQ(profile.rows.size(), 3U);
  EXPECT_EQ(profile.rows[0].kernel, &kProduct);
  EXPECT_EQ(profile.rows[0].n, 2048);
  EXPECT_EQ(profile.rows[0].count, 2);
  EXPECT_EQ(profile.rows[0].us, 20);
  EXPECT_EQ(profile.rows[0].bytes, 16e6);
  EXPECT_EQ(profile.rows[1].n, 512);
  EXPECT_EQ(profile.rows[2].kernel, &kNorm);
  EXPECT_EQ(profile.rows[2].us, 8);
  EXPECT_EQ(profile.launches_us(), 38);
}

TEST(Profile, HoldsARowAgainstTheNearerRoof) {
  EXPECT_DOUBLE_EQ(share_of_roof(test_roofs(), 8e6, 4e6, 10e-6), 0.8);
  EXPECT_DOUBLE_EQ(share_of_roof(test_roofs(), 8e6, 1e9, 20e-6), 0.5);
  EXPECT_EQ(share_of_roof(test_roofs(), 8e6, 0, 0), 0);
}

TEST(Profile, TextExplainsRowsBelowHalf) {
  const std::string text = profile_text(test_profile());
  EXPECT_THAT(text, HasSubstr("0.050 ms a pass; 5 launches take 0.038 ms"));
  EXPECT_THAT(text, HasSubstr("2048 x 1024"));
  EXPECT_THAT(text, HasSubstr("rms_norm.test: 0%: 4.00 us a launch, of which memory needs 0.01"));
  EXPECT_THAT(text, HasSubstr("1 of 132 multiprocessors have a block"));
  EXPECT_THAT(text, Not(HasSubstr("matmul.test [2048, 1024]:")));
}

TEST(Profile, JsonHasRowsAndRoofs) {
  const json::Value value = profile_json(test_profile());
  EXPECT_EQ(value.find("rows")->as_array()->size(), 3U);
  const json::Value& first = value.find("rows")->as_array()->front();
  EXPECT_EQ(*first.find("kernel")->as_string(), "matmul.test");
  EXPECT_EQ(first.find("blocks")->as_int64(), 132);
  EXPECT_EQ(first.find("share_of_roof")->as_double(), 0.8);
  EXPECT_EQ(value.find("read_bytes_per_s")->as_double(), kRead);
}

TEST(DecodeBench, ShareIsOfTheBytesAtTheReadRate) {
  const DecodeRow row{.batch = 16, .context = 1024, .us = {200, 190, 220}, .step_bytes = 100e6};
  const models::RecordedGraphs graphs{.count = 12, .seconds = 0.25};
  const json::Value value = decode_json(test_roofs(), graphs, {row});
  const json::Value& first = value.find("rows")->as_array()->front();
  EXPECT_EQ(first.find("floor_us")->as_double(), 100);
  EXPECT_EQ(first.find("share_of_floor")->as_double(), 0.5);
  EXPECT_EQ(first.find("tok_s")->as_double(), 80'000);
  EXPECT_EQ(value.find("graphs_seconds")->as_double(), 0.25);
  EXPECT_THAT(decode_text(test_roofs(), graphs, {row}),
              AllOf(HasSubstr("50%"), HasSubstr("12 graphs recorded in 0.25 s")));
}

TEST(PrefillBench, MfuIsOfTheMeasuredPeak) {
  const PrefillRow row{.chunk = 512, .prompt = 2048, .us = {1000, 1000, 1000}, .flops = 40e9};
  const json::Value value = prefill_json(test_roofs(), row);
  EXPECT_EQ(value.find("mfu")->as_double(), 0.4);
  EXPECT_EQ(value.find("tok_s")->as_double(), 2'048'000);
}

}  // namespace
}  // namespace nibble::tools
