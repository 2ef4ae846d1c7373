// Products of kRowMajor weights on the tensor cores of any GPU since sm_80: weights are the M
// operand, tokens the N operand of m16n8k16, in BF16 or, with FP8 activations, in FP16.
//
// Eight warps share a block's outputs and split k: warp w takes every eighth run of 128 values and
// keeps a ring of weight stages of its own. The order of an output's sums, and with it the result,
// depends on k and the format alone: within a warp ascending k, then a fixed tree over the warps.
// Codes are multiplied exactly; scales multiply the f32 sums of 32 (NVFP4: 16) products.
//
// Bytes: the weight once per kColumns tokens, scales in f32; activations once per kRows rows, from
// the L2 cache. FLOPs: 2 m n k, times the terms of weight and activations.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/copy_async.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/portable/matmul/activations.cuh"
#include "kernels/cuda/portable/matmul/params.h"
#include "kernels/cuda/portable/matmul/weights.cuh"
#include "kernels/cuda/portable/matmul/work.cuh"

namespace nibble::kernels::cuda {

// Tiles of 16 rows and of 8 tokens per block, and what they take.
template <class Weights, class Activations, int kTilesM, int kTilesN>
struct MatMulTile {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  static constexpr int kRows = 16 * kTilesM, kColumns = 8 * kTilesN;
  static constexpr int kChunk = 128;  // values of k that one warp takes in a row
  static constexpr int kUnit = 32, kUnitsPerChunk = kChunk / kUnit;

