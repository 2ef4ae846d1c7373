// The 4-bit formats of kernels/panel64.h as operands of warpgroup products: how a stage of weights
// becomes registers, and how its scales reach the sums. All multiply E4M3 activations.
// Device code only.
//
// Ring: the weight stages of one warpgroup, filled by the producer. Activations: rows in
// core-matrix order, 16 bytes of k of all rows side by side; a single row: see PlainRow and
// DiagonalRow.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/fp4.cuh"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/wgmma_products.cuh"
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
    warp_arrive(empty + 8 * slot, lane);
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

// Rows of activations that a block holds. A tile is the descriptor of the first 32 k.
struct StagedRows {
  using Tile = uint64_t;
  Tile tile;
  Tile zeros_first;     // first 16 k of zeros, then k 16 .. 31
  Tile zeros_second;    // k 0 .. 15, then zeros
  Tile pairs;           // columns 0 .. 7: k 0 .. 15 of eight rows, 8 .. 15: their k 16 .. 31
  const float* scales;  // [k / 128][rows]
  const uint4* tables;  // in shared memory

  static __device__ __forceinline__ uint64_t descriptor(Tile tile) { return tile; }
};
// A single one. Who reads it changes rows, so that the tile is not in uniform registers, where
// adding to its lower word alone is cheaper.
struct StagedRow {
  using Tile = uint32_t;
  Tile tile;            // side_by_side_word()
  const float* scales;  // [k / 128]
  const uint4* tables;  // in shared memory

  static __device__ __forceinline__ uint64_t descriptor(Tile tile) {
    return side_by_side_descriptor(tile);
  }
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

// A single row in shared memory, its codes side by side. It is column 0 of the core matrices; their
// other columns overlap with what comes next, and nobody sees their sums.
struct PlainRow {
  static constexpr bool kHasZeros = false;

  __host__ __device__ static constexpr int bytes(int k) { return k; }
  // Where 16 values of k lie, in bytes.
  __host__ __device__ static constexpr int place(int chunk) { return chunk * 16; }
};

// A single row whose core matrix j of every 128 k is zero but for column j, so that one product of
// 128 k gives the sums of its eight groups of 16 in the eight columns. Core matrices overlap: each
// is a window of eight places of 16 bytes in which one place is taken, and 42 places serve 128 k.
struct DiagonalRow {
  static constexpr bool kHasZeros = true;
  static constexpr int kBlockPlaces = 42;

  // The first place of core matrix j. Of two neighbours the second lies behind the first, as
  // strides between them have to be positive.
  __host__ __device__ static constexpr int first_place(int j) {
    return static_cast<int>(0x1E140B00261B1208U >> (8 * j) & 0xFFU);
  }
  __host__ __device__ static constexpr int bytes(int k) {
    return (k / 128 * kBlockPlaces + 4) * 16;
  }
  __host__ __device__ static constexpr int place(int chunk) {
    const int j = chunk % 8;
    return (chunk / 8 * kBlockPlaces + first_place(j) + j) * 16;
  }
};

// Whether core matrices of DiagonalRow hold what they should, also beside other blocks.
constexpr bool is_diagonal() {
  for (int matrix = 8; matrix < 16; ++matrix) {
    const int j = matrix % 8;
    const int first = DiagonalRow::kBlockPlaces + DiagonalRow::first_place(j);
    for (int chunk = 0; chunk < 24; ++chunk) {
      const int column = DiagonalRow::place(chunk) / 16 - first;
      if ((chunk == matrix) != (column == j)) return false;
      if (chunk != matrix && column >= 0 && column < 8) return false;
    }
  }
  return true;
}
static_assert(is_diagonal());

// sum += a panel's sums over stages begin .. end - 1, part by part; begin starts a part. `halves`
// works on half a stage (128 k) at a time: begin() a stage, decode<>() and issue<>() a half's
// products, add<>() what they gave. The next stage begins between the two additions.
template <class Halves, int kAccumulators>
__device__ __forceinline__ void multiply_halves(Halves& halves,
                                                StageRing& ring,
                                                int begin,
                                                int end,
                                                int stages,
                                                int lane,
                                                float (&sum)[kAccumulators]) {
  float d0[kAccumulators], d1[kAccumulators];
  uint32_t a0[16], a1[16];
  const uint8_t* slab = nullptr;
  // Both products of a stage are waited for inside the body (an accumulator read across the loop
  // edge would make ptxas serialise them); decoding of the next half runs beside them.
  const auto begin_stage = [&] {
    slab = ring.wait();
    halves.begin(slab, lane);
    halves.template decode<0>(slab, lane, a0);
  };
  float acc[kAccumulators] = {};
  int left = part_stages(stages);  // of the part
  if (begin < end) begin_stage();
#pragma unroll 1
  for (int stage = begin; stage < end; ++stage) {
    halves.template issue<0>(stage, d0, a0);
    halves.template decode<1>(slab, lane, a1);
    ring.release(lane);
    halves.template issue<1>(stage, d1, a1);
    wgmma_wait<1>();
    hold(d0);
    halves.template add<0>(stage, acc, d0);
    if (stage + 1 < end) begin_stage();
    wgmma_wait<0>();
    hold(d1);
    halves.template add<1>(stage, acc, d1);
    if (--left == 0) {
      flush(sum, acc);
      left = part_stages(stages);
    }
  }
  flush(sum, acc);
}

// MXFP4: the group's exponent is part of an E5M2 code, so that 128 k are one sum.
struct Mxfp4Panels {
  static constexpr int kSlabBytes = 4 * 512 + 128;
  static constexpr bool kNeedsZeros = false;
  static constexpr float kSumFactor = 1;  // of outputs over sums
  // Whether half empty slots of 16 rows are worth a loop of their own, and the time that panels of
  // full and of half empty slots take, as a ratio.
  static constexpr bool kHalvesSlots = false;
  static constexpr int kFullCost = 1, kHalfCost = 1;

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

