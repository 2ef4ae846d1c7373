#include "tools/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "checkpoint/temporary_directory_testing.h"
#include "convert/convert_testing.h"
#include "golden/editable_model.h"
#include "golden/golden_testing.h"
#include "quant/numeric.h"

namespace nibble::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::TemporaryDirectory;
using golden::EditableModel;
using golden::OwnedTensor;
using quant::Format;
using ::testing::Contains;
using ::testing::HasSubstr;

Error refusal(const Path& in, const ConvertOptions& options) {
  const Result<Converted> converted = convert(in, options);
  EXPECT_FALSE(converted.ok());
  EXPECT_FALSE(fs::exists(options.out));
  return converted.ok() ? Error{} : converted.error();
}

bool is_expert(const std::string& module) {
  return module.find(".ffn.experts.") != std::string::npos;
}

bool is_projection(const std::string& module) {
  for (const char* suffix : {"wq_a",
                             "wq_b",
                             "attn.wkv",
                             "wo_a",
                             "wo_b",
                             "shared_experts.w1",
                             "shared_experts.w2",
                             "shared_experts.w3"}) {
    if (module.ends_with(suffix) && module.find("compressor") == std::string::npos) return true;
  }
  return false;
}

// A small BF16 model, and the native one that the reference encoder makes of it.
Path bf16_dir() { return golden::golden_dir("flash_like"); }
EditableModel native_model() {
  EditableModel model = EditableModel::read(bf16_dir());
  model.quantize(is_projection, Format::kFp8E4m3Block128x128, DType::kF8E8m0);
  model.quantize(is_expert, Format::kMxfp4, DType::kF8E8m0);
  return model;
}

// --- native and NVFP4 ---

class NativeAndNvfp4 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TemporaryDirectory;
    convert_ok(golden::tiny_v4_dir(),
               {.out = nvfp4(), .format = CheckpointFormat::kNvfp4, .shard_bytes = 8'000'000});
  }
  static void TearDownTestSuite() {
    delete dir_;
    dir_ = nullptr;
  }
  static Path nvfp4() { return dir_->path() / "nvfp4"; }

  static TemporaryDirectory* dir_;
};
TemporaryDirectory* NativeAndNvfp4::dir_ = nullptr;

TEST_F(NativeAndNvfp4, RoundTripIsBitIdentical) {
  const Path back = dir_->path() / "back";
  const Converted converted =
      convert_ok(nvfp4(), {.out = back, .format = CheckpointFormat::kNative});
  EXPECT_EQ(converted.result.statistics.at("routed_experts").num_changed_tensors, 0);
  EXPECT_THAT(differences(golden::tiny_v4_dir(), back), ::testing::IsEmpty());
  const json::Value config = read_json(back / "config.json");
  const json::Value expected = read_json(golden::tiny_v4_dir() / "config.json");
  EXPECT_EQ(text_of(&config), text_of(&expected));
  EXPECT_FALSE(fs::exists(back / "hf_quant_config.json"));
}

TEST_F(NativeAndNvfp4, RoundTripOfDraftsToo) {
  const TemporaryDirectory dir;
  ConvertOptions options{.out = dir.path() / "nvfp4", .format = CheckpointFormat::kNvfp4};
  options.convert_drafts = true;
  convert_ok(golden::tiny_v4_dir(), options);
  const Checkpoint converted = Checkpoint::open(options.out).value();
  EXPECT_NE(converted.find_meta("mtp.0.ffn.experts.3.w2.weight_scale_2"), nullptr);
  const json::Value config = read_json(options.out / "config.json");
  EXPECT_THAT(text_of(config.find("quantization_config")->find("ignore")),
              ::testing::Not(HasSubstr("mtp")));
  const Path back = dir.path() / "back";
  convert_ok(options.out,
             {.out = back, .format = CheckpointFormat::kNative, .convert_drafts = true});
  EXPECT_THAT(differences(golden::tiny_v4_dir(), back), ::testing::IsEmpty());
}

