// Attention of DeepSeek-V4-Flash on a GPU: sparse attention over scattered keys, the indexer's
// scores and selection. Graphs of dependent launches; keys and scores rotate through more memory
// than the cache holds. Prints one JSON object per line. Arguments: parts of the names of the
// measurements wanted.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "kernels/cuda/portable/sparse_attention/launch.h"
#include "kernels/cuda/sm90/indexer/launch.h"
#include "kernels/cuda/sm90/sparse_attention/launch.h"
#include "kernels/cuda/sm90/top_k/launch.h"
#include "quant/numeric.h"

namespace nibble {
namespace {

using namespace kernels;        // NOLINT: a program of its own
using namespace kernels::cuda;  // NOLINT
using cuda_bench::Run;
using cuda_bench::Spread;
using cuda_bench::time_graph_us;

constexpr int32_t kHeads = 64;
constexpr int64_t kWidth = 512, kKeyBytes = 1024, kFp8KeyBytes = 584;
constexpr int64_t kDataBytes = int64_t{2} << 30;
constexpr int32_t kPoolRows = 1 << 20;  // 1 GB of BF16 keys, 0.6 GB of FP8 keys
// A graph touches so many keys, 330 MB in BF16 and 190 MB in FP8, before it comes back to the
// first.
constexpr int32_t kKeysTouched = 320 << 10;
// A sequence's entries lie in so many rows: a context of 64K tokens at four tokens per entry.
constexpr int32_t kSequenceRows = 16384;

// Device memory handed out piece by piece.
class Arena {
 public:
  static Result<Arena> make(device::Device& device, int64_t num_bytes) {
    TRY_ASSIGN(device::Buffer buffer, device.allocate(num_bytes));
    return Arena(device, std::move(buffer));
  }
  template <class T>
  Result<T*> upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* const to = take(bytes);
    TRY(device::copy_to_device(to, values.data(), bytes, device_->stream()));
    TRY(device::synchronize(device_->stream()));
    return reinterpret_cast<T*>(to);
  }
  std::byte* take(int64_t num_bytes) {
    std::byte* const part = buffer_.data() + used_;
    used_ += (num_bytes + 255) / 256 * 256;
    CHECK(used_ <= buffer_.num_bytes()) << used_;
    return part;
  }

 private:
  Arena(device::Device& device, device::Buffer buffer)
      : device_(&device), buffer_(std::move(buffer)) {}
  device::Device* device_;
  device::Buffer buffer_;
  int64_t used_ = 0;
};

// About 64 MB of random bytes that are finite as BF16 and as E4M3: a multiple of FP8 rows.
std::vector<std::byte> random_block() {
  std::mt19937 random(1);
  std::vector<std::byte> block((int64_t{64} << 20) / kFp8KeyBytes * kFp8KeyBytes);
  for (size_t i = 0; i < block.size(); i += 2) {
    const auto bits = random();
    block[i] = static_cast<std::byte>(bits & 0xF7U);
    block[i + 1] = static_cast<std::byte>((bits >> 8 & 0x81U) | 0x3EU);
  }
  return block;
}
// Over `data`, again and again: what repeats is more than the cache knows.
Result<void> fill(device::Device& device,
                  std::byte* data,
                  int64_t num_bytes,
                  const std::vector<std::byte>& block) {
  const auto block_bytes = static_cast<int64_t>(block.size());
  for (int64_t at = 0; at < num_bytes; at += block_bytes) {
    TRY(device::copy_to_device(
        data + at, block.data(), std::min(block_bytes, num_bytes - at), device.stream()));
  }
  return device::synchronize(device.stream());
}
// FP8 rows with scales as keys of a model have them, 2^-15 to 2^0.
Result<void> fill_fp8_rows(device::Device& device, std::byte* data, int64_t num_bytes) {
  std::vector<std::byte> block = random_block();
  for (size_t row = kFp8KeyBytes; row <= block.size(); row += kFp8KeyBytes) {
    for (size_t i = row - 8; i < row; ++i)
      block[i] = (block[i] & std::byte{0x0F}) | std::byte{0x70};
  }
  return fill(device, data, num_bytes, block);
}

// Normal values; a million of them, repeated.
std::vector<uint16_t> random_bf16(int64_t size) {
  constexpr int64_t kDistinct = 1 << 20;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values;
  values.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    values.push_back(i < kDistinct ? quant::f32_to_bf16(normal(random))
                                   : values[static_cast<size_t>(i - kDistinct)]);
  }
  return values;
}

