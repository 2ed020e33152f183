// mbarrier objects in shared memory (PTX 9.7.13.15): phases that complete when all expected arrivals and
// all expected bytes have come.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

JAXBW_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialised barriers visible to the cluster and to the async proxy; a cluster_sync must follow.
JAXBW_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// The two arrivals on barriers of other CTAs are relaxed: what they order is asynchronous operations that are already
// complete (wgmma after its wait_group, tcgen05 after its fence, reads of a slot after release_slot), not ordinary
// memory accesses. A release at cluster scope would cost a GPU-wide memory barrier for each.
JAXBW_DEVICE void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
JAXBW_DEVICE void mbarrier_arrive_expect_tx_cluster(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives on a barrier of this CTA, and makes the current phase wait for `bytes` more of asynchronous copies.
JAXBW_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waiting for the phase of the given parity to complete (PTX 9.7.13.15.16). The hardware suspends the thread for a
// while in each try_wait; it may return false early, hence the loop. The three differ in what they make visible.
#define JAXBW_MBARRIER_WAIT(ORDER, barrier, parity) \
  uint32_t complete;                                \
  do {                                              \
    asm volatile(                                   \
        "{\n\t"                                     \
        ".reg .pred p;\n\t"                         \
        "mbarrier.try_wait.parity" ORDER            \
        ".shared::cta.b64 p, [%1], %2;\n\t"         \
        "selp.u32 %0, 1, 0, p;\n\t"                 \
        "}"                                         \
        : "=r"(complete)                            \
        : "r"(barrier), "r"(parity)                 \
        : "memory");                                \
  } while (!complete)

// What asynchronous copies, whose bytes this barrier counted, wrote into this CTA's shared memory.
JAXBW_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  JAXBW_MBARRIER_WAIT(".acquire.cta", barrier, parity);
}

// Nothing: it orders asynchronous operations behind relaxed arrivals from anywhere in the cluster.
JAXBW_DEVICE void mbarrier_wait_relaxed(uint32_t barrier, uint32_t parity) {
  JAXBW_MBARRIER_WAIT(".relaxed.cluster", barrier, parity);
}

// What other CTAs of the cluster released or sent. Dear: it invalidates the L1 cache.
JAXBW_DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  JAXBW_MBARRIER_WAIT(".acquire.cluster", barrier, parity);
}

// A slot that the generic proxy reads and the async proxy writes. These two order the reads before the next write,
// where arrival and wait are relaxed: the reader releases before it arrives, the writer acquires after its wait (the
// pattern of PTX 9.7.13.17's example). On sm_90 to acquire takes no time.
JAXBW_DEVICE void release_slot() {
  asm volatile("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" ::: "memory");
}
JAXBW_DEVICE void acquire_slot() {
  asm volatile("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}

}  // namespace jaxbw::ptx