TEST_F(NativeAndNvfp4, LogitsAreBitIdentical) {
  EXPECT_EQ(logits_of(nvfp4()), logits_of(golden::tiny_v4_dir()));
  EXPECT_THAT(kernel_of(nvfp4(), "layers.*.experts.w1+w3"), HasSubstr("nvfp4"));
  EXPECT_THAT(kernel_of(nvfp4(), "mtp.*.experts.w1+w3"), HasSubstr("mxfp4"));
}

TEST_F(NativeAndNvfp4, TensorsFollowModelOpt) {
  const Checkpoint checkpoint = Checkpoint::open(nvfp4()).value();
  EXPECT_GT(checkpoint.shard_names().size(), 3u);
  EXPECT_TRUE(checkpoint.warnings().empty());
  const std::string module = "layers.4.ffn.experts.17.";
  const auto meta = [&](const std::string& name) { return *checkpoint.find_meta(module + name); };
  EXPECT_EQ(meta("w1.weight").dtype, DType::kU8);
  EXPECT_EQ(meta("w1.weight").shape, (Shape{128, 128}));
  EXPECT_EQ(meta("w1.weight_scale").dtype, DType::kF8E4m3);
  EXPECT_EQ(meta("w1.weight_scale").shape, (Shape{128, 16}));
  EXPECT_EQ(meta("w1.weight_scale_2").dtype, DType::kF32);
  EXPECT_EQ(meta("w1.weight_scale_2").shape, Shape{});
  const auto global = [&](const std::string& name) {
    return *checkpoint.tensor(module + name + ".weight_scale_2")->as<const float>();
  };
  EXPECT_EQ(global("w1"), global("w3"));
  EXPECT_LT(global("w1"), 1e-1f);
  EXPECT_GT(global("w1"), 1e-6f);
  EXPECT_EQ(checkpoint.find_meta("mtp.0.ffn.experts.0.w1.scale")->dtype, DType::kF8E8m0);
}

TEST_F(NativeAndNvfp4, ConfigsAreFormB) {
  const json::Value config = read_json(nvfp4() / "config.json");
  const json::Value* quantization = config.find("quantization_config");
  EXPECT_EQ(text_of(config.find("expert_dtype")), "\"fp4\"");
  const std::pair<const char*, const char*> expected[] = {
      {"quant_method", "\"fp8\""},
      {"quant_algo", "\"MIXED_PRECISION\""},
      {"moe_quant_algo", "\"NVFP4\""},
      {"group_size", "16"},
      {"scale_fmt", "\"ue8m0\""},
      {"weight_block_size", "[128, 128]"},
      {"kv_cache_quant_algo", "null"},
      {"ignore",
       "[\"*.attn.*\", \"*.ffn.shared_experts.*\", \"*.ffn.gate\", \"embed\", \"head\", "
       "\"mtp.*\"]"},
  };
  for (const auto& [key, text] : expected) EXPECT_EQ(text_of(quantization->find(key)), text) << key;
  EXPECT_EQ(text_of(quantization->find("quantized_layers")->find("layers.5.ffn.experts")),
            "{\"quant_algo\": \"NVFP4\", \"group_size\": 16}");
  EXPECT_EQ(quantization->find("quantized_layers")->as_object()->size(), 6u);
  const json::Value hf = read_json(nvfp4() / "hf_quant_config.json");
  EXPECT_EQ(text_of(hf.find("quantization")->find("exclude_modules")),
            text_of(quantization->find("ignore")));
  EXPECT_EQ(text_of(hf.find("quantization")->find("quantized_layers")),
            text_of(quantization->find("quantized_layers")));
  EXPECT_EQ(read_file(nvfp4() / "tokenizer.json", 1 << 20).value(),
            read_file(golden::tiny_v4_dir() / "tokenizer.json", 1 << 20).value());
}

