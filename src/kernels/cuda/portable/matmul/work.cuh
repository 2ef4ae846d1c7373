// What a block of the portable products works on, and where its results go. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/portable/matmul/params.h"

namespace nibble::kernels::cuda {

struct MatMulWork {
  int64_t matrix = 0;    // expert; -1: nothing to do
  int group = 0;         // of output rows
  int first_row = 0;     // within the group, or within gate and within up rows
  int64_t slot = 0;      // grouped
  int first_column = 0;  // token, or place in the slot
};

// Grid: dense (row tile, column tile), column tile fastest; grouped (slot, column tile, row tile),
// row tile fastest.
__device__ __forceinline__ MatMulWork matmul_work(const MatMulParams& params,
                                                  int block,
                                                  int columns) {
  MatMulWork work;
  if (params.slot_experts == nullptr) {
    const int tile = block / params.column_tiles;
    work.first_column = block % params.column_tiles * columns;
    work.group = tile / params.row_tiles;
    work.first_row = tile % params.row_tiles * params.tile_rows;
    return work;
  }
  const int rest = block / params.row_tiles;
  work.first_row = block % params.row_tiles * params.tile_rows;
  work.slot = rest / params.column_tiles;
  work.first_column = rest % params.column_tiles * columns;
  const bool is_used = params.slot_rows == 1 || work.slot < __ldg(params.slot_count);
  work.matrix = is_used ? __ldg(params.slot_experts + work.slot) : -1;
  return work;
}

// The row of y that column `column` of the block is for; -1: none.
__device__ __forceinline__ int matmul_output(const MatMulParams& params,
                                             const MatMulWork& work,
                                             int column) {
  const int place = work.first_column + column;
  if (params.slot_experts == nullptr) return place < params.m ? place : -1;
  if (place >= params.slot_rows) return -1;
  if (params.slot_rows == 1) return static_cast<int>(work.slot);
  return __ldg(params.slot_pairs + work.slot * params.slot_rows + place);
}

// The row of x for that column; row 0 where there is none.
__device__ __forceinline__ int64_t matmul_x_row(const MatMulParams& params,
                                                const MatMulWork& work,
                                                int column) {
  const int output = matmul_output(params, work, column);
  if (output < 0) return 0;
  return params.slot_experts == nullptr ? output : output / params.pairs_per_row;
}

__device__ __forceinline__ void store_swiglu(
    const MatMulParams& params, int output, int row, float gate, float up) {
  const float weight = params.pair_weights == nullptr ? 1.0f : __ldg(params.pair_weights + output);
  static_cast<uint16_t*>(params.y)[output * params.y_stride + row] =
      static_cast<uint16_t>(pack_bf16x2(swiglu(gate, up, params.limit) * weight, 0.0f) & 0xFFFFU);
}

}  // namespace nibble::kernels::cuda
