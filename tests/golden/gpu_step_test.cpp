// The step of GPUs on the emulated one, against the reference mode of the CPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

struct Case {
  std::string model;
  int32_t num_tokens = 0;
  models::KvDtype kv_dtype = models::KvDtype::kAuto;
};

Path dir_of(const Case& test) {
  return test.model == "tiny_v4" ? tiny_v4_dir() : golden_dir(test.model);
}

std::vector<int32_t> ids_of(const Case& test, const models::Model& model) {
  return test.model == "tiny_v4" ? prose_ids(test.num_tokens)
                                 : random_ids(model, test.num_tokens, 1);
}

// The reference mode of the CPU on the same tokens.
struct Expected {
  Loaded loaded;
  std::vector<int32_t> ids;
  models::Decisions decisions;
  RunResult result;
  bool has_mtp = false;

  explicit Expected(const Case& test) : loaded(load(dir_of(test))) {
    ids = ids_of(test, *loaded.model);
    has_mtp = loaded.model->info().has_mtp;
    result = Sequence(*loaded.model).run(ids, {.mtp = has_mtp, .record = &decisions});
  }
};

Loaded load_gpu(const Case& test, models::Precision precision) {
  return load(dir_of(test),
              {.device = On::kEmulatedGpu,
               .precision = precision,
               .kv_dtype = test.kv_dtype,
               .num_threads = 2});
}

class GpuStepByModel : public testing::TestWithParam<Case> {
 protected:
  void expect_near_on_equal_decisions(models::Precision precision) {
    const Expected expected(GetParam());
    const Loaded gpu = load_gpu(GetParam(), precision);
    for (const int32_t chunk : {100, 2}) {  // prefill and the forms for few tokens
      SCOPED_TRACE(chunk);
      const Replayed runs = replay_on(*gpu.model,
                                      *expected.loaded.model,
                                      expected.decisions,
                                      expected.ids,
                                      {.chunk = chunk, .mtp = expected.has_mtp});
      const Distance distance = distance_between(runs.reference.logits, runs.device.logits);
      EXPECT_LE(distance.max, 0.7);
      EXPECT_LE(distance.rms, 0.2);
      EXPECT_EQ(distance.clear_flips, 0);
      EXPECT_LE(runs.other_roundings, max_other_roundings(GetParam().kv_dtype));
      if (!expected.has_mtp) continue;
      const Distance drafts = distance_between(runs.reference.mtp_logits, runs.device.mtp_logits);
      EXPECT_LE(drafts.max, 0.7);
      EXPECT_LE(drafts.rms, 0.2);
    }
  }
};

TEST_P(GpuStepByModel, StaysNearTheReferenceOnItsDecisions) {
  expect_near_on_equal_decisions(models::Precision::kReference);
}

TEST_P(GpuStepByModel, StaysNearTheReferenceOnEqualDecisionsByDefault) {
  expect_near_on_equal_decisions(models::Precision::kDefault);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GpuStepByModel,
                         testing::Values(Case{"flash_like", 300},
                                         Case{"pro_like", 300},
                                         Case{"tiny_v4", 300},
                                         Case{"tiny_v4", 200, models::KvDtype::kFp8}),
                         [](const auto& param) {
                           return param.param.model +
                                  (param.param.kv_dtype == models::KvDtype::kFp8 ? "_fp8" : "");
                         });

TEST(GpuStep, PredictsAsTheReferenceRunningFree) {
  Case test{"tiny_v4", 1000};
  const Expected expected(test);
  for (const models::Precision precision :
       {models::Precision::kReference, models::Precision::kDefault}) {
    for (const models::KvDtype kv_dtype : {models::KvDtype::kBf16, models::KvDtype::kFp8}) {
      test.kv_dtype = kv_dtype;
      const Loaded gpu = load_gpu(test, precision);
      const Rows logits = Sequence(*gpu.model).run(expected.ids, {.chunk = 100}).logits;
      const Distance distance = distance_between(expected.result.logits, logits);
      EXPECT_LE(distance.mean_kl, 0.01);
      EXPECT_GE(distance.argmax_agreement, 0.98);
    }
  }
}

// Two sequences decode greedily with the next step queued before the last one is fetched; what was
// queued too many is taken back.
TEST(DecodeQueue, ChoosesTheTokensThatForwardGives) {
  const Loaded loaded = load(golden_dir("flash_like"),
                             {.device = On::kEmulatedGpu,
                              .precision = models::Precision::kDefault,
                              .state = {.num_slots = 3, .num_pages = 3 * 4, .max_context = 1024},
                              .num_threads = 2});
  models::Model& model = *loaded.model;
  constexpr int32_t kNew = 6;
  std::vector<Sequence> sequences;
  std::vector<int32_t> first;
  std::vector<std::vector<int32_t>> expected(2);
  for (int32_t s = 0; s < 2; ++s) {
    const std::vector<int32_t> prompt = random_ids(model, 20 + 9 * s, static_cast<uint32_t>(s));
    Sequence alone(model, 2, 8, 4);
    model.reset_slot(SlotId{2});
    Rows logits = alone.run(prompt).logits;
    sequences.emplace_back(model, s, 4 * s, 4);
    const RunResult result = sequences.back().run(prompt);
    first.push_back(argmax(result.logits.back()));
    for (int32_t i = 0; i < kNew; ++i) {
      const int32_t token = argmax(logits.back());
      logits = alone.run(std::span(&token, 1)).logits;
      expected[static_cast<size_t>(s)].push_back(argmax(logits.back()));
    }
  }

  const SlotId slots[] = {SlotId{1}, SlotId{0}};
  const std::span<const PageId> tables[] = {sequences[1].pages(), sequences[0].pages()};
  const models::DeviceSampling greedy[2] = {};
  const int32_t known[] = {first[1], first[0]};
  const int32_t chosen[] = {models::DecodeInput::kChosenBefore, models::DecodeInput::kChosenBefore};
  const auto queue = [&](std::span<const int32_t> tokens) {
    model
        .queue_decode(
            {.slots = slots, .block_tables = tables, .token_ids = tokens, .sampling = greedy})
        .value();
  };
  queue(known);
  for (size_t i = 0; i < kNew; ++i) {
    queue(chosen);
    const std::span<const int32_t> tokens = model.fetch_decoded().value();
    EXPECT_EQ(tokens[0], expected[1][i]) << i;
    EXPECT_EQ(tokens[1], expected[0][i]) << i;
  }
  EXPECT_EQ(model.fetch_decoded().value().size(), 2u);
  EXPECT_FALSE(model.fetch_decoded().ok());
  EXPECT_EQ(model.length(SlotId{0}), 20 + kNew + 1);
  model.truncate(SlotId{0}, 20 + kNew).value();
  // The sequence goes on from there as if nothing had been queued beyond.
  const int32_t next = expected[0][kNew - 1];
  Sequence alone(model, 2, 8, 4);
  model.reset_slot(SlotId{2});
  std::vector<int32_t> whole = random_ids(model, 20, 0);
  whole.push_back(first[0]);
  whole.insert(whole.end(), expected[0].begin(), expected[0].end());
  const Rows logits = sequences[0].run(std::span(&next, 1)).logits;
  EXPECT_EQ(argmax(logits.back()), argmax(alone.run(whole).logits.back()));
}

}  // namespace
}  // namespace nibble::golden