// Bounds of the experts' inputs: sqrt(256) * max |ffn_norm| and 10 * 10 * 1.5, over 2688.
TEST_F(NativeAndNvfp4, InputScalesAreBoundsOfTheInputs) {
  const Checkpoint checkpoint = Checkpoint::open(nvfp4()).value();
  for (const int32_t layer : {0, 5}) {
    const std::string prefix = "layers." + std::to_string(layer) + ".ffn";
    const TensorView gamma = checkpoint.tensor(prefix + "_norm.weight").value();
    float amax = 0;
    for (int64_t i = 0; i < 256; ++i) {
      amax = std::max(amax, std::fabs(quant::bf16_to_f32(gamma.as<const uint16_t>()[i])));
    }
    const auto input_scale = [&](const std::string& weight) {
      const std::string name = prefix + ".experts.17." + weight + ".input_scale";
      EXPECT_EQ(checkpoint.find_meta(name)->dtype, DType::kF32);
      EXPECT_EQ(checkpoint.find_meta(name)->shape, Shape{});
      return *checkpoint.tensor(name)->as<const float>();
    };
    EXPECT_GT(amax, 0.5f);
    EXPECT_EQ(input_scale("w1"), 16 * amax / 2688);
    EXPECT_EQ(input_scale("w3"), input_scale("w1"));
    EXPECT_EQ(input_scale("w2"), 150.0f / 2688);
  }
  EXPECT_EQ(checkpoint.find_meta("layers.0.ffn.shared_experts.w1.input_scale"), nullptr);
  EXPECT_EQ(checkpoint.find_meta("mtp.0.ffn.experts.0.w1.input_scale"), nullptr);
}

TEST_F(NativeAndNvfp4, InputScalesNeedALimitOfTheActivation) {
  EditableModel model = EditableModel::read(golden::tiny_v4_dir());
  model.config.set("swiglu_limit", 0.0);
  const TemporaryDirectory dir;
  const Converted converted =
      convert_ok(model.write(), {.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4});
  EXPECT_THAT(converted.notes, Contains(HasSubstr("no input scales: without swiglu_limit")));
  const Checkpoint checkpoint = Checkpoint::open(dir.path() / "out").value();
  for (const TensorMeta& meta : checkpoint.tensors()) {
    EXPECT_FALSE(meta.name.ends_with(".input_scale")) << meta.name;
  }
}

TEST_F(NativeAndNvfp4, DropsInputScalesOnTheWayBack) {
  const TemporaryDirectory dir;
  const Converted converted =
      convert_ok(nvfp4(), {.out = dir.path() / "back", .format = CheckpointFormat::kNative});
  EXPECT_THAT(converted.notes, Contains(HasSubstr("576 input scales are dropped")));
  EXPECT_THAT(differences(golden::tiny_v4_dir(), dir.path() / "back"), ::testing::IsEmpty());
}

TEST_F(NativeAndNvfp4, InputScalesDoNotDisturbLoading) {
  EditableModel model = EditableModel::read(nvfp4());
  model.tensors.at("layers.0.ffn.experts.0.w1.input_scale").as<float>()[0] = 7.0f;
  EXPECT_EQ(logits_of(model.write()), logits_of(nvfp4()));
}

TEST_F(NativeAndNvfp4, InexactCastsAreRefusedOrRounded) {
  EditableModel model = EditableModel::read(nvfp4());
  model.at("layers.0.ffn.experts.3.w2.weight_scale").as<uint8_t>()[5] = 0x6D;
  const Path in = model.write();
  const TemporaryDirectory dir;
  ConvertOptions options{.out = dir.path() / "out", .format = CheckpointFormat::kNative};
  const Error error = refusal(in, options);
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message,
              HasSubstr("1 of 576 weights cannot be cast without loss; first module "
                        "layers.0.ffn.experts.3.w2"));
  options.allow_rounding = true;
  const Converted converted = convert_ok(in, options);
  EXPECT_EQ(converted.result.statistics.at("routed_experts").num_changed_tensors, 1);
  EXPECT_EQ(converted.result.statistics.at("routed_experts").num_exact_tensors, 575);
  EXPECT_GT(converted.result.statistics.at("routed_experts").cosine(), 0.9);
  EXPECT_THAT(differences(golden::tiny_v4_dir(), options.out),
              ::testing::Each(HasSubstr("layers.0.ffn.experts.3.w2.")));
}

