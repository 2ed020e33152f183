// mbarrier objects (PTX 9.7.13.15): scripts of operations by one thread, and contention.
#include "common.cuh"

namespace jaxbw::calibration {

enum Operation : uint32_t {
  kInit,
  kArrive,
  kArriveNoComplete,
  kArriveDrop,
  kArriveDropNoComplete,
  kExpectTx,
  kCompleteTx,
  kArriveExpectTx,
  kInvalidate,
};

#define ARRIVE(INSTRUCTION) \
  asm volatile(INSTRUCTION ".shared::cta.b64 %0, [%1], %2;" : "=l"(state) : "r"(barrier), "r"(argument) : "memory")

JAXBW_DEVICE uint32_t pending_count(uint64_t state) {
  uint32_t count;
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
  return count;
}
#define TEST(INSTRUCTION, CONSTRAINT, phase)                                                                      \
  asm volatile("{\n\t.reg .pred p;\n\t" INSTRUCTION ".shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}" \
               : "=r"(complete)                                                                                   \
               : "r"(barrier), CONSTRAINT(phase)                                                                  \
               : "memory")
JAXBW_DEVICE uint32_t phase_complete(uint32_t barrier, uint64_t state) {
  uint32_t complete;
  TEST("mbarrier.test_wait", "l", state);
  return complete;
}
JAXBW_DEVICE uint32_t parity_complete(uint32_t barrier, uint32_t parity) {
  uint32_t complete;
  TEST("mbarrier.test_wait.parity", "r", parity);
  return complete;
}

// Each step writes four words: the pending count of the state that it returned (or ~0), whether the phase of that
// state is complete, and whether the phases of parity 0 and 1 are.
extern "C" __global__ void mbarrier_script(const uint32_t* script, uint32_t steps, uint32_t* out) {
  const uint32_t barrier = shared_address(shared_words);
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t operation = script[2 * step], argument = script[2 * step + 1];
    uint64_t state = 0;
    switch (operation) {
      case kInit:
        mbarrier_init(barrier, argument);
        break;
      case kArrive:
        ARRIVE("mbarrier.arrive");
        break;
      case kArriveNoComplete:
        ARRIVE("mbarrier.arrive.noComplete");
        break;
      case kArriveDrop:
        ARRIVE("mbarrier.arrive_drop");
        break;
      case kArriveDropNoComplete:
        ARRIVE("mbarrier.arrive_drop.noComplete");
        break;
      case kExpectTx:
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(argument)
                     : "memory");
        break;
      case kCompleteTx:
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(argument)
                     : "memory");
        break;
      case kArriveExpectTx:
        ARRIVE("mbarrier.arrive.expect_tx");
        break;
      case kInvalidate:
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
        break;
    }
    const bool returns = operation == kArrive || operation == kArriveNoComplete || operation == kArriveDrop ||
                         operation == kArriveDropNoComplete || operation == kArriveExpectTx;
    out[4 * step] = returns ? pending_count(state) : ~0u;
    out[4 * step + 1] = returns ? phase_complete(barrier, state) : ~0u;
    out[4 * step + 2] = operation == kInvalidate ? ~0u : parity_complete(barrier, 0);
    out[4 * step + 3] = operation == kInvalidate ? ~0u : parity_complete(barrier, 1);
  }
}

// All threads arrive, in many phases: each pending count of a phase is returned once, and no thread runs ahead.
extern "C" __global__ void mbarrier_contention(uint32_t phases, uint32_t* out) {
  const uint32_t barrier = shared_address(shared_words), argument = 1;
  uint32_t* sums = shared_words + 4;
  for (uint32_t i = threadIdx.x; i < phases; i += blockDim.x) sums[i] = 0;
  if (threadIdx.x == 0) mbarrier_init(barrier, blockDim.x);
  __syncthreads();
  for (uint32_t phase = 0; phase < phases; ++phase) {
    uint64_t state;
    ARRIVE("mbarrier.arrive");
    atomicAdd(&sums[phase], pending_count(state));
    if (!phase_completes(barrier, phase & 1)) return;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < phases; i += blockDim.x) out[i] = sums[i];
}

}  // namespace jaxbw::calibration