  // Issues the four products of 128 k.   descriptor_of: (i) of the 32 k from 32 i on
  template <int kAccumulators, class DescriptorOf>
  static __device__ __forceinline__ void multiply_half(const DescriptorOf& descriptor_of,
                                                       float (&d)[kAccumulators],
                                                       const uint32_t (&a)[16]) {
    wgmma_fence();
    wgmma_e5m2_e4m3_first(d, a, descriptor_of(0));
    wgmma_e5m2_e4m3_add(d, a + 4, descriptor_of(1));
    wgmma_e5m2_e4m3_add(d, a + 8, descriptor_of(2));
    wgmma_e5m2_e4m3_add(d, a + 12, descriptor_of(3));
    wgmma_commit();
  }

  template <class Rows, int kRows>
  struct Halves {
    using Tile = typename Rows::Tile;
    static constexpr Tile kStep = 2 * kRows;  // of 32 k
    const Rows& rows;
    int t;
    uint4 scales;

    __device__ __forceinline__ void begin(const uint8_t* slab, int lane) {
      scales = scales_of(slab, lane);
    }
    template <int kHalf>
    __device__ __forceinline__ void decode(const uint8_t* slab, int lane, uint32_t (&a)[16]) const {
      decode_half<kHalf>(slab, scales, lane, a);
    }
    template <int kHalf, int kAccumulators>
    __device__ __forceinline__ void issue(int stage,
                                          float (&d)[kAccumulators],
                                          const uint32_t (&a)[16]) const {
      const Tile first = rows.tile + static_cast<Tile>(stage) * (8 * kStep) + kHalf * 4 * kStep;
      multiply_half([&](Tile i) { return Rows::descriptor(first + i * kStep); }, d, a);
    }
    template <int kHalf, int kAccumulators>
    __device__ __forceinline__ void add(int stage,
                                        float (&acc)[kAccumulators],
                                        const float (&d)[kAccumulators]) const {
      promote<kRows == 1>(acc, d, rows.scales + (2 * stage + kHalf) * kRows, t);
    }
  };

  // sum += a panel's sums over stages begin .. end - 1; begin starts a part. Of 16 rows the first
  // eight may be multiplied alone: kAccumulators says for how many columns.
  template <int kRows, int kAccumulators>
  static __device__ __forceinline__ void multiply(StageRing& ring,
                                                  const StagedRows& rows,
                                                  int begin,
                                                  int end,
                                                  int stages,
                                                  int lane,
                                                  float (&sum)[kAccumulators]) {
    Halves<StagedRows, kRows> halves{.rows = rows, .t = lane % 4, .scales = {}};
    multiply_halves(halves, ring, begin, end, stages, lane, sum);
  }