  // A stage has 64 bytes of each row's codes. The padding spreads the reads of a unit, 4, 8 or 16
  // bytes per lane, over all banks.
  static constexpr int kStageRowBytes = 64;
  static constexpr int kRowStride = kStageRowBytes + (Weights::kBits == 4   ? 16
                                                      : Weights::kBits == 8 ? 32
                                                                            : 0);
  static constexpr int kStageK = kStageRowBytes * 8 / Weights::kBits;
  static constexpr int kUnitsPerStage = kStageK / kUnit, kStagesPerChunk = kChunk / kStageK;
  static constexpr int kScaledK = Weights::kIsScaledPer16 ? 16 : 32;
  static constexpr int kScalesPerRow = Weights::kHasScales ? kStageK / kScaledK : 0;
  static constexpr int kScalesOffset = kRows * kRowStride;
  static constexpr int kTokenScalesOffset = kScalesOffset + kRows * kScalesPerRow * 4;
  static constexpr int kStageBytes =
      kTokenScalesOffset + (Activations::kHasScales ? kColumns * 4 : 0);
  static constexpr int kStages = kTilesM == 1 ? 4 : kTilesM == 2 ? 3 : 2;
  static constexpr int kRingBytes = kStages * kStageBytes;
  static constexpr int kSumBytes = kWarps / 2 * kRows * kColumns * 4;
  static constexpr int kBytes = kWarps * kRingBytes > kSumBytes ? kWarps* kRingBytes : kSumBytes;
  // As many as registers allow: three where decoding takes few.
  static constexpr bool kIsLight =
      Activations::kIsF16 || (Weights::kBits == 16 && Weights::kTerms * Activations::kTerms == 1);
  static constexpr int kBlocksPerUnit = kTilesM * kTilesN == 1 && kIsLight ? 3
                                        : kTilesM * kTilesN <= 4           ? 2
                                                                           : 1;
  // Units of activations that are fetched ahead.
  static constexpr int kAhead = 4 / kTilesN;
};

template <class Weights, class Activations, int kTilesM, int kTilesN>
__global__ void __launch_bounds__(
    256, MatMulTile<Weights, Activations, kTilesM, kTilesN>::kBlocksPerUnit)
    portable_matmul(const MatMulParams params) {
  using Tile = MatMulTile<Weights, Activations, kTilesM, kTilesN>;
  extern __shared__ __align__(16) uint8_t memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const uint8_t* const ring = memory + warp * Tile::kRingBytes;
  const uint32_t ring_address = shared_address(ring);

  const bool is_grouped = params.slot_experts != nullptr;
  launch_dependents();
  if (is_grouped) wait_for_predecessors();
  const MatMulWork work = matmul_work(params, static_cast<int>(blockIdx.x), Tile::kColumns);
  if (work.matrix < 0) return;
  const int num_chunks = (params.k + Tile::kChunk - 1) / Tile::kChunk;

  // Row `row` of the block's tiles as a row of the matrix; -1: none.
  const auto matrix_row = [&](int row) {
    const int tile = row / 16;
    const int half = params.swiglu ? tile % 2 : 0;
    const int local = work.first_row + (params.swiglu ? tile / 2 : tile) * 16 + row % 16;
    if (local >= params.rows_per_part) return -1;
    return (params.swiglu ? half : work.group) * params.rows_per_part + local;
  };
  // What this lane copies of the rows' codes: 16 bytes of every 64. Null: zeros instead.
  const uint8_t* const codes = params.codes + work.matrix * params.codes_per_matrix;
  const uint8_t* row_codes[2 * kTilesM];
#pragma unroll
  for (int j = 0; j < 2 * kTilesM; ++j) {
    const int row = matrix_row(g + 8 * j);
    row_codes[j] =
        row < 0 ? nullptr : codes + static_cast<int64_t>(row) * params.row_bytes + t * 16;
  }
  const float* const scales = params.scales + work.matrix * params.scales_per_matrix;
  // Scales lie in memory as in a stage.
  const bool are_scales_whole =
      params.k % Tile::kChunk == 0 && 1 << params.scale_shift == Tile::kScaledK;

  // A row's scales from k0 on as the stage has them, one for each kScaledK values.
  const auto fetch_scales = [&](int k0, uint32_t to) {
    if constexpr (Weights::kHasScales) {
      constexpr int kPerCopy = Tile::kScalesPerRow >= 4 ? 4 : 1;
      constexpr int kCopies = Tile::kRows * Tile::kScalesPerRow / kPerCopy;
      if (kPerCopy == 4 && are_scales_whole) {
#pragma unroll
        for (int j = 0; j < (kCopies + 31) / 32; ++j) {
          const int place = (lane + 32 * j) * kPerCopy;
          const int row = place < Tile::kRows * Tile::kScalesPerRow
                              ? matrix_row(place / Tile::kScalesPerRow)
                              : -1;
          if (row < 0) continue;
          copy_async_16(to + place * 4,
                        scales + static_cast<int64_t>(row) * params.scale_groups +
                            k0 / Tile::kScaledK + place % Tile::kScalesPerRow,
                        true);
        }
        return;
      }
#pragma unroll
      for (int j = 0; j < Tile::kRows * Tile::kScalesPerRow / 32; ++j) {
        const int place = lane + 32 * j;
        const int row = matrix_row(place / Tile::kScalesPerRow);
        const int k = k0 + place % Tile::kScalesPerRow * Tile::kScaledK;
        const bool is_present = row >= 0 && k < params.k;
        copy_async_4(to + place * 4,
                     is_present ? scales + static_cast<int64_t>(row) * params.scale_groups +
                                      (k >> params.scale_shift)
                                : scales,
                     is_present);
      }
    }
  };

  // Stage `i` of this warp: part i % kStagesPerChunk of its chunk i / kStagesPerChunk.
  const auto stage_k = [&](int i) {
    return (warp + i / Tile::kStagesPerChunk * Tile::kWarps) * Tile::kChunk +
           i % Tile::kStagesPerChunk * Tile::kStageK;
  };
  const auto fetch_weights = [&](int i) {
    const int k0 = stage_k(i);
    if (k0 >= params.k) return;
    const uint32_t stage = ring_address + i % Tile::kStages * Tile::kStageBytes;
    const int first_byte = k0 / 8 * Weights::kBits;
    const bool is_inside = first_byte + t * 16 < params.row_bytes;
#pragma unroll
    for (int j = 0; j < 2 * kTilesM; ++j) {
      const bool is_present = is_inside && row_codes[j] != nullptr;
      copy_async_16(stage + (g + 8 * j) * Tile::kRowStride + t * 16,
                    is_present ? row_codes[j] + first_byte : codes,
                    is_present);
    }
    fetch_scales(k0, stage + Tile::kScalesOffset);
  };

  const float* x_scales = nullptr;  // of the token that this lane fetches for
  if constexpr (Activations::kHasScales) {
    x_scales = params.x_scales +
               matmul_x_row(params, work, lane % Tile::kColumns) * params.x_scale_stride +
               work.group * (params.k / 128);
  }
  const auto fetch_token_scales = [&](int i) {
    const int k0 = stage_k(i);
    if constexpr (Activations::kHasScales) {
      if (k0 < params.k && lane < Tile::kColumns) {
        copy_async_4(ring_address + i % Tile::kStages * Tile::kStageBytes +
                         Tile::kTokenScalesOffset + lane * 4,
                     x_scales + k0 / 128,
                     true);
      }
    }
    copy_async_commit();
  };

  constexpr int kPrefetched = Tile::kStages - 1;
#pragma unroll
  for (int i = 0; i < kPrefetched; ++i) fetch_weights(i);
  if (!is_grouped) wait_for_predecessors();
#pragma unroll
  for (int i = 0; i < kPrefetched; ++i) fetch_token_scales(i);

  const uint8_t* x[kTilesN];
#pragma unroll
  for (int j = 0; j < kTilesN; ++j) {
    x[j] = params.x + matmul_x_row(params, work, 8 * j + g) * params.x_row_bytes +
           static_cast<int64_t>(work.group) * params.k * Activations::kBytes;
  }
  using Raw = typename Activations::Raw;
  // Unit `unit` of chunk `chunk`; zeros beyond k.
  const auto load_x = [&](int j, int chunk, int unit) {
    const int k0 = chunk * Tile::kChunk + unit * Tile::kUnit;
    if constexpr (Weights::kIsScaledPer16) {
      const bool has_second = k0 + 16 < params.k;
      if (k0 >= params.k) return Raw{};
      Raw raw = Activations::load(x[j], k0 + 4 * t, k0 + 4 * t + (has_second ? 16 : 0));
      if (!has_second) raw.half[1] = {};
      return raw;
    } else {
      return k0 + 8 * t < params.k ? Activations::load(x[j], k0 + 8 * t) : Raw{};
    }
  };
  Raw ahead[Tile::kAhead][kTilesN];
#pragma unroll
  for (int i = 0; i < Tile::kAhead; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) ahead[i][j] = load_x(j, warp, i);
  }

