// Choosing a tile and launching it.
#pragma once

#include <type_traits>

#include "base/checked_math.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/portable/matmul/kernel.cuh"
#include "kernels/cuda/portable/matmul/params.h"
#include "kernels/planned/targets.h"

namespace nibble::kernels::cuda {

template <class Weights, class Activations, int kTilesM, int kTilesN>
Result<void> launch_tile(MatMulParams params,
                         int32_t parts,
                         int32_t columns,
                         int32_t slots,
                         bool is_dependent,
                         device::Stream& stream) {
  using Tile = MatMulTile<Weights, Activations, kTilesM, kTilesN>;
  static_assert(Tile::kBytes <= kLeastSharedBytes);
  params.tile_rows = params.swiglu ? Tile::kRows / 2 : Tile::kRows;
  params.row_tiles = ceil_div(params.rows_per_part, params.tile_rows);
  params.column_tiles = ceil_div(columns, Tile::kColumns);
  const int64_t blocks = int64_t{parts} * params.row_tiles * params.column_tiles * slots;
  if (blocks == 0) return {};
  return launch_kernel(&portable_matmul<Weights, Activations, kTilesM, kTilesN>,
                       {.grid = static_cast<uint32_t>(blocks),
                        .block = Tile::kThreads,
                        .shared_bytes = Tile::kBytes,
                        .is_dependent = is_dependent},
                       stream,
                       params);
}

// Tiles differ in speed only.
template <class Weights, class Activations>
Result<void> launch_best_tile(const MatMulParams& params,
                              int32_t parts,
                              int32_t columns,
                              int32_t slots,
                              bool is_dependent,
                              device::Stream& stream) {
  const auto launch = [&](auto tiles_m, auto tiles_n) {
    return launch_tile<Weights, Activations, tiles_m, tiles_n>(
        params, parts, columns, slots, is_dependent, stream);
  };
  using std::integral_constant;
  if (columns > 16) return launch(integral_constant<int, 2>{}, integral_constant<int, 4>{});
  if (params.swiglu) {
    return columns > 8 ? launch(integral_constant<int, 2>{}, integral_constant<int, 2>{})
                       : launch(integral_constant<int, 2>{}, integral_constant<int, 1>{});
  }
  return columns > 8 ? launch(integral_constant<int, 1>{}, integral_constant<int, 2>{})
                     : launch(integral_constant<int, 1>{}, integral_constant<int, 1>{});
}

template <class Weights, class Activations>
Result<void> launch_portable(const DeviceMatMulArgs& args,
                             ActivationForm form,
                             device::Stream& stream) {
  return launch_best_tile<Weights, Activations>(
      matmul_params(args, form), args.groups, args.m, 1, args.is_dependent, stream);
}

template <class Weights, class Activations>
Result<void> launch_portable(const DeviceGroupedMatMulArgs& args,
                             ActivationForm form,
                             device::Stream& stream) {
  return launch_best_tile<Weights, Activations>(matmul_params(args, form),
                                                1,
                                                args.slots.rows,
                                                args.slots.max_slots,
                                                args.is_dependent,
                                                stream);
}

}  // namespace nibble::kernels::cuda
