// The load role's work on one operand: bring this CTA's share of a tile of A or B from global memory, and send it to
// all CTAs of the cluster that need the tile.
#pragma once

#include "gemm/descriptors.h"
#include "ptx/tma.h"

namespace jaxbw {

// One operand of the product as a CTA loads it. Each of `peers` CTAs loads an equal share of a tile's rows (its
// non-contiguous dimension, in whole swizzle atoms) and multicasts it.
template <uint32_t kCtaGroup>
class OperandLoader {
 public:
  // `extent`: M or N indices of a CTA's tile. `mask`: the ranks of the peers, of which this CTA is number `peer`.
  JAXBW_DEVICE OperandLoader(const TensorMap& map, Major major, uint32_t extent, uint32_t peers, uint32_t peer,
                             uint32_t mask)
      : map_(map),
        major_(major),
        blocks_(extent / kMnBlock),
        row_(peer * ((major == Major::kK ? extent : kBlockK) / peers)),
        multicast_(peers > 1),
        mask_(static_cast<uint16_t>(mask)) {}

  // Tile at (mn, k) of batch index `batch` -> `destination`, counted on `barrier`.
  JAXBW_DEVICE void load(uint32_t destination, uint32_t mn, uint32_t k, uint32_t batch, uint32_t barrier) const {
    const uint32_t share = destination + row_ * kSwizzleSpan;
    if (major_ == Major::kK) {
      load_box(share, {k, mn + row_, batch}, barrier);
    } else {
      for (uint32_t block = 0; block < blocks_; ++block) {
        load_box(share + block * kMnBlockBytes, {mn + block * kMnBlock, k + row_, batch}, barrier);
      }
    }
  }

 private:
  JAXBW_DEVICE void load_box(uint32_t destination, ptx::BoxOrigin box, uint32_t barrier) const {
    if constexpr (kCtaGroup == 1) {
      if (multicast_) {
        ptx::tma_load_multicast(destination, map_, box, barrier, mask_);
      } else {
        ptx::tma_load(destination, map_, box, barrier);
      }
    } else {
      const uint32_t leader_barrier = barrier & ptx::kPairLeaderMask;
      if (multicast_) {
        ptx::tma_load_pair_multicast(destination, map_, box, leader_barrier, mask_);
      } else {
        ptx::tma_load_pair(destination, map_, box, leader_barrier);
      }
    }
  }

  const TensorMap& map_;
  Major major_;
  uint32_t blocks_;  // MN-major: boxes of one share
  uint32_t row_;     // first of this CTA's share
  bool multicast_;
  uint16_t mask_;
};

}  // namespace jaxbw
