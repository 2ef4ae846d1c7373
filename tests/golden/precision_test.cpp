// How far the default and the faithful mode, and FP8 keys, may be from the reference mode. The same
// two-part test serves every later backend: with the reference's decisions imposed, logits are
// close one by one; running free, distributions are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"
#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

constexpr size_t kPositions = 1000;

// The first tokens of the long text among the stored prompts.
std::vector<int32_t> text_ids() {
  const std::string text = read_file(golden_dir("tiny_v4") / "native.json", 1 << 20).value();
  const json::Value document = json::parse(text).value();
  for (const json::Value& prompt : *document.as_array()) {
    if (*prompt.find("name")->as_string() != "prose_long") continue;
    std::vector<int32_t> ids;
    for (const json::Value& id : *prompt.find("prompt_ids")->as_array()) {
      ids.push_back(static_cast<int32_t>(*id.as_int64()));
    }
    ids.resize(kPositions);
    return ids;
  }
  return {};
}

struct Reference {
  std::vector<int32_t> ids = text_ids();
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

double log_sum_exp(std::span<const float> row) {
  const double max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(value - max);
  return max + std::log(sum);
}

// KL(p || q) of the distributions with logits p and q.
double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double p_norm = log_sum_exp(p);
  const double q_norm = log_sum_exp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_norm;
    sum += std::exp(log_p) * (log_p - (q[i] - q_norm));
  }
  return sum;
}

struct Distance {
  double max = 0;
  double rms = 0;
  double mean_kl = 0;
  double argmax_agreement = 0;
  int32_t clear_flips = 0;  // argmax differs although the reference's margin is above 1
};
Distance distance_to_reference(const Rows& logits) {
  const Rows& expected = reference().logits;
  Distance distance;
  double squares = 0;
  for (int64_t t = 0; t < expected.size(); ++t) {
    const auto p = expected[t];
    const auto q = logits[t];
    for (size_t i = 0; i < p.size(); ++i) squares += std::pow(double{p[i]} - q[i], 2);
    distance.max = std::max(distance.max, double{max_difference(p, q)});
    distance.mean_kl += kl_divergence(p, q);
    const bool is_equal = argmax(p) == argmax(q);
    distance.argmax_agreement += is_equal ? 1 : 0;
    distance.clear_flips += !is_equal && top_margin(p) > 1 ? 1 : 0;
  }
  const auto rows = static_cast<double>(expected.size());
  distance.rms = std::sqrt(squares / static_cast<double>(expected.values.size()));
  distance.mean_kl /= rows;
  distance.argmax_agreement /= rows;
  testing::Test::RecordProperty("max", std::to_string(distance.max));
  testing::Test::RecordProperty("rms", std::to_string(distance.rms));
  testing::Test::RecordProperty("mean_kl", std::to_string(distance.mean_kl));
  testing::Test::RecordProperty("argmax_agreement", std::to_string(distance.argmax_agreement));
  return distance;
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

// The simulation rounds activations to 3 mantissa bits: an own model, near the reference but not
// close. A broken quantiser shows as a KL of several nats.
TEST(FaithfulPrecision, PredictsNearlyAsTheReference) {
  const Distance distance = distance_to_reference(run(models::Precision::kFaithful, nullptr));
  EXPECT_LE(distance.mean_kl, 0.03);
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