// What a measurement lets a launch read while its predecessor runs.
struct Ahead {
  const char* name;
  bool window, entries;
};
// Layers with an indexer know the window before the selection ends; others know all of their keys.
constexpr Ahead kAhead[] = {
    {"nothing", false, false}, {"window", true, false}, {"keys", true, true}};

// The window of each token: neighbouring rows.
std::vector<int32_t> window_rows(size_t tokens, int32_t count, std::mt19937& random) {
  std::vector<int32_t> rows;
  for (size_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<int32_t>(random() % (kPoolRows - 128));
    for (int32_t i = 0; i < std::max(count, 1); ++i) rows.push_back(first + i);
  }
  return rows;
}

// The selected entries of each token: ascending rows scattered over its sequence's.
std::vector<int32_t> entry_rows(size_t tokens, int32_t count, std::mt19937& random) {
  std::vector<int32_t> rows;
  for (size_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<int32_t>(random() % (kPoolRows - kSequenceRows));
    const auto begin = static_cast<ptrdiff_t>(rows.size());
    for (int32_t i = 0; i < std::max(count, 1); ++i) {
      rows.push_back(first + static_cast<int32_t>(random() % kSequenceRows));
    }
    std::sort(rows.begin() + begin, rows.end());
  }
  return rows;
}

struct AttentionShape {
  int32_t tokens, window, entries;
};
// Stands for the portable kernel.
constexpr SparseAttentionShape kPortable = {};
std::string name_of(const SparseAttentionShape& shape) {
  if (&shape == &kPortable) return "_portable";
  const bool is_cluster = shape.kernel == SparseAttentionShape::Kernel::kCluster;
  return fmt::format("_{}{}", is_cluster ? "cluster" : "splits", shape.splits);
}

