// What constraints cost: compiling, and per token the mask and the step, in texts of random allowed
// tokens. "new": a grammar that has seen nothing yet makes each text; "known": one that has made
// many. sample_row: a whole row through the sampler. Argument 0: the bundled vocabulary (4,096
// tokens), 1: DeepSeek's (128k).
#include <benchmark/benchmark.h>

#include <bit>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "engine/sampler.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace nibble::grammar {
namespace {

constexpr int32_t kTextTokens = 200;

std::shared_ptr<const Vocabulary> load_vocabulary(bool is_large) {
  if (!is_large) {
    const auto tokenizer = text::load_tokenizer(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
    return Vocabulary::from_tokenizer(*tokenizer, tokenizer->vocab_size(), {1});
  }
  const Path path = Path(NIBBLE_BINARY_DIR) / "testdata/tokenizer/deepseek_v3_tokenizer.json";
  const auto tokenizer =
      text::parse_tokenizer(read_file(path, 64 << 20).value(), "tokenizer.json").value();
  return Vocabulary::from_tokenizer(*tokenizer, tokenizer->vocab_size(), {1});
}

std::shared_ptr<const Vocabulary> vocabulary(int64_t which) {
  static const std::shared_ptr<const Vocabulary> small = load_vocabulary(false);
  if (which == 0) return small;
  static const std::shared_ptr<const Vocabulary> large = load_vocabulary(true);
  return large;
}

Spec person() {
  constexpr const char* kSchema = R"({"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "email": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
      "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip":
          {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"]}},
      "required": ["name", "age", "email", "tags", "address"], "additionalProperties": false})";
  return {.content = JsonSchema{json::parse(kSchema).value()}, .tools = {}};
}

Spec any_object() { return {.content = JsonObject{}, .tools = {}}; }

Spec pattern() { return {.content = Regex{"([a-z]{2,9} ){20,200}[a-z]+\\."}, .tools = {}}; }

int32_t random_token(const std::vector<uint64_t>& words, std::mt19937& random) {
  int64_t count = 0;
  for (const uint64_t word : words) count += std::popcount(word);
  auto left = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  for (size_t i = 0;; ++i) {
    const int64_t here = std::popcount(words[i]);
    if (left >= here) {
      left -= here;
      continue;
    }
    uint64_t word = words[i];
    for (; left > 0; --left) word &= word - 1;
    return static_cast<int32_t>(i * 64 + static_cast<size_t>(std::countr_zero(word)));
  }
}

// Tokens of one text, chosen beforehand so that only the grammar's own work is measured.
std::vector<int32_t> random_text(const std::shared_ptr<const Grammar>& grammar, uint32_t seed) {
  std::mt19937 random(seed);
  Matcher matcher(grammar);
  std::vector<uint64_t> words(grammar->vocabulary().num_mask_words());
  std::vector<int32_t> tokens;
  while (!matcher.is_complete() && tokens.size() < kTextTokens) {
    matcher.fill_allowed(words).value();
    tokens.push_back(random_token(words, random));
    matcher.accept(tokens.back()).value();
  }
  return tokens;
}

int64_t follow(const std::shared_ptr<const Grammar>& grammar,
               const std::vector<int32_t>& tokens,
               std::vector<uint64_t>& words) {
  Matcher matcher(grammar);
  for (const int32_t token : tokens) {
    matcher.fill_allowed(words).value();
    matcher.accept(token).value();
  }
  benchmark::DoNotOptimize(words.data());
  return static_cast<int64_t>(tokens.size());
}

using MakeSpec = Spec (*)();

// Time per token of the text.
void step_new(benchmark::State& state, MakeSpec make) {
  const auto tokens = vocabulary(state.range(0));
  const auto teacher = compile(make(), tokens).value();
  std::vector<uint64_t> words(tokens->num_mask_words());
  int64_t num_tokens = 0;
  uint32_t seed = 0;
  for (auto unused : state) {
    state.PauseTiming();
    const std::vector<int32_t> text = random_text(teacher, seed++ % 8);
    const auto grammar = compile(make(), tokens).value();
    state.ResumeTiming();
    num_tokens += follow(grammar, text, words);
  }
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(num_tokens), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void step_known(benchmark::State& state, MakeSpec make) {
  const auto tokens = vocabulary(state.range(0));
  const auto grammar = compile(make(), tokens).value();
  std::vector<std::vector<int32_t>> texts;
  for (uint32_t seed = 0; seed < 8; ++seed) texts.push_back(random_text(grammar, seed));
  std::vector<uint64_t> words(tokens->num_mask_words());
  int64_t num_tokens = 0;
  size_t next = 0;
  for (auto unused : state) num_tokens += follow(grammar, texts[next++ % texts.size()], words);
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(num_tokens), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void compile_spec(benchmark::State& state, MakeSpec make) {
  const auto tokens = vocabulary(state.range(0));
  for (auto unused : state) benchmark::DoNotOptimize(compile(make(), tokens).value());
}

// A row of logits to a token at temperature 1, without a mask and with that of a JSON string.
void sample_row(benchmark::State& state, bool is_masked) {
  const auto tokens = vocabulary(state.range(0));
  const auto grammar = compile(any_object(), tokens).value();
  Matcher matcher(grammar);
  std::vector<uint64_t> words(tokens->num_mask_words());
  std::mt19937 random(1);
  while (!matcher.can_end()) {
    matcher.fill_allowed(words).value();
    if (std::popcount(words[1]) > 32 && matcher.num_accepted() > 1) break;  // letters: a string
    matcher.accept(random_token(words, random)).value();
  }
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<size_t>(tokens->vocab_size()));
  for (float& logit : logits) logit = 3 * normal(random);
  engine::SamplerScratch scratch;
  uint64_t position = 0;
  for (auto unused : state) {
    if (is_masked) matcher.fill_allowed(words).value();
    benchmark::DoNotOptimize(engine::sample(
        {},
        {.logits = logits,
         .allowed = is_masked ? std::span<const uint64_t>(words) : std::span<const uint64_t>(),
         .seed = 1,
         .position = position++},
        scratch));
  }
}

BENCHMARK_CAPTURE(sample_row, unmasked, false)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(sample_row, masked, true)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(step_known, schema, person)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(step_known, json_object, any_object)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(step_known, regex, pattern)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(step_new, schema, person)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(step_new, json_object, any_object)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(step_new, regex, pattern)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(compile_spec, schema, person)->Arg(0);
BENCHMARK_CAPTURE(compile_spec, json_object, any_object)->Arg(0);

}  // namespace
}  // namespace nibble::grammar
