// What a plan counts from headers alone, against what decoding state, workspace and snapshots of
// that plan take: the shapes of `mini`, whose weights none of them needs.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "checkpoint/model_description.h"
#include "engine/plan.h"
#include "models/deepseek_v4/state.h"
#include "models/deepseek_v4/workspace.h"
#include "tools/synth/presets.h"
#include "tools/synth/synth.h"

namespace nibble::tools {
namespace {

using checkpoint::ConfigReader;
using models::KvDtype;
namespace v4 = models::deepseek_v4;

checkpoint::ModelDescription describe(const Synthesis& synthesis) {
  checkpoint::ModelDescription description;
  description.name = "mini";
  description.configs = {{.file_name = "config.json", .text = config_text(synthesis.config)}};
  description.shards = {{.file_name = "memory"}};
  for (const Piece& piece : synthesis.pieces) {
    for (const TensorMeta& tensor : piece.tensors) {
      description.tensors.push_back(tensor);
      description.shard_of.push_back(0);
      description.data_begin.push_back(0);
    }
  }
  return description;
}

// Resident and swapped memory of this process.
int64_t memory_bytes() {
  std::ifstream status("/proc/self/status");
  int64_t kilobytes = 0;
  for (std::string word; status >> word;) {
    int64_t value = 0;
    if ((word == "VmRSS:" || word == "VmSwap:") && status >> value) kilobytes += value;
  }
  return kilobytes * 1024;
}

void expect_within_3_percent(int64_t found, int64_t planned) {
  EXPECT_NEAR(static_cast<double>(found),
              static_cast<double>(planned),
              0.03 * static_cast<double>(planned));
}

class PlannedMemory : public ::testing::TestWithParam<KvDtype> {
 protected:
  engine::Plan make_plan(const checkpoint::ModelDescription& description) const {
    return engine::make_plan(description,
                             {},
                             {.device = engine::local_sheet(device_->info(), 1e10),
                              .kv_dtype = GetParam(),
                              .kv = engine::KvDivision{.budget_bytes = 400'000'000}});
  }

  std::unique_ptr<device::Device> device_ = device::make_host_device({.num_threads = 1}).value();
};

TEST_P(PlannedMemory, IsWhatBecomesResident) {
  const Synthesis synthesis = synthesize(*preset_config("mini"), {}).value();
  const engine::Plan plan = make_plan(describe(synthesis));
  ASSERT_TRUE(plan.memory.has_value());
  const engine::PlanMemory& planned = *plan.memory;
  const auto reader = ConfigReader::parse(config_text(synthesis.config), "config.json").value();
  const v4::Config config = v4::parse_config(reader).value();
  const v4::Numerics numerics = v4::numerics_of(models::Precision::kDefault, GetParam());
  models::StateOptions options = engine::planned_state(plan);
  options.is_resident = true;

  const int64_t before = memory_bytes();
  auto state = v4::DecodingState::make(config, numerics, false, options, *device_).value();
  const auto workspace = v4::Workspace::make(config, false, options, *device_).value();
  const int64_t grown = memory_bytes() - before;

  EXPECT_EQ(state.num_bytes(), planned.kv() + planned.compressor_state + planned.draft_state);
  EXPECT_EQ(workspace.storage.num_bytes(), planned.workspace);
  EXPECT_GT(planned.kv(), 100'000'000);
  expect_within_3_percent(grown, state.num_bytes() + planned.workspace);
  RecordProperty("planned", std::to_string(state.num_bytes() + planned.workspace));
  RecordProperty("resident", std::to_string(grown));

  state.status(SlotId{0}) = {.length = v4::kPageSize, .high_water = v4::kPageSize};
  const auto snapshot = state.save(SlotId{0}, 0).value();
  ASSERT_GT(plan.kv->num_snapshots, 0);
  const int64_t snapshots = static_cast<int64_t>(snapshot.size()) * plan.kv->num_snapshots;
  expect_within_3_percent(snapshots, planned.snapshots);
  RecordProperty("planned_snapshots", std::to_string(planned.snapshots));
  RecordProperty("snapshots", std::to_string(snapshots));
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         PlannedMemory,
                         ::testing::Values(KvDtype::kBf16, KvDtype::kFp8),
                         [](const auto& param) {
                           return std::string(param.param == KvDtype::kBf16 ? "bf16" : "fp8");
                         });

}  // namespace
}  // namespace nibble::tools
