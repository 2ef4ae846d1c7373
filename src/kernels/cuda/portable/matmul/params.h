// What the portable products take, dense and grouped.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"

namespace nibble::kernels::cuda {

// Matrices of rows in kRowMajor, one after another, times rows of x.
struct MatMulParams {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  int64_t codes_per_matrix = 0;   // bytes
  int64_t scales_per_matrix = 0;  // elements
  int32_t k = 0;
  int32_t row_bytes = 0;     // of codes
  int32_t scale_groups = 0;  // scales per row
  int32_t scale_shift = 0;   // log2 of the values of k that share one

  // Output rows come in parts: groups, whose columns of x differ; or gate and up.
  int32_t rows_per_part = 0;
  bool swiglu = false;
  float limit = 0;
  const float* pair_weights = nullptr;

  const uint8_t* x = nullptr;
  int64_t x_row_bytes = 0;
  const float* x_scales = nullptr;
  int32_t x_scale_stride = 0;
  int32_t m = 0;  // dense

  const int32_t* slot_count = nullptr;
  const int32_t* slot_experts = nullptr;  // null: dense
  const int32_t* slot_pairs = nullptr;
  int32_t slot_rows = 0;
  int32_t pairs_per_row = 1;

  void* y = nullptr;
  int64_t y_stride = 0;  // elements

  // The grid; set by the launcher of a tile.
  int32_t row_tiles = 0;     // per part
  int32_t column_tiles = 0;  // per slot
  int32_t tile_rows = 0;     // rows of a part per block
};

// All but the grid.
MatMulParams matmul_params(const DeviceMatMulArgs& args, ActivationForm form);
MatMulParams matmul_params(const DeviceGroupedMatMulArgs& args, ActivationForm form);

}  // namespace nibble::kernels::cuda
