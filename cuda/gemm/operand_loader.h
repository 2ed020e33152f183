// The load role's work on one operand: bring this CTA's share of a tile of A or B from global memory, and send it to
// all CTAs of the cluster that need the tile.
#pragma once

#include "gemm/descriptors.h"
#include "ptx/tma.h"

namespace jaxbw {

// One operand of the product as a CTA sees it. `extent`: M or N indices that a CTA's tile holds. Each of `peers` CTAs
// loads an equal share of the tile's rows (the non-contiguous dimension, in whole swizzle atoms) and multicasts it.
template <uint32_t kCtaGroup>
struct OperandLoader {
  const TensorMap& map;
  Major major;
  uint32_t extent;
  uint32_t peers, peer;
  uint16_t mask;

  // Tile at (mn, k) of batch index `batch` -> `destination`, counted on `barrier`.
  JAXBW_DEVICE void load(uint32_t destination, uint32_t mn, uint32_t k, uint32_t batch, uint32_t barrier) const {
    if (major == Major::kK) {
      const uint32_t row = peer * (extent / peers);
      load_box(destination + row * kSwizzleSpan, {k, mn + row, batch}, barrier);
    } else {
      const uint32_t row = peer * (kBlockK / peers);
      for (uint32_t block = 0; block < extent / kMnBlock; ++block) {
        load_box(destination + block * kMnBlockBytes + row * kSwizzleSpan, {mn + block * kMnBlock, k + row, batch},
                 barrier);
      }
    }
  }

 private:
  JAXBW_DEVICE void load_box(uint32_t destination, ptx::BoxOrigin box, uint32_t barrier) const {
    if constexpr (kCtaGroup == 1) {
      if (peers == 1) {
        ptx::tma_load(destination, map, box, barrier);
      } else {
        ptx::tma_load_multicast(destination, map, box, barrier, mask);
      }
    } else {
      const uint32_t leader_barrier = barrier & ptx::kPairLeaderMask;
      if (peers == 1) {
        ptx::tma_load_pair(destination, map, box, leader_barrier);
      } else {
        ptx::tma_load_pair_multicast(destination, map, box, leader_barrier, mask);
      }
    }
  }
};

}  // namespace jaxbw
