// Few tokens' experts, both of whose products are one launch, and a single token's, which are
// chosen in it beside the shared expert's second product: a model of shapes that lead there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/temporary_directory_testing.h"
#include "device/launch_observer.h"
#include "device/thread_pool.h"
#include "golden/golden_testing.h"
#include "tools/convert/declare.h"
#include "tools/synth/presets.h"
#include "tools/synth/synth.h"

namespace nibble::golden {
namespace {

constexpr int32_t kLayers = 2;     // one chooses experts by its table, one by scores
constexpr int32_t kMaxJoined = 4;  // tokens: 3 choices each are a tenth of 128 experts
constexpr int32_t kSequences = 17;

// In DeepSeek's formats. The shared expert's second product has 4 panels and 512 k: two splits on
// 8 multiprocessors and more.
checkpoint::Checkpoint make_model() {
  json::Object config = tools::keep_layers(*tools::preset_config("mini"), kLayers).value();
  const std::pair<const char*, int32_t> sizes[] = {{"vocab_size", 512},
                                                   {"hidden_size", 256},
                                                   {"moe_intermediate_size", 512},
                                                   {"num_attention_heads", 4},
                                                   {"q_lora_rank", 256},
                                                   {"o_groups", 2},
                                                   {"o_lora_rank", 128},
                                                   {"n_routed_experts", 128},
                                                   {"num_experts_per_tok", 3},
                                                   {"num_hash_layers", 1},
                                                   {"max_position_embeddings", 256}};
  for (const auto& [name, size] : sizes) config.set(name, size);
  const tools::DeclareOptions native{.format = tools::CheckpointFormat::kNative,
                                     .num_hidden_layers = kLayers};
  const checkpoint::TemporaryDirectory dir;
  dir.write("config.json", tools::config_text(tools::declare_format(config, native).config));
  device::ThreadPool pool({.num_threads = 2});
  return tools::make_dummy_checkpoint(dir.path(), {.num_distinct = 16}, pool).value();
}
const checkpoint::Checkpoint& model_files() {
  static const checkpoint::Checkpoint made = make_model();
  return made;
}

Loaded load_gpu(bool is_deterministic) {
  return load(model_files(),
              {.device = gpu_under_test(),
               .precision = models::Precision::kDefault,
               .state = {.num_slots = kSequences + 1,
                         .num_pages = kSequences + 1,
                         .max_context = 256,
                         .max_tokens_per_pass = 32},
               .num_threads = 8,
               .is_deterministic = is_deterministic});
}

Sequence make_sequence(models::Model& model, int32_t slot) {
  model.reset_slot(SlotId{slot});
  return Sequence(model, slot, slot, 1);
}

// Launches of experts.
struct Launches {
  int32_t choices = 0;
  int32_t products = 0;
};
Launches launches_of(Loaded& loaded, const std::function<void()>& run) {
  Launches launches;
  const device::LaunchObserver observer{[&](const device::ObservedLaunch& launch) {
    launches.choices += launch.kernel.starts_with("select_experts.") ? 1 : 0;
    launches.products += launch.kernel.starts_with("grouped_matmul.") ? 1 : 0;
    return launch.run();
  }};
  loaded.device->stream().observer = &observer;
  run();
  loaded.device->stream().observer = nullptr;
  return launches;
}

// One token of each of `count` sequences behind prompts of their own, in one pass.
struct Step {
  Rows logits;
  Launches launches;
};
std::vector<int32_t> ids_of(const models::Model& model, int32_t sequence) {
  return random_ids(model, 4 + sequence % 3, static_cast<uint32_t>(sequence));
}
Step step_together(Loaded& loaded, int32_t count) {
  models::Model& model = *loaded.model;
  std::vector<Sequence> sequences;
  std::vector<std::vector<int32_t>> ids;
  std::vector<Part> parts;
  for (int32_t s = 0; s < count; ++s) {
    ids.push_back(ids_of(model, s));
    sequences.push_back(make_sequence(model, s));
    sequences.back().run(std::span(ids.back()).first(ids.back().size() - 1));
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    parts.push_back({.sequence = &sequences[s], .ids = std::span(ids[s]).last(1)});
  }
  Step step;
  step.launches = launches_of(loaded, [&] { step.logits = run_pass(model, parts).logits; });
  return step;
}
// The same token of one of them alone.
Rows step_alone(models::Model& model, int32_t sequence) {
  Sequence alone = make_sequence(model, kSequences);
  const std::vector<int32_t> ids = ids_of(model, sequence);
  alone.run(std::span(ids).first(ids.size() - 1));
  return alone.run(std::span(ids).last(1)).logits;
}

// Bit for bit what it has where recording takes the choice out of the launch, and what graphs give.
TEST(JoinedExperts, OfOneTokenAreChosenInTheirLaunch) {
  Loaded loaded = load_gpu(false);
  models::Model& model = *loaded.model;
  const std::vector<int32_t> ids = random_ids(model, 20, 1);
  Rows joined, apart;
  models::Decisions decisions;
  Sequence first = make_sequence(model, 0), second = make_sequence(model, 1),
           third = make_sequence(model, 2);
  const Launches of_joined =
      launches_of(loaded, [&] { joined = first.run(ids, {.chunk = 1}).logits; });
  const Launches of_apart = launches_of(
      loaded, [&] { apart = second.run(ids, {.chunk = 1, .record = &decisions}).logits; });
  const auto steps = static_cast<int32_t>(ids.size());
  EXPECT_EQ(of_joined.choices, 0);
  EXPECT_EQ(of_joined.products, kLayers * steps);
  EXPECT_EQ(of_apart.choices, 2 * kLayers * steps) << "of ids, then of weights";
  EXPECT_EQ(of_apart.products, kLayers * steps);
  EXPECT_EQ(joined.values, apart.values);
  EXPECT_EQ(joined.values, third.run(ids, {.chunk = 1}).logits.values);
}

TEST(JoinedExperts, AreOneLaunchOfFewTokens) {
  Loaded loaded = load_gpu(false);
  for (const int32_t count : {1, 2, kMaxJoined, 16, kSequences}) {
    const Launches launches = step_together(loaded, count).launches;
    EXPECT_EQ(launches.products, count <= kMaxJoined ? kLayers : 2 * kLayers) << count;
    EXPECT_EQ(launches.choices, count == 1 ? 0 : kLayers) << count;
  }
}

TEST(JoinedExperts, SayTheSameWhoeverRunsBeside) {
  Loaded loaded = load_gpu(true);
  for (const int32_t count : {1, 2, kMaxJoined, 16, kSequences}) {
    const Step step = step_together(loaded, count);
    EXPECT_EQ(step.launches.products, count <= kMaxJoined ? kLayers : 2 * kLayers) << count;
    for (int32_t s = 0; s < count; ++s) {
      const Rows alone = step_alone(*loaded.model, s);
      EXPECT_TRUE(std::equal(alone.values.begin(), alone.values.end(), step.logits[s].begin()))
          << s << " of " << count;
    }
  }
}

// Recording roundings takes their products apart: the same bits, and near the reference.
TEST(JoinedExperts, GiveWhatTwoLaunchesGiveNearTheReference) {
  const Loaded reference = load(model_files());
  const std::vector<int32_t> ids = random_ids(*reference.model, 34, 2);
  models::Decisions decisions;
  Sequence(*reference.model).run(ids, {.record = &decisions});
  const Loaded loaded = load_gpu(false);
  for (const int32_t chunk : {1, 2, kMaxJoined, 16, 17}) {
    SCOPED_TRACE(chunk);
    const Replayed apart =
        replay_on(*loaded.model, *reference.model, decisions, ids, {.chunk = chunk});
    Sequence sequence = make_sequence(*loaded.model, 0);
    const Rows joined = sequence.run(ids, {.chunk = chunk, .replay = &decisions}).logits;
    EXPECT_EQ(joined.values, apart.device.logits.values);
    const Distance distance = distance_between(apart.reference.logits, apart.device.logits);
    EXPECT_LE(distance.max, 0.7);  // docs/testing.md
    EXPECT_LE(distance.rms, 0.2);
    EXPECT_EQ(distance.clear_flips, 0);
  }
}

}  // namespace
}  // namespace nibble::golden