  // The same for a single row: of rows g and g + 8 of the slab, in lanes with t = 0.
  using Row = PlainRow;
  static __device__ __forceinline__ float2
  multiply_row(StageRing& ring, const StagedRow& row, int begin, int end, int stages, int lane) {
    float sum[4] = {};
    Halves<StagedRow, 1> halves{.rows = row, .t = 0, .scales = {}};
    multiply_halves(halves, ring, begin, end, stages, lane, sum);
    return {sum[0], sum[2]};
  }
};

// sum += d * the row's scale; the first of 128 k begins the sum.
template <bool kIsFirst, int kAccumulators>
__device__ __forceinline__ void add_scaled(float (&sum)[kAccumulators],
                                           const float* d,
                                           float top,
                                           float bottom) {
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) {
    const float scale = i % 4 < 2 ? top : bottom;
    sum[i] = kIsFirst ? scale * d[i] : fmaf(scale, d[i], sum[i]);
  }
}

// Of the four lanes with the same g, in all of them.
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(~0U, value, 1);
  return value + __shfl_xor_sync(~0U, value, 2);
}

// NVFP4: sums of 16 k, each multiplied by its row's scale. A product of 32 k has zeros in the other
// half of the activations. Eight rows give both halves' sums in one product of 16 columns, whose
// core matrices are, along k, rows and zeros for the first eight, zeros and rows for the others.
struct Nvfp4Scaling {
  static constexpr bool kNeedsZeros = true;
  static constexpr float kSumFactor = kPlacedE2m1Factor;
  static constexpr int kFullCost = 4, kHalfCost = 3;
  static constexpr int kSums = 4;  // of 64 k, each with a scale of its own
  template <int kAccumulators>
  static constexpr int kSumsOfProduct = kAccumulators == 4 ? 2 : 1;

  using Tables = PlacedE2m1;
  static __device__ __forceinline__ uint4 table_words() { return {}; }
  static __device__ __forceinline__ Tables tables(const uint4& /*words*/) { return {}; }
  // Issues the products of step `step` of 64 k of a stage, of eight rows.
  template <int kRows>
  static __device__ __forceinline__ void issue(const StagedRows& rows,
                                               uint32_t stage,
                                               int step,
                                               float (&d)[kSums / 2][8],
                                               const uint32_t (&a)[8]) {
    constexpr uint64_t kStep = 2 * 16;  // descriptor distance of 32 k of 16 places
    const uint32_t at = stage * static_cast<uint32_t>(8 * kStep);
    const uint64_t first = side_by_side_descriptor(static_cast<uint32_t>(rows.pairs) + at) +
                           static_cast<uint64_t>(2 * step) * kStep;
    wgmma_e4m3_first(d[0], a, first);
    wgmma_e4m3_first(d[1], a + 4, first + kStep);
  }
  // The same of 16 rows.
  template <int kRows>
  static __device__ __forceinline__ void issue(const StagedRows& rows,
                                               uint32_t stage,
                                               int step,
                                               float (&d)[kSums][8],
                                               const uint32_t (&a)[8]) {
    constexpr uint64_t kStep = 2 * kRows;  // descriptor distance of 32 k
    // The zeros stay where they are: the stride to them changes instead. Lower words first, 64 bits
    // where constants are added: both are one instruction then.
    constexpr uint64_t kFirstStep = kStep - (kStep << 16), kSecondStep = kStep << 16;
    const uint32_t at = stage * static_cast<uint32_t>(8 * kStep);
    const uint64_t first =
        side_by_side_descriptor(static_cast<uint32_t>(rows.zeros_second) + at - (at << 16)) +
        static_cast<uint64_t>(2 * step) * kFirstStep;
    const uint64_t second =
        side_by_side_descriptor(static_cast<uint32_t>(rows.zeros_first) + (at << 16)) +
        static_cast<uint64_t>(2 * step) * kSecondStep;
    wgmma_e4m3_first(d[0], a, first);
    wgmma_e4m3_first(d[1], a, second);
    wgmma_e4m3_first(d[2], a + 4, first + kFirstStep);
    wgmma_e4m3_first(d[3], a + 4, second + kSecondStep);
  }
  // scales: of 32 k each; bytes 2 s + h of row g + 8 h, values 16 s and on.
  static __device__ __forceinline__ void unpack_scales(uint2 scales, float (&of)[2 * kSums]) {
    from_e4m3x4(scales.x, of);
    from_e4m3x4(scales.y, of + 4);
  }
  // Of DiagonalRow, whose columns 2t and 2t + 1 are groups with scales of their own.
  static __device__ __forceinline__ float2 scaled_groups(const float (&d)[4], uint32_t scales) {
    float of[4];
    from_e4m3x4(scales, of);
    return {fmaf(of[2], d[1], of[0] * d[0]), fmaf(of[3], d[3], of[1] * d[2])};
  }
};

