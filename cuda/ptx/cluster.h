// Thread-block clusters: ranks, the cluster barrier and addresses in a peer's shared memory.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

JAXBW_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster (PTX 9.7.13.3). It orders execution only: what fence_mbarrier_init released
// before it is visible after it, ordinary stores are not. Releasing those too would cost a GPU-wide memory barrier.
JAXBW_DEVICE void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The shared::cluster address of `address` in the CTA of the given rank (PTX 9.7.9.23, mapa).
JAXBW_DEVICE uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

}  // namespace jaxbw::ptx
