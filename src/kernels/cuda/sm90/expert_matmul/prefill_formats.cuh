// How the kernel for many rows multiplies a panel of each format by the rows of a slot. Consumers
// of prefill_kernel.cuh: `rings` is its PrefillRings. Device code only.
#pragma once

#include "kernels/cuda/common/wgmma_bf16.cuh"
#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kStepK = 128;
inline constexpr int kColumnGroup = 64;
inline constexpr uint64_t kTileStep = 2;                              // descriptors, of 32 k
inline constexpr uint64_t kTileColumns = kColumnGroup * kStepK / 16;  // of a group

// A step's rows have come; the tensor cores see them.
template <class Rings>
__device__ __forceinline__ void begin_step(Rings& rings) {
  rings.rows.wait_full();
  fence_async_proxy();
}

// (i): the descriptor of the 32 k from 32 i on.
__device__ __forceinline__ auto steps_from(uint64_t tile) {
  return [tile](uint64_t i) { return tile + i * kTileStep; };
}

// MXFP4: acc += a panel times up to kGroups groups of columns.
struct Mxfp4Prefill {
  using Panels = Mxfp4Panels;
  static constexpr bool kWidensRows = false;

  static __device__ __forceinline__ uint4 table_words() { return Panels::table_words(); }

  // One group. Registers are scarce: weights are expanded 64 k at a time.
  template <class Rings>
  static __device__ __forceinline__ void multiply(Rings& rings,
                                                  const uint4& /*tables*/,
                                                  int stages,
                                                  int /*rows*/,
                                                  int lane,
                                                  float (&acc)[1][kColumnGroup / 2]) {
    uint32_t a[2][8];
    float d[kColumnGroup / 2];
    const uint8_t* slab = nullptr;
    const auto expand = [&](int chunk) {
      Panels::decode_chunk(
          Panels::words_of(slab, chunk, lane),
          *reinterpret_cast<const uint32_t*>(slab + 2048 + lane / 4 * 16 + chunk * 4),
          a[chunk % 2]);
    };
    const auto begin_stage = [&] {
      rings.packed.wait_full();
      slab = rings.slab();
      expand(0);
    };
    begin_stage();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        begin_step(rings);
        const uint64_t b = rings.tile();
        wgmma_fence();
        wgmma_e5m2_e4m3_first(d, a[0], b);
        wgmma_e5m2_e4m3_add(d, a[0] + 4, b + kTileStep);
        wgmma_commit();
        expand(2 * half + 1);
        wgmma_fence();
        wgmma_e5m2_e4m3_add(d, a[1], b + 2 * kTileStep);
        wgmma_e5m2_e4m3_add(d, a[1] + 4, b + 3 * kTileStep);
        wgmma_commit();
        wgmma_wait<1>();
        if (half == 0) {
          expand(2);
        } else {
          rings.release(rings.packed, lane);
          if (stage + 1 < stages) begin_stage();
        }
        wgmma_wait<0>();
        hold(d);
        promote<false>(acc[0], d, rings.scales(), lane % 4);
        rings.release(rings.rows, lane);
      }
    }
  }

  // The same for up to kGroups groups.
  template <class Rings, int kGroups>
  static __device__ __forceinline__ void multiply(Rings& rings,
                                                  const uint4& /*tables*/,
                                                  int stages,
                                                  int rows,
                                                  int lane,
                                                  float (&acc)[kGroups][kColumnGroup / 2]) {
    uint32_t a[2][16];
    const uint8_t* slab = nullptr;
    const auto begin_stage = [&] {
      rings.packed.wait_full();
      slab = rings.slab();
      Panels::decode_half<0>(slab, Panels::scales_of(slab, lane), lane, a[0]);
    };
    begin_stage();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        begin_step(rings);
        const uint64_t b = rings.tile();
        const float* const scales = rings.scales();
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          if (i * kColumnGroup >= rows) break;
          float d[kColumnGroup / 2];
          Panels::multiply_half(steps_from(b + i * kTileColumns), d, a[half]);
          if (i == 0 && half == 0) {
            Panels::decode_half<1>(slab, Panels::scales_of(slab, lane), lane, a[1]);
            rings.release(rings.packed, lane);
          } else if (i == 0 && stage + 1 < stages) {
            begin_stage();
          }
          wgmma_wait<0>();
          hold(d);
          promote<false>(acc[i], d, scales + i * kColumnGroup, lane % 4);
        }
        rings.release(rings.rows, lane);
      }
    }
  }
};

// INT4: scales multiply sums of 32 k, one group of columns at a time; the other consumers' products
// run meanwhile.
struct Int4Prefill {
  using Panels = ScaledPanels<Int4Scaling>;
  static constexpr bool kWidensRows = false;

  static __device__ __forceinline__ uint4 table_words() { return Panels::table_words(); }

