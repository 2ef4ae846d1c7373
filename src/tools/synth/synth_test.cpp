#include "tools/synth/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/temporary_directory_testing.h"
#include "models/deepseek_v4/config.h"
#include "tools/synth/inventory.h"
#include "tools/synth/presets.h"

namespace nibble::tools {
namespace {

using checkpoint::ConfigReader;
using ::testing::HasSubstr;

struct Totals {
  int64_t bytes = 0;
  int64_t tensors = 0;
  std::map<std::string, TensorMeta> metas;
};

Totals totals(std::string_view preset, CheckpointFormat format) {
  const Synthesis synthesis = synthesize(*preset_config(preset), {.format = format}).value();
  Totals sum;
  for (const Piece& piece : synthesis.pieces) {
    sum.bytes += piece.num_bytes();
    sum.tensors += static_cast<int64_t>(piece.tensors.size());
    for (const TensorMeta& meta : piece.tensors) sum.metas[meta.name] = meta;
  }
  EXPECT_EQ(static_cast<int64_t>(sum.metas.size()), sum.tensors);
  return sum;
}

int64_t num_parameters(std::string_view preset) {
  const json::Object config = *preset_config(preset);
  const ConfigReader reader = ConfigReader::parse(config_text(config), "config.json").value();
  int64_t count = 0;
  for (const InventoryEntry& entry :
       model_inventory(models::deepseek_v4::parse_config(reader).value())) {
    if (entry.dtype != DType::kI64) count += entry.shape.num_elements();
  }
  return count;
}

double rounded(double value, double step) { return std::round(value / step) * step; }

// Published sizes: spec "deepseek-v4" 11.1.
TEST(Presets, HaveThePublishedSizes) {
  EXPECT_DOUBLE_EQ(
      rounded(1e-9 * static_cast<double>(totals("flash", CheckpointFormat::kNative).bytes), 0.01),
      159.61);
  const Totals pro = totals("pro", CheckpointFormat::kNative);
  EXPECT_DOUBLE_EQ(rounded(1e-9 * static_cast<double>(pro.bytes), 0.01), 864.70);
  EXPECT_EQ(pro.tensors, 145'116);
  EXPECT_DOUBLE_EQ(rounded(1e-9 * static_cast<double>(num_parameters("flash")), 0.1), 290.9);
  EXPECT_DOUBLE_EQ(rounded(1e-9 * static_cast<double>(num_parameters("pro")), 0.1), 1598.8);
}

TEST(Presets, MiniIsSmall) {
  EXPECT_DOUBLE_EQ(
      rounded(1e-9 * static_cast<double>(totals("mini", CheckpointFormat::kNative).bytes), 0.01),
      3.57);
  EXPECT_DOUBLE_EQ(rounded(1e-9 * static_cast<double>(num_parameters("mini")), 0.1), 5.9);
}

TEST(Presets, HaveThePublishedTensors) {
  const Totals flash = totals("flash", CheckpointFormat::kNative);
  const auto expect = [&](const char* name, DType dtype, Shape shape) {
    ASSERT_TRUE(flash.metas.contains(name)) << name;
    EXPECT_EQ(flash.metas.at(name).dtype, dtype) << name;
    EXPECT_EQ(flash.metas.at(name).shape, shape) << name;
  };
  expect("embed.weight", DType::kBf16, {129280, 4096});
  expect("hc_head_fn", DType::kF32, {4, 16384});
  expect("layers.0.attn.wq_b.weight", DType::kF8E4m3, {32768, 1024});
  expect("layers.0.attn.wq_b.scale", DType::kF8E8m0, {256, 8});
  expect("layers.2.attn.compressor.wkv.weight", DType::kBf16, {1024, 4096});
  expect("layers.3.attn.compressor.ape", DType::kF32, {128, 512});
  expect("layers.42.attn.indexer.wq_b.scale", DType::kF8E8m0, {64, 8});
  expect("layers.2.ffn.gate.tid2eid", DType::kI64, {129280, 6});
  expect("layers.3.ffn.gate.bias", DType::kF32, {256});
  expect("layers.5.ffn.experts.255.w1.weight", DType::kI8, {2048, 2048});
  expect("layers.5.ffn.experts.255.w2.scale", DType::kF8E8m0, {4096, 64});
  expect("mtp.0.e_proj.scale", DType::kF8E8m0, {32, 32});
  expect("mtp.0.hc_head_base", DType::kF32, {4});
  EXPECT_FALSE(flash.metas.contains("layers.1.attn.compressor.ape"));
  EXPECT_FALSE(flash.metas.contains("layers.3.ffn.gate.tid2eid"));
}

// Two tensors per weight in native form (weight, scale), four in ModelOpt's (weight, weight_scale,
// weight_scale_2, input_scale).
TEST(Presets, Nvfp4HasTwoMoreTensorsPerWeightOfAMainExpert) {
  const Totals nvfp4 = totals("flash", CheckpointFormat::kNvfp4);
  EXPECT_EQ(nvfp4.tensors - totals("flash", CheckpointFormat::kNative).tensors, 43 * 256 * 3 * 2);
  EXPECT_TRUE(nvfp4.metas.contains("layers.7.ffn.experts.0.w3.weight_scale_2"));
  EXPECT_TRUE(nvfp4.metas.contains("layers.7.ffn.experts.0.w3.input_scale"));
  EXPECT_TRUE(nvfp4.metas.contains("mtp.0.ffn.experts.0.w3.scale"));
}

TEST(KeepLayers, KeepsTheFirstAndTheDrafts) {
  const json::Object config = keep_layers(*preset_config("flash"), 4).value();
  EXPECT_EQ(json::dump(*config.find("compress_ratios"), json::Style::kPython), "[0, 0, 4, 128, 0]");
  EXPECT_EQ(config.find("num_hidden_layers")->as_int64(), 4);
  EXPECT_EQ(config.find("num_hash_layers")->as_int64(), 3);
  EXPECT_EQ(keep_layers(*preset_config("flash"), 2)->find("num_hash_layers")->as_int64(), 2);
  EXPECT_TRUE(synthesize(config, {}).ok());
}

TEST(KeepLayers, RefusesOtherNumbers) {
  for (const int32_t layers : {0, -1, 44}) {
    const Result<json::Object> config = keep_layers(*preset_config("flash"), layers);
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.error().message, HasSubstr("expected 1 to 43"));
  }
  EXPECT_EQ(keep_layers(json::make_object({{"n_layers", 3}}), 2).error().code, Errc::kUnsupported);
}

TEST(PlanSynthesis, RefusesUnknownPresets) {
  EXPECT_THAT(plan_synthesis({.out = "x", .preset = "max"}).error().message,
              HasSubstr("preset max: unknown"));
}

TEST(MakeDummyCheckpoint, RefusesFormatsThatItCannotMake) {
  const checkpoint::TemporaryDirectory dir;
  device::ThreadPool pool({.num_threads = 1});
  json::Object config = *preset_config("mini");
  config.set("quantization_config", json::make_object({{"quant_method", "gptq"}}));
  dir.write("config.json", config_text(config));
  const auto checkpoint = make_dummy_checkpoint(dir.path(), {}, pool);
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, Errc::kUnsupported);
  EXPECT_THAT(checkpoint.error().message, HasSubstr("gptq"));
}

}  // namespace
}  // namespace nibble::tools