// INT4: products of 32 k, each multiplied by its row's bf16 scale. Codes are decoded to a quarter
// of their value.
struct Int4Scaling {
  static constexpr bool kNeedsZeros = false;
  static constexpr float kSumFactor = 4;
  static constexpr int kFullCost = 8, kHalfCost = 7;
  static constexpr int kSums = 2;  // of 64 k
  template <int kAccumulators>
  static constexpr int kSumsOfProduct = 1;

  using Tables = Int4Table;
  static __device__ __forceinline__ uint4 table_words() { return {0xB4B0A8C0U, 0xBEBCBAB8U, 0, 0}; }
  static __device__ __forceinline__ Tables tables(const uint4& words) { return {words.x, words.y}; }
  template <int kRows, int kAccumulators>
  static __device__ __forceinline__ void issue(const StagedRows& rows,
                                               uint32_t stage,
                                               int step,
                                               float (&d)[kSums][kAccumulators],
                                               const uint32_t (&a)[8]) {
    constexpr uint64_t kStep = 2 * kRows;
    const uint32_t at = stage * static_cast<uint32_t>(8 * kStep);
    const uint64_t first = side_by_side_descriptor(static_cast<uint32_t>(rows.tile) + at) +
                           static_cast<uint64_t>(2 * step) * kStep;
    wgmma_e4m3_first(d[0], a, first);
    wgmma_e4m3_first(d[1], a + 4, first + kStep);
  }
  // scales: of 32 k each; the lower half of row g, the upper of row g + 8.
  static __device__ __forceinline__ void unpack_scales(uint2 scales, float (&of)[2 * kSums]) {
    of[0] = __uint_as_float(scales.x << 16);
    of[1] = __uint_as_float(scales.x & 0xFFFF0000U);
    of[2] = __uint_as_float(scales.y << 16);
    of[3] = __uint_as_float(scales.y & 0xFFFF0000U);
  }
  // Of DiagonalRow, whose columns 2t and 2t + 1 are the halves of a group.
  static __device__ __forceinline__ float2 scaled_groups(const float (&d)[4], uint32_t scales) {
    return {__uint_as_float(scales << 16) * (d[0] + d[1]),
            __uint_as_float(scales & 0xFFFF0000U) * (d[2] + d[3])};
  }
};

// Formats whose scales multiply sums. For several rows a step is 64 k: its products are in flight
// while the next step's codes are decoded.
template <class Scaling>
struct ScaledPanels {
  static constexpr int kSlabBytes = 4 * 512 + 256;
  static constexpr bool kNeedsZeros = Scaling::kNeedsZeros;
  static constexpr float kSumFactor = Scaling::kSumFactor;
  static constexpr bool kHalvesSlots = true;
  static constexpr int kFullCost = Scaling::kFullCost, kHalfCost = Scaling::kHalfCost;
  using Tables = typename Scaling::Tables;

  static __device__ __forceinline__ uint4 table_words() { return Scaling::table_words(); }

  static __device__ __forceinline__ void decode_step(
      const Tables& tables, const uint8_t* slab, int step, int lane, uint32_t* a) {
    const uint4 words = *reinterpret_cast<const uint4*>(slab + step * 512 + lane * 16);
    decode_panel_word(words.x, tables, a[0], a[2]);
    decode_panel_word(words.y, tables, a[1], a[3]);
    decode_panel_word(words.z, tables, a[4], a[6]);
    decode_panel_word(words.w, tables, a[5], a[7]);
  }

