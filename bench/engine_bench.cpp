// Streams beside a long prompt, on the bundled model: the longest gap that the prefill causes.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "engine/engine_core.h"
#include "engine/model_runner.h"
#include "models/model.h"
#include "text/tokenizer.h"

namespace nibble::engine {
namespace {

constexpr int32_t kNumStreams = 8;
constexpr int32_t kLongPrompt = 12'000;

struct Stack {
  SteadyClock clock;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<EngineCore> core;
};

std::unique_ptr<Stack> make_stack(Duration max_gap) {
  const Path dir = Path(NIBBLE_SOURCE_DIR) / "models" / "tiny-v4";
  auto stack = std::make_unique<Stack>();
  stack->tokenizer = text::load_tokenizer(dir).value();
  stack->device = device::make_host_device({}).value();
  const auto checkpoint = checkpoint::Checkpoint::open(dir);
  models::LoadOptions load;
  load.load_mtp = false;
  auto model = models::load_model(*checkpoint, *stack->device, load).value();
  auto runner =
      make_model_runner(std::move(model),
                        {.num_slots = kNumStreams + 1, .num_pages = 160, .max_context = 16'384},
                        comm::make_local_communicator(),
                        32)
          .value();
  EngineConfig config;
  config.max_running_requests = kNumStreams + 1;
  config.max_gap = max_gap;
  config.max_context = 16'384;
  const auto options = EngineCore::resolve(config, *runner, 1).value();
  stack->core =
      std::make_unique<EngineCore>(options, std::move(runner), *stack->tokenizer, stack->clock);
  return stack;
}

Request request(std::string id, int32_t num_prompt, int32_t max_tokens) {
  Request request{.id = std::move(id)};
  for (int32_t i = 0; i < num_prompt; ++i) request.prompt_ids.push_back(2 + (i * 7919) % 4000);
  request.prompt_ids.front() = 2 + static_cast<int32_t>(request.id.size());
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = max_tokens;
  return request;
}

// range(0): the bound in ms; 0: none.
void BM_LongPromptBesideStreams(benchmark::State& state) {
  for ([[maybe_unused]] auto iteration : state) {
    const auto stack = make_stack(std::chrono::milliseconds(state.range(0)));
    EngineCore& core = *stack->core;
    int32_t num_decoding = 0;
    TimePoint last{};
    Duration longest{};
    for (int32_t i = 0; i < kNumStreams; ++i) {
      core.add(
          request("stream" + std::string(static_cast<size_t>(i), 'x'), 64, 8000),
          [&, seen = false](Output&&) mutable {
            num_decoding += std::exchange(seen, true) ? 0 : 1;
          },
          stack->clock.now());
    }
    while (num_decoding < kNumStreams) core.step();
    for (int i = 0; i < 50; ++i) core.step();
    bool is_prefilled = false;
    double prefill_seconds = 0;
    int64_t num_steps = 0;
    core.add(
        request("long", kLongPrompt, 1),
        [&](Output&& output) {
          if (!output.finish) return;
          is_prefilled = true;
          prefill_seconds = output.finish->prefill_seconds;
        },
        stack->clock.now());
    last = stack->clock.now();
    while (!is_prefilled) {
      core.step();  // gives every stream a token
      const TimePoint now = stack->clock.now();
      longest = std::max(longest, now - last);
      last = now;
      ++num_steps;
    }
    core.cancel_all();
    state.counters["gap_ms"] = to_seconds(longest) * 1e3;
    state.counters["prefill_s"] = prefill_seconds;
    state.counters["prefill_tok/s"] = kLongPrompt / prefill_seconds;
    state.counters["steps"] = static_cast<double>(num_steps);
  }
}
BENCHMARK(BM_LongPromptBesideStreams)
    ->Arg(0)
    ->Arg(150)
    ->Arg(50)
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nibble::engine
