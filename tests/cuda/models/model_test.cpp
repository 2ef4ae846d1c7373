// Whole models on a GPU: every weight format against the reference mode of the CPU, and with
// deterministic kernels the same tokens whoever runs beside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/temporary_directory_testing.h"
#include "convert/convert_testing.h"
#include "golden/editable_model.h"
#include "golden/golden_testing.h"
#include "quant/numeric.h"

namespace nibble::golden {
namespace {

constexpr int32_t kTokens = 1000;

// Every scaled weight of tiny-v4 as the BF16 that it stands for, without loss.
Path bf16_tiny() {
  static EditableModel model = [] {
    EditableModel made = EditableModel::read(tiny_v4_dir());
    made.dequantize();
    for (auto& [name, tensor] : made.tensors) {
      const bool is_matrix = name.ends_with(".weight") && tensor.shape.rank() == 2;
      if (!is_matrix || tensor.dtype != DType::kF32) continue;
      const auto count = static_cast<size_t>(tensor.shape.num_elements());
      std::vector<uint16_t> values(count);
      std::transform(
          tensor.as<float>(), tensor.as<float>() + count, values.begin(), quant::f32_to_bf16);
      tensor.dtype = DType::kBf16;
      tensor.bytes.resize(count * sizeof(uint16_t));
      std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    }
    return made;
  }();
  return model.write();
}

// `from` in another format, for as long as the program runs.
Path converted(const Path& from, tools::CheckpointFormat format) {
  static std::vector<checkpoint::TemporaryDirectory> dirs(4);
  const Path out = dirs[static_cast<size_t>(format)].path() / "model";
  if (!std::filesystem::exists(out)) tools::convert_ok(from, {.out = out, .format = format});
  return out;
}

Path dir_of(const std::string& model) {
  if (model == "tiny_v4_bf16") return bf16_tiny();
  if (model == "tiny_v4_nvfp4") return converted(tiny_v4_dir(), tools::CheckpointFormat::kNvfp4);
  if (model == "tiny_v4_int4") return converted(bf16_tiny(), tools::CheckpointFormat::kInt4);
  return model.starts_with("tiny_v4") ? tiny_v4_dir() : golden_dir(model);
}

struct Expected {
  Loaded loaded;
  std::vector<int32_t> ids;
  models::Decisions decisions;
  RunResult result;
  bool has_mtp = false;

