// Speed of the bundled model: decode at batch 1 (tokens per second at a context length) and prefill
// in passes of 512.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "models/model.h"

namespace nibble {
namespace {

constexpr int32_t kPass = 512;

struct Loaded {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Model> model;
  std::vector<PageId> pages;
};

Loaded load(models::Precision precision, models::KvDtype kv_dtype) {
  Loaded loaded;
  loaded.device = device::make_host_device({}).value();
  const auto checkpoint =
      checkpoint::Checkpoint::open(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  models::LoadOptions options;
  options.precision = precision;
  options.kv_dtype = kv_dtype;
  loaded.model = models::load_model(checkpoint, *loaded.device, options).value();
  loaded.model->reserve_state({.max_tokens_per_pass = kPass}).value();
  for (int32_t page = 0; page < 64; ++page) loaded.pages.push_back({page});
  return loaded;
}

std::vector<int32_t> random_ids(int32_t count) {
  std::mt19937 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 4096);
  return ids;
}

// Appends `ids` in passes of kPass; logits of each pass's last token.
void append(Loaded& loaded, std::span<const int32_t> ids) {
  const SlotId slot{0};
  const std::span<const PageId> table(loaded.pages);
  std::vector<int32_t> positions(kPass);
  for (size_t begin = 0; begin < ids.size(); begin += kPass) {
    const auto part = ids.subspan(begin, std::min<size_t>(kPass, ids.size() - begin));
    std::iota(positions.begin(), positions.end(), loaded.model->length(slot));
    const int32_t cu_seqlens[] = {0, static_cast<int32_t>(part.size())};
    const int32_t last_row[] = {static_cast<int32_t>(part.size()) - 1};
    models::ForwardInput input;
    input.token_ids = part;
    input.positions = std::span(positions).first(part.size());
    input.cu_seqlens = cu_seqlens;
    input.slots = std::span(&slot, 1);
    input.block_tables = std::span(&table, 1);
    input.logits_rows = last_row;
    models::ForwardOutput output;
    loaded.model->forward(input, output).value();
    benchmark::DoNotOptimize(output.logits.as<const float>()[0]);
  }
}

// Argument: context length at the start.
void decode(benchmark::State& state,
            models::Precision precision,
            models::KvDtype kv_dtype = models::KvDtype::kAuto) {
  Loaded loaded = load(precision, kv_dtype);
  const auto context = static_cast<int32_t>(state.range(0));
  append(loaded, random_ids(context));
  const std::vector<int32_t> ids = random_ids(1);
  for (auto _ : state) append(loaded, ids);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Argument: prompt length.
void prefill(benchmark::State& state,
             models::Precision precision,
             models::KvDtype kv_dtype = models::KvDtype::kAuto) {
  Loaded loaded = load(precision, kv_dtype);
  const std::vector<int32_t> ids = random_ids(static_cast<int32_t>(state.range(0)));
  for (auto _ : state) {
    loaded.model->reset_slot(SlotId{0});
    append(loaded, ids);
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(state.iterations() * state.range(0)), benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(decode, default, models::Precision::kDefault)
    ->Arg(16)
    ->Arg(1024)
    ->Arg(8192)
    ->Iterations(200)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decode, fp8_keys, models::Precision::kDefault, models::KvDtype::kFp8)
    ->Arg(16)
    ->Arg(1024)
    ->Arg(8192)
    ->Iterations(200)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(prefill, default, models::Precision::kDefault)
    ->Arg(512)
    ->Arg(2048)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(prefill, fp8_keys, models::Precision::kDefault, models::KvDtype::kFp8)
    ->Arg(512)
    ->Arg(2048)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, reference, models::Precision::kReference)
    ->Arg(1024)
    ->Iterations(200)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(prefill, reference, models::Precision::kReference)
    ->Arg(2048)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace nibble
