// The Tensor Memory Accelerator: tiled copies between global and shared memory (PTX 9.7.9.25.5), rank 3.
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw::ptx {

// Where a box starts, in elements, contiguous dimension first. Parts outside the tensor read as zero and
// are not written.
struct BoxOrigin {
  uint32_t x, y, z;
};

JAXBW_DEVICE uint64_t map_address(const TensorMap& map) { return reinterpret_cast<uint64_t>(&map); }

JAXBW_DEVICE void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map_address(map)) : "memory");
}

// Brings a box into the L2 cache.
JAXBW_DEVICE void tma_prefetch(const TensorMap& map, BoxOrigin box) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map_address(map)),
               "r"(box.x), "r"(box.y), "r"(box.z)
               : "memory");
}

// Loads a box into this CTA; its bytes count on `barrier`.
JAXBW_DEVICE void tma_load(uint32_t destination, const TensorMap& map, BoxOrigin box, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(destination),
      "l"(map_address(map)), "r"(box.x), "r"(box.y), "r"(box.z), "r"(barrier)
      : "memory");
}

// Loads a box into every CTA of the mask, at the same offset of each; its bytes count on the barrier at
// the same offset as `barrier` in each.
JAXBW_DEVICE void tma_load_multicast(uint32_t destination, const TensorMap& map, BoxOrigin box, uint32_t barrier,
                                     uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(destination),
      "l"(map_address(map)), "r"(box.x), "r"(box.y), "r"(box.z), "r"(barrier), "h"(mask)
      : "memory");
}

// Clears the bit of a shared::cluster address that tells the odd CTA of a pair from the even one.
constexpr uint32_t kPairLeaderMask = 0xfeffffff;

// The forms for CTA pairs (sm_100): `barrier` may belong to either CTA of the pair, and the bytes that a
// multicast brings to a CTA count on the barrier of the same CTA of *its* pair.
JAXBW_DEVICE void tma_load_pair(uint32_t destination, const TensorMap& map, BoxOrigin box, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(destination),
      "l"(map_address(map)), "r"(box.x), "r"(box.y), "r"(box.z), "r"(barrier)
      : "memory");
}
JAXBW_DEVICE void tma_load_pair_multicast(uint32_t destination, const TensorMap& map, BoxOrigin box, uint32_t barrier,
                                          uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::"
      "2 "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(destination),
      "l"(map_address(map)), "r"(box.x), "r"(box.y), "r"(box.z), "r"(barrier), "h"(mask)
      : "memory");
}

// Stores a box from shared memory, as part of the thread's current bulk group.
JAXBW_DEVICE void tma_store(const TensorMap& map, BoxOrigin box, uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map_address(map)),
      "r"(box.x), "r"(box.y), "r"(box.z), "r"(source)
      : "memory");
}

// The same, added to what lies there, element by element (PTX 9.7.9.25.5.3).
JAXBW_DEVICE void tma_add(const TensorMap& map, BoxOrigin box, uint32_t source) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
                   map_address(map)),
               "r"(box.x), "r"(box.y), "r"(box.z), "r"(source)
               : "memory");
}

// Bulk groups are a thread's own (PTX 9.7.9.25.1.1).
JAXBW_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups have yet to read their shared memory.
template <uint32_t kPending>
JAXBW_DEVICE void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later accesses of the async proxy
// (TMA, UMMA, CLC), and the other way round (PTX 9.7.13.4).
JAXBW_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace jaxbw::ptx
