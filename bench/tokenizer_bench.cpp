// Tokenizer throughput in bytes of text per second, on one core. English is prose from the
// tokenizer vectors (public-domain books), its paragraphs shuffled and repeated to 1 MB.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace nibble::text {
namespace {

constexpr size_t kTextBytes = 1 << 20;

std::string read_text(const Path& path) { return read_file(path, 64 << 20).value(); }

Path v3_tokenizer_path() {
  return Path(NIBBLE_BINARY_DIR) / "testdata/tokenizer/deepseek_v3_tokenizer.json";
}

const Tokenizer& deepseek_v3() {
  static const auto tokenizer =
      parse_tokenizer(read_text(v3_tokenizer_path()), "tokenizer.json").value();
  return *tokenizer;
}

bool is_english_prose(const std::string& text) {
  const auto num_plain =
      std::ranges::count_if(text, [](char c) { return c == ' ' || (c >= 'a' && c <= 'z'); });
  return text.size() > 200 && num_plain * 10 > static_cast<ptrdiff_t>(text.size()) * 9;
}

const std::string& english() {
  static const std::string text = [] {
    const Path path = Path(NIBBLE_BINARY_DIR) / "testdata/tokenizer/deepseek_v3.json";
    const json::Value vectors = json::parse(read_text(path)).value();
    std::vector<std::string> paragraphs;
    for (const json::Value& vector : *vectors.as_array()) {
      const std::string& paragraph = *vector.find("text")->as_string();
      if (is_english_prose(paragraph)) paragraphs.push_back(paragraph);
    }
    CHECK(!paragraphs.empty());
    std::mt19937 random(1);
    std::string out;
    while (out.size() < kTextBytes) out += paragraphs[random() % paragraphs.size()] + "\n\n";
    return out;
  }();
  return text;
}

std::string repeated(std::string_view unit) {
  std::string out;
  while (out.size() < kTextBytes) out += unit;
  return out;
}

void encode(benchmark::State& state, const std::string& text) {
  size_t num_tokens = 0;
  for (auto _ : state) num_tokens = deepseek_v3().encode(text, {}).value().size();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(num_tokens);
}

void encode_english(benchmark::State& state) { encode(state, english()); }
void encode_chinese(benchmark::State& state) {
  encode(state,
         repeated("\u4F60\u597D\u4E16\u754C\uFF0C\u4E2D\u6587\u5206\u8BCD\u6D4B\u8BD5\u3002"));
}
void encode_one_letter(benchmark::State& state) { encode(state, repeated("a")); }
void encode_spaces(benchmark::State& state) { encode(state, repeated(" ")); }
void encode_combining_marks(benchmark::State& state) { encode(state, repeated("\u0301")); }

void detokenize_english(benchmark::State& state) {
  const std::vector<int32_t> ids = deepseek_v3().encode(english(), {}).value();
  for (auto _ : state) {
    Detokenizer detokenizer(deepseek_v3());
    for (const int32_t id : ids) benchmark::DoNotOptimize(detokenizer.push(id));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(english().size()));
}

void load_128k_vocabulary(benchmark::State& state) {
  const std::string json = read_text(v3_tokenizer_path());
  for (auto _ : state) benchmark::DoNotOptimize(parse_tokenizer(json, "tokenizer.json").ok());
}

BENCHMARK(encode_english)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_chinese)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_one_letter)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_spaces)->Unit(benchmark::kMillisecond);
BENCHMARK(encode_combining_marks)->Unit(benchmark::kMillisecond);
BENCHMARK(detokenize_english)->Unit(benchmark::kMillisecond);
BENCHMARK(load_128k_vocabulary)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nibble::text
