// TMA of rows that lie anywhere in an array, by tensor maps of rank 2 (sm_100).
#pragma once

#include "ptx/tma.h"

namespace jaxbw::ptx {

constexpr uint32_t kGatheredRows = 4;

// As tma_load, of four boxes of one row each, from column x on.
JAXBW_DEVICE void tma_gather(uint32_t destination, const TensorMap& map, uint32_t x,
                             const uint32_t (&rows)[kGatheredRows], uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(destination),
      "l"(map_address(map)), "r"(x), "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(barrier)
      : "memory");
}

}  // namespace jaxbw::ptx