TEST(ConvertToNvfp4, RefusesScalesThatSpanTooMuch) {
  EditableModel model = native_model();
  model.at("layers.1.ffn.experts.2.w3.scale").as<uint8_t>()[0] = 100;
  model.at("layers.1.ffn.experts.2.w1.scale").as<uint8_t>()[0] = 118;
  const Path in = model.write();
  const TemporaryDirectory dir;
  ConvertOptions options{.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4};
  EXPECT_THAT(refusal(in, options).message,
              HasSubstr("2 of 252 weights cannot be cast without loss; first module "
                        "layers.1.ffn.experts.2.w1: scale exponents span"));
  options.allow_rounding = true;
  EXPECT_EQ(convert_ok(in, options).result.statistics.at("routed_experts").num_changed_tensors, 2);
}

// --- from BF16 ---

TEST(ConvertFromBf16, ToNativeEqualsTheReferenceEncoder) {
  const TemporaryDirectory dir;
  convert_ok(bf16_dir(), {.out = dir.path() / "out", .format = CheckpointFormat::kNative});
  EditableModel expected = native_model();
  EXPECT_THAT(differences(expected.write(), dir.path() / "out"), ::testing::IsEmpty());
  const json::Value config = read_json(dir.path() / "out" / "config.json");
  EXPECT_EQ(text_of(config.find("quantization_config")),
            text_of(read_json(golden::tiny_v4_dir() / "config.json").find("quantization_config")));
}

TEST(ConvertFromBf16, ToNvfp4SharesGlobalsAndLoads) {
  const TemporaryDirectory dir;
  const Path out = dir.path() / "out";
  const Converted converted =
      convert_ok(bf16_dir(), {.out = out, .format = CheckpointFormat::kNvfp4});
  EXPECT_GT(converted.result.statistics.at("routed_experts").cosine(), 0.99);
  EXPECT_GT(converted.result.statistics.at("attention").cosine(), 0.999);
  const Checkpoint checkpoint = Checkpoint::open(out).value();
  for (int32_t e = 0; e < 12; ++e) {
    const std::string expert = "layers.2.ffn.experts." + std::to_string(e);
    EXPECT_EQ(*checkpoint.tensor(expert + ".w1.weight_scale_2")->as<const float>(),
              *checkpoint.tensor(expert + ".w3.weight_scale_2")->as<const float>());
  }
  EXPECT_THAT(kernel_of(out, "layers.*.experts.w1+w3"), HasSubstr("nvfp4"));
}

TEST(ConvertFromBf16, ToInt4LoadsWithAStatedError) {
  const TemporaryDirectory dir;
  const Path out = dir.path() / "out";
  const Converted converted =
      convert_ok(bf16_dir(), {.out = out, .format = CheckpointFormat::kInt4});
  const ErrorStatistics& experts = converted.result.statistics.at("routed_experts");
  // Groups of 32 normal numbers: 15 steps over twice the largest, so rms is 1/sqrt(12) of a step.
  EXPECT_LT(experts.relative_rms(), 0.095);
  EXPECT_GT(experts.cosine(), 0.995);
  EXPECT_EQ(converted.result.statistics.at("attention").num_changed_tensors, 0);
  const Checkpoint checkpoint = Checkpoint::open(out).value();
  const std::string module = "layers.2.ffn.experts.1.w2.";
  EXPECT_EQ(checkpoint.find_meta(module + "weight_packed")->dtype, DType::kI32);
  EXPECT_EQ(checkpoint.find_meta(module + "weight_packed")->shape, (Shape{64, 4}));
  EXPECT_EQ(checkpoint.find_meta(module + "weight_scale")->dtype, DType::kBf16);
  const auto* shape = checkpoint.tensor(module + "weight_shape")->as<const int64_t>();
  EXPECT_EQ(shape[0], 64);
  EXPECT_EQ(shape[1], 32);
  EXPECT_THAT(kernel_of(out, "layers.*.experts.w2"), HasSubstr("int4_g32"));
  const json::Value config = read_json(out / "config.json");
  EXPECT_EQ(text_of(config.find("quantization_config")->find("format")), "\"pack-quantized\"");
  EXPECT_EQ(config.find("expert_dtype"), nullptr);
}

