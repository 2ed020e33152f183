// TMA of arrays whose rows fall into groups, by tensor maps of rank 4 (gemm/groups.h).
#pragma once

#include "ptx/tma.h"

namespace jaxbw::ptx {

// As BoxOrigin.
struct RaggedBoxOrigin {
  uint32_t x, y, z, w;
};

// As tma_load.
JAXBW_DEVICE void tma_load_ragged(uint32_t destination, const TensorMap& map, RaggedBoxOrigin box, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(destination),
      "l"(map_address(map)), "r"(box.x), "r"(box.y), "r"(box.z), "r"(box.w), "r"(barrier)
      : "memory");
}

// As tma_load_pair.
JAXBW_DEVICE void tma_load_pair_ragged(uint32_t destination, const TensorMap& map, RaggedBoxOrigin box,
                                       uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(destination),
      "l"(map_address(map)), "r"(box.x), "r"(box.y), "r"(box.z), "r"(box.w), "r"(barrier)
      : "memory");
}

// As tma_store.
JAXBW_DEVICE void tma_store_ragged(const TensorMap& map, RaggedBoxOrigin box, uint32_t source) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
                   map_address(map)),
               "r"(box.x), "r"(box.y), "r"(box.z), "r"(box.w), "r"(source)
               : "memory");
}

}  // namespace jaxbw::ptx
