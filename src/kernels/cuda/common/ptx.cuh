// The PTX instructions that our kernels use, each as a function. Device code only; no other folder
// holds inline assembly. Source: PTX ISA 9.0.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// Address of shared memory as the 32-bit form that bulk copies and barriers take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Hides how a value was made, so that the compiler keeps it in a register instead of making it
// again.
__device__ __forceinline__ void keep_in_register(uint32_t& value) {
  asm volatile("" : "+r"(value));
}
__device__ __forceinline__ void keep_in_register(uint64_t& value) {
  asm volatile("" : "+l"(value));
}
__device__ __forceinline__ void keep_in_register(float& value) { asm volatile("" : "+f"(value)); }
template <class T>
__device__ __forceinline__ void keep_in_register(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

// 1 / x to about an ulp, in one instruction; x is normal.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The bytes of `low` and `high` that the nibbles of the low half of `selectors` name; their top
// bits must be clear.
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selectors) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selectors));
  return bytes;
}
// The top bit of each byte, eight times.
__device__ __forceinline__ uint32_t sign_bytes(uint32_t word) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xBA98;" : "=r"(signs) : "r"(word));
  return signs;
}

// --- ordinary reads and writes of shared memory by address ---

__device__ __forceinline__ uint4 read_shared_16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ void write_shared_16(uint32_t address, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(value.x),
               "r"(value.y),
               "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ uint32_t read_shared_4(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void write_shared_4(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// --- mbarrier: a phase ends when all arrivals and all announced bytes have come ---

__device__ __forceinline__ void barrier_init(uint32_t barrier, int32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialised barriers visible to the copy engine and to other threads of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::
                   : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// How often a warp arrives in warp_arrive(). Once; in builds for racecheck (NIBBLE_RACECHECK) with
// every lane, as the tool does not see the __syncwarp() that orders the others before the first: in
// converged warps it is no instruction.
#ifdef NIBBLE_RACECHECK
inline constexpr int32_t kWarpArrivals = 32;
#else
inline constexpr int32_t kWarpArrivals = 1;
#endif
// Arrives for a whole warp, after what its threads have read and written.
__device__ __forceinline__ void warp_arrive(uint32_t barrier, int32_t lane) {
  __syncwarp();
  if (kWarpArrivals == 32 || lane == 0) barrier_arrive(barrier);
}
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, int32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(num_bytes)
               : "memory");
}
// Waits until the phase of the given parity has ended. A slot must always be waited for by the same
// threads in order: the wait cannot tell a phase from the one before the last.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "WAIT_%=:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra DONE_%=;\n\t"
      "bra WAIT_%=;\n\t"
      "DONE_%=:\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Whether the phase of the given parity has ended.
__device__ __forceinline__ bool barrier_has_ended(uint32_t barrier, uint32_t parity) {
  uint32_t has_ended;
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
      "selp.b32 %0, 1, 0, done;\n\t}"
      : "=r"(has_ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return has_ended != 0;
}
// Barrier among `num_threads` threads of the block; id 0 is __syncthreads().
__device__ __forceinline__ void named_barrier_sync(int32_t id, int32_t num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int32_t id, int32_t num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// named_barrier_sync() that tells every thread how many gave true.
__device__ __forceinline__ int32_t named_barrier_count(int32_t id,
                                                       int32_t num_threads,
                                                       bool value) {
  int32_t count;
  asm volatile(
      "{\n\t.reg .pred in;\n\t"
      "setp.ne.u32 in, %3, 0;\n\t"
      "barrier.cta.red.popc.u32 %0, %1, %2, in;\n\t}"
      : "=r"(count)
      : "r"(id), "r"(num_threads), "r"(static_cast<uint32_t>(value))
      : "memory");
  return count;
}

// --- bulk copies ---

__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_normal_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Copies num_bytes (a multiple of 16, both sides aligned to 16) and reports them to `barrier`.
__device__ __forceinline__ void bulk_copy_to_shared(uint32_t destination,
                                                    const void* source,
                                                    int32_t num_bytes,
                                                    uint32_t barrier,
                                                    uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source),
      "r"(num_bytes),
      "r"(barrier),
      "l"(policy)
      : "memory");
}
// Copies 16 or 4 bytes in the background. Both sides are aligned to as much.
__device__ __forceinline__ void copy_16_to_shared(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}
__device__ __forceinline__ void copy_4_to_shared(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}
// Arrives when all copies of this thread so far are there. Who waits for the barrier orders them
// before reads by the tensor cores: fence_async_proxy().
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Closes a group of this thread's copies; waits until at most `kPending` groups are under way.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- registers of a warpgroup: all of its warps together ---

template <int kRegisters>
__device__ __forceinline__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- counters in global memory between the blocks of a launch ---

// Adds 1 after what this thread has seen or written, of other threads too.
__device__ __forceinline__ void add_release(int32_t* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}
// What other threads wrote before the additions that are seen is visible to this thread.
__device__ __forceinline__ int32_t load_acquire(const int32_t* counter) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
// Both; gives the value before.
__device__ __forceinline__ int32_t add_acquire_release(int32_t* counter) {
  int32_t value;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(value)
               : "l"(counter)
               : "memory");
  return value;
}

// Orders ordinary writes to shared memory before reads by the tensor cores or the copy engine.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders ordinary accesses to global memory before or after accesses by the copy engine: of who
// writes before it counts, of who copies after it has seen the count.
__device__ __forceinline__ void fence_async_proxy_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// --- programmatic dependent launch: from sm_90 on; before that, kernels follow each other ---

// Waits until the kernels before this one have finished and their writes are visible.
__device__ __forceinline__ void wait_for_predecessors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel of the stream start its part before wait_for_predecessors().
__device__ __forceinline__ void launch_dependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace nibble::kernels::cuda