TEST(ConvertFromFp8, ExpertsBecomeNvfp4) {
  EditableModel model = EditableModel::read(bf16_dir());
  model.quantize(is_projection, Format::kFp8E4m3Block128x128, DType::kF8E8m0);
  model.quantize(is_expert, Format::kFp8E4m3Block128x128, DType::kF32);
  const TemporaryDirectory dir;
  const Converted converted =
      convert_ok(model.write(), {.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4});
  EXPECT_GT(converted.result.statistics.at("routed_experts").cosine(), 0.99);
  EXPECT_EQ(converted.result.statistics.at("attention").num_changed_tensors, 0);
  EXPECT_THAT(kernel_of(dir.path() / "out", "layers.*.experts.w2"), HasSubstr("nvfp4"));
}

TEST(ConvertFromTransformersNames, WritesOriginalNames) {
  EditableModel model = native_model();
  model.rename("layers.0.attn.wq_a.weight", "model.layers.0.self_attn.q_a_proj.weight");
  model.rename("layers.0.attn.wq_a.scale", "model.layers.0.self_attn.q_a_proj.weight_scale_inv");
  model.rename("embed.weight", "model.embed_tokens.weight");
  const TemporaryDirectory dir;
  convert_ok(model.write(), {.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4});
  const Checkpoint checkpoint = Checkpoint::open(dir.path() / "out").value();
  EXPECT_NE(checkpoint.find_meta("layers.0.attn.wq_a.scale"), nullptr);
  EXPECT_NE(checkpoint.find_meta("embed.weight"), nullptr);
}

// --- refusals ---

TEST(ConvertRefuses, WhatIsAlreadyInTheFormat) {
  const TemporaryDirectory dir;
  const Error error = refusal(golden::tiny_v4_dir(),
                              {.out = dir.path() / "out", .format = CheckpointFormat::kNative});
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("nothing to convert: all weights are native already"));
}

TEST(ConvertRefuses, ToQuantiseTwice) {
  const TemporaryDirectory dir;
  const ConvertOptions to_int4{.out = dir.path() / "out", .format = CheckpointFormat::kInt4};
  const Error error = refusal(golden::tiny_v4_dir(), to_int4);
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_THAT(error.message, HasSubstr("quantised already loses too much"));
  convert_ok(bf16_dir(), {.out = dir.path() / "int4", .format = CheckpointFormat::kInt4});
  for (const CheckpointFormat format : {CheckpointFormat::kNative, CheckpointFormat::kNvfp4}) {
    EXPECT_THAT(refusal(dir.path() / "int4", {.out = dir.path() / "out", .format = format}).message,
                HasSubstr("int4_g32 cannot become"));
  }
}

TEST(ConvertRefuses, AnOutputInsideTheInput) {
  EditableModel model = EditableModel::read(bf16_dir());
  const Path in = model.write();
  const Error error = refusal(in, {.out = in / "nested" / "out"});
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("lies inside the input"));
}

