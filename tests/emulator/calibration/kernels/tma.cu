// Tiled TMA copies of one box, in every rank (PTX 9.7.9.25.5). Dynamic shared memory is `region` bytes, which are
// filled before a load and dumped after it, then an mbarrier.
#include "common.cuh"

namespace jaxbw::calibration {

struct Coordinates {
  int32_t x[5];
};

#define NAMES_1 "%2"
#define NAMES_2 NAMES_1 ", %3"
#define NAMES_3 NAMES_2 ", %4"
#define NAMES_4 NAMES_3 ", %5"
#define NAMES_5 NAMES_4 ", %6"
#define BOX(shared, map, at) \
  "r"(shared), "l"(map_address(map)), "r"(at.x[0]), "r"(at.x[1]), "r"(at.x[2]), "r"(at.x[3]), "r"(at.x[4])

// The last word of `out` says whether the barrier's phase completed with the bytes of the box.
#define DEFINE_LOAD(RANK)                                                                                          \
  extern "C" __global__ void tma_load_##RANK##d(const __grid_constant__ TensorMap map, Coordinates at,             \
                                                uint32_t offset, uint32_t bytes, uint32_t region, uint32_t* out) { \
    const uint32_t base = shared_address(shared_words), barrier = base + region;                                   \
    fill_shared(region);                                                                                           \
    if (threadIdx.x == 0) mbarrier_init(barrier, 1);                                                               \
    fence_mbarrier_init();                                                                                         \
    fence_proxy_async();                                                                                           \
    __syncthreads();                                                                                               \
    if (threadIdx.x == 0) {                                                                                        \
      mbarrier_arrive_expect_tx(barrier, bytes);                                                                   \
      asm volatile("cp.async.bulk.tensor." #RANK                                                                   \
                   "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" NAMES_##RANK          \
                   "}], "                                                                                          \
                   "[%7];" ::BOX(base + offset, map, at),                                                          \
                   "r"(barrier)                                                                                    \
                   : "memory");                                                                                    \
    }                                                                                                              \
    const bool complete = phase_completes(barrier, 0);                                                             \
    write_from_shared(out, region);                                                                                \
    if (threadIdx.x == 0) out[region / 4] = complete;                                                              \
  }
DEFINE_LOAD(1)
DEFINE_LOAD(2)
DEFINE_LOAD(3)
DEFINE_LOAD(4)
DEFINE_LOAD(5)

#define DEFINE_WRITE(NAME, INSTRUCTION, RANK)                                                                         \
  extern "C" __global__ void NAME##_##RANK##d(const __grid_constant__ TensorMap map, Coordinates at, uint32_t offset, \
                                              uint32_t region, const uint32_t* source) {                              \
    read_into_shared(source, region);                                                                                 \
    fence_proxy_async();                                                                                              \
    __syncthreads();                                                                                                  \
    if (threadIdx.x == 0) {                                                                                           \
      asm volatile(INSTRUCTION "." #RANK "d.global.shared::cta" MODIFIERS ".bulk_group [%1, {" NAMES_##RANK           \
                   "}], [%0];" ::BOX(shared_address(shared_words) + offset, map, at)                                  \
                   : "memory");                                                                                       \
      bulk_commit_group();                                                                                            \
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");                                                       \
    }                                                                                                                 \
  }
#define MODIFIERS ".tile"
DEFINE_WRITE(tma_store, "cp.async.bulk.tensor", 1)
DEFINE_WRITE(tma_store, "cp.async.bulk.tensor", 2)
DEFINE_WRITE(tma_store, "cp.async.bulk.tensor", 3)
DEFINE_WRITE(tma_store, "cp.async.bulk.tensor", 4)
DEFINE_WRITE(tma_store, "cp.async.bulk.tensor", 5)
#undef MODIFIERS
#define DEFINE_REDUCE(OP, RANK) DEFINE_WRITE(tma_reduce_##OP, "cp.reduce.async.bulk.tensor", RANK)
#define MODIFIERS ".add.tile"
DEFINE_REDUCE(add, 1)
DEFINE_REDUCE(add, 2)
DEFINE_REDUCE(add, 3)
DEFINE_REDUCE(add, 4)
DEFINE_REDUCE(add, 5)
#undef MODIFIERS
#define MODIFIERS ".min.tile"
DEFINE_REDUCE(min, 2)
#undef MODIFIERS
#define MODIFIERS ".max.tile"
DEFINE_REDUCE(max, 2)
#undef MODIFIERS
#define MODIFIERS ".inc.tile"
DEFINE_REDUCE(inc, 2)
#undef MODIFIERS
#define MODIFIERS ".dec.tile"
DEFINE_REDUCE(dec, 2)
#undef MODIFIERS
#define MODIFIERS ".and.tile"
DEFINE_REDUCE(and, 2)
#undef MODIFIERS
#define MODIFIERS ".or.tile"
DEFINE_REDUCE(or, 2)
#undef MODIFIERS
#define MODIFIERS ".xor.tile"
DEFINE_REDUCE(xor, 2)
#undef MODIFIERS

// Every CTA of the cluster loads its own box and sends it to the CTAs of its mask, into a slot of its own; what
// arrives in each CTA is dumped. The boxes of consecutive ranks stand above each other.
struct Masks {
  uint32_t of_rank[4];
};
extern "C" __global__ void tma_multicast(const __grid_constant__ TensorMap map, Masks masks, uint32_t box_rows,
                                         uint32_t bytes, uint32_t region, uint32_t* out) {
  const uint32_t base = shared_address(shared_words), barrier = base + region, rank = cluster_rank();
  fill_shared(region);
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  fence_mbarrier_init();
  fence_proxy_async();
  cluster_sync_memory();
  if (threadIdx.x == 0) {
    uint32_t expected = 0;
    for (uint32_t mask : masks.of_rank) expected += (mask >> rank & 1) * bytes;
    mbarrier_arrive_expect_tx(barrier, expected);
    if (const uint32_t mask = masks.of_rank[rank]) {
      tma_load_multicast(base + rank * bytes, map, {0, rank * box_rows, 0}, barrier, static_cast<uint16_t>(mask));
    }
  }
  const bool complete = phase_completes(barrier, 0);
  uint32_t* mine = out + rank * (region / 4 + 1);
  write_from_shared(mine, region);
  if (threadIdx.x == 0) mine[region / 4] = complete;
  cluster_sync_memory();
}

}  // namespace jaxbw::calibration
