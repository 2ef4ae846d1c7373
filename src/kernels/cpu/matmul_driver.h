// What every SIMD matrix product on kInterleaved16 weights shares: cutting the work into tasks and
// handing them to the pool. Compiled for the baseline CPU; the code of a task comes as function
// pointers from a file of one ISA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/result.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "kernels/op_args.h"
#include "kernels/packed_weight.h"
#include "kernels/registry.h"

namespace nibble::kernels {

// k is walked in chunks of this many values: a decoded weight tile then stays in the L1 cache. A
// multiple of every format's group size.
inline constexpr int64_t kMatMulChunkK = 128;

// At most so many tokens share one pass over a weight: decoding is then a few percent of the work,
// and the sums of a weight tile (16 rows x 96 tokens x 4 bytes per block) stay near.
inline constexpr int64_t kMatMulChunkTokens = 96;

// Weight blocks (16 rows each) of one task.
inline constexpr int64_t kMatMulTaskBlocks = 8;

// Consecutive positions [begin, begin + count) of one group.
struct TokenChunk {
  int32_t group = 0;
  int32_t begin = 0;
  int32_t count = 0;
};

// kMatMul and kGroupedMatMul in one form. A position i reads row in_rows[i] of x and writes row
// out_rows[i] of y.
struct MatMulWork {
  TensorView x;
  TensorView y;
  const PackedWeight* weights = nullptr;  // one per group
  const int32_t* in_rows = nullptr;       // null: position i is row i
  const int32_t* out_rows = nullptr;
  int64_t num_positions = 0;

  const TokenChunk* chunks = nullptr;
  int64_t num_chunks = 0;
  int64_t blocks_per_task = 0;
  int64_t tasks_per_chunk = 0;

  // Activations in the form that the kernel multiplies, zero-padded to interleaved_padded_k(k). The
  // chunk that begins at position b starts at element b * padded_k; within it: [k /
  // kMatMulChunkK][count][kMatMulChunkK, at the end less].
  std::byte* inputs = nullptr;

  const float* x_row(int64_t position) const {
    return x.row<const float>(in_rows == nullptr ? position : in_rows[position]);
  }
  float* y_row(int64_t position) const {
    return y.row<float>(out_rows == nullptr ? position : out_rows[position]);
  }
};

// The ISA's part.
struct MatMulCode {
  int64_t input_bytes = 0;  // of one activation in MatMulWork::inputs
  void (*prepare)(const MatMulWork& work,
                  const TokenChunk& chunk) = nullptr;  // fills the chunk's inputs
  // Computes weight blocks [block_begin, block_end) for the tokens of a chunk.
  void (*compute)(const MatMulWork& work,
                  const TokenChunk& chunk,
                  int64_t block_begin,
                  int64_t block_end) = nullptr;
};

Result<void> run_matmul(const MatMulArgs& args, device::ThreadPool& pool, const MatMulCode& code);
Result<void> run_grouped_matmul(const GroupedMatMulArgs& args,
                                device::ThreadPool& pool,
                                const MatMulCode& code);

// What the rows of one ISA's table have in common.
struct MatMulTarget {
  device::IsaSet isa = 0;
  Activation activation = Activation::kF32;
};

// A row of kMatMul or kGroupedMatMul, by the launcher's type.
template <class Args>
constexpr KernelInfo matmul_row(std::string_view name,
                                quant::Format weight,
                                const MatMulTarget& target,
                                Launcher<Args> launch) {
  return {.name = name,
          .op = std::is_same_v<Args, MatMulArgs> ? Op::kMatMul : Op::kGroupedMatMul,
          .has_weight = true,
          .weight = weight,
          .activation = target.activation,
          .unit = ComputeUnit::kSimd,
          .target = {.isa = target.isa},
          .layout = PackedLayout::kInterleaved16,
          .verified = kCpuVerified,
          .launch = launch};
}

}  // namespace nibble::kernels
