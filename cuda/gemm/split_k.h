// Work items that are parts of a tile along K: how their sums come together.
//
// Every epilogue warp of every part leaves the sums of its slice of the tile in global memory and counts itself in. The
// warp that comes last adds up the sums of all parts, in the order of the parts, and goes on to the epilogue. So nobody
// waits, and the result does not depend on who was last. (Sums of parts as "split-K"; split for the last wave only it
// is what stream-K does, Osama et al., arXiv:2301.03598, with equal parts.)
//
// Few tiles in many parts would have few warps that come last, long at it while most of the GPU is idle. There nobody
// counts: a launch behind this one adds up, in the same order (sm90_reduce.cuh).
#pragma once

#include "gemm/epilogue.h"
#include "gemm/storage.h"
#include "gemm/tile_scheduler.h"
#include "ptx/global.h"

namespace jaxbw {

// One warp's slice of a tile, whose values are handled in groups of four for each lane.
class SplitSum {
 public:
  // `slice`: number of the slice among all slices of the split tiles.
  JAXBW_DEVICE SplitSum(const GemmParams& params, const WorkItem& item, uint32_t slice, uint64_t slice_floats)
      : part_(item.part),
        parts_(item.parts),
        counted_(params.counters != nullptr),
        counter_(params.counters + slice),
        part_floats_(slice_floats),
        sums_(params.partials + slice * item.parts * slice_floats + ptx::lane_index_here() * kGroup) {}

  // The slice so many behind this one.
  JAXBW_DEVICE SplitSum behind(uint32_t slices) const {
    SplitSum other = *this;
    other.counter_ += slices;
    other.sums_ += slices * parts_ * part_floats_;
    return other;
  }

  JAXBW_DEVICE bool split() const { return parts_ > 1; }

  // Whether a launch behind this one adds up: then nobody here is the last.
  JAXBW_DEVICE bool added_up_later() const { return !counted_; }

  // Leaves values first .. first + kCount - 1 of every lane.
  template <uint32_t kCount>
  JAXBW_DEVICE void leave(const float (&values)[kCount], uint32_t first) const {
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += kGroup) {
      ptx::store_global(at(part_, first + i), values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }

  // Counts this warp in, when it has left all its values: true if it is the last one of the tile, which sees what all
  // others have left.
  JAXBW_DEVICE bool last() const {
    __syncwarp();
    uint32_t before = 0;
    if (ptx::lane_index_here() == 0) before = ptx::add_acq_rel(counter_, 1);
    const bool is_last = __shfl_sync(ptx::kFullWarp, before, 0) == parts_ - 1;
    __syncwarp();  // what lane 0 has acquired, all lanes may read
    return is_last;
  }

  // Replaces this part's values by those of all parts together.
  template <uint32_t kCount>
  JAXBW_DEVICE void gather(float (&values)[kCount], uint32_t first) const {
#pragma unroll
    for (float& value : values) value = 0.0f;
#pragma unroll 4  // so many parts are under way at a time
    for (uint32_t part = 0; part < parts_; ++part) {
#pragma unroll
      for (uint32_t i = 0; i < kCount; i += kGroup) {
        float of_part[kGroup];
        ptx::load_global(of_part, at(part, first + i));
#pragma unroll
        for (uint32_t j = 0; j < kGroup; ++j) values[i + j] += of_part[j];
      }
    }
  }

  // The same of all values of the slice, whose registers are free until then: the fewer are taken, the more parts are
  // under way at a time.
  template <uint32_t kCount>
  JAXBW_DEVICE void gather_all(float (&values)[kCount]) const {
    constexpr uint32_t kStep = kCount < 32 ? kCount : 32;
    for_each_step<kStep, kCount>([&]<uint32_t kFirst>() {
      constexpr uint32_t kMost = (kFreeRegisters - kFirst) / kStep - 1;
      float sums[kStep];
      gather_in_flight<(kMost < 4 ? kMost : 4)>(sums, kFirst);
#pragma unroll
      for (uint32_t j = 0; j < kStep; ++j) values[kFirst + j] = sums[j];
    });
  }

  // The same, with kInFlight parts under way at a time, the last ones too.
  template <uint32_t kInFlight, uint32_t kCount>
  JAXBW_DEVICE void gather_in_flight(float (&values)[kCount], uint32_t first) const {
#pragma unroll
    for (float& value : values) value = 0.0f;
    const float* from = at(0, first);
#pragma unroll 1
    for (uint32_t part = 0; part < parts_; part += kInFlight) {
      float of_part[kInFlight][kCount] = {};  // a zero changes no sum: none is -0
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i, from += part_floats_) {
        if (part + i >= parts_) continue;
#pragma unroll
        for (uint32_t j = 0; j < kCount; j += kGroup) {
          ptx::load_global(reinterpret_cast<float (&)[kGroup]>(of_part[i][j]), from + j * ptx::kWarpSize);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < kCount; ++j) values[j] += of_part[i][j];
      }
    }
  }

 private:
  static constexpr uint32_t kFreeRegisters = 200;  // of a multiplying warp's 232, for sums: with more some spill
  static constexpr uint32_t kGroup = 4;  // floats of one lane that lie together: 512 bytes of a warp at a time

  JAXBW_DEVICE float* at(uint32_t part, uint32_t value) const {
    return sums_ + part * part_floats_ + value * ptx::kWarpSize;
  }

  uint32_t part_, parts_;
  bool counted_;
  uint32_t* counter_;
  uint64_t part_floats_;
  float* sums_;
};

}  // namespace jaxbw
