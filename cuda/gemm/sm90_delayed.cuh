// Tiles of which only a cast to 16 bits is left to do. A warpgroup stores as many boxes of its tile as it has staging
// buffers, keeps the others rounded, in half of their registers, begins with the next tile, and stores what it has kept
// while the tensor cores are at work on that.
//
//   tensor cores   [ MMAs of tile 0     ]      [ MMAs of tile 1     ]      [ ...
//   warpgroup      [ waits              ][ 0 1 ][ 2 3 waits          ][ 0 1 ][ 2 3 ...       numbers of boxes
//
// Otherwise the tensor cores would idle for a whole epilogue, whose later boxes wait for staging buffers: 2.9k cycles
// of each 68k at K = 4096 with 128x256 tiles. (To keep all boxes takes more registers than there are.)
#pragma once

#include "gemm/sm90_epilogue.cuh"

namespace jaxbw::sm90 {

// A warp's part of one such tile, of kCount accumulators. Where there are no registers to keep any, all boxes are
// stored before the next tile.
template <uint32_t kBlockN, uint32_t kCount, typename Stores = StoreRing, bool kMayKeep = true>
class DelayedStores {
 public:
  JAXBW_DEVICE DelayedStores(const GemmParams& params, Stores& stores) : params_(params), stores_(stores) {}

  // Whether it takes such tiles. (Of a gated one there is half as much to store.)
  JAXBW_DEVICE bool takes() const {
    return params_.store_path == StorePath::kTma && params_.output.type != DataType::kF32 &&
           params_.epilogue.gated == 0;
  }

  // Whether it keeps anything of them.
  static constexpr bool keeps() { return kKept > 0; }

  // What take() would wait for first, where nothing was kept: while MMAs run, not behind them.
  JAXBW_DEVICE void await_buffers() const {
    if constexpr (!keeps()) stores_.drain();
  }

  // Stores the first boxes of a tile and keeps the others. All that was kept before has been stored.
  JAXBW_DEVICE void take(const float (&accumulators)[kCount], StoreOrigin tile, uint32_t row, const Profile& profile) {
    uint32_t pairs[kCount / 2];
    if (params_.output.type == DataType::kBF16) {
      cast<DataType::kBF16>(pairs, accumulators);
    } else {
      cast<DataType::kF16>(pairs, accumulators);
    }
    origin_ = {tile.row + row, tile.column, tile.batch};
    profile.enter(Activity::kStore);
    for_each_step<kStep, kAtOnce * kStep>([&]<uint32_t kFirst>() {
      stage<kFirst / 2>(pairs, kFirst == 0 && !keeps() ? stores_.acquire_drained() : stores_.acquire());
      stores_.store_by_tma(params_.d, box_origin<kBlockN, kFirst>(origin_, 0));
    });
    if constexpr (kKept > 0) {
#pragma unroll
      for (uint32_t i = 0; i < kPairs; ++i) pairs_[i] = pairs[kAtOnce * kStep / 2 + i];
      next_ = 0;
    }
  }

  // Stores one of the boxes that are kept, if there is any.
  JAXBW_DEVICE void store_one() {
    if (next_ == kKept) return;
    const uint32_t buffer = stores_.acquire();
    StoreOrigin box;
    for_each_step<kStep, kKept * kStep>([&]<uint32_t kFirst>() {
      if (next_ != kFirst / kStep) return;
      stage<kFirst / 2>(pairs_, buffer);
      box = box_origin<kBlockN, kAtOnce * kStep + kFirst>(origin_, 0);
    });
    stores_.store_by_tma(params_.d, box);
    ++next_;
  }

  JAXBW_DEVICE void store_all() {
#pragma unroll 1
    while (next_ != kKept) store_one();
    for (uint32_t& pair : pairs_) pair = 0;  // says that these registers are free
  }

 private:
  static constexpr uint32_t kColumns = sm90_store_box(kBlockN, DataType::kBF16).columns;
  static constexpr uint32_t kStep = registers_of(kColumns);  // accumulators of a box
  static constexpr uint32_t kBoxes = kCount / kStep;
  static constexpr uint32_t kAtOnce = kMayKeep && kBoxes > kStoreBuffers ? kStoreBuffers : kBoxes;
  static constexpr uint32_t kKept = kBoxes - kAtOnce;
  static constexpr uint32_t kPairs = kKept * kStep / 2;

  template <DataType kType>
  static JAXBW_DEVICE void cast(uint32_t (&pairs)[kCount / 2], const float (&accumulators)[kCount]) {
#pragma unroll
    for (uint32_t i = 0; i < kCount / 2; ++i) pairs[i] = ptx::pack<kType>(accumulators[2 * i], accumulators[2 * i + 1]);
  }

  // As stage_box: eight columns are one chunk of a row.
  template <uint32_t kFirst, uint32_t kAll>
  static JAXBW_DEVICE void stage(const uint32_t (&pairs)[kAll], uint32_t buffer) {
    const uint32_t first = staged_fragments<kColumns * 2>(buffer);
#pragma unroll
    for (uint32_t i = 0; i < kColumns / kFragmentColumns; i += 2) {
      const uint32_t* v = pairs + kFirst + i * 2;
      ptx::stmatrix_x4(staged_chunk(first, i), v[0], v[1], v[2], v[3]);
    }
  }

  const GemmParams& params_;
  Stores& stores_;
  uint32_t pairs_[kPairs > 0 ? kPairs : 1];  // neighbours in a row
  StoreOrigin origin_;                       // of the warp's part of the tile
  uint32_t next_ = kKept;
};

}  // namespace jaxbw::sm90