TEST(ConvertRefuses, FusedExperts) {
  for (const char* name :
       {"model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj"}) {
    EditableModel model = EditableModel::read(bf16_dir());
    model.tensors[name] = {
        .dtype = DType::kBf16, .shape = {1, 2, 2}, .bytes = std::vector<std::byte>(8)};
    const TemporaryDirectory dir;
    const Error error = refusal(model.write(), {.out = dir.path() / "out"});
    EXPECT_EQ(error.code, Errc::kUnsupported);
    EXPECT_THAT(error.message, HasSubstr(name));
    EXPECT_THAT(error.message, HasSubstr("expected one tensor per expert"));
  }
}

TEST(ConvertRefuses, DamagedInputs) {
  const TemporaryDirectory dir;
  const ConvertOptions options{.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4};
  const auto error_of = [&](const std::function<void(EditableModel&)>& damage) {
    EditableModel model = native_model();
    damage(model);
    const Error error = refusal(model.write(), options);
    EXPECT_FALSE(fs::exists(incomplete_path(options.out)));
    return error;
  };
  const std::string expert = "layers.3.ffn.experts.7.w2";
  Error error = error_of([&](EditableModel& m) { m.erase(expert + ".scale"); });
  EXPECT_EQ(error.code, Errc::kDataLoss);
  EXPECT_THAT(error.message, HasSubstr(expert + ".weight"));
  error = error_of([&](EditableModel& m) { m.erase(expert + ".weight"); });
  EXPECT_THAT(error.message, HasSubstr("has scales but no weight"));
  error = error_of([&](EditableModel& m) { m.at(expert + ".scale").as<uint8_t>()[1] = 255; });
  EXPECT_THAT(error.message, HasSubstr("scales are NaN"));
  error = error_of([&](EditableModel& m) { m.at(expert + ".scale").shape = {32, 2}; });
  EXPECT_THAT(error.message, HasSubstr(expert + ".scale"));
}

TEST(ConvertRefuses, TruncatedShards) {
  EditableModel model = native_model();
  const Path in = model.write();
  fs::resize_file(in / "model.safetensors", fs::file_size(in / "model.safetensors") - 1);
  const TemporaryDirectory dir;
  EXPECT_EQ(refusal(in, {.out = dir.path() / "out"}).code, Errc::kDataLoss);
}

TEST(ConvertRefuses, NumbersThatAreNone) {
  EditableModel model = EditableModel::read(bf16_dir());
  model.at("layers.2.ffn.experts.3.w1.weight").as<uint16_t>()[77] = 0x7FC0;
  const TemporaryDirectory dir;
  const Error error = refusal(model.write(), {.out = dir.path() / "out"});
  EXPECT_EQ(error.code, Errc::kDataLoss);
  EXPECT_THAT(error.message, HasSubstr("layers.2.ffn.experts.3.w1: element [1, 13]"));
}

TEST(ConvertRefuses, OtherArchitectures) {
  EditableModel model = native_model();
  model.config.set("model_type", "deepseek_v3");
  const TemporaryDirectory dir;
  const Error error =
      refusal(model.write(), {.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4});
  EXPECT_EQ(error.code, Errc::kUnsupported);
}

TEST(ConvertResume, RefusesAChangedInput) {
  EditableModel model = native_model();
  const Path in = model.write();
  const TemporaryDirectory dir;
  ConvertOptions options{.out = dir.path() / "out", .format = CheckpointFormat::kNvfp4};
  {
    const Checkpoint checkpoint = Checkpoint::open(in).value();
    const ConvertPlan plan = plan_conversion(checkpoint, options).value();
    device::ThreadPool pool({.num_threads = 1});
    const auto stop = [](std::string_view step) -> Result<void> {
      if (step == "commit") return internal_error("stop");
      return {};
    };
    ASSERT_FALSE(run_job(plan.job, {.pool = pool, .before_step = stop}).ok());
  }
  options.resume = true;
  fs::last_write_time(in / "model.safetensors", fs::file_time_type::clock::now());
  EXPECT_THAT(refusal(in, options).message, HasSubstr("another job"));
}

}  // namespace
}  // namespace nibble::tools
