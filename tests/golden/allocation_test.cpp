// A binary of its own: it counts every operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include "golden/golden_testing.h"

namespace {

std::atomic<bool> is_counting{false};
std::atomic<int64_t> num_allocations{0};

}  // namespace

void* operator new(size_t size) {
  if (is_counting.load(std::memory_order_relaxed)) ++num_allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
void* operator new(size_t size, std::align_val_t alignment) {
  if (is_counting.load(std::memory_order_relaxed)) ++num_allocations;
  const auto align = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(align, (size + align - 1) / align * align);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace nibble::golden {
namespace {

// Allocations of one pass of `count` tokens.
int64_t count_allocations(models::Model& model, const Sequence& sequence, int32_t count) {
  const std::vector<int32_t> ids = random_ids(model, count, 1);
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), sequence.length());
  const int32_t cu_seqlens[] = {0, count};
  const int32_t logits_rows[] = {count - 1};
  const SlotId slot = sequence.slot();
  const std::span<const PageId> table = sequence.pages();
  models::ForwardInput input;
  input.token_ids = ids;
  input.positions = positions;
  input.cu_seqlens = cu_seqlens;
  input.slots = std::span(&slot, 1);
  input.block_tables = std::span(&table, 1);
  input.logits_rows = logits_rows;
  input.compute_mtp = true;
  models::ForwardOutput output;
  num_allocations = 0;
  is_counting = true;
  const Result<void> done = model.forward(input, output);
  is_counting = false;
  done.value();
  return num_allocations;
}

TEST(Forward, AllocatesNothingInTheSteadyState) {
  const Loaded loaded =
      load(tiny_v4_dir(), {.precision = models::Precision::kDefault, .num_threads = 2});
  const Sequence sequence(*loaded.model);
  count_allocations(*loaded.model, sequence, 512);  // kernels size their scratch
  for (const int32_t count : {1, 7, 512, 1}) {
    EXPECT_EQ(count_allocations(*loaded.model, sequence, count), 0) << count << " tokens";
  }
}

}  // namespace
}  // namespace nibble::golden
