// Thread-block clusters: ranks, the cluster barrier and addresses in a peer's shared memory.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

JAXBW_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The number of this cluster in the grid, and how many there are; both are one-dimensional.
JAXBW_DEVICE uint32_t cluster_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
JAXBW_DEVICE uint32_t cluster_count() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

// All threads of all CTAs of the cluster (PTX 9.7.13.3). It orders execution only: what fence_mbarrier_init released
// before it is visible after it, ordinary stores are not. Releasing those too would cost a GPU-wide memory barrier.
JAXBW_DEVICE void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The same in two steps, between which there may be anything.
JAXBW_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
JAXBW_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Stores 16 bytes into the shared memory of any CTA of the cluster, where they count on a barrier; both addresses are
// of map_to_rank (PTX 9.7.9.12, st.async).
JAXBW_DEVICE void store_to_cluster(uint32_t address, const float (&v)[4], uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
      : "memory");
}

// Copies a multiple of 16 bytes from this CTA's shared memory into that of any CTA of the cluster, where they count on
// a barrier (PTX 9.7.9.25.4.1).
JAXBW_DEVICE void copy_to_cluster(uint32_t destination, uint32_t source, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "r"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// The shared::cluster address of `address` in the CTA of the given rank (PTX 9.7.9.23, mapa).
JAXBW_DEVICE uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

}  // namespace jaxbw::ptx
