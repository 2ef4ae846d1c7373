// The expert product of sm_90a. Design and measurements: spec "h200-facts" 5 and 9.
//
// Weights are the M operand, rows of x the N operand, so that one or two rows per expert waste
// nothing. A block owns a contiguous range of (slot, panel) units and keeps their weight stages
// flowing through a ring by bulk copies of one producer warp. k is split across the warpgroups:
// stage i belongs to warpgroup i mod kWarpgroups, which decodes 4-bit codes to E5M2 registers
// (group scale folded into the look-up table, exactly), multiplies them with the E4M3 activations
// and promotes each 128 k to f32 with the activation's scale. The partial panels are added through
// shared memory by a warpgroup that changes from panel to panel. The order of every sum depends on
// the shape only.
//
// One row per slot needs its own bytes only: the other columns of a core matrix overlap with what
// comes next.
//
// Bytes: 0.53 per weight of each distinct expert, read once per slot. FLOPs: 2 n k per pair.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/common/fp4.cuh"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/common/swiglu.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kStageK = 256;
inline constexpr int kSlabBytes = 4 * 512 + 128;
inline constexpr int kStageBytes = 4 * kSlabBytes;
inline constexpr int kMaxK = 4096;
inline constexpr int kMaxStages = 32;

// DeviceGroupedMatMulArgs as the kernel takes them.
struct ExpertMatMulParams {
  const uint8_t* x_codes;
  const float* x_scales;
  const __nv_bfloat16* x_bf16;  // instead of codes and scales; one row per slot
  int pairs_per_row;
  const uint8_t* weights;        // packages of all experts
  const float* row_multipliers;  // [experts, n]
  const int* slot_count;
  int max_slots;
  const int* slot_experts;
  const int* slot_pairs;
  bool slots_are_ready;  // before the predecessors end
  float limit;           // infinity: no clamp
  const float* pair_weights;
  void* y;
  int n;
  int k;
};

// Columns that products are made for.
__host__ __device__ constexpr int columns_of(int rows) { return rows < 8 ? 8 : rows; }

// Shared memory of a block: the ring first, then partial panels, activations and their scales.
template <int kWarpgroups, int kRows>
struct ExpertMatMulMemory {
  static constexpr int kPartialBytes =
      kWarpgroups * (kWarpgroups - 1) * 128 * (columns_of(kRows) / 2) * 4;
  static constexpr int kOverlapBytes = kRows < 8 ? 128 : 0;  // of the last core matrix
  // Without the ring.
  __host__ __device__ static constexpr int fixed_bytes(int k) {
    return kPartialBytes + k * kRows + k / 128 * kRows * 4 + kOverlapBytes;
  }
};

// Half a stage (128 k) of one thread: 16 registers of E5M2.
template <int kHalf>
__device__ __forceinline__ void decode_half(const uint8_t* slab,
                                            const uint4& scales,
                                            int lane,
                                            uint32_t (&a)[16]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const uint4 words = *reinterpret_cast<const uint4*>(slab + (2 * kHalf + c) * 512 + lane * 16);
    const uint32_t scale =
        kHalf == 0 ? (c == 0 ? scales.x : scales.y) : (c == 0 ? scales.z : scales.w);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const uint32_t top = __byte_perm(scale, 0, group == 0 ? 0x4440 : 0x4441);
      const uint32_t bottom = __byte_perm(scale, 0, group == 0 ? 0x4442 : 0x4443);
      uint32_t* const out = a + c * 8 + group * 4;
      decode_panel_word(group == 0 ? words.x : words.z, e5m2_table(top), out[0], out[2]);
      decode_panel_word(group == 0 ? words.y : words.w, e5m2_table(bottom), out[1], out[3]);
    }
  }
}