  // acc += a panel times a slot's rows.
  template <class Rings>
  static __device__ __forceinline__ void multiply(Rings& rings,
                                                  const uint4& table_words,
                                                  int stages,
                                                  int /*rows*/,
                                                  int lane,
                                                  float (&acc)[1][kColumnGroup / 2]) {
    constexpr int kSteps = 8;  // of 32 k, of a stage
    const Int4Scaling::Tables tables = Int4Scaling::tables(table_words);
    uint32_t a[2][4];
    float d[kColumnGroup / 2] = {}, scaled[kColumnGroup / 2];
    const uint8_t* slab = nullptr;
    const auto expand = [&](int step) {
      const uint2 words =
          *reinterpret_cast<const uint2*>(slab + step / 2 * 512 + lane * 16 + step % 2 * 8);
      uint32_t* const to = a[step % 2];
      decode_panel_word(words.x, tables, to[0], to[2]);
      decode_panel_word(words.y, tables, to[1], to[3]);
    };
    const auto begin_stage = [&] {
      rings.packed.wait_full();
      slab = rings.slab();
      expand(0);
    };
    begin_stage();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step % 4 == 0) begin_step(rings);
        const uint32_t scales = *reinterpret_cast<const uint32_t*>(slab + 2048 + step / 4 * 128 +
                                                                   lane / 4 * 16 + step % 4 * 4);
        wgmma_fence();
        wgmma_e4m3_first(
            d, a[step % 2], rings.tile() + static_cast<uint64_t>(step % 4) * kTileStep);
        wgmma_commit();
        if (step + 1 < kSteps) {
          expand(step + 1);
        } else {
          rings.release(rings.packed, lane);
          if (stage + 1 < stages) begin_stage();
        }
        const float top = __uint_as_float(scales << 16);
        const float bottom = __uint_as_float(scales & 0xFFFF0000U);
        wgmma_wait<0>();
        hold(d);
        if (step % 4 == 0) {
          add_scaled<true>(scaled, d, top, bottom);
        } else {
          add_scaled<false>(scaled, d, top, bottom);
        }
        if (step % 4 < 3) continue;
        promote<false>(acc[0], scaled, rings.scales(), lane % 4);
        rings.release(rings.rows, lane);
      }
    }
  }
};

// NVFP4: scales are part of FP16 weights, exactly, so that a sum covers 128 k. Rows of x are FP16,
// too, as RowWidener leaves them.
struct Nvfp4Prefill {
  using Panels = Nvfp4Panels;
  static constexpr bool kWidensRows = true;

  static __device__ __forceinline__ uint4 table_words() { return {}; }

  // 32 k of one thread: two products' weights.
  //   words: of rows g and g + 8; scales: bytes 2 s + h of row g + 8 h, values 16 s and on
  static __device__ __forceinline__ void expand(uint2 words, uint32_t scales, uint32_t* a) {
    uint32_t top[2], bottom[2];  // of values 0 .. 15 and 16 .. 31
    decode_panel_word(words.x, PlacedE2m1{}, top[0], top[1]);
    decode_panel_word(words.y, PlacedE2m1{}, bottom[0], bottom[1]);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const __half2 both(__nv_cvt_fp8x2_to_halfraw2(
          static_cast<__nv_fp8x2_storage_t>(scales >> (16 * s)), __NV_E4M3));
      scale_to_f16(top[s], __low2half2(both), a[4 * s], a[4 * s + 2]);
      scale_to_f16(bottom[s], __high2half2(both), a[4 * s + 1], a[4 * s + 3]);
    }
  }

  // acc += a panel times a slot's rows. A step is 32 k, two products, which are in flight while the
  // next step's codes are expanded.
  template <class Rings>
  static __device__ __forceinline__ void multiply(Rings& rings,
                                                  const uint4& /*table_words*/,
                                                  int stages,
                                                  int /*rows*/,
                                                  int lane,
                                                  float (&acc)[1][kColumnGroup / 2]) {
    constexpr int kSteps = 8;                                           // of a stage
    constexpr uint64_t kBlock = kColumnGroup * kSwizzledRowBytes / 16;  // descriptors, of 64 k
    uint32_t a[2][8];
    float d[kColumnGroup / 2];
    const uint8_t* slab = nullptr;
    uint4 words{};  // of 64 k
    const auto expand_step = [&](int step) {
      if (step % 2 == 0) words = Mxfp4Panels::words_of(slab, step / 2, lane);
      const uint8_t* const scales = slab + 2048 + lane / 4 * 16 + step / 4 * 128 + step % 4 * 4;
      expand(step % 2 == 0 ? uint2{words.x, words.y} : uint2{words.z, words.w},
             *reinterpret_cast<const uint32_t*>(scales),
             a[step % 2]);
    };
    const auto begin_stage = [&] {
      rings.packed.wait_full();
      slab = rings.slab();
      expand_step(0);
    };
    begin_stage();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step % 4 == 0) begin_step(rings);
        const uint64_t tile = rings.tile() + static_cast<uint64_t>(step % 4 / 2) * kBlock +
                              static_cast<uint64_t>(step % 2) * (2 * kTileStep);
        wgmma_fence();
        if (step % 4 == 0) {
          wgmma_f16_first(d, a[step % 2], tile);
        } else {
          wgmma_f16_add(d, a[step % 2], tile);
        }
        wgmma_f16_add(d, a[step % 2] + 4, tile + kTileStep);
        wgmma_commit();
        wgmma_wait<1>();  // the registers of the step before are free
        if (step + 1 < kSteps) {
          expand_step(step + 1);
        } else {
          rings.release(rings.packed, lane);
          if (stage + 1 < stages) begin_stage();
        }
        if (step % 4 < 3) continue;
        wgmma_wait<0>();
        hold(d);
        promote<false>(acc[0], d, rings.scales(), lane % 4);
        rings.release(rings.rows, lane);
      }
    }
  }
};

}  // namespace nibble::kernels::cuda
