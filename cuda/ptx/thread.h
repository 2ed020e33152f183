// Who a thread is, and the instructions by which a warp picks a leader or changes its register budget.
#pragma once

#include <cstdint>

#define JAXBW_DEVICE __device__ __forceinline__

namespace jaxbw::ptx {

constexpr uint32_t kWarpSize = 32;
constexpr uint32_t kFullWarp = 0xffffffff;

// A value that is the same in every lane, in a form in which the compiler knows it.
JAXBW_DEVICE uint32_t uniform(uint32_t value) { return __shfl_sync(kFullWarp, value, 0); }

// What another lane has; every lane asks one.
JAXBW_DEVICE float of_lane(float value, uint32_t lane) { return __shfl_sync(kFullWarp, value, lane); }

// The warp's index within the block.
JAXBW_DEVICE uint32_t warp_index() { return uniform(threadIdx.x / kWarpSize); }

JAXBW_DEVICE uint32_t lane_index() { return threadIdx.x % kWarpSize; }

// The same, read anew: the compiler then computes what follows from it here, and does not keep that in registers across
// a main loop that needs them all.
JAXBW_DEVICE uint32_t lane_index_here() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// True in one lane of a converged warp, the same one each time (PTX 9.7.13.14, elect.sync). Unlike a comparison of lane
// numbers it tells the compiler that the code under it runs in one lane.
JAXBW_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "elect.sync _|p, 0xffffffff;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Two words as one, which the compiler knows to be two: it does not add with carry.
JAXBW_DEVICE uint64_t wide(uint32_t low, uint32_t high) {
  uint64_t both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}

// The 32-bit address in the shared::cta window, which is also this CTA's address in shared::cluster.
JAXBW_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Suspends the thread for up to twice so long (PTX 9.7.19.4).
JAXBW_DEVICE void sleep(uint32_t nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }

// One of the 16 barriers of a CTA (PTX 9.7.13.1): `threads` in all arrive, of which those that sync wait.
JAXBW_DEVICE void named_barrier_sync(uint32_t barrier, uint32_t threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
JAXBW_DEVICE void named_barrier_arrive(uint32_t barrier, uint32_t threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// setmaxnreg (PTX 9.7.19.5): every warp of a warpgroup executes it; multiples of 8 in 24..256.
template <uint32_t kRegisters>
JAXBW_DEVICE void decrease_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
JAXBW_DEVICE void increase_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace jaxbw::ptx
