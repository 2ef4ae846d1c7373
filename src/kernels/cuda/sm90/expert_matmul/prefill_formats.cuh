// How the kernel for many rows multiplies a panel of each format by the rows of a slot. Consumers
// of prefill_kernel.cuh: `rings` is its PrefillRings. Device code only.
#pragma once

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

// Formats whose scales multiply sums: one group of columns, products of 32 k by what they hold of a
// group's values, one at a time; the other consumers' products run meanwhile.
struct Int4Prefill {
  using Panels = ScaledPanels<Int4Scaling>;
  using Tables = Int4Scaling::Tables;
  static constexpr int kProducts = 1;  // of 32 k
  static __device__ __forceinline__ Tables tables(const uint4& words) {
    return Int4Scaling::tables(words);
  }
  static __device__ __forceinline__ void expand(uint2 words, const Tables& tables, uint32_t* a) {
    decode_panel_word(words.x, tables, a[0], a[2]);
    decode_panel_word(words.y, tables, a[1], a[3]);
  }
  // Of row g and g + 8.
  static __device__ __forceinline__ float2 scales(uint32_t word, int /*product*/) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U)};
  }
};

// NVFP4: a product has zeros for the values of the other scale.
struct Nvfp4Prefill {
  using Panels = ScaledPanels<Nvfp4Scaling>;
  using Tables = Nvfp4Scaling::Tables;
  static constexpr int kProducts = 2;
  static __device__ __forceinline__ Tables tables(const uint4& words) {
    return Nvfp4Scaling::tables(words);
  }
  static __device__ __forceinline__ void expand(uint2 words, const Tables& tables, uint32_t* a) {
    decode_panel_word(words.x, tables, a[0], a[6]);
    decode_panel_word(words.y, tables, a[1], a[7]);
    a[2] = a[3] = a[4] = a[5] = 0;
  }
  static __device__ __forceinline__ float2 scales(uint32_t word, int product) {
    float four[4];
    from_e4m3x4(word, four);
    return {four[2 * product], four[2 * product + 1]};
  }
};

// acc += a panel times a slot's rows.
template <class Format>
struct ScaledPrefill {
  using Panels = typename Format::Panels;

  template <class Rings>
  static __device__ __forceinline__ void multiply(Rings& rings,
                                                  const uint4& table_words,
                                                  int stages,
                                                  int /*rows*/,
                                                  int lane,
                                                  float (&acc)[1][kColumnGroup / 2]) {
    constexpr int kSteps = 8;  // of 32 k, of a stage
    constexpr int kProducts = Format::kProducts;
    const typename Format::Tables tables = Format::tables(table_words);
    uint32_t a[2][4 * kProducts];
    float d[kColumnGroup / 2] = {}, scaled[kColumnGroup / 2];
    const uint8_t* slab = nullptr;
    const auto expand = [&](int step) {
      Format::expand(
          *reinterpret_cast<const uint2*>(slab + step / 2 * 512 + lane * 16 + step % 2 * 8),
          tables,
          a[step % 2]);
    };
    const auto scale_of = [&](int step) {
      return *reinterpret_cast<const uint32_t*>(slab + 2048 + step / 4 * 128 + lane / 4 * 16 +
                                                step % 4 * 4);
    };
    uint32_t scale = 0;
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
        scale = scale_of(step);
        const uint64_t b = rings.tile() + static_cast<uint64_t>(step % 4) * kTileStep;
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          wgmma_fence();
          wgmma_e4m3_rs(d, a[step % 2] + 4 * product, b);
          wgmma_commit();
          if (product == 0 && step + 1 < kSteps) {
            expand(step + 1);
          } else if (product == 0) {
            rings.release(rings.packed, lane);
            if (stage + 1 < stages) begin_stage();
          }
          const float2 factors = Format::scales(scale, product);
          wgmma_wait<0>();
          hold(d);
          if (step % 4 == 0 && product == 0) {
            add_scaled<true>(scaled, d, factors.x, factors.y);
          } else {
            add_scaled<false>(scaled, d, factors.x, factors.y);
          }
        }
        if (step % 4 < 3) continue;
        promote<false>(acc[0], scaled, rings.scales(), lane % 4);
        rings.release(rings.rows, lane);
      }
    }
  }
};

}  // namespace nibble::kernels::cuda
