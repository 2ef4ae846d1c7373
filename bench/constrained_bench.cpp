// What constraints add to a decode step of 32 requests on the bundled model: rounds without and
// with a JSON Schema, a regular expression and an EBNF grammar, in turns. Every round compiles its
// grammar anew, so that masks are learnt in it, too.
//
//   constrained_bench [rounds = 5] [steps = 200]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "engine/engine_core.h"
#include "engine/model_runner.h"
#include "grammar/grammar.h"
#include "models/model.h"
#include "text/tokenizer.h"

namespace nibble::engine {
namespace {

constexpr int32_t kNumRequests = 32;
constexpr int32_t kContext = 1024;
constexpr int32_t kPromptTokens = 16;

// Forms that no answer of a round completes.
constexpr const char* kSchema = R"({"type": "array", "minItems": 500, "items": {
    "type": "object", "properties": {
      "name": {"type": "string", "minLength": 3, "maxLength": 40},
      "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "email": {"type": "string", "pattern": "^[a-z.]{1,20}@[a-z]{2,12}\\.(com|org)$", "maxLength": 30},
      "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true},
      "price": {"type": "number", "minimum": 0, "multipleOf": 0.01}},
    "required": ["name", "age", "email", "tags", "price"], "additionalProperties": false}})";
constexpr const char* kRegex = "([A-Za-z]{2,9}(, | )){800}[a-z]+\\.";
constexpr const char* kEbnf =
    "root ::= line{600}\n"
    "line ::= sum \" = \" sum \"\\n\"\n"
    "sum ::= term ((\" + \" | \" - \") term){0,4}\n"
    "term ::= [0-9]{1,4} | [a-z]{1,6} | \"(\" sum \")\"\n";

struct Form {
  const char* name;
  grammar::Content content;
};

std::vector<Form> forms() {
  return {{"none", grammar::FreeText{}},
          {"JSON Schema", grammar::JsonSchema{json::parse(kSchema).value()}},
          {"regex", grammar::Regex{kRegex}},
          {"EBNF", grammar::Ebnf{kEbnf}}};
}

struct Stack {
  SteadyClock clock;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<EngineCore> core;
};

std::unique_ptr<Stack> make_stack() {
  const Path dir = Path(NIBBLE_SOURCE_DIR) / "models" / "tiny-v4";
  auto stack = std::make_unique<Stack>();
  stack->tokenizer = text::load_tokenizer(dir).value();
  stack->vocabulary =
      grammar::Vocabulary::from_tokenizer(*stack->tokenizer, stack->tokenizer->vocab_size(), {1});
  stack->device = device::make_host_device({}).value();
  const auto checkpoint = checkpoint::Checkpoint::open(dir);
  models::LoadOptions load;
  load.load_mtp = false;
  auto model = models::load_model(*checkpoint, *stack->device, load).value();
  auto runner =
      make_model_runner(std::move(model),
                        {.num_slots = kNumRequests, .num_pages = 160, .max_context = kContext},
                        comm::make_local_communicator(),
                        kNumRequests)
          .value();
  EngineConfig config;
  config.max_running_requests = kNumRequests;
  config.max_context = kContext;
  config.eos_token_ids = {1};
  const auto options = EngineCore::resolve(config, *runner, 1).value();
  stack->core =
      std::make_unique<EngineCore>(options, std::move(runner), *stack->tokenizer, stack->clock);
  return stack;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Cost {
  double wall_ms = 0;  // per step
  double cpu_ms = 0;
};

Cost measure(Stack& stack, const Form& form, int32_t round, int32_t num_steps) {
  EngineCore& core = *stack.core;
  std::shared_ptr<const grammar::Grammar> grammar;
  if (!std::holds_alternative<grammar::FreeText>(form.content)) {
    grammar = grammar::compile({.content = form.content, .tools = {}}, stack.vocabulary).value();
  }
  int32_t num_decoding = 0;
  for (int32_t i = 0; i < kNumRequests; ++i) {
    Request request{.id = fmt::format("{}-{}-{}", form.name, round, i)};
    for (int32_t k = 0; k < kPromptTokens; ++k) {
      request.prompt_ids.push_back(2 + ((round * kNumRequests + i) * 31 + k * 7919) % 4000);
    }
    request.sampling.ignore_eos = true;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.max_tokens = kContext - kPromptTokens - 1;
    request.grammar = grammar;
    core.add(
        std::move(request),
        [&, is_new = true](Output&&) mutable {
          num_decoding += std::exchange(is_new, false) ? 1 : 0;
        },
        stack.clock.now());
  }
  while (num_decoding < kNumRequests) core.step();
  const TimePoint begin = stack.clock.now();
  const double cpu_begin = cpu_seconds();
  for (int32_t i = 0; i < num_steps; ++i) core.step();
  const Cost cost = {.wall_ms = to_seconds(stack.clock.now() - begin) * 1e3 / num_steps,
                     .cpu_ms = (cpu_seconds() - cpu_begin) * 1e3 / num_steps};
  core.cancel_all();
  return cost;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(int32_t num_rounds, int32_t num_steps) {
  const auto stack = make_stack();
  const std::vector<Form> all = forms();
  std::vector<std::vector<Cost>> costs(all.size());
  for (int32_t round = 0; round < num_rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      costs[i].push_back(measure(*stack, all[i], round, num_steps));
    }
  }
  fmt::print("{:<12} {:>9} {:>20} {:>9} {:>20}\n",
             "form",
             "ms/step",
             "least to most",
             "CPU ms",
             "to none, by round");
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<double> wall;
    std::vector<double> cpu;
    std::vector<double> ratios;
    for (size_t round = 0; round < costs[i].size(); ++round) {
      wall.push_back(costs[i][round].wall_ms);
      cpu.push_back(costs[i][round].cpu_ms);
      ratios.push_back(costs[i][round].cpu_ms / costs[0][round].cpu_ms);
    }
    const auto [wall_low, wall_high] = std::minmax_element(wall.begin(), wall.end());
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    fmt::print("{:<12} {:>9.2f} {:>9.2f} to {:>7.2f} {:>9.2f} {:>8.3f} ({:.3f} to {:.3f})\n",
               all[i].name,
               median(wall),
               *wall_low,
               *wall_high,
               median(cpu),
               median(ratios),
               *low,
               *high);
  }
}

}  // namespace
}  // namespace nibble::engine

int main(int argc, char** argv) {
  const int32_t num_rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const int32_t num_steps = argc > 2 ? std::atoi(argv[2]) : 200;
  nibble::engine::run(std::max(num_rounds, 1), std::max(num_steps, 1));
  return 0;
}
