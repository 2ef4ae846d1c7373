// The 4-bit formats of kernels/panel64.h as operands of warpgroup products: how a stage of weights
// becomes registers, and how its scales reach the sums. All multiply E4M3 activations.
// Device code only.
//
// Ring: the weight stages of one warpgroup, filled by the producer. Activations: rows in
// core-matrix order, 16 bytes of k of all rows side by side.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/fp4.cuh"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_4bit.cuh"
#include "kernels/cuda/sm90/expert_matmul/params.cuh"

namespace nibble::kernels::cuda {

// Columns that products are made for.
__host__ __device__ constexpr int columns_of(int rows) { return rows < 8 ? 8 : rows; }

// Where a warpgroup reads its stages. The slots belong to it alone.
struct StageRing {
  const uint8_t* stages;  // of this warp's slab in slot 0
  uint32_t full;          // barriers of slot 0
  uint32_t empty;
  int num_slots;
  int stage_bytes;
  int slot;
  uint32_t parity;

  const __device__ __forceinline__ uint8_t* wait() const {
    barrier_wait(full + 8 * slot, parity);
    return stages + slot * stage_bytes;
  }
  // Of the whole warp, when it has read the stage.
  __device__ __forceinline__ void release(int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + 8 * slot);
    if (++slot == num_slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// k in parts, whose sums are made one after the other or by different warpgroups. The order of
// every sum depends on this only.
inline constexpr int kParts = 4;
__device__ __forceinline__ int part_stages(int stages) { return (stages + kParts - 1) / kParts; }
__device__ __forceinline__ int part_begin(int stages, int part) {
  return min(part * part_stages(stages), stages);
}

// The activations that a block holds.
struct StagedRows {
  uint64_t descriptor;    // of the first 32 k
  uint64_t zeros_first;   // first 16 k of zeros, then k 16 .. 31
  uint64_t zeros_second;  // k 0 .. 15, then zeros
  const float* scales;    // [k / 128][rows]
  const uint4* tables;    // in shared memory
};

// sum += acc; acc = 0.
template <int kAccumulators>
__device__ __forceinline__ void flush(float (&sum)[kAccumulators], float (&acc)[kAccumulators]) {
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) {
    sum[i] += acc[i];
    acc[i] = 0;
  }
}

// MXFP4: the group's exponent is part of an E5M2 code, so that 128 k are one sum.
struct Mxfp4Panels {
  static constexpr int kSlabBytes = 4 * 512 + 128;
  static constexpr bool kNeedsZeros = false;

  static __device__ __forceinline__ uint4 table_words() { return {}; }  // folded with scales

  // A chunk (64 k) of one thread: 8 registers of E5M2.
  //   scale: byte 2 h + q is that of row g + 8 h, group q
  static __device__ __forceinline__ void decode_chunk(const uint4& words,
                                                      uint32_t scale,
                                                      uint32_t* a) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const uint32_t top = __byte_perm(scale, 0, group == 0 ? 0x4440 : 0x4441);
      const uint32_t bottom = __byte_perm(scale, 0, group == 0 ? 0x4442 : 0x4443);
      uint32_t* const out = a + group * 4;
      decode_panel_word(group == 0 ? words.x : words.z, e5m2_table(top), out[0], out[2]);
      decode_panel_word(group == 0 ? words.y : words.w, e5m2_table(bottom), out[1], out[3]);
    }
  }
  // Half a stage (128 k): two chunks.
  template <int kHalf>
  static __device__ __forceinline__ void decode_half(const uint8_t* slab,
                                                     const uint4& scales,
                                                     int lane,
                                                     uint32_t (&a)[16]) {
    const uint4 words[2] = {words_of(slab, 2 * kHalf, lane), words_of(slab, 2 * kHalf + 1, lane)};
    decode_chunk(words[0], kHalf == 0 ? scales.x : scales.z, a);
    decode_chunk(words[1], kHalf == 0 ? scales.y : scales.w, a + 8);
  }
  static __device__ __forceinline__ uint4 words_of(const uint8_t* slab, int chunk, int lane) {
    return *reinterpret_cast<const uint4*>(slab + chunk * 512 + lane * 16);
  }
  static __device__ __forceinline__ uint4 scales_of(const uint8_t* slab, int lane) {
    return *reinterpret_cast<const uint4*>(slab + 2048 + lane / 4 * 16);
  }

  // Issues the four products of 128 k; `step` is the descriptor's distance of 32 k.
  template <int kAccumulators>
  static __device__ __forceinline__ void multiply_half(uint64_t descriptor,
                                                       uint64_t step,
                                                       float (&d)[kAccumulators],
                                                       const uint32_t (&a)[16]) {
    wgmma_fence();
    wgmma_e5m2_e4m3_first(d, a, descriptor);
    wgmma_e5m2_e4m3_add(d, a + 4, descriptor + step);
    wgmma_e5m2_e4m3_add(d, a + 8, descriptor + 2 * step);
    wgmma_e5m2_e4m3_add(d, a + 12, descriptor + 3 * step);
    wgmma_commit();
  }

