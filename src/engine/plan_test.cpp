#include "engine/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/cuda.h"
#include "device/emulated_gpu.h"
#include "device/launch_observer.h"
#include "engine/model_runner.h"
#include "engine/plan_render.h"
#include "engine/plan_testing.h"
#include "quant/fixture_testing.h"

namespace nibble::engine {
namespace {

using quant::V4Draft;
using quant::V4Options;
using quant::V4Shape;
using quant::V4Weights;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const checkpoint::ModelDescription& flash() {
  static const auto description = v4(quant::v4_flash(), {});
  return description;
}
checkpoint::ModelDescription form_b(const V4Shape& shape) {
  return v4(shape, {.experts = V4Weights::kNvfp4}, quant::v4_form_b_section(shape.layers));
}

const PlannedModule& module_of(const Plan& plan, std::string_view name) {
  for (const PlannedModule& module : plan.modules) {
    if (module.module_class == name) return module;
  }
  ADD_FAILURE() << "no " << name;
  static const PlannedModule none;
  return none;
}
double gb_of(const Plan& plan, std::string_view name) {
  int64_t bytes = 0;
  for (const PlannedModule& module : plan.modules) {
    if (module.module_class == name) bytes += module.bytes;
  }
  return static_cast<double>(bytes) / 1e9;
}
double draft_gb(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlannedModule& module : plan.modules) {
    if (module.module_class.rfind("draft_", 0) == 0) bytes += module.bytes;
  }
  return static_cast<double>(bytes) / 1e9;
}

// Within half a unit of the last digit that the specification prints.
#define EXPECT_PRINTED(value, printed, digits) \
  EXPECT_NEAR(value, printed, 0.5 * std::pow(10.0, -(digits)) + 1e-9)

// --- spec "deepseek-v4" 11.1: sizes ---

TEST(PlanSizes, OfFlash) {
  const Plan plan = make_plan(flash(), {}, on("h200", 2));
  EXPECT_THAT(codes_of(plan, quant::Severity::kWarning), IsEmpty()) << text_of(plan);
  EXPECT_NEAR(static_cast<double>(plan.num_tensors), 69'000, 500);
  // Sinks, norms and their like are below the printed digits.
  EXPECT_NEAR(gb_of(plan, "attention"), 4.599, 0.001);
  EXPECT_NEAR(gb_of(plan, "compressor"), 0.353 + 0.173, 0.006);
  EXPECT_PRINTED(gb_of(plan, "indexer"), 0.275, 3);
  EXPECT_PRINTED(gb_of(plan, "routed_experts"), 147.170, 3);
  EXPECT_PRINTED(gb_of(plan, "shared_experts"), 1.082, 3);
  EXPECT_NEAR(gb_of(plan, "router"), 0.090 + 0.019, 0.001);
  EXPECT_NEAR(gb_of(plan, "hyper_connection"), 0.135, 0.001);
  EXPECT_PRINTED(gb_of(plan, "embedding"), 1.059, 3);
  EXPECT_PRINTED(gb_of(plan, "lm_head"), 1.059, 3);
  EXPECT_PRINTED(draft_gb(plan), 3.594, 3);
  EXPECT_PRINTED(static_cast<double>(plan.download_bytes) / 1e9, 159.61, 2);
}

TEST(PlanSizes, OfPro) {
  const Plan plan = make_plan(v4(quant::v4_pro(), {}), {}, on("b300", 4));
  EXPECT_THAT(codes_of(plan, quant::Severity::kWarning), IsEmpty()) << text_of(plan);
  EXPECT_EQ(plan.num_tensors, 145'116);
  EXPECT_NEAR(gb_of(plan, "attention"), 18.295, 0.001);
  EXPECT_NEAR(gb_of(plan, "compressor"), 0.881 + 0.463, 0.01);
  EXPECT_PRINTED(gb_of(plan, "indexer"), 0.625, 3);
  EXPECT_PRINTED(gb_of(plan, "routed_experts"), 822.054, 3);
  EXPECT_PRINTED(gb_of(plan, "shared_experts"), 4.03, 2);
  EXPECT_PRINTED(gb_of(plan, "hyper_connection"), 0.336, 3);
  EXPECT_PRINTED(gb_of(plan, "lm_head"), 1.853, 3);
  EXPECT_PRINTED(draft_gb(plan), 13.957, 3);
  EXPECT_PRINTED(static_cast<double>(plan.download_bytes) / 1e9, 864.70, 2);
  EXPECT_PRINTED(static_cast<double>(plan.download_bytes) / (1 << 30), 805.32, 2);
}

TEST(PlanSizes, OfFlashWithDspark) {
  const Plan plan =
      make_plan(v4(quant::v4_flash(), {.draft = V4Draft::kDspark}), {}, on("h200", 2));
  EXPECT_PRINTED(draft_gb(plan), 10.86, 2);
  EXPECT_PRINTED(static_cast<double>(plan.download_bytes) / 1e9, 166.9, 1);
}

// --- spec "deepseek-v4" 11.2: bytes per step ---

TEST(PlanSteps, ExpectedDistinctExperts) {
  const std::pair<int, double> flash_table[] = {{1, 6.00},
                                                {2, 11.86},
                                                {4, 23.17},
                                                {6, 33.96},
                                                {8, 44.24},
                                                {16, 80.84},
                                                {32, 136.15},
                                                {64, 199.89},
                                                {128, 243.70},
                                                {256, 255.41}};
  for (const auto& [batch, experts] : flash_table) {
    EXPECT_PRINTED(expected_distinct_experts(256, 6, batch), experts, 2);
  }
  EXPECT_NEAR(expected_distinct_experts(384, 6, 64), 243.9, 0.06);
}

TEST(PlanSteps, BytesOfFlash) {
  const Plan plan = make_plan(flash(), {}, on("h200"));
  ASSERT_TRUE(plan.performance);
  const std::vector<PlanBatch>& steps = plan.performance->batches;
  ASSERT_EQ(steps.size(), 4U);
  // The table adds up components in MB; norms, sinks and position tables are not among them.
  EXPECT_NEAR(steps[0].weight_bytes / 1e6, 11'217, 11);
  EXPECT_PRINTED(steps[1].weight_bytes / 1e9, 54.2, 1);
  EXPECT_PRINTED(steps[2].weight_bytes / 1e9, 122.7, 1);
  EXPECT_PRINTED(steps[3].weight_bytes / 1e9, 154.6, 1);
  EXPECT_EQ(steps[3].batch, 256);
  // Twice and more of spec 6.3's 24 MB at 32k, whose keys are FP8 and FP4.
  EXPECT_NEAR(steps[0].kv_bytes / 1e6, 66.8, 0.1);
}

TEST(PlanSteps, BytesOfPro) {
  const Plan plan = make_plan(v4(quant::v4_pro(), {}), {}, on("b300", 4));
  EXPECT_NEAR(plan.performance->batches[0].weight_bytes / 1e6, 39'665, 30);
}

// Spec "performance" 2.2: bytes of one device under tensor parallelism.
TEST(PlanSteps, BytesOfOneDevice) {
  for (const auto& [tp, gb] : {std::pair{2, 6.16}, std::pair{4, 3.64}, std::pair{8, 2.38}}) {
    const Plan plan = make_plan(flash(), {}, on("rtx-pro-6000", tp));
    const PlanBatch& step = plan.performance->batches[0];
    EXPECT_NEAR((step.bytes_per_device - step.kv_bytes) / 1e9, gb, 0.02) << tp;
  }
  const Plan h200 = make_plan(flash(), {}, on("h200"));
  EXPECT_NEAR(h200.performance->batches[0].bound_seconds * 1e3, 11.217e9 / 4.6e12 * 1e3, 0.02);
}

const PlanBatch& batch_of(const Plan& plan, int32_t batch) {
  for (const PlanBatch& step : plan.performance->batches) {
    if (step.batch == batch) return step;
  }
  ADD_FAILURE() << "no batch of " << batch;
  static const PlanBatch none;
  return none;
}

// Those that profiles of eight layers of Flash on an H200 show.
TEST(PlanSteps, LaunchesAreThoseOfAnH200) {
  V4Shape shape = quant::v4_flash();
  shape.layers = 8;
  PlanOptions options = on("h200");
  options.context = 1088;
  const Plan plan = make_plan(v4(shape, {.draft = V4Draft::kNone}), {}, options);
  EXPECT_EQ(batch_of(plan, 1).num_launches, 89);
  EXPECT_EQ(batch_of(plan, 16).num_launches, 118);
  EXPECT_EQ(batch_of(plan, 64).num_launches, 171);
  EXPECT_THAT(plan.performance->assumption, HasSubstr(" and 89 to "));
}

// They are there however few bytes a step reads.
TEST(PlanSteps, LaunchesTakeAMicrosecondEach) {
  const Plan plan = make_plan(flash(), {}, on("h200"));
  for (const PlanBatch& step : plan.performance->batches) {
    EXPECT_NEAR(step.launch_seconds, step.num_launches.value() * 1e-6, 1e-12) << step.batch;
  }
  EXPECT_NEAR(batch_of(plan, 1).expected_tok_s(0.85), 299, 2);
}

TEST(PlanSteps, LaunchesOfPlannedKernelsAreNotCounted) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  for (const char* part : {"w1", "w2", "w3"}) {
    const std::string shared = std::string("layers.0.ffn.shared_experts.") + part;
    fixture.remove(shared + ".weight");
    fixture.remove(shared + ".scale");
    fixture.fp8_channel(shared, 256, 256);
  }
  fixture.config("config.json", quant::v4_config(quant::v4_small(), quant::kV4NativeSection));
  const Plan plan = make_plan(describe(fixture), {}, on("h200"));
  EXPECT_FALSE(plan.has_errors()) << text_of(plan);
  const auto is_planned = [](const PlannedModule& module) {
    return module.kernel->status == kernels::Status::kPlanned;
  };
  EXPECT_TRUE(std::any_of(plan.modules.begin(), plan.modules.end(), is_planned));
  ASSERT_TRUE(plan.performance.has_value());
  EXPECT_EQ(batch_of(plan, 1).num_launches, std::nullopt);
  EXPECT_THAT(plan.performance->assumption, HasSubstr(", launches not counted; "));
  const json::Value json = plan_json(plan);
  const json::Value& step = json.find("performance")->find("batches")->as_array()->front();
  EXPECT_TRUE(step.find("launches")->is_null());
  EXPECT_TRUE(step.find("launch_ms")->is_null());

  const Plan cpu = make_plan(flash(), {}, on("cpu"));
  EXPECT_EQ(batch_of(cpu, 1).num_launches, std::nullopt);
  EXPECT_THAT(cpu.performance->assumption, Not(HasSubstr("launches")));
}

// --- spec "deepseek-v4" 6.2: cache; in BF16, with rings that drafts may be taken back from ---

TEST(PlanMemory, CacheOfOneSequence) {
  // Experts do not matter here; fewer make it quicker.
  const auto sequence_mb = [](V4Shape shape, int32_t context) {
    shape.experts = 8;
    PlanOptions options = on("b300", 4);
    options.context = context;
    const Plan plan = make_plan(v4(shape, {.draft = V4Draft::kNone}), {}, options);
    return static_cast<double>(plan.memory->kv()) / 1e6;
  };
  EXPECT_PRINTED(sequence_mb(quant::v4_flash(), 32'768), 231.8, 1);
  EXPECT_PRINTED(sequence_mb(quant::v4_flash(), 131'072), 908.1, 1);
  EXPECT_PRINTED(sequence_mb(quant::v4_flash(), 1'048'576), 7221, 0);
  EXPECT_PRINTED(sequence_mb(quant::v4_pro(), 32'768), 331.7, 1);
  EXPECT_PRINTED(sequence_mb(quant::v4_pro(), 1'048'576), 10335, 0);

  const Plan plan = make_plan(v4(quant::v4_flash(), {.draft = V4Draft::kNone}), {}, on("b300", 4));
  EXPECT_PRINTED(static_cast<double>(plan.memory->compressor_state) / 1e6, 24.4, 1);
  EXPECT_PRINTED(static_cast<double>(plan.memory->windows) / 1e6, 6.3, 1);
}

TEST(PlanMemory, SaysWhatFits) {
  EXPECT_FALSE(make_plan(flash(), {}, on("h200")).memory->fits());
  EXPECT_THAT(codes_of(make_plan(flash(), {}, on("h200")), quant::Severity::kWarning),
              Contains("Q-M1"));
  const Plan two = make_plan(flash(), {}, on("h200", 2));
  EXPECT_TRUE(two.memory->fits());
  EXPECT_GT(two.memory->max_concurrency, 200);
  EXPECT_EQ(two.memory->max_context, 1'048'576);
  // What is promised to fit fits, and one more does not.
  PlanOptions options = on("rtx-pro-6000", 2);
  options.context = 131'072;
  const Plan first = make_plan(flash(), {}, options);
  options.concurrency = static_cast<int32_t>(first.memory->max_concurrency);
  EXPECT_TRUE(make_plan(flash(), {}, options).memory->fits());
  options.concurrency += 2;
  EXPECT_FALSE(make_plan(flash(), {}, options).memory->fits());
}

TEST(PlanMemory, LongestContextIsWhatFits) {
  PlanOptions options = on("rtx-pro-6000", 2);
  options.context = kLongestContext;
  EXPECT_EQ(make_plan(flash(), {}, options).options.context, 1'048'576);
  options.concurrency = 32;
  const Plan plan = make_plan(flash(), {}, options);
  EXPECT_TRUE(plan.memory->fits()) << text_of(plan);
  EXPECT_LT(plan.options.context, 1'048'576);
  EXPECT_GT(plan.memory->total(), plan.memory->capacity * 99 / 100);
}

TEST(PlanMemory, ContextsBeyondTheModelAreM2) {
  PlanOptions options = on("h200", 2);
  options.context = 1'048'577;
  const Plan plan = make_plan(flash(), {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-M2"));
  EXPECT_THAT(text_of(plan), HasSubstr("1048577 tokens was asked for; expected at most 1048576"));
}

// Nothing overflows, whatever is asked for.
TEST(PlanMemory, CountsTheLargestWishes) {
  PlanOptions options = on("b300", 1024);
  options.context = std::numeric_limits<int32_t>::max();
  options.concurrency = 1 << 20;
  options.pass_tokens = 1 << 20;
  const Plan plan = make_plan(v4(quant::v4_pro(), {}), {}, options);
  EXPECT_FALSE(plan.memory->fits());
  EXPECT_GT(plan.memory->total(), int64_t{1} << 50);
  EXPECT_EQ(plan.memory->max_context, 0);
  EXPECT_GE(plan.memory->max_concurrency, 0);
}

TEST(PlanMemory, ExpertsMaySpreadFurtherThanHeads) {
  PlanOptions options = on("h200", 8);
  options.tp = 2;
  options.ep = 8;
  const Plan plan = make_plan(flash(), {}, options);
  EXPECT_EQ(module_of(plan, "routed_experts").bytes_per_device * 8,
            module_of(plan, "routed_experts").bytes);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), IsEmpty()) << text_of(plan);
}

// --- kernels ---

TEST(PlanKernels, OfEachMachine) {
  const std::map<std::string, std::string> experts = {
      {"a100", "grouped_matmul.mxfp4.bf16.sm_80.tensor_core"},
      {"l40s", "grouped_matmul.mxfp4.bf16.sm_80.tensor_core"},
      {"h100", "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.decode"},
      {"h200", "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.decode"},
      {"b200", "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.portable"},
      {"b300", "grouped_matmul.mxfp4.fp8.sm_90.tensor_core.portable"},
      {"rtx-pro-6000", "grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode"},
      {"rtx-5090", "grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode"},
      {"gb10", "grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode"},
      {"cpu", "grouped_matmul.mxfp4.bf16.avx512_bf16.simd"}};
  for (const auto& [device, kernel] : experts) {
    V4Shape shape = quant::v4_flash();
    shape.experts = 8;
    const Plan plan = make_plan(v4(shape, {}), {}, on(device));
    EXPECT_THAT(codes_of(plan, quant::Severity::kError), IsEmpty()) << device << text_of(plan);
    EXPECT_EQ(module_of(plan, "routed_experts").kernel->name, kernel) << device;
    const bool is_cpu = device == "cpu", is_sm90 = device == "h100" || device == "h200";
    EXPECT_EQ(plan.is_runnable(), is_cpu) << device;
    EXPECT_EQ(module_of(plan, "attention").kernel->unit,
              is_cpu ? kernels::ComputeUnit::kSimd : kernels::ComputeUnit::kTensorCore);
    EXPECT_EQ(plan.ops.size(), is_cpu ? 10U : is_sm90 ? 19U : 17U);
  }
}

// Whatever the model, the format and the generation, down to its shared memory.
TEST(PlanKernels, MultiplyOnTensorCoresOfEveryGpu) {
  constexpr const char* kInt4 =
      R"(,"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"group_0":{"targets":["re:.*ffn\\.experts\\..*"],"weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32}}},"ignore":[]})";
  for (V4Shape shape : {quant::v4_flash(), quant::v4_pro()}) {
    shape.experts = 8;
    shape.layers = 8;
    const V4Options bf16{.linears = V4Weights::kBf16,
                         .experts = V4Weights::kBf16,
                         .draft_experts = V4Weights::kBf16};
    const std::pair<std::string, checkpoint::ModelDescription> models[] = {
        {"mxfp4", v4(shape, {})},
        {"nvfp4", form_b(shape)},
        {"int4_g32",
         v4(shape,
            {.linears = V4Weights::kBf16, .experts = V4Weights::kInt4, .draft = V4Draft::kNone},
            kInt4)},
        {"bf16", v4(shape, bf16, "")}};
    for (const auto& [format, model] : models) {
      for (const DeviceSheet& sheet : device_sheets()) {
        if (sheet.kind == device::DeviceKind::kCpu) continue;
        const Plan plan = make_plan(model, {}, on(sheet.name));
        EXPECT_THAT(codes_of(plan, quant::Severity::kError), IsEmpty()) << sheet.name;
        EXPECT_EQ(module_of(plan, "routed_experts").format, format);
        const auto expect_tensor_cores = [&](const kernels::KernelInfo& kernel) {
          EXPECT_EQ(kernel.unit, kernels::ComputeUnit::kTensorCore) << kernel.name;
          EXPECT_NE(kernel.status, kernels::Status::kPlanned) << kernel.name;
        };
        for (const PlannedModule& module : plan.modules) {
          if (!module.kernel->has_weight) continue;
          for (const kernels::KernelInfo* kernel : module.by_rows) expect_tensor_cores(*kernel);
          EXPECT_FALSE(module.by_rows.empty()) << module.module_class;
        }
        for (const PlannedOp& op : plan.ops) {
          EXPECT_NE(op.kernel->status, kernels::Status::kPlanned) << op.name;
          if (op.name == "sparse_attention" || op.name == "indexer_score") {
            expect_tensor_cores(*op.kernel);
          }
        }
      }
    }
  }
}

TEST(PlanKernels, PortableOnesSayWhy) {
  const Plan b200 = make_plan(flash(), {}, on("b200"));
  const std::string why = "no row of its own for sm_100 takes it: portable mma.sync";
  for (const char* name : {"routed_experts", "attention", "router", "lm_head"}) {
    EXPECT_EQ(module_of(b200, name).why, why) << name;
  }
  // Rows have a scale in f32 for 32 weights of half a byte.
  const PlannedModule& experts = module_of(b200, "routed_experts");
  EXPECT_EQ(experts.bytes_per_device, experts.bytes / 17 * 20);
  const Plan rtx = make_plan(flash(), {}, on("rtx-pro-6000"));
  EXPECT_EQ(module_of(rtx, "routed_experts").why, "first record for sm_120 to 121 that takes it");
  EXPECT_THAT(module_of(rtx, "lm_head").why, HasSubstr("row of its own for sm_120"));
  for (const PlannedOp& op : rtx.ops) {
    const bool has_others =
        op.name == "sparse_attention" || op.name == "indexer_score" || op.name == "top_k";
    EXPECT_EQ(op.why.find("row of its own for sm_120") != std::string::npos, has_others) << op.name;
  }
  EXPECT_THAT(plan_text(rtx), HasSubstr(", only on NVIDIA H200, 2026-12-01): no row of its own"));
  for (const PlannedModule& module : make_plan(flash(), {}, on("h200")).modules) {
    EXPECT_THAT(module.why, Not(HasSubstr("portable"))) << module.module_class;
  }
}

// B10: FP8 and MXFP4 on a GPU without either.
TEST(PlanKernels, AmpereWidensAndSaysSoB10) {
  const Plan plan = make_plan(flash(), {}, on("a100", 4));
  EXPECT_EQ(module_of(plan, "attention").kernel->name,
            "matmul.fp8_block128x128.bf16.sm_80.tensor_core");
  EXPECT_THAT(module_of(plan, "attention").why,
              HasSubstr("W8A16: this GPU has no tensor cores for FP8"));
  EXPECT_THAT(module_of(plan, "routed_experts").why, HasSubstr("W4A16"));
}

TEST(PlanKernels, Nvfp4WithoutFp4CoresIsWidened) {
  const auto description = form_b(quant::v4_small());
  const Plan h200 = make_plan(description, {}, on("h200"));
  EXPECT_EQ(module_of(h200, "routed_experts").kernel->name,
            "grouped_matmul.nvfp4.fp8.sm_90.tensor_core.decode");
  EXPECT_THAT(module_of(h200, "routed_experts").why,
              HasSubstr("W4A8: this GPU has no tensor cores for FP4"));
  // These have them, but the kernels that are written widen.
  for (const auto& [device, kernel] :
       {std::pair("b200", "grouped_matmul.nvfp4.bf16.sm_80.tensor_core"),
        std::pair("rtx-pro-6000", "grouped_matmul.nvfp4.bf16.sm_120.tensor_core")}) {
    const Plan plan = make_plan(description, {}, on(device));
    EXPECT_EQ(module_of(plan, "routed_experts").kernel->name, kernel);
    EXPECT_THAT(module_of(plan, "routed_experts").why,
                HasSubstr("W4A16: no kernel for this GPU multiplies activations in FP4"));
  }
  const Plan b200 = make_plan(description, {}, on("b200"));
  // Draft and model differ: each gets its own.
  EXPECT_EQ(module_of(b200, "draft_routed_experts").format, "mxfp4");
  EXPECT_THAT(codes_of(b200, quant::Severity::kInfo), Contains("Q-C7"));
}

TEST(PlanKernels, UnknownGenerationHasNoneK1) {
  PlanOptions options = on("h200");
  options.device.name = "future";
  options.device.sm = 130;
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-K1"));
  EXPECT_FALSE(plan.modules.empty());
  EXPECT_EQ(module_of(plan, "routed_experts").format, "mxfp4");
  EXPECT_EQ(module_of(plan, "routed_experts").kernel, nullptr);
}

// B32: a kernel that was asked for is honoured or refused.
TEST(PlanKernels, ForcedKernelIsHonouredOrRefusedB32) {
  PlanOptions options = on("h200");
  options.only_kernel = "avx512";
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-K4"));
}

TEST(PlanKernels, ForcedKernelsSayWhatTheyCost) {
  PlanOptions options = on("cpu");
  EXPECT_THAT(forced_cost(make_plan(flash(), {}, options)).modules, IsEmpty());
  options.only_kernel = "scalar";
  const Plan plan = make_plan(flash(), {}, options);
  const ForcedCost cost = forced_cost(plan);
  ASSERT_FALSE(cost.modules.empty()) << text_of(plan);
  for (const ForcedModule& forced : cost.modules) {
    EXPECT_EQ(forced.module->kernel->unit, kernels::ComputeUnit::kScalar);
    EXPECT_EQ(forced.module->unforced->unit, kernels::ComputeUnit::kSimd);
    EXPECT_GT(forced.us, forced.unforced_us) << forced.module->module_class;
    EXPECT_LT(forced.share, 0.9);
  }
  EXPECT_GT(cost.step_us, cost.unforced_step_us);
  EXPECT_THAT(plan_text(plan), HasSubstr("--kernel: routed_experts on grouped_matmul.mxfp4.f32"));
  EXPECT_THAT(short_plan_text(plan), HasSubstr("--kernel: in all about "));

  options.concurrency = 64;
  const Plan wide = make_plan(flash(), {}, options);
  EXPECT_GT(forced_cost(wide).step_us, 8 * cost.step_us) << "a multiply-add per token and weight";
}

// What was timed on that generation is estimated from it; elsewhere there is a bound.
TEST(PlanKernels, ForcedKernelsOfGpusSayWhatTheyCost) {
  PlanOptions options = on("h200");
  options.only_kernel = "sm_80";
  for (const int32_t batch : {1, 16, 256}) {
    options.concurrency = batch;
    const Plan plan = make_plan(flash(), {}, options);
    const ForcedCost cost = forced_cost(plan);
    ASSERT_FALSE(cost.modules.empty()) << text_of(plan);
    for (const ForcedModule& forced : cost.modules) {
      const kernels::Timing& timed = forced.module->kernel->timed;
      EXPECT_EQ(forced.timed_on, timed.on.where) << forced.module->kernel->name;
      const auto at = std::find(kernels::kTimedTokens.begin(), kernels::kTimedTokens.end(), batch);
      EXPECT_NEAR(forced.share,
                  timed.shares[static_cast<size_t>(at - kernels::kTimedTokens.begin())],
                  1e-9);
      EXPECT_GT(forced.us, forced.unforced_us) << forced.module->kernel->name;
      EXPECT_THAT(plan_text(plan),
                  HasSubstr(fmt::format(
                      "% of the read rate, as timed on {}; {:.1f} times the {:.0f} us of {} ",
                      timed.on.where,
                      forced.us / forced.unforced_us,
                      forced.unforced_us,
                      forced.module->unforced->name)));
    }
    EXPECT_THAT(plan_text(plan), HasSubstr("--kernel: in all about "));
  }

  PlanOptions untimed = on("rtx-pro-6000");
  untimed.without_kernel = "sm_120";
  const std::string text = plan_text(make_plan(flash(), {}, untimed));
  EXPECT_THAT(text, HasSubstr("portable (tensor_core): at least "));
  EXPECT_THAT(text, HasSubstr("--without-kernel: in all at most "));
  EXPECT_THAT(text, HasSubstr("; bounds, not measurements)"));
}

TEST(PlanKernels, TimedSharesAreReadBetweenAndBeyondTheirTokens) {
  const kernels::KernelInfo kernel{
      .timed = {.on = {.where = "a GPU", .sm = 100}, .shares = {0.5, 0.25, 0.2, 0.1}}};
  const auto share = [&](std::string_view device, double tokens) {
    return kernels::timed_share(kernel, find_device_sheet(device)->info(), tokens);
  };
  EXPECT_DOUBLE_EQ(share("b200", 1).value(), 0.5);
  EXPECT_DOUBLE_EQ(share("b300", 8.5).value(), 1 / 3.0);
  EXPECT_DOUBLE_EQ(share("b200", 64).value(), 0.2);
  EXPECT_DOUBLE_EQ(share("b200", 1024).value(), 0.025);
  EXPECT_EQ(share("h200", 1), std::nullopt);
}

// What a build lacks is refused in words that name it.
TEST(PlanKernels, OfAnotherBuildAreNamed) {
  if (device::has_cuda_backend()) GTEST_SKIP() << "this build has them";
  const Plan plan = make_plan(flash(), {}, on("h200"));
  EXPECT_FALSE(plan.is_runnable());
  EXPECT_THAT(plan.not_runnable, HasSubstr("has no launcher for"));
  const Plan untested = make_plan(flash(), {}, on("rtx-pro-6000"));
  EXPECT_THAT(plan_text(untested), HasSubstr("not run on hardware"));
}

TEST(PlanKernels, SlowerThanBestNeedsPermissionK7) {
  V4Shape odd = quant::v4_small();
  odd.intermediate = 296;  // k of w2
  PlanOptions options = on("rtx-pro-6000");
  const auto description = v4(odd,
                              {.linears = V4Weights::kBf16,
                               .experts = V4Weights::kFp8Block,
                               .draft_experts = V4Weights::kFp8Block},
                              "");
  const Plan plan = make_plan(description, {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-K7")) << text_of(plan);
  options.allow_slow = {
      "routed_experts", "draft_routed_experts", "shared_experts", "draft_shared_experts"};
  const Plan allowed = make_plan(description, {}, options);
  EXPECT_THAT(codes_of(allowed, quant::Severity::kError), IsEmpty()) << text_of(allowed);
  EXPECT_THAT(text_of(allowed), HasSubstr("k 296, needs a multiple of 16"));
}

// Invariant 15.
TEST(PlanKernels, ReferenceIsAnErrorUnlessAllowedK7) {
  PlanOptions options = on("cpu");
  options.device.isa = 0;
  const auto description = v4(quant::v4_small(), {});
  const Plan refused = make_plan(description, {}, options);
  EXPECT_THAT(codes_of(refused, quant::Severity::kError), testing::ElementsAre("Q-K7"));
  EXPECT_FALSE(refused.is_runnable());
  EXPECT_THAT(text_of(refused), HasSubstr("needs avx2, device has scalar"));
  options.allow_reference = true;
  const Plan allowed = make_plan(description, {}, options);
  EXPECT_TRUE(allowed.is_runnable()) << text_of(allowed);
  EXPECT_THAT(text_of(allowed), HasSubstr("warning[Q-K7]"));
}

TEST(PlanKernels, OnlyQuantisedWeightsAreWidened) {
  const Plan plan = make_plan(v4(quant::v4_small(), {}), {}, on("rtx-pro-6000"));
  for (const PlannedModule& module : plan.modules) {
    EXPECT_THAT(module.why, Not(HasSubstr("W8A16"))) << module.module_class;
  }
}

// The bundled model, loaded.
struct LoadedTiny {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Model> model;
};

std::unique_ptr<device::Device> device_of(device::DeviceKind kind) {
  return kind == device::DeviceKind::kCpu ? device::make_host_device({.num_threads = 1}).value()
                                          : device::make_emulated_gpu(1).value();
}

LoadedTiny load_tiny(const PlanOptions& options) {
  LoadedTiny loaded{.device = device_of(options.device.kind)};
  models::LoadOptions load;
  load.routing = {.deterministic = options.deterministic,
                  .allow_reference = options.allow_reference};
  load.precision = options.precision;
  load.kv_dtype = options.kv_dtype;
  load.load_mtp = options.loads_draft;
  const auto checkpoint =
      checkpoint::Checkpoint::open(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  loaded.model = models::load_model(checkpoint, *loaded.device, load).value();
  return loaded;
}

Plan plan_tiny(PlanOptions options, device::DeviceKind kind = device::DeviceKind::kCpu) {
  const auto local =
      checkpoint::describe_directory(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  const auto read = [&](size_t tensor, int64_t begin, int64_t count) {
    return local.read(tensor, begin, count);
  };
  options.device = local_sheet(device_of(kind)->info(), 1e10);
  return make_plan(local.description, read, options);
}

// What a plan says is what loading does, in every mode: the same kernels, the same state to the
// byte, and the bytes of the weights within 3%.
TEST(PlanKernels, AreThoseThatLoadingTakes) {
  for (const models::Precision precision :
       {models::Precision::kDefault, models::Precision::kReference, models::Precision::kFaithful}) {
    for (const models::KvDtype kv_dtype :
         {models::KvDtype::kAuto, models::KvDtype::kBf16, models::KvDtype::kFp8}) {
      const bool loads_draft = kv_dtype != models::KvDtype::kBf16;
      const Plan plan = plan_tiny({.context = 5000,
                                   .concurrency = 3,
                                   .pass_tokens = 96,
                                   .precision = precision,
                                   .kv_dtype = kv_dtype,
                                   .loads_draft = loads_draft});
      EXPECT_THAT(plan.diagnostics, IsEmpty()) << text_of(plan);
      EXPECT_TRUE(plan.is_runnable());
      const LoadedTiny loaded = load_tiny(plan.options);
      const auto weights = static_cast<double>(loaded.model->weights_bytes());
      EXPECT_NEAR(static_cast<double>(plan.memory->weights), weights, 0.03 * weights);
      EXPECT_TRUE(check_executed(plan, loaded.model->routed_modules()).ok());
      ASSERT_TRUE(loaded.model->reserve_state(planned_state(plan)).ok());
      EXPECT_EQ(loaded.model->state_bytes(),
                plan.memory->kv() + plan.memory->compressor_state + plan.memory->draft_state +
                    plan.memory->workspace);
    }
  }
}

// A weight of a GPU has kernels for several ranges of rows; the plan names each.
TEST(PlanKernels, AreThoseThatAGpuTakesForEveryNumberOfRows) {
  using models::Precision;
  for (const auto& [deterministic, precision] : {std::pair(false, Precision::kDefault),
                                                 {true, Precision::kDefault},
                                                 {false, Precision::kReference},
                                                 {true, Precision::kReference}}) {
    const Plan plan = plan_tiny({.context = 2048,
                                 .concurrency = 2,
                                 .pass_tokens = 96,
                                 .precision = precision,
                                 .deterministic = deterministic,
                                 .loads_draft = true,
                                 .allow_reference = true},
                                device::DeviceKind::kCuda);
    EXPECT_TRUE(plan.is_runnable()) << text_of(plan);
    const LoadedTiny loaded = load_tiny(plan.options);
    const Result<void> result = check_executed(plan, loaded.model->routed_modules());
    EXPECT_TRUE(result.ok()) << result.error().message;
    ASSERT_TRUE(loaded.model->reserve_state(planned_state(plan)).ok());
    EXPECT_EQ(loaded.model->state_bytes(),
              plan.memory->kv() + plan.memory->compressor_state + plan.memory->draft_state +
                  plan.memory->workspace);
    if (precision != Precision::kDefault) continue;
    const auto& attention = *std::find_if(plan.modules.begin(), plan.modules.end(), [](auto& m) {
      return m.module_class == "attention";
    });
    EXPECT_EQ(attention.by_rows.size(), deterministic ? 1 : 2);
  }
}

// Launches of a decode step of sequences without context; `is_queued`: whose tokens the GPU
// chooses.
int32_t launches_of_step(const LoadedTiny& loaded, int32_t batch, bool is_queued = true) {
  int32_t count = 0;
  // Which launches a step makes does not depend on what they compute.
  const device::LaunchObserver observer{[&](const device::ObservedLaunch&) {
    ++count;
    return Result<void>();
  }};
  const auto size = static_cast<size_t>(batch);
  std::vector<SlotId> slots;
  std::vector<PageId> pages;
  std::vector<int32_t> rows, ends = {0};
  for (int32_t i = 0; i < batch; ++i) {
    slots.push_back(SlotId{i});
    pages.push_back(PageId{i});
    rows.push_back(i);
    ends.push_back(i + 1);
    loaded.model->reset_slot(slots.back());
  }
  std::vector<std::span<const PageId>> tables;
  for (const PageId& page : pages) tables.emplace_back(&page, 1);
  const std::vector<int32_t> tokens(size, 5), positions(size, 0);
  const std::vector<models::DeviceSampling> greedy(size);
  models::ForwardOutput output;
  loaded.device->stream().observer = &observer;
  const Result<void> ran =
      is_queued
          ? loaded.model->queue_decode(
                {.slots = slots, .block_tables = tables, .token_ids = tokens, .sampling = greedy})
          : loaded.model->forward({.token_ids = tokens,
                                   .positions = positions,
                                   .cu_seqlens = ends,
                                   .slots = slots,
                                   .block_tables = tables,
                                   .logits_rows = rows},
                                  output);
  loaded.device->stream().observer = nullptr;
  EXPECT_TRUE(ran.ok()) << ran.error().message;
  if (!is_queued) return count;
  EXPECT_EQ(loaded.model->fetch_decoded().value().size(), size);
  return count;
}

TEST(PlanSteps, LaunchesAreThoseThatAStepMakes) {
  const PlanOptions options{.context = 256, .pass_tokens = 64, .allow_reference = true};
  const auto planned = [&](int32_t batch) {
    PlanOptions of_batch = options;
    of_batch.concurrency = batch;
    return plan_tiny(of_batch, device::DeviceKind::kCuda);
  };
  const Plan largest = planned(257);
  PlanOptions to_load = largest.options;
  to_load.loads_draft = true;  // as GPUs do
  const LoadedTiny loaded = load_tiny(to_load);
  ASSERT_TRUE(loaded.model->reserve_state(planned_state(largest)).ok());
  for (const int32_t batch : {1, 4, 16, 32, 64}) {
    EXPECT_EQ(batch_of(planned(batch), batch).num_launches, launches_of_step(loaded, batch))
        << batch;
  }
  // More than any queued step has.
  EXPECT_EQ(batch_of(largest, 257).num_launches, launches_of_step(loaded, 257, false));
}

// Experts in one tensor per layer take the memory that they take apart.
TEST(PlanMemory, OfFusedExpertsIsThatOfThemApart) {
  V4Shape shape = quant::v4_flash();
  shape.experts = 8;
  for (const V4Weights weights : {V4Weights::kBf16, V4Weights::kMxfp4}) {
    quant::Fixture apart = quant::v4_fixture(shape, {.experts = weights, .draft = V4Draft::kNone});
    apart.config("config.json", quant::v4_config(shape, quant::kV4NativeSection));
    quant::Fixture fused = apart;
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::string experts = "layers." + std::to_string(layer) + ".ffn.experts.";
      const std::string to = "model.layers." + std::to_string(layer) + ".mlp.experts.";
      const auto fuse = [&](const std::string& stored, const std::string& name, int64_t parts) {
        const TensorMeta* const one = apart.find(experts + "0." + stored);
        if (one == nullptr) return;  // scales, where there are none
        fused.add(to + name, one->dtype, {shape.experts, parts * one->shape[0], one->shape[1]});
      };
      fuse("w1.weight", "gate_up_proj", 2);
      fuse("w1.scale", "gate_up_proj_scale_inv", 2);
      fuse("w2.weight", "down_proj", 1);
      fuse("w2.scale", "down_proj_scale_inv", 1);
      std::erase_if(fused.tensors,
                    [&](const TensorMeta& tensor) { return tensor.name.rfind(experts, 0) == 0; });
    }
    const Plan of_apart = make_plan(describe(apart), {}, on("h200"));
    const Plan of_fused = make_plan(describe(fused), {}, on("h200"));
    EXPECT_GT(of_fused.memory->workspace, 100'000'000);
    EXPECT_EQ(of_fused.memory->workspace, of_apart.memory->workspace);
    EXPECT_EQ(of_fused.memory->weights, of_apart.memory->weights);
  }
}

TEST(PlanMemory, IsWhatAnEngineAllocates) {
  for (const models::KvDtype kv_dtype : {models::KvDtype::kBf16, models::KvDtype::kFp8}) {
    const Plan plan =
        plan_tiny({.kv_dtype = kv_dtype, .kv = KvDivision{.budget_bytes = 100'000'000}});
    const PlanMemory& memory = *plan.memory;
    ASSERT_GT(plan.kv->num_snapshots, 0);
    LoadedTiny loaded = load_tiny(plan.options);
    const int64_t weights = loaded.model->weights_bytes();
    const auto runner = make_model_runner(std::move(loaded.model),
                                          planned_state(plan),
                                          comm::make_local_communicator(),
                                          plan.kv->num_snapshots);
    ASSERT_TRUE(runner.ok());
    EXPECT_EQ((*runner)->memory_bytes() - weights,
              memory.kv() + memory.compressor_state + memory.snapshots + memory.workspace);
  }
}

TEST(PlanKernels, Fp8KeysHaveKernelsOfTheirOwn) {
  const Plan plan = plan_tiny({.kv_dtype = models::KvDtype::kFp8});
  for (const PlannedOp& op : plan.ops) {
    const bool reads_keys = op.name == "sparse_attention" || op.name == "indexer_score";
    EXPECT_EQ(op.kernel->keys == kernels::KeyForm::kFp8, reads_keys) << op.kernel->name;
  }
}

// Spec "deepseek-v4" 6.2: 584 / 128 and (584 + 132) / 4 bytes per token and layer.
TEST(PlanMemory, HasTheBytesPerTokenOfEachForm) {
  const Plan plan = plan_tiny({.kv_dtype = models::KvDtype::kFp8});
  const auto& forms = plan.memory->kv_forms;
  ASSERT_EQ(forms.size(), 2U);
  EXPECT_EQ(forms[0].name, "fp8");
  EXPECT_DOUBLE_EQ(forms[0].entries_4, 2 * 584 / 4.0);
  EXPECT_DOUBLE_EQ(forms[0].index_entries, 2 * 132 / 4.0);
  EXPECT_DOUBLE_EQ(forms[0].entries_128, 2 * 584 / 128.0);
  EXPECT_EQ(forms[0].windows, 6 * 256 * 584);
  EXPECT_EQ(forms[1].name, "bf16");
  EXPECT_DOUBLE_EQ(forms[1].per_token(), 2 * (1024 + 256) / 4.0 + 2 * 1024 / 128.0);
  EXPECT_EQ(forms[1].windows, 6 * 256 * 1024);
  EXPECT_THAT(plan_text(plan), HasSubstr("fp8 *"));
  EXPECT_THAT(short_plan_text(plan), HasSubstr("(fp8, 367 bytes per token)"));

  const Plan gpu = make_plan(flash(), {}, on("h200", 2));
  EXPECT_EQ(gpu.memory->kv_forms[0].name, "bf16");
  EXPECT_DOUBLE_EQ(gpu.memory->kv_forms[0].per_token(), 6880);
  EXPECT_EQ(gpu.memory->kv_forms[1].name, "fp8");
  EXPECT_DOUBLE_EQ(gpu.memory->kv_forms[1].per_token(), 3850.25);
}

TEST(PlanMemory, AnFp8CacheHoldsMoreTokensInTheSameBudget) {
  PlanOptions options{
      .kv = KvDivision{.budget_bytes = 50'000'000, .num_slots = 1, .num_tokens = 1'000'000}};
  const int64_t plain = plan_tiny(options).kv->num_tokens();
  options.kv_dtype = models::KvDtype::kFp8;
  EXPECT_GT(plan_tiny(options).kv->num_tokens(), plain * 3 / 2);
}

TEST(PlanKernels, OthersThanThePlannedAreOurFault) {
  const Plan plan = plan_tiny({});
  std::vector<models::RoutedModule> loaded = load_tiny(plan.options).model->routed_modules();
  for (const kernels::KernelInfo* kernel : kernels::all_kernels()) {
    if (is_reference(*kernel)) loaded.back().route.kernel = kernel;
  }
  const Result<void> result = check_executed(plan, loaded);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Errc::kInternal);
}

// --- checks against config.json, and sharding ---

TEST(PlanChecks, MissingModuleIsC1b) {
  auto description = v4(quant::v4_small(), {});
  std::erase_if(description.tensors, [](const TensorMeta& tensor) {
    return tensor.name == "layers.1.attn.kv_norm.weight";
  });
  const Plan plan = make_plan(description, {}, on("h200"));
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-C1b"));
  EXPECT_THAT(text_of(plan), HasSubstr("layers.1.attn.kv_norm"));
}

TEST(PlanChecks, ShapesThatConfigContradictsAreD2) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  V4Shape other = quant::v4_small();
  other.intermediate = 512;
  fixture.config("config.json", quant::v4_config(other, quant::kV4NativeSection));
  const Plan plan = make_plan(describe(fixture), {}, on("h200"));
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-D2"));
  EXPECT_THAT(text_of(plan), HasSubstr("stored as [256, 256]; expected [512, 256] by config.json"));
}

// B38: shards of 80 rows against blocks of 128.
TEST(PlanChecks, OddSizesOfPackedCodesAreP2) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  std::string config = quant::v4_config(quant::v4_small(), quant::kV4NativeSection);
  config.replace(config.find("\"hidden_size\":256"), 17, "\"hidden_size\":255");
  fixture.config("config.json", config);
  const Plan plan = make_plan(describe(fixture), {}, on("h200"));
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-P2"));
}

TEST(PlanChecks, Fp8KeysNeedWholeBlocksOfDimensions) {
  quant::Fixture fixture = quant::v4_fixture(quant::v4_small(), {});
  std::string config = quant::v4_config(quant::v4_small(), quant::kV4NativeSection);
  config.replace(config.find("\"head_dim\":256"), 14, "\"head_dim\":224");
  fixture.config("config.json", config);
  PlanOptions options = on("h200");
  options.kv_dtype = models::KvDtype::kFp8;
  const Plan plan = make_plan(describe(fixture), {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-P4"));
  EXPECT_THAT(text_of(plan),
              HasSubstr("head_dim - qk_rope_head_dim 160 is no multiple of 64, which a scale "
                        "covers. Fix: --kv-cache-dtype bf16."));
}

TEST(PlanChecks, ShardsThatCutBlocksAreP3B38) {
  V4Shape shape = quant::v4_small();
  shape.intermediate = 640;
  PlanOptions options = on("h200", 4);
  const auto description = v4(shape, {});
  const Plan plan = make_plan(description, {}, options);
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-P3"));
  EXPECT_THAT(
      text_of(plan),
      HasSubstr("layers.*.ffn.shared_experts.w1: N=640 over tp=4 leaves 160 per device, not "
                "a multiple of the 128 FP8 block; valid tp: 1. Fix: use one of them, or "
                "--pad-fp8-blocks"));
  options.device.memory_bytes = int64_t{1} << 40;
  options.pads_fp8_blocks = true;
  EXPECT_THAT(text_of(make_plan(description, {}, options)), HasSubstr("warning[Q-P3]"));
}

TEST(PlanChecks, DamagedFilesComeWithWhatCouldBeResolved) {
  auto description = v4(quant::v4_small(), {});
  Error fault = data_loss("model-2.safetensors: the download is incomplete");
  fault.reason = "Q-F1";
  description.faults.push_back(fault);
  const Plan plan = make_plan(description, {}, on("h200"));
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), Contains("Q-F1"));
  EXPECT_EQ(module_of(plan, "routed_experts").format, "mxfp4");
}

TEST(PlanChecks, OtherModelsAreDetectedAndSaidSo) {
  quant::Fixture fixture;
  fixture.dense("model.embed_tokens", 512, 256);
  fixture.dense("lm_head", 512, 256);
  fixture.dense("model.layers.0.self_attn.q_proj", 256, 256);
  fixture.nvfp4_ct("model.layers.0.mlp.experts.0.up_proj", 256, 256);
  fixture.config(
      "config.json",
      R"({"model_type":"qwen3_moe","num_hidden_layers":1,"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"float","group_size":16}}},"ignore":["lm_head","re:.*self_attn.*"]}})");
  const Plan plan = make_plan(describe(fixture), {}, on("rtx-5090"));
  EXPECT_THAT(codes_of(plan, quant::Severity::kError), IsEmpty()) << text_of(plan);
  EXPECT_THAT(text_of(plan), HasSubstr("this version runs deepseek_v4 only"));
  EXPECT_FALSE(plan.is_runnable());
  EXPECT_EQ(module_of(plan, "routed_experts").kernel->name,
            "grouped_matmul.nvfp4.bf16.sm_120.tensor_core");
}

// --- renderings ---

TEST(PlanRender, JsonHasTheStatedFields) {
  const Plan plan = make_plan(form_b(quant::v4_small()), {}, on("rtx-pro-6000", 8));
  const json::Value json = plan_json(plan);
  for (const char* key :
       {"errors", "warnings", "modules", "memory", "download", "performance", "ops", "device"}) {
    EXPECT_NE(json.find(key), nullptr) << key;
  }
  std::set<std::string> classes;
  for (const json::Value& module : *json.find("modules")->as_array()) {
    for (const char* key : {"class",
                            "layers",
                            "format",
                            "evidence",
                            "kernel",
                            "unit",
                            "status",
                            "verified",
                            "why",
                            "refused"}) {
      EXPECT_NE(module.find(key), nullptr) << key;
    }
    classes.insert(*module.find("class")->as_string());
    EXPECT_THAT(*module.find("status")->as_string(), testing::AnyOf("compiled", "planned"));
    EXPECT_THAT(*module.find("verified")->as_string(), testing::StartsWith("not run on hardware"));
  }
  EXPECT_THAT(classes,
              testing::IsSupersetOf({"embedding",
                                     "attention",
                                     "router",
                                     "shared_experts",
                                     "routed_experts",
                                     "lm_head",
                                     "norm",
                                     "hyper_connection",
                                     "draft_attention",
                                     "draft_routed_experts"}));
}

// What ran on an H200 has not run on another generation.
TEST(PlanRender, MarksKernelsThatHaveNotRunOnSuchHardware) {
  const std::string elsewhere = "not run on hardware of sm_100, only on NVIDIA H200, 2026-12-01";
  const std::map<std::string, std::string> attention = {{"h200", "NVIDIA H200, 2026-12-01"},
                                                        {"h100", "NVIDIA H200, 2026-12-01"},
                                                        {"b200", elsewhere},
                                                        {"rtx-pro-6000", "not run on hardware"},
                                                        {"cpu", "AMD EPYC (Zen 5), 2026-11-29"}};
  for (const auto& [device, verified] : attention) {
    const Plan plan = make_plan(form_b(quant::v4_small()), {}, on(device));
    const json::Value json = plan_json(plan);
    for (const json::Value& module : *json.find("modules")->as_array()) {
      if (*module.find("class")->as_string() != "attention") continue;
      EXPECT_EQ(*module.find("verified")->as_string(), verified) << device;
    }
    const bool has_run = verified.front() != 'n';
    EXPECT_THAT(plan_text(plan), HasSubstr((has_run ? ", verified on " : ", ") + verified + ")"));
    EXPECT_EQ(short_plan_text(plan).find("not run on hardware") == std::string::npos, has_run);
  }
}

TEST(PlanRender, TextNamesKernelsMemoryAndBounds) {
  const std::string text = plan_text(make_plan(flash(), {}, on("rtx-pro-6000", 8)));
  EXPECT_THAT(text, HasSubstr("8x RTX PRO 6000 Blackwell (sm_120, 96.0 GB, 1.45 TB/s)"));
  EXPECT_THAT(text,
              HasSubstr("-> grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode (tensor_core, "
                        "compiled, not run on hardware)"));
  EXPECT_THAT(text, HasSubstr("header: I8 + F8_E8M0/32; expert_dtype fp4 (config.json)"));
  EXPECT_THAT(text, HasSubstr("it fits"));
  EXPECT_THAT(text, HasSubstr("199.9"));
}

// The question of the founding story.
TEST(PlanRender, ComparisonAnswersNativeAgainstNvfp4) {
  const Plan plans[] = {
      make_plan(flash(), {}, on("rtx-pro-6000", 8)),
      make_plan(form_b(quant::v4_flash()), {}, on("rtx-pro-6000", 8)),
  };
  const std::string text = comparison_text(plans);
  EXPECT_THAT(text, HasSubstr("8x rtx-pro-6000   mxfp4             159.6 GB     21.0 GB  yes"));
  EXPECT_THAT(text, HasSubstr("8x rtx-pro-6000   nvfp4             168.3 GB     22.0 GB  yes"));
  // Scales of 16 instead of 32: 4.5 bits against 4.25, which costs more where experts are the
  // bytes.
  EXPECT_THAT(text, HasSubstr("batch 1 -0.7%, batch 16 -3.2%, batch 64 -3.7%, download +5.4%"));
  EXPECT_THAT(text, HasSubstr("mxfp4 -> grouped_matmul.mxfp4.fp8.sm_120.tensor_core.decode"));
  EXPECT_THAT(text, HasSubstr("nvfp4 -> grouped_matmul.nvfp4.bf16.sm_120.tensor_core (tensor"));
  EXPECT_THAT(text, HasSubstr("info[Q-C7] draft experts are mxfp4, the model's are nvfp4"));
}

TEST(PlanRender, ShortFormHasFormatsKernelsWhyAndMemory) {
  const std::string text = short_plan_text(plan_tiny({.concurrency = 2}));
  EXPECT_THAT(text, HasSubstr("plan: deepseek_v4, 6 layers on "));
  EXPECT_THAT(text, HasSubstr("context 16384, 2 sequences\n"));
  EXPECT_THAT(text, HasSubstr("that takes it) for routed_experts\n"));
  EXPECT_THAT(text, HasSubstr("  memory "));
  EXPECT_THAT(text, Not(HasSubstr("draft_")));  // not loaded
}

TEST(DeviceSheets, AreFoundByName) {
  for (const char* name : {"rtx-pro-6000",
                           "rtx-5090",
                           "h100",
                           "h200",
                           "b200",
                           "b300",
                           "a100",
                           "l40s",
                           "gb10",
                           "cpu"}) {
    EXPECT_EQ(find_device_sheet(name)->name, name);
  }
  const Result<DeviceSheet> none = find_device_sheet("h300");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("rtx-pro-6000, rtx-5090"));
}

}  // namespace
}  // namespace nibble::engine
