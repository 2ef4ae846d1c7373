// What a plan says where a checkpoint does not say how large it is: nothing that looks known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "engine/plan.h"
#include "engine/plan_render.h"
#include "engine/plan_testing.h"

namespace nibble::engine {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

checkpoint::ModelDescription without(std::string_view part) {
  checkpoint::ModelDescription description = v4(quant::v4_small(), {});
  std::erase_if(description.tensors, [&](const TensorMeta& tensor) {
    return tensor.name.find(part) != std::string::npos;
  });
  return description;
}

void expect_no_sizes(const Plan& plan, std::string_view code, const std::string& why) {
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains(code)) << text_of(plan);
  EXPECT_EQ(plan.why_no_sizes, why);
  EXPECT_FALSE(plan.memory.has_value());
  EXPECT_FALSE(plan.performance.has_value());
  EXPECT_FALSE(plan.is_runnable());
  EXPECT_GT(plan.options.context, 0);

  const std::string text = plan_text(plan);
  EXPECT_THAT(text, HasSubstr("\nMemory and speed are not known: " + why + "\n"));
  for (const char* known : {"it fits", "IT DOES NOT FIT", "at most", "KV bytes", "tok/s"}) {
    EXPECT_THAT(text, Not(HasSubstr(known)));
  }
  const json::Value json = plan_json(plan);
  EXPECT_EQ(*json.find("why_no_sizes")->as_string(), why);
  EXPECT_TRUE(json.find("memory")->is_null());
  EXPECT_TRUE(json.find("performance")->is_null());
  EXPECT_TRUE(json.find("forced_kernel_cost")->is_null());
}

// How long a download takes is known of whole models only.
void expect_complete(const Plan& plan, bool is_complete) {
  const json::Value json = plan_json(plan);
  const json::Value& download = *json.find("download");
  EXPECT_EQ(*download.find("complete")->as_bool(), is_complete);
  EXPECT_EQ(download.find("seconds_at_1_gbit")->is_null(), !is_complete);
  EXPECT_EQ(*download.find("bytes")->as_int64(), plan.download_bytes);
  EXPECT_THAT(plan_text(plan),
              is_complete ? HasSubstr(" at 100 Mbit/s, ") : HasSubstr(" of an incomplete model\n"));
}

TEST(PlanOfUnknownSizes, WithoutAnyShard) {
  checkpoint::ModelDescriptionBuilder builder("model");
  builder.add_config("config.json", quant::v4_config(quant::v4_flash(), quant::kV4NativeSection));
  const checkpoint::ModelDescription description = builder.finish();
  for (const char* device : {"h200", "cpu"}) {
    const Plan plan = make_plan(description, {}, on(device));
    expect_no_sizes(plan, "Q-F3", "files are missing or damaged");
    expect_complete(plan, false);
    EXPECT_EQ(plan.num_hidden_layers, 43);
    EXPECT_EQ(plan.options.context, 32'768);
  }
}

TEST(PlanOfUnknownSizes, WithADamagedShard) {
  checkpoint::ModelDescription description = v4(quant::v4_small(), {});
  Error fault = data_loss("model-2.safetensors: the download is incomplete");
  fault.reason = "Q-F1";
  description.faults.push_back(fault);
  const Plan plan = make_plan(description, {}, on("h200"));
  expect_no_sizes(plan, "Q-F1", "files are missing or damaged");
  expect_complete(plan, false);
}

// Shards that are sound and hold too little: nothing but the inventory notices.
TEST(PlanOfUnknownSizes, WithoutAClassOfTensors) {
  for (const char* device : {"h200", "cpu"}) {
    const Plan plan = make_plan(without(".ffn.experts."), {}, on(device));
    // Of two layers and the draft: three matrices of four experts.
    expect_no_sizes(plan, "Q-C1b", "36 modules that config.json calls for are missing");
    expect_complete(plan, false);
  }
  const Plan none = make_plan(without(""), {}, on("cpu"));
  EXPECT_THAT(none.why_no_sizes, HasSubstr(" modules that config.json calls for are missing"));
  expect_no_sizes(none, "Q-C1b", none.why_no_sizes);
}

TEST(PlanOfUnknownSizes, WithoutScales) {
  const Plan plan = make_plan(without("layers.1.ffn.experts.2.w1.scale"), {}, on("h200"));
  expect_no_sizes(plan, "Q-S1", "the stored form of routed_experts has faults");
  expect_complete(plan, false);
}

TEST(PlanOfUnknownSizes, WithScalesOfAnotherShape) {
  checkpoint::ModelDescription description = v4(quant::v4_small(), {});
  for (TensorMeta& tensor : description.tensors) {
    if (tensor.name == "layers.0.attn.wq_b.scale") tensor.shape = {8, 3};
  }
  const Plan plan = make_plan(description, {}, on("cpu"));
  expect_no_sizes(plan, "Q-S2", "the stored form of attention has faults");
  expect_complete(plan, true);
}

TEST(PlanOfUnknownSizes, WithShapesThatConfigContradicts) {
  for (const auto& [intermediate, hidden, code] :
       {std::tuple(512, 256, "Q-D2"), std::tuple(256, 255, "Q-P2")}) {
    quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
    quant::V4Shape other = quant::v4_small();
    other.intermediate = intermediate;
    other.hidden = hidden;
    fixture.config("config.json", quant::v4_config(other, quant::kV4NativeSection));
    const Plan plan = make_plan(describe(fixture), {}, on("h200"));
    expect_no_sizes(plan, code, "config.json and shards disagree about shapes");
    expect_complete(plan, true);
  }
}

TEST(PlanOfUnknownSizes, WithAFormatThatNoKernelKnows) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  fixture.remove("layers.1.ffn.shared_experts.w1.weight");
  fixture.remove("layers.1.ffn.shared_experts.w1.scale");
  fixture.awq("layers.1.ffn.shared_experts.w1", 256, 256);
  fixture.config("config.json", quant::v4_config(quant::v4_small(), quant::kV4NativeSection));
  for (const char* device : {"h200", "cpu"}) {
    const Plan plan = make_plan(describe(fixture), {}, on(device));
    expect_no_sizes(plan, "Q-K1", "no kernel takes shared_experts (int4_g128)");
    expect_complete(plan, true);
  }
}