  // sum += a panel's sums over stages begin .. end - 1, part by part; begin starts a part.
  template <int kRows, int kAccumulators>
  static __device__ __forceinline__ void multiply(StageRing& ring,
                                                  const StagedRows& rows,
                                                  int begin,
                                                  int end,
                                                  int stages,
                                                  int lane,
                                                  float (&sum)[kAccumulators]) {
    constexpr uint64_t kStep = 2 * kRows;  // descriptor distance of 32 k
    const int t = lane % 4;
    float d0[kAccumulators], d1[kAccumulators];
    uint32_t a0[16], a1[16];
    uint4 scales{};
    const uint8_t* slab = nullptr;
    // Both products of a stage are waited for inside the body (an accumulator read across the loop
    // edge would make ptxas serialise them); decoding of the next half runs beside them.
    const auto begin_stage = [&] {
      slab = ring.wait();
      scales = scales_of(slab, lane);
      decode_half<0>(slab, scales, lane, a0);
    };
    float acc[kAccumulators] = {};
    int left = part_stages(stages);  // of the part
    if (begin < end) begin_stage();
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
      const uint64_t b = rows.descriptor + static_cast<uint64_t>(stage) * (8 * kStep);
      const float* const stage_scales = rows.scales + 2 * stage * kRows;
      multiply_half(b, kStep, d0, a0);
      decode_half<1>(slab, scales, lane, a1);
      ring.release(lane);
      multiply_half(b + 4 * kStep, kStep, d1, a1);
      wgmma_wait<1>();
      hold(d0);
      promote<kRows == 1>(acc, d0, stage_scales, t);
      if (stage + 1 < end) begin_stage();
      wgmma_wait<0>();
      hold(d1);
      promote<kRows == 1>(acc, d1, stage_scales + kRows, t);
      if (--left == 0) {
        flush(sum, acc);
        left = part_stages(stages);
      }
    }
    flush(sum, acc);
  }
};

// sum += d * the row's scale; the first of 128 k begins the sum.
template <bool kIsFirst, int kAccumulators>
__device__ __forceinline__ void add_scaled(float (&sum)[kAccumulators],
                                           const float (&d)[kAccumulators],
                                           float top,
                                           float bottom) {
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) {
    const float scale = i % 4 < 2 ? top : bottom;
    sum[i] = kIsFirst ? scale * d[i] : fmaf(scale, d[i], sum[i]);
  }
}

// NVFP4: products of 16 k, each multiplied by its row's scale. A product of 32 k has zeros in the
// other half of the activations.
struct Nvfp4Scaling {
  static constexpr bool kNeedsZeros = true;
  static constexpr int kProducts = 4;  // of 64 k

  using Tables = E4m3Table;
  static __device__ __forceinline__ uint4 table_words() { return {0x3C383000U, 0x4C484440U, 0, 0}; }
  static __device__ __forceinline__ Tables tables(const uint4& words) { return {words.x, words.y}; }
  template <int kRows, int kAccumulators>
  static __device__ __forceinline__ void issue(const StagedRows& rows,
                                               int group,
                                               float (&d)[kProducts][kAccumulators],
                                               const uint32_t (&a)[8]) {
    constexpr uint64_t kStep = 2 * kRows;  // descriptor distance of 32 k
    const uint64_t at = static_cast<uint64_t>(group) * kStep;
    // The zeros stay where they are: the stride to them changes instead.
    const uint64_t first = rows.zeros_second - (at << 16) + at;
    const uint64_t second = rows.zeros_first + (at << 16);
    constexpr uint64_t kFirstStep = kStep - (kStep << 16), kSecondStep = kStep << 16;
    wgmma_e4m3_rs(d[0], a, first);
    wgmma_e4m3_rs(d[1], a, second);
    wgmma_e4m3_rs(d[2], a + 4, first + kFirstStep);
    wgmma_e4m3_rs(d[3], a + 4, second + kSecondStep);
  }
  // scales: of 32 k each; bytes 2 s + h of row g + 8 h, values 16 s and on.
  template <bool kIsFirst, int kAccumulators>
  static __device__ __forceinline__ void add_products(float (&sum)[kAccumulators],
                                                      const float (&d)[kProducts][kAccumulators],
                                                      uint2 scales) {
    float row_scales[2 * kProducts];
    from_e4m3x4(scales.x, row_scales);
    from_e4m3x4(scales.y, row_scales + 4);
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const float top = row_scales[2 * product], bottom = row_scales[2 * product + 1];
      if (kIsFirst && product == 0) {
        add_scaled<true>(sum, d[product], top, bottom);
      } else {
        add_scaled<false>(sum, d[product], top, bottom);
      }
    }
  }
};

