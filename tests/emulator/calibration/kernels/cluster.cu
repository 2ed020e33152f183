// Clusters: ranks, addresses, and the shared memory and mbarriers of other CTAs.
#include "common.cuh"

namespace jaxbw::calibration {

#define SPECIAL(NAME)                                      \
  {                                                        \
    uint32_t value;                                        \
    asm volatile("mov.u32 %0, %%" NAME ";" : "=r"(value)); \
    *to++ = value;                                         \
  }
#define SPECIAL_3(NAME) SPECIAL(NAME ".x") SPECIAL(NAME ".y") SPECIAL(NAME ".z")

// One thread for each CTA writes 31 words.
extern "C" __global__ void cluster_registers(uint32_t* out) {
  uint32_t* to = out + ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * 31;
  SPECIAL_3("ctaid")
  SPECIAL_3("nctaid")
  SPECIAL_3("clusterid")
  SPECIAL_3("nclusterid")
  SPECIAL_3("cluster_ctaid")
  SPECIAL_3("cluster_nctaid")
  SPECIAL("cluster_ctarank")
  SPECIAL("cluster_nctarank")
  SPECIAL_3("tid")
  SPECIAL_3("ntid")
  SPECIAL("laneid")
  SPECIAL("total_smem_size")
  SPECIAL("dynamic_smem_size")
  SPECIAL("lanemask_lt")
  SPECIAL("lanemask_ge")
}

// The numbers behind mapa: the address of the first byte of shared memory, that of every rank, and back.
extern "C" __global__ void cluster_addresses(uint32_t* out) {
  const uint32_t base = shared_address(shared_words), rank = cluster_rank(), size = gridDim.x;
  if (threadIdx.x != 0) return;
  uint32_t* to = out + rank * (1 + 3 * size);
  *to++ = base;
  for (uint32_t peer = 0; peer < size; ++peer) {
    const uint32_t mapped = map_to_rank(base + 64, peer);
    uint32_t back;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(back) : "r"(mapped));
    *to++ = mapped;
    *to++ = back;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(back) : "r"(base));
    *to++ = back;
  }
}

// Loads, stores and atomics on the shared memory of a peer, by both kinds of address. 256 words for each CTA.
extern "C" __global__ void cluster_memory(uint32_t* out) {
  const uint32_t base = shared_address(shared_words), rank = cluster_rank(), size = gridDim.x, i = threadIdx.x;
  for (uint32_t word = i; word < 256; word += 64) shared_words[word] = rank << 16 | word;
  cluster_sync_memory();
  const uint32_t next = map_to_rank(base, (rank + 1) % size);
  uint32_t loaded, through_generic, before;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(loaded) : "r"(next + 4 * i) : "memory");
  uint64_t generic;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&shared_words[i]), "r"((rank + size - 1) % size));
  asm volatile("ld.u32 %0, [%1];" : "=r"(through_generic) : "l"(generic) : "memory");
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(next + 4 * (64 + i)), "r"(loaded ^ 0xffff) : "memory");
  asm volatile("st.u32 [%0 + 512], %1;" ::"l"(generic), "r"(through_generic + 1) : "memory");
  asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(map_to_rank(base, 0) + 4 * (192 + i)), "r"(1000 * (rank + 1))
               : "memory");
  const bool plausible = (before - (192 + i)) % 1000 == 0;
  asm volatile("red.shared::cluster.xor.b32 [%0], %1;" ::"r"(map_to_rank(base, size - 1) + 4 * (192 + i)),
               "r"((rank + 1) << 24)
               : "memory");
  cluster_sync_memory();
  uint32_t* mine = out + rank * 320;
  for (uint32_t word = i; word < 256; word += 64) mine[word] = shared_words[word];
  mine[256 + i] = plausible;
  cluster_sync_memory();
}

// Every CTA arrives on rank 0's barrier, sends it `bytes` of its shared memory by a bulk copy, and expects them
// there; rank 0 waits for all of it.
extern "C" __global__ void cluster_arrivals(uint32_t bytes, uint32_t* out) {
  const uint32_t base = shared_address(shared_words), rank = cluster_rank(), size = gridDim.x;
  const uint32_t received = bytes, barrier = base + bytes * (1 + size);
  for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x) shared_words[i] = rank << 24 | i;
  for (uint32_t i = bytes / 4 + threadIdx.x; i < bytes / 4 * (1 + size); i += blockDim.x) shared_words[i] = kUntouched;
  if (threadIdx.x == 0) mbarrier_init(barrier, 2 * size);
  fence_mbarrier_init();
  fence_proxy_async();
  cluster_sync_memory();
  if (threadIdx.x == 0) {
    const uint32_t leader = map_to_rank(barrier, 0);
    mbarrier_arrive_cluster(leader);
    mbarrier_arrive_expect_tx_cluster(leader, bytes);
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     map_to_rank(base + received + rank * bytes, 0)),
                 "r"(base), "r"(bytes), "r"(leader)
                 : "memory");
  }
  const bool complete = rank == 0 && phase_completes(barrier, 0);
  if (rank == 0) {
    write_from_shared(out, bytes * (1 + size));
    if (threadIdx.x == 0) out[bytes / 4 * (1 + size)] = complete;
  }
  cluster_sync_memory();
}

}  // namespace jaxbw::calibration