TEST(PlanOfUnknownSizes, OnADeviceWithoutKernels) {
  PlanOptions options = on("h200");
  options.device.sm = 130;
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, options);
  expect_no_sizes(plan, "Q-K1", plan.why_no_sizes);
  EXPECT_THAT(plan.why_no_sizes, HasSubstr("no kernel takes "));
  expect_complete(plan, true);
}

TEST(PlanOfUnknownSizes, WithoutAKernelForAnOp) {
  PlanOptions options = on("h200");
  options.without_kernel = "sparse_attention";
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, options);
  expect_no_sizes(plan, "Q-K1", "no kernel takes an op of this model");
}

TEST(PlanOfUnknownSizes, WithoutTheKernelThatWasAskedFor) {
  PlanOptions options = on("h200");
  options.only_kernel = "avx512";
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, options);
  EXPECT_THAT(plan.why_no_sizes, HasSubstr("no kernel takes "));
  expect_no_sizes(plan, "Q-K4", plan.why_no_sizes);
}

TEST(PlanOfUnknownSizes, WithKeysThatHaveNoFp8Form) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  std::string config = quant::v4_config(quant::v4_small(), quant::kV4NativeSection);
  config.replace(config.find("\"qk_rope_head_dim\":64"), 21, "\"qk_rope_head_dim\":32");
  fixture.config("config.json", config);
  PlanOptions options = on("h200");
  options.kv_dtype = models::KvDtype::kFp8;
  const Plan plan = make_plan(describe(fixture), {}, options);
  expect_no_sizes(plan, "Q-P4", "keys of these sizes have no FP8 form");
  EXPECT_TRUE(make_plan(describe(fixture), {}, on("h200")).memory.has_value());
}

TEST(PlanOfUnknownSizes, WithAConfigThatDescribesNoModel) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  for (const char* config : {R"({"model_type":"deepseek_v4"})", ""}) {
    quant::Fixture with = fixture;
    if (*config != '\0') with.config("config.json", config);
    const Plan plan = make_plan(describe(with), {}, on("h200"));
    expect_no_sizes(
        plan, *config != '\0' ? "Q-D1" : "Q-F3", "config.json does not describe the model");
  }
}

TEST(PlanOfUnknownSizes, OfOtherModelTypes) {
  quant::Fixture fixture;
  fixture.dense("lm_head", 512, 256);
  fixture.config("config.json", R"({"model_type":"qwen3_moe","num_hidden_layers":1})");
  const Plan plan = make_plan(describe(fixture), {}, on("h200"));
  EXPECT_FALSE(plan.has_errors()) << text_of(plan);
  EXPECT_EQ(plan.why_no_sizes, "this version plans those of deepseek_v4 only");
  EXPECT_THAT(plan_text(plan), HasSubstr("\nMemory and speed are not known: this version plans"));
  expect_complete(plan, true);
}

// Errors that leave every size as it is.
TEST(PlanOfUnknownSizes, IsNotThatOfOtherErrors) {
  PlanOptions options = on("h200");
  options.context = 1'048'577;
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), testing::ElementsAre("Q-M2"));
  EXPECT_TRUE(plan.memory.has_value());
  EXPECT_TRUE(plan_json(plan).find("why_no_sizes")->is_null());
  expect_complete(plan, true);
}

// Beside a whole model: dashes, and one line that says why.
TEST(PlanOfUnknownSizes, IsSaidInComparisons) {
  checkpoint::ModelDescription part = without(".ffn.experts.");
  part.name = "part";
  const Plan plans[] = {make_plan(part, {}, on("h200")),
                        make_plan(v4(quant::v4_small(), {}), {}, on("h200"))};
  const std::string text = comparison_text(plans);
  EXPECT_THAT(text,
              testing::ContainsRegex("part +1x h200 +- +- +- +- +- +- +- +-\n"
                                     "model +1x h200 +mxfp4 +[0-9.]+ MB +[0-9.]+ MB +yes "));
  EXPECT_THAT(text,
              HasSubstr("\npart on 1x h200: memory and speed are not known: 36 modules that "
                        "config.json calls for are missing\n"));
  EXPECT_THAT(text, HasSubstr("\n  model on 1x h200: not known\n"));
  EXPECT_THAT(text, HasSubstr("\nexpected: "));
}

}  // namespace
}  // namespace nibble::engine
