// What the micro-kernels share: shared memory that starts filled, waits that end, and copies out.
#pragma once

#include "ptx/cluster.h"
#include "ptx/mbarrier.h"
#include "ptx/tma.h"

namespace jaxbw::calibration {

using namespace jaxbw::ptx;

extern __shared__ __align__(1024) uint32_t shared_words[];

// What shared memory holds where nothing was written.
constexpr uint32_t kUntouched = 0xa5a5a5a5;

JAXBW_DEVICE void fill_shared(uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) shared_words[i] = kUntouched;
}
JAXBW_DEVICE void read_into_shared(const uint32_t* source, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) shared_words[i] = source[i];
}
JAXBW_DEVICE void write_from_shared(uint32_t* destination, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) destination[i] = shared_words[i];
}

// Unlike ptx::cluster_sync it orders ordinary stores too.
JAXBW_DEVICE void cluster_sync_memory() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Waits for a phase for about a second, so that a wrong expectation is a wrong result and not a GPU that hangs.
JAXBW_DEVICE bool phase_completes(uint32_t barrier, uint32_t parity) {
  for (uint32_t attempt = 0; attempt < 1000; ++attempt) {
    uint32_t complete;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2, 1000000;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(complete)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (complete) return true;
  }
  return false;
}

}  // namespace jaxbw::calibration