  float sums[kTilesM][kTilesN][4] = {};
  int stage_index = 0;
  for (int chunk = warp; chunk < num_chunks; chunk += Tile::kWarps) {
#pragma unroll
    for (int unit = 0; unit < Tile::kUnitsPerChunk; ++unit) {
      if (chunk * Tile::kChunk + unit * Tile::kUnit >= params.k) break;
      if (unit % Tile::kUnitsPerStage == 0) {
        copy_async_wait<kPrefetched - 1>();
        __syncwarp();
        fetch_weights(stage_index + kPrefetched);
        fetch_token_scales(stage_index + kPrefetched);
        ++stage_index;
      }
      const uint8_t* const stage = ring + (stage_index - 1) % Tile::kStages * Tile::kStageBytes;
      const int in_stage = unit % Tile::kUnitsPerStage;

      uint32_t a[kTilesM][Weights::kTerms][2][4];
      float scale[kTilesM][2][2];  // of [half of the unit][row g, row g + 8]
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * i + 8 * half + g;
          const uint8_t* const unit_codes =
              stage + row * Tile::kRowStride + in_stage * (Tile::kUnit * Weights::kBits / 8);
          typename Weights::Word word;
          if constexpr (Weights::kIsScaledPer16) {
            const auto* const halves = reinterpret_cast<const uint16_t*>(unit_codes);
            word = halves[t] | static_cast<uint32_t>(halves[4 + t]) << 16;
          } else {
            word = reinterpret_cast<const typename Weights::Word*>(unit_codes)[t];
          }
          uint32_t pairs[Weights::kTerms][4];
          if constexpr (Activations::kIsF16) {
            Weights::decode_f16(word, pairs);
          } else {
            Weights::decode(word, pairs);
          }
#pragma unroll
          for (int term = 0; term < Weights::kTerms; ++term) {
#pragma unroll
            for (int p = 0; p < 4; ++p) a[i][term][p / 2][half + 2 * (p % 2)] = pairs[term][p];
          }
          if constexpr (Weights::kHasScales) {
            const auto* const of_row = reinterpret_cast<const float*>(stage + Tile::kScalesOffset) +
                                       row * Tile::kScalesPerRow;
            if constexpr (Weights::kIsScaledPer16) {
              scale[i][0][half] = of_row[2 * in_stage];
              scale[i][1][half] = of_row[2 * in_stage + 1];
            } else {
              scale[i][0][half] = of_row[in_stage];
            }
          }
        }
      }

