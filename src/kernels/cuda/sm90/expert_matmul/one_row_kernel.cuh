// The expert product of sm_90a for one token, whose experts are all different: every slot is one
// row. With DeviceGroupedMatMulArgs::down both products of the experts are one launch, which
// streams the second one's weights while the first one ends.
//
// A block owns a contiguous range of (slot, panel) units of each product. There are too few panels
// to give every warpgroup its own: the warpgroups share a panel's k, each with its quarters. Each
// has a ring of weight stages of its own, which a lane of the producer warp keeps flowing by bulk
// copies; decoded codes stay in registers (formats.cuh). Quarters are added in ascending order, as
// in kernel.cuh, so that a row has the same bits alone and among others.
//
// The rings do not know of the boundary between the products. The consumers do: a counter per slot
// says how many warps have written their part of its activated row, and the row is quantised by
// every block that needs it. Blocks wait for each other, so all of them have to be resident: the
// grid is one block per multiprocessor, and the next launch is not let in before all have begun.
//
// A row needs its own bytes only: the other columns of a core matrix overlap with what comes next.
//
// Bytes: 0.53 (MXFP4) or 0.56 per weight of each expert. FLOPs: 2 n k per pair and product.
#pragma once

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/sm90/expert_matmul/formats.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kMaxRowSlots = 32;

struct OneRowParams {
  ExpertMatMulParams products[2];
  int num_products;
  int* counters;  // DeviceDownProduct::counters
};

template <class Panels, int kWarpgroups>
struct OneRowLayout {
  static_assert(kParts % kWarpgroups == 0);
  static constexpr int kOwnParts = kParts / kWarpgroups;
  static constexpr int kThreads = kWarpgroups * 128;  // of the consumers
  // A warp, and three more that give their registers to the consumers.
  static constexpr int kProducers = 128;
  static constexpr int kAccumulators = 4;  // of eight columns, of which one is wanted
  static constexpr int kStageBytes = 4 * Panels::kSlabBytes;
  static constexpr int kMaxRingSlots = 8;
  // Shared memory of a block: rings, partial sums, zeros, activations, zeros (which also take the
  // overlap of the last core matrix), scales.
  static constexpr int kPartialBytes = kWarpgroups * kParts * 64 * 4;
  static constexpr int kZeroBytes = 128;

  // k: the larger one.
  __host__ __device__ static constexpr int fixed_bytes(int k) {
    return kPartialBytes + 2 * kZeroBytes + k + k / 128 * 4;
  }
};

// This block's units of a product: slot * panels + panel.
struct UnitRange {
  int next;
  int end;
  int panels;  // of a slot

  __device__ __forceinline__ explicit UnitRange(const ExpertMatMulParams& product)
      : panels(product.n / 64) {
    const int total = product.max_slots * panels;
    const auto share = [&](unsigned block) {
      return static_cast<int>(static_cast<long long>(total) * block / gridDim.x);
    };
    next = share(blockIdx.x);
    end = share(blockIdx.x + 1);
  }
};

