#include "tools/synth/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "checkpoint/temporary_directory_testing.h"
#include "convert/convert_testing.h"
#include "golden/golden_testing.h"
#include "quant/reference.h"
#include "tools/synth/presets.h"

namespace nibble::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TemporaryDirectory;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Request {
  CheckpointFormat format = CheckpointFormat::kNative;
  uint64_t seed = 1;
  int32_t threads = 2;
  int64_t shard_bytes = 8'000'000;
};

// A random model of tiny-v4's shape.
Path synthesize_tiny(const TemporaryDirectory& dir,
                     const std::string& name,
                     const Request& request) {
  const json::Value config = read_json(golden::tiny_v4_dir() / "config.json");
  Synthesis synthesis =
      synthesize(*config.as_object(), {.format = request.format, .seed = request.seed}).value();
  Job job;
  job.out = dir.path() / name;
  job.pieces = std::move(synthesis.pieces);
  job.texts = {{"config.json", config_text(synthesis.config)}};
  if (synthesis.hf_quant)
    job.texts.push_back({"hf_quant_config.json", config_text(*synthesis.hf_quant)});
  job.record_name = "nibble_synth.json";
  job.shard_bytes = request.shard_bytes;
  device::ThreadPool pool({.num_threads = request.threads});
  const Result<JobResult> result = run_job(job, {.pool = pool});
  CHECK(result.ok()) << result.error().message;
  return job.out;
}

TEST(Synth, HasTheTensorsOfARealModel) {
  const TemporaryDirectory dir;
  const Checkpoint made = Checkpoint::open(synthesize_tiny(dir, "native", {})).value();
  const Checkpoint real = Checkpoint::open(golden::tiny_v4_dir()).value();
  ASSERT_EQ(made.tensors().size(), real.tensors().size());
  for (size_t i = 0; i < made.tensors().size(); ++i) {
    EXPECT_EQ(made.tensors()[i].name, real.tensors()[i].name);
    EXPECT_EQ(made.tensors()[i].dtype, real.tensors()[i].dtype) << made.tensors()[i].name;
    EXPECT_EQ(made.tensors()[i].shape, real.tensors()[i].shape) << made.tensors()[i].name;
  }
}

TEST(Synth, DependsOnTheSeedAlone) {
  const TemporaryDirectory dir;
  const Path first = synthesize_tiny(dir, "first", {});
  EXPECT_THAT(
      differences(first, synthesize_tiny(dir, "second", {.threads = 1, .shard_bytes = 1 << 30})),
      IsEmpty());
  // Single scales may agree by chance.
  const auto changed = differences(first, synthesize_tiny(dir, "other", {.seed = 2}));
  EXPECT_THAT(changed, Contains("embed.weight"));
  EXPECT_THAT(changed, Contains("layers.1.ffn.gate.tid2eid"));
  EXPECT_THAT(changed, Contains("layers.3.ffn.experts.31.w2.weight"));
  EXPECT_GT(changed.size(), 1500u);
}

TEST(Synth, RunsInEveryFormat) {
  const TemporaryDirectory dir;
  const std::vector<float> native = logits_of(synthesize_tiny(dir, "native", {}));
  for (const float logit : native) ASSERT_TRUE(std::isfinite(logit));
  EXPECT_EQ(logits_of(synthesize_tiny(dir, "nvfp4", {.format = CheckpointFormat::kNvfp4})), native);
  for (const CheckpointFormat format : {CheckpointFormat::kBf16, CheckpointFormat::kInt4}) {
    const Path other =
        synthesize_tiny(dir, std::string(checkpoint_format_name(format)), {.format = format});
    for (const float logit : logits_of(other)) ASSERT_TRUE(std::isfinite(logit));
  }
}

// All formats of a seed are one model, and the converter goes between them.
TEST(Synth, AgreesWithTheConverter) {
  const TemporaryDirectory dir;
  const auto made = [&](CheckpointFormat format) {
    return synthesize_tiny(dir, std::string(checkpoint_format_name(format)), {.format = format});
  };
  const Path native = made(CheckpointFormat::kNative), nvfp4 = made(CheckpointFormat::kNvfp4),
             int4 = made(CheckpointFormat::kInt4), bf16 = made(CheckpointFormat::kBf16);
  const auto converted = [&](const Path& in, CheckpointFormat format) {
    const Path out = dir.path() / (in.filename().string() + "_to");
    std::filesystem::remove_all(out);
    convert_ok(in, {.out = out, .format = format});
    return out;
  };
  EXPECT_THAT(differences(converted(native, CheckpointFormat::kNvfp4), nvfp4), IsEmpty());
  EXPECT_THAT(differences(converted(nvfp4, CheckpointFormat::kNative), native), IsEmpty());
  EXPECT_THAT(differences(converted(bf16, CheckpointFormat::kInt4), int4), IsEmpty());
  // -0 becomes code 0 in FP4; all else is the same.
  const Path back = converted(bf16, CheckpointFormat::kNative);
  EXPECT_THAT(differences(back, native), Each(HasSubstr(".ffn.experts.")));
  EXPECT_THAT(differences(back, native), Each(HasSubstr(".weight")));
  EXPECT_EQ(logits_of(back), logits_of(native));
}

TEST(Dummy, IsTheCheckpointOfTheSameSeedInMemory) {
  const TemporaryDirectory dir;
  for (const CheckpointFormat format : {CheckpointFormat::kNative,
                                        CheckpointFormat::kNvfp4,
                                        CheckpointFormat::kInt4,
                                        CheckpointFormat::kBf16}) {
    const Path path = synthesize_tiny(
        dir, std::string(checkpoint_format_name(format)), {.format = format, .seed = 5});
    device::ThreadPool pool({.num_threads = 2});
    const Checkpoint dummy = make_dummy_checkpoint(path, {.seed = 5}, pool).value();
    EXPECT_THAT(differences(dummy, Checkpoint::open(path).value()), IsEmpty());
  }
}

TEST(Dummy, MayShareTheBytesOfEqualShapes) {
  device::ThreadPool pool({.num_threads = 2});
  const Checkpoint all = make_dummy_checkpoint(golden::tiny_v4_dir(), {}, pool).value();
  const Checkpoint few =
      make_dummy_checkpoint(golden::tiny_v4_dir(), {.num_distinct = 2}, pool).value();
  EXPECT_EQ(few.data_bytes(), all.data_bytes());
  std::set<const void*> places;
  for (const TensorMeta& tensor : few.tensors()) {
    if (!tensor.name.ends_with(".w2.weight") ||
        tensor.name.find(".experts.") == std::string::npos) {
      continue;
    }
    const TensorView view = few.tensor(tensor.name).value();
    places.insert(view.data);
    EXPECT_EQ(view.shape, all.tensor(tensor.name).value().shape);
  }
  EXPECT_LE(places.size(), 4U);  // of layers and of the draft
  const auto device = device::make_host_device({.num_threads = 1}).value();
  EXPECT_TRUE(models::load_model(few, *device, {}).ok());
}

TEST(Dummy, LoadsWithFewerLayers) {
  device::ThreadPool pool({.num_threads = 2});
  const Checkpoint dummy =
      make_dummy_checkpoint(golden::tiny_v4_dir(), {.num_layers = 3}, pool).value();
  EXPECT_EQ(dummy.find_meta("layers.3.attn_norm.weight"), nullptr);
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const auto model = models::load_model(dummy, *device, {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->info().num_hidden_layers, 3);
  EXPECT_TRUE((*model)->info().has_mtp);
}

}  // namespace
}  // namespace nibble::tools