      constexpr int kAheadMask = Tile::kAhead - 1;
      const int next_unit = (unit + Tile::kAhead) % Tile::kUnitsPerChunk;
      const int next_chunk =
          unit + Tile::kAhead >= Tile::kUnitsPerChunk ? chunk + Tile::kWarps : chunk;
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        uint32_t b[Activations::kTerms][4];
        if constexpr (Activations::kIsF16) {
          Activations::template expand<Weights::kIsF16Interleaved>(ahead[unit & kAheadMask][j], b);
        } else {
          Activations::expand(ahead[unit & kAheadMask][j], b);
        }
        ahead[unit & kAheadMask][j] = load_x(j, next_chunk, next_unit);
        float2 token_scale = {1.0f, 1.0f};
        if constexpr (Activations::kHasScales) {
          token_scale =
              reinterpret_cast<const float2*>(stage + Tile::kTokenScalesOffset)[4 * j + t];
          token_scale.x *= Weights::kF16Scale;
          token_scale.y *= Weights::kF16Scale;
        }
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
          float(&sum)[4] = sums[i][j];
          const auto multiply = [&](float(&into)[4], int step) {
          // Small terms first.
#pragma unroll
            for (int v = Activations::kTerms - 1; v >= 0; --v) {
#pragma unroll
              for (int w = Weights::kTerms - 1; w >= 0; --w) {
                if constexpr (Activations::kIsF16) {
                  mma_f16(into, a[i][w][step], b[v][2 * step], b[v][2 * step + 1]);
                } else {
                  mma_bf16(into, a[i][w][step], b[v][2 * step], b[v][2 * step + 1]);
                }
              }
            }
          };
          const auto add_scaled = [&](const float(&part)[4], const float(&of_rows)[2]) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float of_token = e % 2 == 0 ? token_scale.x : token_scale.y;
              const float scaled = Activations::kHasScales ? part[e] * of_token : part[e];
              sum[e] = Weights::kHasScales ? fmaf(scaled, of_rows[e / 2], sum[e]) : sum[e] + scaled;
            }
          };
          if constexpr (Weights::kIsScaledPer16) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
              float part[4] = {};
              multiply(part, step);
              add_scaled(part, scale[i][step]);
            }
          } else if constexpr (Weights::kHasScales || Activations::kHasScales) {
            float part[4] = {};
            multiply(part, 0);
            multiply(part, 1);
            add_scaled(part, scale[i][0]);
          } else {
            multiply(sum, 0);
            multiply(sum, 1);
          }
        }
      }
    }
  }

  // Warps w and w + 4, then w and w + 2, then 0 and 1.
  copy_async_wait_all();
  __syncthreads();
  auto* const shared_sums = reinterpret_cast<float4*>(memory);
#pragma unroll
  for (int count = Tile::kWarps / 2; count > 0; count /= 2) {
    if (warp >= count && warp < 2 * count) {
      float4* const mine = shared_sums + (warp - count) * (kTilesM * kTilesN * 32) + lane;
#pragma unroll
      for (int i = 0; i < kTilesM * kTilesN; ++i) {
        const float(&s)[4] = sums[i / kTilesN][i % kTilesN];
        mine[i * 32] = {s[0], s[1], s[2], s[3]};
      }
    }
    __syncthreads();
    if (warp < count) {
      const float4* const other = shared_sums + warp * (kTilesM * kTilesN * 32) + lane;
#pragma unroll
      for (int i = 0; i < kTilesM * kTilesN; ++i) {
        const float4 v = other[i * 32];
        float(&s)[4] = sums[i / kTilesN][i % kTilesN];
        s[0] += v.x;
        s[1] += v.y;
        s[2] += v.z;
        s[3] += v.w;
      }
    }
    __syncthreads();
  }
  if (warp != 0) return;

#pragma unroll
  for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int output = matmul_output(params, work, 8 * j + 2 * t + column);
      if (output < 0) continue;
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = matrix_row(16 * i + 8 * half + g);
          if (row < 0) continue;
          const float sum = sums[i][j][2 * half + column];
          if (!params.swiglu) {
            static_cast<float*>(params.y)[output * params.y_stride + row] = sum;
          } else if constexpr (kTilesM % 2 == 0) {
            if (i % 2 != 0) continue;
            store_swiglu(params, output, row, sum, sums[i + 1][j][2 * half + column]);
          }
        }
      }
    }
  }
}

}  // namespace nibble::kernels::cuda
