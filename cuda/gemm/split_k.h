// Work items that are parts of a tile along K: how their sums come together.
//
// Every epilogue warp of every part leaves the sums of its slice of the tile in global memory and counts itself in.
// What is left to do, to add up the sums of all parts, in the order of the parts, and to apply the epilogue, is done by
//
//   last()    the warp that comes last: nobody waits (sm100; sm90, few parts, or where a cluster shares the tile)
//   share()   all warps that are still there, each a share of the slice (sm90, from kMinSharedParts on)
//   nobody here: nobody counts, a launch behind this one adds up (sm90, still more parts: sm90_reduce.cuh)
//
// Counters are zero again when a launch ends: whoever is the last to need one sees to it. So nothing goes before the
// next launch.
//
// The result depends neither on who was last nor on who was there. (Sums of parts as "split-K"; split for the last wave
// only it is what stream-K does, Osama et al., arXiv:2301.03598, with equal parts.)
//
// By last(), one SM reads the sums of a whole tile, of every part, 64 bytes a cycle, and others are idle meanwhile. By
// share(), a warp stays if all parts of its slice have begun when its own is done, and waits for the others; else it
// goes on to its next work item. (Who begins last stays.) A word for each slice counts the warps that
//
//   bits  0-7    have seen that all have arrived, of those that stayed
//   bits  8-15   have arrived, having left their sums
//   bits 16-23   have stayed then: what stands here before is a warp's number among them
//   bits 24-31   have begun
//
// Nobody waits for ever. A warp waits for main loops of its tile that have begun: so these are on the machine, whoever
// else is. A main loop, for its part, waits for main loops of its cluster, of its work item and of earlier ones, and
// for their warps to come to them: to have done with their own earlier items. If such an item is of an earlier tile,
// the warp does not wait there for ever, by induction along the tiles, which are dealt out in order. If it is of the
// same tile, the warp has not stayed there at all: its slice is the same in all parts of a tile, and it has not begun
// with the later one. (CTAs that share a tile in their cluster go by last(): they meet at barriers behind the main
// loop, too.)
#pragma once

#include "gemm/epilogue.h"
#include "gemm/reduce.h"
#include "gemm/storage.h"
#include "gemm/tile_scheduler.h"
#include "ptx/global.h"

namespace jaxbw {

// The largest divisor of a number of values up to `most` that is whole groups of four.
constexpr uint32_t largest_divisor(uint32_t count, uint32_t most) {
  while (count % most != 0) most -= 4;
  return most;
}
static_assert(largest_divisor(128, 40) == 32 && largest_divisor(80, 40) == 40 && largest_divisor(48, 40) == 24);

// One warp's slice of a tile, whose values are handled in groups of four for each lane.
class SplitSum {
 public:
  // What a warp finishes of its slice: chunk `first` and every `step`-th behind it. None where step is 0.
  struct Share {
    uint32_t first, step;
  };
  static JAXBW_DEVICE Share nothing() { return {0, 0}; }
  static JAXBW_DEVICE Share everything() { return {0, 1}; }

  // `slice`: number of the slice among all slices of the split tiles.
  JAXBW_DEVICE SplitSum(const GemmParams& params, const WorkItem& item, uint32_t slice, uint64_t slice_floats)
      : slice_(slice),
        part_(item.part),
        parts_(item.parts),
        counted_(params.counters != nullptr),
        counter_(params.counters + slice),
        part_floats_(static_cast<uint32_t>(slice_floats)),
        sums_(params.partials + slice * item.parts * slice_floats + ptx::lane_index_here() * kGroup) {}

  // The slice so many behind this one.
  JAXBW_DEVICE SplitSum behind(uint32_t slices) const {
    SplitSum other = *this;
    other.slice_ += slices;
    other.counter_ += slices;
    other.sums_ += slices * parts_ * part_floats_;
    return other;
  }

  JAXBW_DEVICE bool split() const { return parts_ > 1; }

  // Whether warps share the finishing of tiles in so many parts. With fewer, what it takes to agree costs as much as
  // it saves.
  static constexpr bool shared_by(uint32_t parts) { return parts >= kMinSharedParts; }
  JAXBW_DEVICE bool shared() const { return counted_ && shared_by(parts_); }

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
    if (is_last && ptx::lane_index_here() == 0) ptx::store_global(reinterpret_cast<uint64_t>(counter_), uint32_t{0});
    __syncwarp();  // what lane 0 has acquired, all lanes may read
    return is_last;
  }

  // Counts this warp among those that have begun.
  JAXBW_DEVICE void begin() const {
    if (counted_ && ptx::lane_index_here() == 0) ptx::add_relaxed(counter_, kBegun);
  }

  // Whether all parts have begun. Asked before values are left, the answer comes meanwhile.
  JAXBW_DEVICE bool all_begun() const { return ptx::load_relaxed(counter_) / kBegun == parts_; }

  // Counts this warp in, when it has left all its values. If it `stays`, as all have begun, it waits for the other
  // parts. It then sees what all have left. (Shares are unequal, and a CTA's warps tend to have the same numbers: so
  // every slice begins with another number.)
  JAXBW_DEVICE Share share(bool stays) const {
    __syncwarp();
    uint32_t seen = 0;
    if (ptx::lane_index_here() == 0) seen = ptx::add_acq_rel(counter_, stays ? kArrived + kStays : kArrived);
    seen = ptx::uniform(seen);
    const uint32_t number = stayed(seen);
    if (!ptx::uniform(stays)) return nothing();
    seen += kArrived + kStays;
    while (arrived(seen) != parts_) {
      ptx::sleep(kPollNanoseconds);
      seen = ptx::uniform(ptx::load_acquire(counter_));
    }
    // Nobody changes it any more but those that stayed, each by one: the last one makes it zero.
    if (ptx::lane_index_here() == 0) ptx::wrap_relaxed(counter_, seen / kArrived * kArrived + stayed(seen) - 1);
    __syncwarp();  // what lane 0 has acquired, all lanes may read
    return {(number + slice_) % stayed(seen), stayed(seen)};
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
    constexpr uint32_t kStep = largest_divisor(kCount, 40);
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
  static constexpr uint32_t kArrived = 1 << 8, kStays = 1 << 16, kBegun = 1 << 24;  // in a counter
  static constexpr uint32_t kPollNanoseconds = 20;
  static constexpr uint32_t kGroup = 4;  // floats of one lane that lie together: 512 bytes of a warp at a time

  static JAXBW_DEVICE uint32_t arrived(uint32_t counter) { return counter % kStays / kArrived; }
  static JAXBW_DEVICE uint32_t stayed(uint32_t counter) { return counter % kBegun / kStays; }

  JAXBW_DEVICE float* at(uint32_t part, uint32_t value) const {
    return sums_ + part * part_floats_ + value * ptx::kWarpSize;
  }

  uint32_t slice_, part_, parts_;
  bool counted_;
  uint32_t* counter_;
  uint32_t part_floats_;
  float* sums_;
};

}  // namespace jaxbw