  explicit Expected(const Path& dir, bool is_prose) : loaded(load(dir, {.num_threads = 0})) {
    ids = is_prose ? prose_ids(kTokens) : random_ids(*loaded.model, kTokens, 1);
    has_mtp = loaded.model->info().has_mtp;
    result = Sequence(*loaded.model).run(ids, {.mtp = has_mtp, .record = &decisions});
  }
};

using Case = std::tuple<const char*, models::Precision>;

class ModelOnGpu : public testing::TestWithParam<Case> {
 protected:
  std::string name() const { return std::get<0>(GetParam()); }
  bool is_prose() const { return name().starts_with("tiny_v4"); }
  bool has_fp8_keys() const { return name().ends_with("_fp8_keys"); }
  Loaded load_gpu() const {
    return load(dir_of(name()),
                {.device = On::kGpu,
                 .precision = std::get<1>(GetParam()),
                 .kv_dtype = has_fp8_keys() ? models::KvDtype::kFp8 : models::KvDtype::kAuto,
                 .state = {.max_context = 4096}});
  }
};

// Pieces of 150 tokens take the kernels of prefills, pieces of 3 those of decoding.
TEST_P(ModelOnGpu, StaysNearTheReferenceOnEqualDecisions) {
  const Expected expected(dir_of(name()), is_prose());
  const Loaded gpu = load_gpu();
  const auto ids = std::span(expected.ids).first(400);
  for (const int32_t chunk : {150, 3}) {
    const Replayed runs = replay_on(*gpu.model,
                                    *expected.loaded.model,
                                    expected.decisions,
                                    ids,
                                    {.chunk = chunk, .mtp = expected.has_mtp});
    const Distance imposed = distance_between(runs.reference.logits, runs.device.logits);
    EXPECT_LE(imposed.max, has_fp8_keys() ? 1.0 : 0.7);  // docs/testing.md
    EXPECT_LE(imposed.rms, 0.2);
    EXPECT_EQ(imposed.clear_flips, 0);
    EXPECT_LE(runs.other_roundings,
              max_other_roundings(has_fp8_keys() ? models::KvDtype::kFp8 : models::KvDtype::kAuto));
    if (!expected.has_mtp) continue;
    const Distance drafts = distance_between(runs.reference.mtp_logits, runs.device.mtp_logits);
    EXPECT_LE(drafts.max, 0.7);
    EXPECT_LE(drafts.rms, 0.2);
  }
}

// The prompt in chunks and then token by token through the decode graphs.
TEST_P(ModelOnGpu, PredictsAsTheReferenceRunningFree) {
  const Expected expected(dir_of(name()), is_prose());
  const Loaded gpu = load_gpu();
  Sequence sequence(*gpu.model);
  const auto ids = std::span(expected.ids);
  Rows logits = sequence.run(ids.first(300), {.chunk = 150}).logits;
  append(logits, sequence.run(ids.subspan(300), {.chunk = 1}).logits);
  const Distance distance = distance_between(expected.result.logits, logits);
  EXPECT_LE(distance.mean_kl, is_prose() ? 0.01 : 0.03);  // random models have no margins
  if (!is_prose()) return;
  EXPECT_GE(distance.argmax_agreement, 0.98);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ModelOnGpu,
    testing::Combine(testing::Values("flash_like",
                                     "pro_like",
                                     "tiny_v4",
                                     "tiny_v4_fp8_keys",
                                     "tiny_v4_bf16",
                                     "tiny_v4_nvfp4",
                                     "tiny_v4_int4"),
                     testing::Values(models::Precision::kReference, models::Precision::kDefault)),
    [](const auto& param) {
      const bool is_default = std::get<1>(param.param) == models::Precision::kDefault;
      return std::string(std::get<0>(param.param)) + (is_default ? "_default" : "_reference");
    });

// Greedy continuations of `prompts`, all in one pass at a time.
std::vector<std::vector<int32_t>> continue_greedily(
    models::Model& model, const std::vector<std::vector<int32_t>>& prompts, int32_t num_tokens) {
  std::vector<Sequence> sequences;
  std::vector<std::vector<int32_t>> next = prompts, out(prompts.size());
  for (size_t s = 0; s < prompts.size(); ++s) {
    const auto slot = static_cast<int32_t>(s);
    model.reset_slot(SlotId{slot});
    sequences.emplace_back(model, slot, slot, 1);
  }
  for (int32_t step = 0; step < num_tokens; ++step) {
    std::vector<Part> parts;
    for (size_t s = 0; s < prompts.size(); ++s) {
      parts.push_back({.sequence = &sequences[s], .ids = next[s]});
    }
    const RunResult pass = run_pass(model, parts);
    int64_t row = -1;
    for (size_t s = 0; s < prompts.size(); ++s) {
      row += static_cast<int64_t>(next[s].size());
      out[s].push_back(argmax(pass.logits[row]));
      next[s] = {out[s].back()};
    }
  }
  return out;
}

TEST(DeterministicGpu, SixtyFourTogetherSayWhatEachSaysAlone) {
  constexpr int32_t kSequences = 64;
  constexpr int32_t kNew = 12;
  const Loaded loaded = load(tiny_v4_dir(),
                             {.device = On::kGpu,
                              .precision = models::Precision::kDefault,
                              .state = {.num_slots = kSequences,
                                        .num_pages = kSequences,
                                        .max_context = 256,
                                        .max_tokens_per_pass = 2048},
                              .is_deterministic = true});
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t s = 0; s < kSequences; ++s) {
    prompts.push_back(random_ids(*loaded.model, 1 + s % 24, static_cast<uint32_t>(s)));
  }
  const auto together = continue_greedily(*loaded.model, prompts, kNew);
  for (size_t s = 0; s < prompts.size(); ++s) {
    EXPECT_EQ(continue_greedily(*loaded.model, {prompts[s]}, kNew)[0], together[s]) << s;
  }
}

}  // namespace
}  // namespace nibble::golden
