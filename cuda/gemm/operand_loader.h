// The load role's work on one operand: bring this CTA's share of a tile of A or B from global memory, and send it to
// all CTAs of the cluster that need the tile.
#pragma once

#include "gemm/storage.h"
#include "ptx/tma.h"

namespace jaxbw {

// Which CTAs load one tile together. Each of `peers` CTAs, of which this one is number `peer`, loads an equal share of
// every block's rows and multicasts it to the ranks of `mask`.
struct LoadShare {
  uint32_t peers, peer, mask;
};

template <uint32_t kCtaGroup>
class OperandLoader {
 public:
  // Loads from `map` the M or N indices first .. first + extent - 1 of the tile (all of it, but for a gated product).
  JAXBW_DEVICE OperandLoader(const TensorMap& map, OperandTile tile, DataType input, uint32_t first, uint32_t extent,
                             LoadShare share)
      : map_(map),
        k_major_(tile.major == Major::kK),
        step_(tile.row_bytes / size_bytes(input)),
        block_bytes_(tile.block_bytes()),
        multicast_(share.peers > 1),
        mask_(static_cast<uint16_t>(share.mask)) {
    blocks_ = k_major_ ? tile.blocks : extent / step_;
    row_ = share.peer * ((k_major_ ? extent : tile.rows) / share.peers);
    offset_ = k_major_ ? (first + row_) * tile.row_bytes : first / step_ * block_bytes_ + row_ * tile.row_bytes;
  }

  // Tile at (mn, k) of batch index `batch` -> `destination`, counted on `barrier`.
  JAXBW_DEVICE void load(uint32_t destination, uint32_t mn, uint32_t k, uint32_t batch, uint32_t barrier) const {
    ptx::BoxOrigin box = k_major_ ? ptx::BoxOrigin{k, mn + row_, batch} : ptx::BoxOrigin{mn, k + row_, batch};
    destination += offset_;
#pragma unroll 1
    for (uint32_t block = 0; block < blocks_; ++block) {
      load_box(destination, box, barrier);
      box.x += step_;
      destination += block_bytes_;
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
  bool k_major_;
  uint32_t step_;         // elements along the contiguous dimension from block to block
  uint32_t block_bytes_;  // from block to block in shared memory
  bool multicast_;
  uint16_t mask_;
  uint32_t blocks_;
  uint32_t row_;     // of a block: first of this CTA's share
  uint32_t offset_;  // of the share's first block
};

}  // namespace jaxbw