Result<void> measure_attention(device::Device& device,
                               const Run& run,
                               const std::byte* pool,
                               DType dtype,
                               const AttentionShape& shape,
                               const SparseAttentionShape* forced) {
  const int32_t count = std::max(kKeysTouched / (shape.tokens * (shape.window + shape.entries)), 4);
  TRY_ASSIGN(Arena arena, Arena::make(device, int64_t{512} << 20));
  std::mt19937 random(static_cast<uint32_t>(shape.tokens));
  const std::vector<uint16_t> q = random_bf16(shape.tokens * kHeads * kWidth);
  TRY_ASSIGN(uint16_t* const device_q, arena.upload(q));
  TRY_ASSIGN(float* const sink, arena.upload(std::vector<float>(kHeads, 0.5f)));
  const auto tokens = static_cast<size_t>(shape.tokens);
  TRY_ASSIGN(int32_t* const window_counts,
             arena.upload(std::vector<int32_t>(tokens, shape.window)));
  TRY_ASSIGN(int32_t* const entry_counts,
             arena.upload(std::vector<int32_t>(tokens, shape.entries)));
  const int64_t out_width = kHeads * kWidth;
  std::byte* const out = arena.take(2 * fp8_blocks_bytes(shape.tokens, out_width));
  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 5000);
  TRY_ASSIGN(int32_t* const device_positions, arena.upload(positions));
  TRY_ASSIGN(float* const freqs, arena.upload(std::vector<float>(32, 0.1f)));
  // Queries as sums where the kernel makes them itself.
  constexpr int32_t kMaxSumRows = 4;
  const bool has_sums = shape.tokens <= kMaxSumRows && forced == nullptr;
  auto* const q_sums = reinterpret_cast<float*>(arena.take(kMaxSumRows * out_width * 4));
  std::vector<int32_t*> windows, entries;
  for (int32_t i = 0; i < count; ++i) {
    TRY_ASSIGN(int32_t* const window, arena.upload(window_rows(tokens, shape.window, random)));
    TRY_ASSIGN(int32_t* const entry, arena.upload(entry_rows(tokens, shape.entries, random)));
    windows.push_back(window);
    entries.push_back(entry);
  }
  for (const Ahead& ahead : kAhead) {
    const std::string what = fmt::format("attention_{}_{}+{}_ahead_{}{}",
                                         dtype == DType::kBf16 ? "bf16" : "fp8",
                                         shape.window,
                                         shape.entries,
                                         ahead.name,
                                         forced == nullptr ? "" : name_of(*forced));
    if (!run.wants(what)) continue;
    const auto step = [&](int32_t i) -> Result<void> {
      DeviceSparseAttentionArgs args{
          .q = has_sums ? nullptr : device_q,
          .q_sums = {.data = q_sums},
          .eps = 1e-6f,
          .window = {.pool = pool,
                     .rows = windows[static_cast<size_t>(i)],
                     .counts = window_counts,
                     .max_rows = shape.window,
                     .ready_counts = ahead.window ? window_counts : nullptr},
          .entries = {.pool = pool,
                      .rows = entries[static_cast<size_t>(i)],
                      .counts = entry_counts,
                      .max_rows = shape.entries,
                      .ready_counts = ahead.entries ? entry_counts : nullptr},
          .kv_dtype = dtype,
          .sink = sink,
          .scale = 1.0f / std::sqrt(512.0f),
          .positions = device_positions,
          .rotation = {.freqs = freqs, .num_rotary = 64},
          .out = {.fp8_blocks = out},
          .m = shape.tokens,
          .heads = kHeads,
          .num_units = device.info().num_units,
          .is_dependent = true};
      if (forced == &kPortable) {
        args.out = {.bf16 = out};
        return launch_portable_sparse_attention(args, device.stream());
      }
      return forced == nullptr
                 ? launch_sparse_attention_sm90(args, device.stream())
                 : launch_sparse_attention_sm90_shaped(args, *forced, device.stream());
    };
    TRY_ASSIGN(const Spread us, time_graph_us(device.stream(), count, step));
    const int64_t keys = int64_t{shape.tokens} * (shape.window + shape.entries);
    const int64_t bytes = keys * (dtype == DType::kBf16 ? kKeyBytes : kFp8KeyBytes) +
                          shape.tokens * out_width * (has_sums ? 5 : 3);
    run.print(what, shape.tokens, bytes, us);
  }
  return {};
}

// Other ways to fill the machine than those that a launch takes by itself.
Result<void> measure_shapes(device::Device& device, const Run& run, const std::byte* pool) {
  using Kernel = SparseAttentionShape::Kernel;
  for (const int32_t tokens : {4, 8, 16, 32}) {
    for (const SparseAttentionShape& shape : {SparseAttentionShape{Kernel::kCluster, 16},
                                              SparseAttentionShape{Kernel::kCluster, 8},
                                              SparseAttentionShape{Kernel::kWarpgroups, 8},
                                              SparseAttentionShape{Kernel::kWarpgroups, 4},
                                              SparseAttentionShape{Kernel::kWarpgroups, 2}}) {
      for (const int32_t entries : {256, 512}) {
        TRY(measure_attention(device, run, pool, DType::kBf16, {tokens, 128, entries}, &shape));
      }
    }
  }
  return {};
}

Result<void> measure_all_attention(device::Device& device, const Run& run, std::byte* data) {
  std::byte* const fp8_pool = data + kPoolRows * kKeyBytes;
  TRY(fill_fp8_rows(device, fp8_pool, kPoolRows * kFp8KeyBytes));
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    const std::byte* const pool = dtype == DType::kBf16 ? data : fp8_pool;
    for (const int32_t tokens : {1, 2, 4, 16, 64, 256}) {
      TRY(measure_attention(device, run, pool, dtype, {tokens, 128, 512}, nullptr));
      TRY(measure_attention(device, run, pool, dtype, {tokens, 128, 512}, &kPortable));
    }
    TRY(measure_attention(device, run, pool, dtype, {1, 128, 0}, nullptr));
    TRY(measure_attention(device, run, pool, dtype, {1, 128, 1024}, nullptr));
    TRY(measure_attention(device, run, pool, dtype, {2048, 128, 512}, nullptr));
  }
  return {};
}

