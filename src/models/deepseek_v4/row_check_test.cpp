#include "models/deepseek_v4/row_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "device/emulated_gpu.h"

namespace nibble::models::deepseek_v4 {
namespace {

using ::testing::HasSubstr;

std::string fault_of(const std::vector<float>& expected, const std::vector<float>& found) {
  const Result<double> cosine = compare_rows(expected, found);
  return cosine.ok() ? "" : cosine.error().message;
}

TEST(CompareRows, TakesRoundingAndNothingElse) {
  EXPECT_EQ(compare_rows(std::vector<float>{1, 2, -3}, std::vector<float>{1, 2, -3}).value(), 1);
  EXPECT_EQ(fault_of({1, 2, -3}, {1.01F, 1.99F, -3.01F}), "");
  EXPECT_EQ(compare_rows(std::vector<float>{0, 0}, std::vector<float>{0, 0}).value(), 1);
  // B27: a kernel that returns zeros.
  EXPECT_THAT(fault_of({1, 2, -3}, {0, 0, 0}), HasSubstr("gives zeros"));
  EXPECT_THAT(fault_of({1, 2, -3}, {1, 2, std::numeric_limits<float>::quiet_NaN()}),
              HasSubstr("not finite"));
  // Spec "quantization" 3.6: without NaN, and wrong.
  EXPECT_THAT(fault_of({1, 2, -3}, {1, -2, -3}), HasSubstr("cosine 0.428571"));
}

TEST(CheckRows, CoversEveryKindOfWeightOfTheBundledModel) {
  const auto checkpoint =
      checkpoint::Checkpoint::open(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const std::vector<RowComparison> comparisons = check_rows(checkpoint, *device, {}).value();
  std::set<std::string> modules;
  for (const RowComparison& comparison : comparisons) {
    modules.insert(comparison.module);
    EXPECT_GE(comparison.cosine, 0.9999) << comparison.module;
    EXPECT_FALSE(comparison.kernel.ends_with(".cpu.scalar")) << comparison.module;
    EXPECT_GT(comparison.num_rows, 0) << comparison.module;
  }
  EXPECT_THAT(modules,
              testing::IsSupersetOf({"head",
                                     "layers.*.attn.wq_a",
                                     "layers.*.attn.wo_a",
                                     "layers.*.attn.compressor.wkv",
                                     "layers.*.attn.indexer.wq_b",
                                     "layers.*.ffn.gate",
                                     "layers.*.ffn.experts.*.w1",
                                     "layers.*.ffn.experts.*.w2",
                                     "layers.*.ffn.shared_experts.w3",
                                     "mtp.*.e_proj",
                                     "mtp.*.ffn.experts.*.w3"}));
}

TEST(CheckRows, CoversTheKernelsOfAGpu) {
  const auto checkpoint =
      checkpoint::Checkpoint::open(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  const auto device = device::make_emulated_gpu(1).value();
  const std::vector<RowComparison> comparisons =
      check_rows(checkpoint, *device, {.routing = {.allow_reference = true}}).value();
  EXPECT_GT(comparisons.size(), 20U);
  for (const RowComparison& comparison : comparisons) {
    EXPECT_GE(comparison.cosine, 0.9999) << comparison.module << " on " << comparison.kernel;
    EXPECT_GT(comparison.num_rows, 0) << comparison.module;
  }
}

}  // namespace
}  // namespace nibble::models::deepseek_v4