// Feeds the ring of warpgroup `group`; one thread each.
//   experts: of the slots, in shared memory
template <class Panels, int kWarpgroups>
__device__ __forceinline__ void produce_rows(const OneRowParams& params,
                                             const int* experts,
                                             int group,
                                             uint32_t ring,
                                             uint32_t full,
                                             uint32_t empty,
                                             int num_ring_slots) {
  using Layout = OneRowLayout<Panels, kWarpgroups>;
  constexpr int kStageBytes = Layout::kStageBytes;
  const uint64_t policy = evict_first_policy();
  int slot = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (int p = 0; p < params.num_products; ++p) {
    const ExpertMatMulParams& product = params.products[p];
    const int stages = product.k / kStageK, begin = part_begin(stages, group * Layout::kOwnParts);
    const int count = part_begin(stages, (group + 1) * Layout::kOwnParts) - begin;
    for (UnitRange units(product); units.next < units.end; ++units.next) {
      const int expert = experts[units.next / units.panels], panel = units.next % units.panels;
      if (expert < 0) continue;
      const uint8_t* source =
          product.weights +
          ((static_cast<size_t>(expert) * units.panels + panel) * stages + begin) * kStageBytes;
      for (int stage = 0; stage < count; ++stage, source += kStageBytes) {
        barrier_wait(empty + 8 * slot, parity);
        barrier_arrive_expect(full + 8 * slot, kStageBytes);
        bulk_copy_to_shared(
            ring + slot * kStageBytes, source, kStageBytes, full + 8 * slot, policy);
        if (++slot == num_ring_slots) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  }
}

// Copies a row's codes and scales.
template <int kThreads>
__device__ __forceinline__ void copy_row(const ExpertMatMulParams& product,
                                         int x_row,
                                         uint8_t* activations,
                                         float* scales) {
  const int blocks = product.k / 16, groups = product.k / 128;
  const auto* const source =
      reinterpret_cast<const uint4*>(product.x_codes + static_cast<size_t>(x_row) * product.k);
  const float* const source_scales = product.x_scales + static_cast<size_t>(x_row) * groups;
  for (int i = threadIdx.x; i < groups; i += kThreads) scales[i] = __ldcg(source_scales + i);
  for (int i = threadIdx.x; i < blocks; i += kThreads) {
    reinterpret_cast<uint4*>(activations)[i] = __ldcg(source + i);
  }
}

// The same for a row of bf16, which it quantises. Each warp takes 128 values at a time.
template <int kThreads>
__device__ __forceinline__ void quantize_row(const ExpertMatMulParams& product,
                                             int x_row,
                                             uint8_t* activations,
                                             float* scales) {
  const int lane = threadIdx.x % 32, groups = product.k / 128;
  const auto* const source =
      reinterpret_cast<const uint2*>(product.x_bf16 + static_cast<size_t>(x_row) * product.k);
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

// The parts of k of a panel's first column, which the threads with t == 0 hold.
//   parts: [kParts][64] of the warpgroup whose turn it is to add them
struct RowParts {
  float* parts;
  int row;  // of the panel; `row` + 8 is this thread's, too
  int t;

  __device__ __forceinline__ void store(int part, const float (&acc)[4]) const {
    if (t != 0) return;
    parts[part * 64 + row] = acc[0];
    parts[part * 64 + row + 8] = acc[2];
  }
  // In ascending order.
  __device__ __forceinline__ float2 sum() const {
    float2 total{0, 0};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      total.x += parts[part * 64 + row];
      total.y += parts[part * 64 + row + 8];
    }
    return total;
  }
};

// Block: the consumers, then the producers.
template <class Panels, int kWarpgroups>
__global__ void __launch_bounds__(OneRowLayout<Panels, kWarpgroups>::kThreads +
                                      OneRowLayout<Panels, kWarpgroups>::kProducers,
                                  kWarpgroups == 4 ? 1 : 2)
    one_row_expert_matmul(const OneRowParams params, int num_ring_slots) {
  using Layout = OneRowLayout<Panels, kWarpgroups>;
  constexpr int kThreads = Layout::kThreads;
  constexpr int kConsumers = 7;  // named barrier of all consumers
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kWarpgroups * Layout::kMaxRingSlots];
  __shared__ uint4 tables;
  __shared__ int producer_experts[kMaxRowSlots], experts[kMaxRowSlots];
  const bool has_down = params.num_products == 2;
  const int max_k = max(params.products[0].k, params.products[has_down ? 1 : 0].k);
  const int ring_bytes = num_ring_slots * Layout::kStageBytes;
  float* const partials = reinterpret_cast<float*>(memory + kWarpgroups * ring_bytes);
  uint8_t* const first_zeros = reinterpret_cast<uint8_t*>(partials) + Layout::kPartialBytes;
  uint8_t* const activations = first_zeros + Layout::kZeroBytes;
  uint8_t* const last_zeros = activations + max_k;
  float* const scales = reinterpret_cast<float*>(last_zeros + Layout::kZeroBytes);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t full = shared_address(barriers);
  const uint32_t empty = full + 8 * kWarpgroups * Layout::kMaxRingSlots;
  // Of a single product the next launch may take the slots for ready: it must not come before the
  // wait.
  if (has_down) launch_dependents();
  if (threadIdx.x == 0) {
    tables = Panels::table_words();
    for (int i = 0; i < kWarpgroups * Layout::kMaxRingSlots; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4);
    }
    fence_barrier_init();
  }
  if (threadIdx.x < Layout::kZeroBytes) {
    first_zeros[threadIdx.x] = 0;
    last_zeros[threadIdx.x] = 0;
    fence_async_proxy();
  }
  __syncthreads();

  const int max_slots = params.products[0].max_slots;
  const int* const slot_experts = params.products[0].slot_experts;
  if (warp >= kWarpgroups * 4) {
    give_registers_back<40>();
    if (warp > kWarpgroups * 4) return;
    if (!params.products[0].slots_are_ready) wait_for_predecessors();
    if (lane < max_slots) producer_experts[lane] = __ldcg(slot_experts + lane);
    __syncwarp();
    if (lane < kWarpgroups) {
      produce_rows<Panels, kWarpgroups>(params,
                                        producer_experts,
                                        lane,
                                        shared_address(memory) + lane * ring_bytes,
                                        full + 8 * Layout::kMaxRingSlots * lane,
                                        empty + 8 * Layout::kMaxRingSlots * lane,
                                        num_ring_slots);
    }
    return;
  }
  take_registers<kWarpgroups == 4 ? 104 : 96>();

  const int group = warp / 4, warp_in_group = warp % 4;
  StageRing ring{.stages = memory + group * ring_bytes + warp_in_group * Panels::kSlabBytes,
                 .full = full + 8 * Layout::kMaxRingSlots * group,
                 .empty = empty + 8 * Layout::kMaxRingSlots * group,
                 .num_slots = num_ring_slots,
                 .stage_bytes = Layout::kStageBytes,
                 .slot = 0,
                 .parity = 0};
  keep_in_register(ring.full);
  keep_in_register(ring.empty);
  const uint32_t x_address = shared_address(activations);
  const auto tile = [](uint32_t address, uint32_t next_16_k) {
    return core_matrix_descriptor(address, next_16_k - address, 128);
  };
  const StagedRows rows{.descriptor = tile(x_address, x_address + 16),
                        .zeros_first = tile(shared_address(first_zeros), x_address + 16),
                        .zeros_second = tile(x_address, shared_address(last_zeros)),
                        .scales = scales,
                        .tables = &tables};
  wait_for_predecessors();
  if (!has_down) launch_dependents();
  if (threadIdx.x < max_slots) experts[threadIdx.x] = __ldcg(slot_experts + threadIdx.x);
  named_barrier_sync(kConsumers, kThreads);

  int made_panels = 0;
#pragma unroll 1
  for (int p = 0; p < params.num_products; ++p) {
    const ExpertMatMulParams& product = params.products[p];
    const int stages = product.k / kStageK;
    int loaded_row = -1;
    for (UnitRange units(product); units.next < units.end; ++units.next) {
      const int slot = units.next / units.panels;
      const int expert = experts[slot];
      if (expert < 0) continue;
      const int x_row = slot / product.pairs_per_row;
      if (x_row != loaded_row) {
        loaded_row = x_row;
        if (p == 1 && threadIdx.x == 0) {
          const int num_warps = params.products[0].n / 16;
          while (load_acquire(params.counters + slot) < num_warps) {
          }
        }
        named_barrier_sync(kConsumers, kThreads);  // everybody is done with the row before
        if (product.x_bf16 != nullptr) {
          quantize_row<kThreads>(product, x_row, activations, scales);
        } else {
          copy_row<kThreads>(product, x_row, activations, scales);
        }
        fence_async_proxy();
        named_barrier_sync(kConsumers, kThreads);
      }
      const int slab = units.next % units.panels * 4 + warp_in_group;
      const float* const multipliers =
          product.row_multipliers + static_cast<size_t>(expert) * product.n + slab * 16;
      const float multiplier = __ldg(multipliers + g + t % 2 * 8);  // of row g, or of g + 8
      // The warpgroups take turns in adding up.
      const int adder = made_panels++ % kWarpgroups;
      const RowParts parts{partials + adder * kParts * 64, warp_in_group * 16 + g, t};
#pragma unroll 1
      for (int part = group * Layout::kOwnParts; part < (group + 1) * Layout::kOwnParts; ++part) {
        float acc[Layout::kAccumulators] = {};
        Panels::template multiply<1>(
            ring, rows, part_begin(stages, part), part_begin(stages, part + 1), stages, lane, acc);
        parts.store(part, acc);
      }
      if (group != adder) {
        named_barrier_arrive(1 + adder, kThreads);
        continue;
      }
      named_barrier_sync(1 + adder, kThreads);
      const float bottom = __shfl_down_sync(~0U, multiplier, 1);
      if (t == 0) {
        const float weight =
            product.pair_weights == nullptr ? 1.0f : __ldcg(product.pair_weights + slot);
        const float2 sum = parts.sum();
        store_column(product, sum.x * multiplier, sum.y * bottom, slot, weight, slab, g);
      }
      if (p == 0 && has_down) {
        __syncwarp();
        if (lane == 0) add_release(params.counters + slot);
      }
    }
  }
  if (!has_down || threadIdx.x != 0) return;
  // The last block to come here knows that every counter has been read for the last time.
  if (add_acquire_release(params.counters + max_slots) != static_cast<int>(gridDim.x) - 1) return;
  for (int i = 0; i <= max_slots; ++i) params.counters[i] = 0;
}

}  // namespace nibble::kernels::cuda