// Normal scores, 64 MB of them repeated.
Result<void> fill_scores(device::Device& device, std::byte* data) {
  constexpr int64_t kBlock = int64_t{64} << 20;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> block(kBlock / 4);
  for (float& value : block) value = normal(random);
  for (int64_t at = 0; at < kDataBytes; at += kBlock) {
    TRY(device::copy_to_device(data + at, block.data(), kBlock, device.stream()));
  }
  return device::synchronize(device.stream());
}

Result<void> measure_top_k(device::Device& device, const Run& run, std::byte* data) {
  TRY(fill_scores(device, data));
  TRY_ASSIGN(Arena arena, Arena::make(device, int64_t{16} << 20));
  for (const int32_t k : {512, 1024}) {
    for (const int32_t entries : {4096, 8192, 16384, 65536, 131072, 262144}) {
      const std::string what = fmt::format("top_{}_of_{}", k, entries);
      if (!run.wants(what)) continue;
      const int32_t count =
          std::min(512, static_cast<int32_t>((int64_t{320} << 20) / (4 * entries)));
      TRY_ASSIGN(int32_t* const counts, arena.upload(std::vector<int32_t>(1, entries)));
      std::byte* const workspace = arena.take(top_k_workspace_bytes(1, k, entries) + 16);
      auto* const indices = reinterpret_cast<int32_t*>(arena.take(4 * k));
      const int64_t stride = kDataBytes / count / 256 * 256;
      TRY_ASSIGN(const Spread us, time_graph_us(device.stream(), count, [&](int32_t i) {
                   return launch_top_k({.scores = reinterpret_cast<const float*>(data + i * stride),
                                        .counts = counts,
                                        .columns = entries,
                                        .m = 1,
                                        .k = k,
                                        .indices = indices,
                                        .workspace = workspace,
                                        .is_dependent = true},
                                       device.stream());
                 }));
      run.print(what, 1, int64_t{entries} * 4, us);
    }
  }
  return {};
}

Result<void> measure_scores(device::Device& device, const Run& run, const std::byte* data) {
  constexpr int32_t kIndexKeyBytes = 256, kEntriesPerPage = 64;
  TRY_ASSIGN(Arena arena, Arena::make(device, int64_t{256} << 20));
  std::mt19937 random(2);
  TRY_ASSIGN(uint16_t* const device_q, arena.upload(random_bf16(16 * 64 * 128)));
  TRY_ASSIGN(float* const weights, arena.upload(std::vector<float>(16 * 64, 0.3f)));
  for (const int32_t tokens : {1, 16}) {
    for (const int32_t entries : {4096, 16384, 65536, 262144}) {
      const std::string what = fmt::format("scores_of_{}", entries);
      if (!run.wants(what) || (tokens == 16 && entries > 65536)) continue;
      const int32_t pages_per_token = entries / kEntriesPerPage;
      const auto pool_pages = static_cast<uint32_t>(kDataBytes / kIndexKeyBytes / kEntriesPerPage);
      const int32_t count = 16;
      TRY_ASSIGN(int32_t* const counts,
                 arena.upload(std::vector<int32_t>(static_cast<size_t>(tokens), entries)));
      std::vector<int32_t*> tables;
      for (int32_t i = 0; i < count; ++i) {
        std::vector<int32_t> pages(static_cast<size_t>(tokens * pages_per_token));
        for (int32_t& page : pages) page = static_cast<int32_t>(random() % pool_pages);
        TRY_ASSIGN(int32_t* const table, arena.upload(pages));
        tables.push_back(table);
      }
      auto* const scores = reinterpret_cast<float*>(arena.take(int64_t{tokens} * entries * 4));
      TRY_ASSIGN(const Spread us, time_graph_us(device.stream(), count, [&](int32_t i) {
                   return launch_indexer_score_sm90(
                       {.q = device_q,
                        .head_weights = weights,
                        .keys = {.pool = data,
                                 .pages = tables[static_cast<size_t>(i)],
                                 .counts = counts,
                                 .max_pages = pages_per_token,
                                 .entries_per_page = kEntriesPerPage},
                        .scores = scores,
                        .columns = entries,
                        .m = tokens,
                        .heads = 64,
                        .num_units = device.info().num_units,
                        .is_dependent = true},
                       device.stream());
                 }));
      const int64_t all = int64_t{tokens} * entries;
      run.print(what, tokens, all * (kIndexKeyBytes + 4), us);
    }
  }
  return {};
}

