// The load role's work on one operand, in sm_90's kernels and in grouped ones (others of sm_100: sm100_load.cuh): bring
// this CTA's share of a tile of A or B from global memory, and send it to all CTAs of the cluster that need the tile.
#pragma once

#include "gemm/groups.h"
#include "gemm/storage.h"
#include "ptx/tma_ragged.h"

namespace jaxbw {

// kOneBlock: where it is known when CUDA C++ is compiled that a tile has one block: a load then has no loop.
template <bool kOneBlock = false>
class OperandLoader {
 public:
  // Loads from `map` the M or N indices first .. first + extent - 1 of the tile (all of it, but for a gated matmul).
  JAXBW_DEVICE OperandLoader(const TensorMap& map, OperandTile tile, uint32_t first, uint32_t extent, LoadShare share)
      : map_(map),
        block_bytes_(tile.block_bytes()),
        mask_(static_cast<uint16_t>(share.mask)),
        multicast_(share.peers.value > 1) {
    const bool k_major = tile.major == Major::kK;
    const uint32_t block_elements = tile.row_elements();
    const uint32_t row = share.peer * ((k_major ? extent : tile.rows) / share.peers);  // first of this CTA's share
    blocks_ = k_major ? tile.blocks : extent / block_elements;
    offset_ = k_major ? (first + row) * tile.row_bytes : first / block_elements * block_bytes_ + row * tile.row_bytes;
    block_step_ = block_elements;
    k_major_ = k_major;
    row_ = row;
    const uint32_t block_k = k_major ? tile.blocks * block_elements : tile.rows;
    x_step_ = k_major ? block_k : 0;
    y_step_ = k_major ? 0 : block_k;
  }

  // The next tile to load is the one at (mn, k) of batch index `batch`. Of an array whose rows fall into groups
  // (groups.h): mn or k is kRaggedRows - rows before the group's end, and `batch` this end.
  JAXBW_DEVICE void start_at(uint32_t mn, uint32_t k, uint32_t batch) {
    box_ = k_major_ ? ptx::BoxOrigin{k, mn + row_, batch} : ptx::BoxOrigin{mn, k + row_, batch};
  }

  // Whether several CTAs share the tile.
  JAXBW_DEVICE bool multicast() const { return multicast_; }

  // Loads the tile to `destination`, counted on `barrier`, kPair: of the pair's leader. One thread of the CTA does.
  template <bool kMulticast, bool kRagged = false, bool kPair = false>
  JAXBW_DEVICE void load(uint32_t destination, uint32_t barrier) const {
    load_box<kMulticast, kRagged, kPair>(destination + offset_, box_, barrier);
    if constexpr (!kOneBlock) {
#pragma unroll 1
      for (uint32_t block = 1; block < blocks_; ++block) {
        load_box<kMulticast, kRagged, kPair>(destination + offset_ + block * block_bytes_,
                                             {box_.x + block * block_step_, box_.y, box_.z}, barrier);
      }
    }
  }

  // Brings the next `tiles` tiles along K into the L2 cache.
  JAXBW_DEVICE void prefetch(uint32_t tiles) const {
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; ++tile) {
#pragma unroll 1
      for (uint32_t block = 0; block < blocks_; ++block) {
        ptx::tma_prefetch(map_, {box_.x + tile * x_step_ + block * block_step_, box_.y + tile * y_step_, box_.z});
      }
    }
  }

  // On to the next tile along K.
  JAXBW_DEVICE void advance() {
    box_.x += x_step_;
    box_.y += y_step_;
  }

 private:
  // A multicast to this CTA alone would do what a plain load does, but slower: 7.9 us for 7.0 at 1024^3 on an H200.
  template <bool kMulticast, bool kRagged, bool kPair>
  JAXBW_DEVICE void load_box(uint32_t destination, ptx::BoxOrigin box, uint32_t barrier) const {
    static_assert(!(kMulticast && (kRagged || kPair)));
    if constexpr (kPair) barrier &= ptx::kPairLeaderMask;
    if constexpr (kPair && kRagged) {
      ptx::tma_load_pair_ragged(destination, map_, {box.x, box.y, kRaggedRows, box.z}, barrier);
    } else if constexpr (kPair) {
      ptx::tma_load_pair(destination, map_, box, barrier);
    } else if constexpr (kRagged) {
      ptx::tma_load_ragged(destination, map_, {box.x, box.y, kRaggedRows, box.z}, barrier);
    } else if constexpr (kMulticast) {
      ptx::tma_load_multicast(destination, map_, box, barrier, mask_);
    } else {
      ptx::tma_load(destination, map_, box, barrier);
    }
  }

  const TensorMap& map_;
  uint32_t blocks_, block_bytes_, block_step_;  // a tile's blocks: number, bytes of shared memory, elements
  uint32_t offset_;                             // of this CTA's share in the tile
  uint32_t row_;                                // likewise
  uint32_t x_step_, y_step_;
  uint16_t mask_;
  bool multicast_, k_major_;
  ptx::BoxOrigin box_{};
};

}  // namespace jaxbw
