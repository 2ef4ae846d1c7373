#include "kernels/cpu/matmul_driver.h"

#include <algorithm>

#include "base/check.h"

namespace nibble::kernels {
namespace {

// Below so many multiply-adds one thread is done before a second has started.
constexpr int64_t kMinParallelMacs = int64_t{128} * 1024;
// Likewise for activations that are converted.
constexpr int64_t kMinParallelInputs = int64_t{32} * 1024;

constexpr int64_t kCacheLine = 64;

// Chunks of one group's positions, of equal size as far as possible. Returns the end of the list.
TokenChunk* append_chunks(int32_t group, int32_t begin, int32_t end, TokenChunk* out) {
  const int64_t count = end - begin;
  if (count == 0) return out;
  const int64_t num_chunks = ceil_div(count, kMatMulChunkTokens);
  // Whole register tiles of 12 tokens, where there are several.
  const int64_t size = num_chunks == 1 ? count : round_up(ceil_div(count, num_chunks), 12);
  for (int64_t at = 0; at < count; at += size) {
    *out++ = {.group = group,
              .begin = static_cast<int32_t>(begin + at),
              .count = static_cast<int32_t>(std::min(size, count - at))};
  }
  return out;
}

// Blocks per task: at most kMatMulTaskBlocks, fewer where that gives every thread the same share.
void choose_tasks(MatMulWork& work, int64_t num_threads) {
  const int64_t blocks = ceil_div(work.weights->n, kInterleavedRows);
  const int64_t total = blocks * work.num_chunks;
  const int64_t rounds = ceil_div(total, kMatMulTaskBlocks * num_threads);
  const int64_t share = ceil_div(total, num_threads * rounds);
  work.blocks_per_task = std::clamp<int64_t>(share, 1, kMatMulTaskBlocks);
  work.tasks_per_chunk = ceil_div(blocks, work.blocks_per_task);
}

// On the pool, or inline where the work is small.
template <class F>
void for_each_task(device::ThreadPool& pool, bool is_small, int64_t num_tasks, F&& fn) {
  if (is_small) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task);
  } else {
    pool.parallel_for(num_tasks, fn);
  }
}

void run(const MatMulWork& work, device::ThreadPool& pool, const MatMulCode& code) {
  const PackedWeight& weight = *work.weights;
  const int64_t blocks = ceil_div(weight.n, kInterleavedRows);
  const int64_t num_inputs = work.num_positions * weight.k;
  for_each_task(pool, num_inputs < kMinParallelInputs, work.num_chunks, [&](int64_t chunk) {
    code.prepare(work, work.chunks[chunk]);
  });
  const bool is_small = num_inputs * weight.n < kMinParallelMacs;
  for_each_task(pool, is_small, work.num_chunks * work.tasks_per_chunk, [&](int64_t task) {
    const int64_t begin = task % work.tasks_per_chunk * work.blocks_per_task;
    const int64_t end = std::min(begin + work.blocks_per_task, blocks);
    code.compute(work, work.chunks[task / work.tasks_per_chunk], begin, end);
  });
}

}  // namespace

Result<void> run_matmul(const MatMulArgs& args, device::ThreadPool& pool, const MatMulCode& code) {
  const int32_t group_offsets[] = {0, static_cast<int32_t>(args.x.num_rows())};
  return run_grouped_matmul({.x = args.x,
                             .weights = {args.weight, 1},
                             .group_offsets = group_offsets,
                             .in_rows = {},
                             .out_rows = {},
                             .y = args.y},
                            pool,
                            code);
}

Result<void> run_grouped_matmul(const GroupedMatMulArgs& args,
                                device::ThreadPool& pool,
                                const MatMulCode& code) {
  DCHECK(args.group_offsets.size() == args.weights.size() + 1);
  if (args.weights.empty() || args.group_offsets.back() == 0) return {};
  MatMulWork work{.x = args.x, .y = args.y};
  work.weights = args.weights.data();
  DCHECK(work.weights->layout == PackedLayout::kInterleaved16);
  work.in_rows = args.in_rows.data();
  work.out_rows = args.out_rows.data();
  work.num_positions = args.group_offsets.back();

  const auto num_groups = static_cast<int32_t>(args.weights.size());
  const int64_t max_chunks = num_groups + 2 * ceil_div(work.num_positions, kMatMulChunkTokens);
  const auto chunk_size = static_cast<int64_t>(sizeof(TokenChunk));
  const int64_t chunk_bytes = round_up(max_chunks * chunk_size, kCacheLine);
  const int64_t padded_k = interleaved_padded_k(work.weights->k);
  TRY_ASSIGN(std::byte* const scratch,
             pool.scratch(chunk_bytes + work.num_positions * padded_k * code.input_bytes));
  auto* const chunks = reinterpret_cast<TokenChunk*>(scratch);
  TokenChunk* end = chunks;
  for (int32_t group = 0; group < num_groups; ++group) {
    const auto i = static_cast<size_t>(group);
    end = append_chunks(group, args.group_offsets[i], args.group_offsets[i + 1], end);
  }
  work.chunks = chunks;
  work.num_chunks = end - chunks;
  DCHECK(work.num_chunks <= max_chunks);
  work.inputs = scratch + chunk_bytes;
  choose_tasks(work, pool.num_threads());
  run(work, pool, code);
  return {};
}

}  // namespace nibble::kernels