// How a layer with an indexer selects and attends.
struct SelectionStep {
  const char* name;
  bool in_one_launch, attends;
};
constexpr SelectionStep kSelectionSteps[] = {{"select_in_two", false, false},
                                             {"select_in_one", true, false},
                                             {"attend_after_two", false, true},
                                             {"attend_after_one", true, true}};

// Scores, their selection and attention to what it selects, of tokens with `entries` each, in
// shuffled pages of one pool of index keys and one of keys.
class SelectionBench {
 public:
  static constexpr int32_t kSteps = 48, kSelected = 512, kEntriesPerPage = 64, kIndexKeyBytes = 256;

  static Result<SelectionBench> make(device::Device& device,
                                     const std::byte* data,
                                     int32_t tokens,
                                     int32_t entries) {
    TRY_ASSIGN(Arena arena, Arena::make(device, int64_t{256} << 20));
    SelectionBench bench(device, data, std::move(arena), tokens, entries);
    TRY(bench.fill());
    return bench;
  }

  Result<void> step(int32_t i, const SelectionStep& what) {
    const auto index = static_cast<size_t>(i);
    DeviceIndexerScoreArgs score{.q = index_q_,
                                 .head_weights = weights_,
                                 .keys = {.pool = data_,
                                          .pages = pages_[index],
                                          .counts = counts_,
                                          .max_pages = entries_ / kEntriesPerPage,
                                          .entries_per_page = kEntriesPerPage},
                                 .scores = scores_,
                                 .columns = entries_,
                                 .m = tokens_,
                                 .heads = 64,
                                 .unscored_count = kSelected,
                                 .num_units = device_->info().num_units,
                                 .is_dependent = true};
    if (what.in_one_launch) {
      score.selection = {.k = kSelected, .indices = selected_, .counters = counters_};
    }
    TRY(launch_indexer_score_sm90(score, device_->stream()));
    if (!what.in_one_launch) {
      TRY(launch_top_k({.scores = scores_,
                        .counts = counts_,
                        .columns = entries_,
                        .m = tokens_,
                        .k = kSelected,
                        .pages = pages_[index],
                        .max_pages = entries_ / kEntriesPerPage,
                        .entries_per_page = kEntriesPerPage,
                        .indices = selected_,
                        .skips_short_rows = true,
                        .is_dependent = true},
                       device_->stream()));
    }
    return what.attends ? attend(windows_[index]) : Result<void>{};
  }

 private:
  SelectionBench(
      device::Device& device, const std::byte* data, Arena arena, int32_t tokens, int32_t entries)
      : device_(&device),
        data_(data),
        arena_(std::move(arena)),
        tokens_(tokens),
        entries_(entries) {}

  Result<void> fill() {
    const auto tokens = static_cast<size_t>(tokens_);
    std::mt19937 random(4);
    TRY_ASSIGN(index_q_, arena_.upload(random_bf16(int64_t{tokens_} * 64 * 128)));
    TRY_ASSIGN(weights_, arena_.upload(std::vector<float>(tokens * 64, 0.3f)));
    TRY_ASSIGN(q_, arena_.upload(random_bf16(int64_t{tokens_} * kHeads * kWidth)));
    TRY_ASSIGN(sink_, arena_.upload(std::vector<float>(kHeads, 0.5f)));
    TRY_ASSIGN(counts_, arena_.upload(std::vector<int32_t>(tokens, entries_)));
    TRY_ASSIGN(selected_counts_, arena_.upload(std::vector<int32_t>(tokens, kSelected)));
    TRY_ASSIGN(window_counts_, arena_.upload(std::vector<int32_t>(tokens, 128)));
    TRY_ASSIGN(counters_, arena_.upload(std::vector<int32_t>(tokens, 0)));
    TRY_ASSIGN(positions_, arena_.upload(std::vector<int32_t>(tokens, 5000)));
    TRY_ASSIGN(freqs_, arena_.upload(std::vector<float>(32, 0.1f)));
    selected_ = reinterpret_cast<int32_t*>(arena_.take(int64_t{tokens_} * kSelected * 4));
    scores_ = reinterpret_cast<float*>(arena_.take(int64_t{tokens_} * entries_ * 4));
    out_ = arena_.take(fp8_blocks_bytes(tokens_, kHeads * kWidth));
    constexpr auto kPages = static_cast<uint32_t>(kPoolRows / kEntriesPerPage);
    for (int32_t i = 0; i < kSteps; ++i) {
      std::vector<int32_t> pages(tokens * static_cast<size_t>(entries_ / kEntriesPerPage));
      for (int32_t& page : pages) page = static_cast<int32_t>(random() % kPages);
      TRY_ASSIGN(int32_t* const table, arena_.upload(pages));
      TRY_ASSIGN(int32_t* const window, arena_.upload(window_rows(tokens, 128, random)));
      pages_.push_back(table);
      windows_.push_back(window);
    }
    return {};
  }