// Issues the four products of 128 k; `step` is the descriptor's distance of 32 k.
template <int kAccumulators>
__device__ __forceinline__ void multiply_half(uint64_t descriptor,
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

// acc += d * scale of the column.   scales: [kRows] of this block of 128 k
template <int kRows, int kAccumulators>
__device__ __forceinline__ void promote(float (&acc)[kAccumulators],
                                        const float (&d)[kAccumulators],
                                        const float* scales,
                                        int t) {
#pragma unroll
  for (int tile = 0; tile < kAccumulators / 4; ++tile) {
    float2 scale;
    if constexpr (kRows == 1) {
      scale = {scales[0], scales[0]};
    } else {
      scale = *reinterpret_cast<const float2*>(scales + tile * 8 + 2 * t);
    }
    acc[tile * 4 + 0] = fmaf(scale.x, d[tile * 4 + 0], acc[tile * 4 + 0]);
    acc[tile * 4 + 1] = fmaf(scale.y, d[tile * 4 + 1], acc[tile * 4 + 1]);
    acc[tile * 4 + 2] = fmaf(scale.x, d[tile * 4 + 2], acc[tile * 4 + 2]);
    acc[tile * 4 + 3] = fmaf(scale.y, d[tile * 4 + 3], acc[tile * 4 + 3]);
  }
}

// The range of units of this block: an equal share, contiguous.
struct UnitRange {
  int begin;
  int end;
};
__device__ __forceinline__ UnitRange units_of_block(int num_units) {
  const auto share = [num_units](unsigned block) {
    return static_cast<int>(static_cast<long long>(num_units) * block / gridDim.x);
  };
  return {share(blockIdx.x), share(blockIdx.x + 1)};
}

// The first slot of this block if no slot is empty: read beside the count, which is a round trip to
// memory saved whenever the guess is right.
__device__ __forceinline__ int guessed_slot(const ExpertMatMulParams& params, int panels) {
  return units_of_block(params.max_slots * panels).begin / panels;
}

// Feeds the ring. One thread. Slots of one row may have no expert, others always have one.
template <int kRows>
__device__ __forceinline__ void produce_stages(const ExpertMatMulParams& params,
                                               uint32_t ring,
                                               uint32_t full,
                                               uint32_t empty,
                                               int num_ring_stages) {
  const int panels = params.n / 64, stages = params.k / kStageK;
  const uint64_t policy = evict_first_policy();
  if (!params.slots_are_ready) wait_for_predecessors();
  const int guess = guessed_slot(params, panels);
  int expert = __ldcg(params.slot_experts + guess);
  const int num_slots = kRows == 1 ? params.max_slots : __ldcg(params.slot_count);
  const UnitRange units = units_of_block(num_slots * panels);
  if (units.begin / panels != guess) expert = __ldcg(params.slot_experts + units.begin / panels);
  int slot = 0;
  uint32_t parity = 1;
  int next_expert = expert;
  for (int unit = units.begin; unit < units.end; ++unit) {
    if (unit % panels == 0) expert = next_expert;
    if (unit % panels == 0 || unit == units.begin) {
      const int next_slot =
          unit / panels + 1;  // read a slot ahead: its latency would stall the ring
      if (next_slot * panels < units.end) next_expert = __ldcg(params.slot_experts + next_slot);
    }
    if (kRows == 1 && expert < 0) continue;
    const uint8_t* source =
        params.weights +
        (static_cast<size_t>(expert) * panels + unit % panels) * stages * kStageBytes;
    for (int stage = 0; stage < stages; ++stage, source += kStageBytes) {
      barrier_wait(empty + 8 * slot, parity);
      barrier_arrive_expect(full + 8 * slot, kStageBytes);
      bulk_copy_to_shared(ring + slot * kStageBytes, source, kStageBytes, full + 8 * slot, policy);
      if (++slot == num_ring_stages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

// What a thread needs of a slot.
template <int kRows>
struct SlotRows {
  static constexpr int kTiles = columns_of(kRows) / 8;
  int expert;
  int row_pair;           // of the row whose activations this thread copies
  int pairs[kTiles * 2];  // of columns 2t, 2t + 1 of each tile; -1: none

  __device__ __forceinline__ void read(const ExpertMatMulParams& params, int slot, int t) {
    expert = __ldcg(params.slot_experts + slot);
    if constexpr (kRows == 1) {
      row_pair = slot;
      pairs[0] = t == 0 ? slot : -1;
      pairs[1] = -1;
    } else {
      const int* const slot_pairs = params.slot_pairs + slot * kRows;
      row_pair = __ldcg(slot_pairs + threadIdx.x % kRows);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int2 two = __ldcg(reinterpret_cast<const int2*>(slot_pairs + tile * 8 + 2 * t));
        pairs[tile * 2] = two.x;
        pairs[tile * 2 + 1] = two.y;
      }
    }
  }
};

// Copies activation rows into core-matrix order: 16 bytes of k per row, rows side by side. Each
// thread serves one row; x_row < 0 is an absent row and becomes zeros.
template <int kRows, int kThreads>
__device__ __forceinline__ void load_activations(const ExpertMatMulParams& params,
                                                 int x_row,
                                                 uint8_t* activations,
                                                 float* scales) {
  const int row = threadIdx.x % kRows;
  const int blocks = params.k / 16, groups = params.k / 128;
  const size_t source_row = x_row < 0 ? 0 : static_cast<size_t>(x_row);
  const uint4* const source =
      reinterpret_cast<const uint4*>(params.x_codes + source_row * params.k);
  for (int i = threadIdx.x / kRows; i < groups; i += kThreads / kRows) {
    scales[i * kRows + row] = x_row < 0 ? 0.0f : __ldcg(params.x_scales + source_row * groups + i);
  }
#pragma unroll 4
  for (int i = threadIdx.x / kRows; i < blocks; i += kThreads / kRows) {
    const uint4 codes = x_row < 0 ? uint4{0, 0, 0, 0} : __ldcg(source + i);
    *reinterpret_cast<uint4*>(activations + (i * kRows + row) * 16) = codes;
  }
}

// The same for one row of bf16, which it quantises. Each warp takes 128 values at a time.
template <int kThreads>
__device__ __forceinline__ void quantize_activations(const ExpertMatMulParams& params,
                                                     int x_row,
                                                     uint8_t* activations,
                                                     float* scales) {
  const int lane = threadIdx.x % 32, groups = params.k / 128;
  const auto* const source =
      reinterpret_cast<const uint2*>(params.x_bf16 + static_cast<size_t>(x_row) * params.k);
#pragma unroll 2
  for (int group = threadIdx.x / 32; group < groups; group += kThreads / 32) {
    const uint2 packed = __ldcg(source + group * 32 + lane);
    const float v[4] = {__uint_as_float(packed.x << 16),
                        __uint_as_float(packed.x & 0xFFFF0000U),
                        __uint_as_float(packed.y << 16),
                        __uint_as_float(packed.y & 0xFFFF0000U)};
    const float amax =
        warp_max(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    const uint32_t exponent = e4m3_scale_exponent(amax);
    reinterpret_cast<uint32_t*>(activations)[group * 32 + lane] =
        to_e4m3x4(v, inverse_power_of_two(exponent));
    if (lane == 0) scales[group] = power_of_two(exponent);
  }
}

// What a thread needs to write its part of a panel, read ahead of the product.
template <int kTiles>
struct PanelOutput {
  int pairs[kTiles * 2];  // of columns 2t, 2t + 1 of each tile; -1: none
  float pair_weights[kTiles * 2];
  float top, bottom;  // multipliers of rows g and g + 8
};

// Writes a finished panel: this thread's rows g and g + 8 of its slab.
template <bool kSwiglu, int kTiles>
__device__ __forceinline__ void store_panel(const ExpertMatMulParams& params,
                                            const float (&acc)[kTiles * 4],
                                            const PanelOutput<kTiles>& output,
                                            int slab,
                                            int g) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int pair = output.pairs[tile * 2 + column];
      if (pair < 0) continue;
      const float first = acc[tile * 4 + column] * output.top;
      const float second = acc[tile * 4 + 2 + column] * output.bottom;
      if constexpr (kSwiglu) {
        auto* const y =
            static_cast<__nv_bfloat16*>(params.y) + static_cast<size_t>(pair) * (params.n / 2);
        y[slab * 8 + g] = __float2bfloat16(swiglu(first, second, params.limit) *
                                           output.pair_weights[tile * 2 + column]);
      } else {
        auto* const y = static_cast<float*>(params.y) + static_cast<size_t>(pair) * params.n;
        y[slab * 16 + g] = first;
        y[slab * 16 + g + 8] = second;
      }
    }
  }
}

// Block: kWarpgroups * 128 consumers and one producer warp. Stages of k and of the ring are
// multiples of kWarpgroups, so that both always belong to the same warpgroup.
template <int kWarpgroups, int kRows, bool kSwiglu, int kBlocksPerUnit>
__global__ void __launch_bounds__(kWarpgroups * 128 + 32, kBlocksPerUnit)
    expert_matmul(const ExpertMatMulParams params, int num_ring_stages) {
  using Memory = ExpertMatMulMemory<kWarpgroups, kRows>;
  constexpr int kThreads = kWarpgroups * 128;
  constexpr int kColumns = columns_of(kRows);
  constexpr int kAccumulators = kColumns / 2;
  constexpr int kConsumers = 7;  // named barrier of all consumers; 1 .. kWarpgroups: of a panel
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kMaxStages];
  uint8_t* const ring = memory;
  float* const partials = reinterpret_cast<float*>(ring + num_ring_stages * kStageBytes);
  uint8_t* const activations = reinterpret_cast<uint8_t*>(partials) + Memory::kPartialBytes;
  float* const scales = reinterpret_cast<float*>(activations + params.k * kRows);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp / 4, warp_in_group = warp % 4;
  uint32_t full = shared_address(barriers), empty = full + 8 * kMaxStages;
  uint32_t ring_address = shared_address(ring);
  keep_in_register(full);
  keep_in_register(empty);
  keep_in_register(ring_address);
  if (threadIdx.x == 0) {
    for (int i = 0; i < num_ring_stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4);
    }
    fence_barrier_init();
  }
  // With one row, the next launch may take the slots for ready: it must not come before the wait.
  if constexpr (kRows != 1) launch_dependents();
  __syncthreads();

  if (warp == kWarpgroups * 4) {
    if (lane == 0) produce_stages<kRows>(params, ring_address, full, empty, num_ring_stages);
    return;
  }

  const int panels = params.n / 64, stages = params.k / kStageK;
  constexpr uint32_t kTileStride = kRows * 16;  // bytes of 16 k of all rows
  const uint64_t b_descriptor =
      core_matrix_descriptor(shared_address(activations), kTileStride, 128);
  constexpr uint64_t kStep = 2 * kTileStride / 16;  // descriptor distance of 32 k
  wait_for_predecessors();
  if constexpr (kRows == 1) launch_dependents();

  SlotRows<kRows> rows;
  const int num_slots = kRows == 1 ? params.max_slots : __ldcg(params.slot_count);
  const UnitRange units = units_of_block(num_slots * panels);

  PanelOutput<kColumns / 8> output{};
  int loaded_slot = -1, loaded_row = -2;
  int ring_slot = group;
  uint32_t parity = 0;
  int first_unit = units.begin;
  for (int unit = units.begin; unit < units.end; ++unit) {
    const int slot = unit / panels;
    if (slot != loaded_slot) {
      rows.read(params, slot, t);
      loaded_slot = slot;
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) {
        const int pair = rows.pairs[i];
        output.pairs[i] = pair;
        if constexpr (kSwiglu) {
          output.pair_weights[i] = pair < 0 || params.pair_weights == nullptr
                                       ? 1.0f
                                       : __ldcg(params.pair_weights + pair);
        }
      }
      const int x_row = rows.row_pair < 0 ? -1 : rows.row_pair / params.pairs_per_row;
      // Everybody is done with the rows before; one token's slots share them all.
      if (named_barrier_or(kConsumers, kThreads, x_row != loaded_row)) {
        if (kRows == 1 && params.x_bf16 != nullptr) {
          quantize_activations<kThreads>(params, x_row, activations, scales);
        } else {
          load_activations<kRows, kThreads>(params, x_row, activations, scales);
        }
        fence_async_proxy();
        named_barrier_sync(kConsumers, kThreads);
      }
      loaded_row = x_row;
    }
    if (kRows == 1 && rows.expert < 0) {
      ++first_unit;  // panels that are made take turns
      continue;
    }
    const int slab_row = unit % panels * 4 + warp_in_group;
    const float* const multipliers =
        params.row_multipliers + static_cast<size_t>(rows.expert) * params.n + slab_row * 16;
    output.top = __ldg(multipliers + g);
    output.bottom = __ldg(multipliers + g + 8);
    float acc[kAccumulators] = {};
    float d0[kAccumulators], d1[kAccumulators];
    uint32_t a0[16], a1[16];
    // Both products of a stage are waited for inside the body (an accumulator read across the loop
    // edge would make ptxas serialise them); decoding of the next half runs beside them.
    uint4 group_scales{};
    const uint8_t* slab = ring + ring_slot * kStageBytes + warp_in_group * kSlabBytes;
    const auto begin_stage = [&] {
      barrier_wait(full + 8 * ring_slot, parity);
      group_scales = *reinterpret_cast<const uint4*>(slab + 2048 + g * 16);
      decode_half<0>(slab, group_scales, lane, a0);
    };
    begin_stage();
    for (int stage = group; stage < stages; stage += kWarpgroups) {
      const uint64_t b = b_descriptor + static_cast<uint64_t>(stage) * (8 * kStep);
      const float* const stage_scales = scales + 2 * stage * kRows;
      multiply_half(b, kStep, d0, a0);
      decode_half<1>(slab, group_scales, lane, a1);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + 8 * ring_slot);
      ring_slot += kWarpgroups;
      if (ring_slot >= num_ring_stages) {
        ring_slot -= num_ring_stages;
        parity ^= 1;
      }
      slab = ring + ring_slot * kStageBytes + warp_in_group * kSlabBytes;
      multiply_half(b + 4 * kStep, kStep, d1, a1);
      wgmma_wait<1>();
      hold(d0);
      promote<kRows>(acc, d0, stage_scales, t);
      if (stage + kWarpgroups < stages) begin_stage();
      wgmma_wait<0>();
      hold(d1);
      promote<kRows>(acc, d1, stage_scales + kRows, t);
    }

    const int reducer = (unit - first_unit) % kWarpgroups;
    const int thread = threadIdx.x % 128;
    float* const panel_partials = partials + reducer * (kWarpgroups - 1) * 128 * kAccumulators;
    if (group != reducer) {
      float* const mine =
          panel_partials + ((group < reducer ? group : group - 1) * 128 + thread) * kAccumulators;
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        *reinterpret_cast<float4*>(mine + i) = {acc[i], acc[i + 1], acc[i + 2], acc[i + 3]};
      }
      named_barrier_arrive(1 + reducer, kThreads);
      continue;
    }
    named_barrier_sync(1 + reducer, kThreads);
    // In the order of the warpgroups, whoever adds: the result must not depend on the unit's place.
    float sum[kAccumulators] = {};
#pragma unroll
    for (int part = 0; part < kWarpgroups; ++part) {
      const float* const theirs =
          panel_partials + ((part < reducer ? part : part - 1) * 128 + thread) * kAccumulators;
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) sum[i] += part == reducer ? acc[i] : theirs[i];
    }
    store_panel<kSwiglu, kColumns / 8>(params, sum, output, slab_row, g);
  }
}

}  // namespace nibble::kernels::cuda