// INT4: products of 32 k, each multiplied by its row's bf16 scale.
struct Int4Scaling {
  static constexpr bool kNeedsZeros = false;
  static constexpr int kProducts = 2;  // of 64 k

  using Tables = Int4Tables;
  static __device__ __forceinline__ uint4 table_words() {  // 0 .. 7; -8, -1 .. -7
    return {0x44403800U, 0x4E4C4A48U, 0xC4C0B8D0U, 0xCECCCAC8U};
  }
  static __device__ __forceinline__ Tables tables(const uint4& words) {
    return {.plus = {words.x, words.y}, .minus = {words.z, words.w}};
  }
  template <int kRows, int kAccumulators>
  static __device__ __forceinline__ void issue(const StagedRows& rows,
                                               int group,
                                               float (&d)[kProducts][kAccumulators],
                                               const uint32_t (&a)[8]) {
    constexpr uint64_t kStep = 2 * kRows;
    const uint64_t b = rows.descriptor + static_cast<uint64_t>(group) * kStep;
    wgmma_e4m3_rs(d[0], a, b);
    wgmma_e4m3_rs(d[1], a + 4, b + kStep);
  }
  template <bool kIsFirst, int kAccumulators>
  static __device__ __forceinline__ void add_products(float (&sum)[kAccumulators],
                                                      const float (&d)[kProducts][kAccumulators],
                                                      uint2 scales) {
    add_scaled<kIsFirst>(
        sum, d[0], __uint_as_float(scales.x << 16), __uint_as_float(scales.x & 0xFFFF0000U));
    add_scaled<false>(
        sum, d[1], __uint_as_float(scales.y << 16), __uint_as_float(scales.y & 0xFFFF0000U));
  }
};

// Formats whose scales multiply sums. A step is 64 k: its products are in flight while the next
// step's codes are decoded.
template <class Scaling>
struct ScaledPanels {
  static constexpr int kSlabBytes = 4 * 512 + 256;
  static constexpr bool kNeedsZeros = Scaling::kNeedsZeros;

  static __device__ __forceinline__ uint4 table_words() { return Scaling::table_words(); }

  static __device__ __forceinline__ void decode_step(const typename Scaling::Tables& tables,
                                                     const uint8_t* slab,
                                                     int step,
                                                     int lane,
                                                     uint32_t (&a)[8]) {
    const uint4 words = *reinterpret_cast<const uint4*>(slab + step * 512 + lane * 16);
    decode_panel_word(words.x, tables, a[0], a[2]);
    decode_panel_word(words.y, tables, a[1], a[3]);
    decode_panel_word(words.z, tables, a[4], a[6]);
    decode_panel_word(words.w, tables, a[5], a[7]);
  }

  // As Mxfp4Panels::multiply().
  template <int kRows, int kAccumulators>
  static __device__ __forceinline__ void multiply(StageRing& ring,
                                                  const StagedRows& rows,
                                                  int begin,
                                                  int end,
                                                  int stages,
                                                  int lane,
                                                  float (&sum)[kAccumulators]) {
    const typename Scaling::Tables tables = Scaling::tables(*rows.tables);
    const int t = lane % 4;
    float d[Scaling::kProducts][kAccumulators], scaled[kAccumulators];
    uint32_t a[2][8];
    uint4 scales[2], next_scales[2];
    const uint8_t* slab = nullptr;
    const auto begin_stage = [&] {
      slab = ring.wait();
      const auto* const source = reinterpret_cast<const uint4*>(slab + 2048 + lane / 4 * 16);
      next_scales[0] = source[0];
      next_scales[1] = source[8];
      decode_step(tables, slab, 0, lane, a[0]);
    };
    float acc[kAccumulators] = {};
    int left = part_stages(stages);  // of the part
    if (begin < end) begin_stage();
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
      scales[0] = next_scales[0];
      scales[1] = next_scales[1];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_fence();
        Scaling::template issue<kRows>(rows, stage * 8 + step * 2, d, a[step % 2]);
        wgmma_commit();
        if (step < 3) {
          decode_step(tables, slab, step + 1, lane, a[(step + 1) % 2]);
        } else {
          ring.release(lane);
          if (stage + 1 < end) begin_stage();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < Scaling::kProducts; ++i) hold(d[i]);
        const uint4& half = scales[step / 2];
        if (step % 2 == 0) {
          Scaling::template add_products<true>(scaled, d, uint2{half.x, half.y});
        } else {
          Scaling::template add_products<false>(scaled, d, uint2{half.z, half.w});
          promote<kRows == 1>(acc, scaled, rows.scales + (2 * stage + step / 2) * kRows, t);
        }
      }
      if (--left == 0) {
        flush(sum, acc);
        left = part_stages(stages);
      }
    }
    flush(sum, acc);
  }
};

using Nvfp4Panels = ScaledPanels<Nvfp4Scaling>;
using Int4Panels = ScaledPanels<Int4Scaling>;

}  // namespace nibble::kernels::cuda