  // sum += the products of 64 k, a sum of one scale after the other.
  template <bool kIsFirst, int kAccumulators, int kProducts, int kCount>
  static __device__ __forceinline__ void add_products(float (&sum)[kAccumulators],
                                                      const float (&d)[kProducts][kCount],
                                                      uint2 scales) {
    constexpr int kSumsOfProduct = kCount / kAccumulators;
    float row_scales[2 * Scaling::kSums];
    Scaling::unpack_scales(scales, row_scales);
#pragma unroll
    for (int i = 0; i < Scaling::kSums; ++i) {
      const float* const part = d[i / kSumsOfProduct] + i % kSumsOfProduct * kAccumulators;
      const float top = row_scales[2 * i], bottom = row_scales[2 * i + 1];
      if (kIsFirst && i == 0) {
        add_scaled<true>(sum, part, top, bottom);
      } else {
        add_scaled<false>(sum, part, top, bottom);
      }
    }
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
    const Tables tables = Scaling::tables(*rows.tables);
    const int t = lane % 4;
    constexpr int kSumsOfProduct = Scaling::template kSumsOfProduct<kAccumulators>;
    constexpr int kProducts = Scaling::kSums / kSumsOfProduct;  // of 64 k
    float d[kProducts][kSumsOfProduct * kAccumulators], scaled[kAccumulators];
    uint32_t a[2][8];
    const uint8_t* slab = nullptr;
    const auto begin_stage = [&] {
      slab = ring.wait();
      decode_step(tables, slab, 0, lane, a[0]);
    };
    float acc[kAccumulators] = {};
    int left = part_stages(stages);  // of the part
    if (begin < end) begin_stage();
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_fence();
        Scaling::template issue<kRows>(rows, static_cast<uint32_t>(stage), step, d, a[step % 2]);
        wgmma_commit();
        const uint2 scales = *reinterpret_cast<const uint2*>(slab + 2048 + step / 2 * 128 +
                                                             lane / 4 * 16 + step % 2 * 8);
        if (step < 3) {
          decode_step(tables, slab, step + 1, lane, a[(step + 1) % 2]);
        } else {
          ring.release(lane);
          if (stage + 1 < end) begin_stage();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < kProducts; ++i) hold(d[i]);
        if (step % 2 == 0) {
          add_products<true>(scaled, d, scales);
        } else {
          add_products<false>(scaled, d, scales);
          promote<false>(acc, scaled, rows.scales + (2 * stage + step / 2) * kRows, t);
        }
      }
      if (--left == 0) {
        flush(sum, acc);
        left = part_stages(stages);
      }
    }
    flush(sum, acc);
  }

  // A single row: the columns of a product are sums of different groups, so that a thread scales
  // what it holds by two or four scales for 128 k, and only the end adds what the threads have.
  struct Halves {
    const StagedRow& row;
    Tables tables;
    uint32_t scales[2];  // of this thread's groups in both halves
    uint32_t second;     // scales[1] of the stage before, when the next has begun

    __device__ __forceinline__ void begin(const uint8_t* slab, int lane) {
      const uint8_t* const source = slab + 2048 + lane * 4;
      scales[0] = *reinterpret_cast<const uint32_t*>(source);
      scales[1] = *reinterpret_cast<const uint32_t*>(source + 128);
    }
    template <int kHalf>
    __device__ __forceinline__ void decode(const uint8_t* slab, int lane, uint32_t (&a)[16]) const {
      decode_step(tables, slab, 2 * kHalf, lane, a);
      decode_step(tables, slab, 2 * kHalf + 1, lane, a + 8);
    }
    template <int kHalf>
    __device__ __forceinline__ void issue(int stage, float (&d)[4], const uint32_t (&a)[16]) const {
      const uint32_t block =
          row.tile + static_cast<uint32_t>((2 * stage + kHalf) * DiagonalRow::kBlockPlaces);
      // Core matrices 2 i and 2 i + 1: where the first begins and how far away the second is.
      const auto matrices = [&](int i) {
        const int first_place = DiagonalRow::first_place(2 * i);
        const int distance = DiagonalRow::first_place(2 * i + 1) - first_place;
        return side_by_side_descriptor(block +
                                       static_cast<uint32_t>(first_place + (distance << 16)));
      };
      wgmma_fence();
      wgmma_e4m3_first(d, a, matrices(0));
      wgmma_e4m3_add(d, a + 4, matrices(1));
      wgmma_e4m3_add(d, a + 8, matrices(2));
      wgmma_e4m3_add(d, a + 12, matrices(3));
      wgmma_commit();
    }
    template <int kHalf>
    __device__ __forceinline__ void add(int stage, float (&acc)[4], const float (&d)[4]) {
      const float x_scale = row.scales[2 * stage + kHalf];
      const float2 groups = Scaling::scaled_groups(d, kHalf == 0 ? scales[0] : second);
      acc[0] = fmaf(x_scale, groups.x, acc[0]);
      acc[2] = fmaf(x_scale, groups.y, acc[2]);
      if (kHalf == 0) second = scales[1];
    }
  };
  using Row = DiagonalRow;
  static __device__ __forceinline__ float2
  multiply_row(StageRing& ring, const StagedRow& row, int begin, int end, int stages, int lane) {
    float sum[4] = {};
    Halves halves{.row = row, .tables = Scaling::tables(*row.tables), .scales = {}, .second = 0};
    multiply_halves(halves, ring, begin, end, stages, lane, sum);
    return {quad_sum(sum[0]), quad_sum(sum[2])};
  }
};

using Nvfp4Panels = ScaledPanels<Nvfp4Scaling>;
using Int4Panels = ScaledPanels<Int4Scaling>;

}  // namespace nibble::kernels::cuda