  Result<void> attend(const int32_t* window) {
    return launch_sparse_attention_sm90({.q = q_,
                                         .window = {.pool = data_,
                                                    .rows = window,
                                                    .counts = window_counts_,
                                                    .max_rows = 128,
                                                    .ready_counts = window_counts_},
                                         .entries = {.pool = data_,
                                                     .rows = selected_,
                                                     .counts = selected_counts_,
                                                     .max_rows = kSelected},
                                         .kv_dtype = DType::kBf16,
                                         .sink = sink_,
                                         .scale = 1.0f / std::sqrt(512.0f),
                                         .positions = positions_,
                                         .rotation = {.freqs = freqs_, .num_rotary = 64},
                                         .out = {.fp8_blocks = out_},
                                         .m = tokens_,
                                         .heads = kHeads,
                                         .num_units = device_->info().num_units,
                                         .is_dependent = true},
                                        device_->stream());
  }

  device::Device* device_;
  const std::byte* data_;
  Arena arena_;
  int32_t tokens_, entries_;
  uint16_t* index_q_ = nullptr;
  uint16_t* q_ = nullptr;
  float* weights_ = nullptr;
  float* sink_ = nullptr;
  float* freqs_ = nullptr;
  float* scores_ = nullptr;
  int32_t* counts_ = nullptr;
  int32_t* selected_counts_ = nullptr;
  int32_t* window_counts_ = nullptr;
  int32_t* counters_ = nullptr;
  int32_t* positions_ = nullptr;
  int32_t* selected_ = nullptr;
  std::byte* out_ = nullptr;
  std::vector<int32_t*> pages_, windows_;
};

Result<void> measure_selection(device::Device& device, const Run& run, const std::byte* data) {
  for (const int32_t tokens : {1, 16, 64}) {
    for (const int32_t entries : {1024, 4096, 16384}) {
      TRY_ASSIGN(SelectionBench bench, SelectionBench::make(device, data, tokens, entries));
      for (const SelectionStep& what : kSelectionSteps) {
        const std::string name = fmt::format("{}_of_{}", what.name, entries);
        if (!run.wants(name)) continue;
        TRY_ASSIGN(const Spread us,
                   time_graph_us(device.stream(), SelectionBench::kSteps, [&](int32_t i) {
                     return bench.step(i, what);
                   }));
        const int64_t scored = int64_t{tokens} * entries * (SelectionBench::kIndexKeyBytes + 4);
        const int64_t attended = what.attends ? int64_t{tokens} * 640 * kKeyBytes : 0;
        run.print(name, tokens, scored + attended, us);
      }
    }
  }
  return {};
}

Result<void> run_all(std::vector<std::string> names) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  TRY_ASSIGN(const device::Buffer data, device->allocate(kDataBytes));
  TRY(fill(*device, data.data(), kDataBytes, random_block()));
  TRY_ASSIGN(const Run run, Run::start(*device, data, std::move(names)));
  TRY(measure_all_attention(*device, run, data.data()));
  TRY(measure_shapes(*device, run, data.data()));
  TRY(measure_scores(*device, run, data.data()));
  TRY(measure_selection(*device, run, data.data()));
  return measure_top_k(*device, run, data.data());
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run_all({argv + 1, argv + argc}));
}
