// How far the default and the faithful mode, and FP8 keys, may be from the reference mode.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

constexpr int32_t kPositions = 1000;

struct Reference {
  std::vector<int32_t> ids = prose_ids(kPositions);
  models::Decisions decisions;
  Rows logits;
};
const Reference& reference() {
  static const Reference made = [] {
    Reference result;
    const Loaded loaded = load(tiny_v4_dir());
    result.logits = Sequence(*loaded.model).run(result.ids, {.record = &result.decisions}).logits;
    return result;
  }();
  return made;
}

Distance distance_to_reference(const Rows& logits) {
  return distance_between(reference().logits, logits);
}

Rows run(models::Precision precision,
         const models::Decisions* replay,
         models::KvDtype kv_dtype = models::KvDtype::kAuto) {
  const Loaded loaded = load(tiny_v4_dir(), {.precision = precision, .kv_dtype = kv_dtype});
  return Sequence(*loaded.model).run(reference().ids, {.replay = replay}).logits;
}

TEST(DefaultPrecision, StaysNearTheReferenceOnItsDecisions) {
  const Distance distance =
      distance_to_reference(run(models::Precision::kDefault, &reference().decisions));
  EXPECT_LE(distance.max, 0.7);
  EXPECT_LE(distance.rms, 0.2);
  EXPECT_EQ(distance.clear_flips, 0);
}

TEST(DefaultPrecision, PredictsAsTheReferenceRunningFree) {
  const Distance distance = distance_to_reference(run(models::Precision::kDefault, nullptr));
  EXPECT_LE(distance.mean_kl, 0.01);
  EXPECT_GE(distance.argmax_agreement, 0.98);
}

// flash_like has random weights and so no margins: near-ties between experts fall otherwise when a
// last bit changes. How far a GPU is from the reference there (docs/testing.md) is its own doing.
TEST(DefaultPrecision, OfARandomModelIsAsFarAsThatModelMakesIt) {
  const Loaded expected = load(golden_dir("flash_like"));
  const std::vector<int32_t> ids = random_ids(*expected.model, kPositions, 1);
  models::Decisions decisions;
  const Rows logits = Sequence(*expected.model).run(ids, {.record = &decisions}).logits;
  const Loaded loaded = load(golden_dir("flash_like"), {.precision = models::Precision::kDefault});
  const Rows replayed = Sequence(*loaded.model).run(ids, {.replay = &decisions}).logits;
  const Distance imposed = distance_between(logits, replayed);
  loaded.model->reset_slot(SlotId{0});
  const Distance free = distance_between(logits, Sequence(*loaded.model).run(ids).logits);
  EXPECT_LE(free.mean_kl, 0.03);
  EXPECT_LE(imposed.mean_kl, free.mean_kl / 4);
}

// The simulation rounds activations to 3 mantissa bits: an own model, near the reference but not
// close. A broken quantiser shows as a KL of several nats.
TEST(FaithfulPrecision, PredictsNearlyAsTheReference) {
  const Distance distance = distance_to_reference(run(models::Precision::kFaithful, nullptr));
  EXPECT_LE(distance.mean_kl, 0.01);
  EXPECT_GE(distance.argmax_agreement, 0.98);
}

// What FP8 keys cost by themselves: all other arithmetic is the reference's. Keys have three
// mantissa bits: each is off by up to 1/16 of itself.
TEST(Fp8Keys, StayNearTheReferenceOnItsDecisions) {
  const Distance distance = distance_to_reference(
      run(models::Precision::kReference, &reference().decisions, models::KvDtype::kFp8));
  EXPECT_GT(distance.max, 0);
  EXPECT_LE(distance.max, 1.0);
  EXPECT_LE(distance.rms, 0.2);
  EXPECT_EQ(distance.clear_flips, 0);
}

TEST(Fp8Keys, PredictAsTheReferenceRunningFree) {
  for (const models::Precision precision :
       {models::Precision::kReference, models::Precision::kDefault}) {
    const Distance distance = distance_to_reference(run(precision, nullptr, models::KvDtype::kFp8));
    EXPECT_LE(distance.mean_kl, 0.01);
    EXPECT_GE(distance.argmax_agreement, 0.98);
  }
}

// The faithful mode has rounded keys to what the FP8 forms hold, so they change no bit.
TEST(Fp8Keys, AreExactInTheFaithfulMode) {
  const Rows plain = run(models::Precision::kFaithful, nullptr);
  const Rows fp8 = run(models::Precision::kFaithful, nullptr, models::KvDtype::kFp8);
  EXPECT_EQ(fp8.values, plain.values);
}

TEST(Fp8Keys, RefuseModelsWhoseKeysHaveNoWholeBlocks) {
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const auto checkpoint = checkpoint::Checkpoint::open(golden_dir("flash_like")).value();
  models::LoadOptions options;
  options.kv_dtype = models::KvDtype::kFp8;
  const auto model = models::load_model(checkpoint, *device, options);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, Errc::kUnsupported);
  EXPECT_EQ(model.error().message,
            "FP8 KV: head_dim - qk_rope_head_dim 48 is no multiple of 64, which a scale covers. "
            "Fix: --kv-cache-dtype bf16.");
}

}  // namespace
}  // namespace nibble::golden
