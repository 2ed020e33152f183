// Parts of K that CTAs of one cluster compute: how their sums come together on sm_100, through distributed shared
// memory.
//
// A warp's slice of the accumulator (AccumulatorSlice) is cut into slices of kSumColumns columns. Warp w of the CTAs
// that share a tile exchange them: of k parts, part (i + w) % k owns slice i, adds up what all parts have of it, in
// their order, and goes on to the epilogue. So the CTAs share that, too, and the result does not depend on the timing.
//
// Sums travel by bulk copies, a slice at a time, whose bytes count on a barrier of the warp that waits for them. They
// leave where the ring of stages was, which is free once the accumulator is full: every load into this CTA was waited
// for, and read. They land in the warp's staging buffers, which swap-AB stores nothing from. So nobody waits for
// another CTA but for its sums. Such a launch has one work item for each cluster.
#pragma once

#include "gemm/sm100_cluster_sum.h"
#include "gemm/sm100_context.h"
#include "ptx/fragments.h"
#include "ptx/tma.h"

namespace jaxbw::sm100 {

constexpr uint32_t kSumArrivals = 1;  // of the warp that waits, when it announces the bytes

// One epilogue warp's view.
class ClusterSum {
 public:
  static constexpr bool kShared = true;

  // `rows`: of the warp's slice of the accumulator.
  JAXBW_DEVICE ClusterSum(const Context& context, uint32_t warp, uint32_t rows)
      : context_(context),
        rows_(rows),
        slices_(sum_slices(context.params.block_n)),
        warp_(warp),
        barrier_(context.sums(warp)) {}

  // The slices that this warp owns are first(), first() + parts, ... below the number of slices.
  JAXBW_DEVICE uint32_t first() const { return (part() + parts().value - warp_ % parts()) % parts(); }
  JAXBW_DEVICE uint32_t step() const { return parts().value; }

  // The barrier counts all that comes to this warp, whatever comes first: bytes or their announcement.
  JAXBW_DEVICE void announce() const {
    if (owned() > 0 && ptx::elect_one()) {
      ptx::mbarrier_arrive_expect_tx(barrier_, owned() * (parts().value - 1) * slice_bytes());
    }
  }

  // Lays a slice down, to be sent, or where its owner, this CTA, receives those of others.
  JAXBW_DEVICE void lay_down(const float (&values)[kSumColumns], uint32_t slice) const {
    const uint32_t to = owner(slice) == part() ? received(slice, part()) : sent(slice);
    if (!holds_row()) return;
#pragma unroll
    for (uint32_t i = 0; i < kSumColumns; i += kGroup) {
      ptx::store_shared(lane_address(to, i), values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  }

  // Sends what was laid down, and waits for what this warp owns.
  JAXBW_DEVICE void exchange() const {
    ptx::fence_proxy_async();
    __syncwarp();
    const uint32_t slice = ptx::lane_index(), to = owner(slice);
    if (slice < slices_ && to != part()) {
      const uint32_t rank = to * context_.cluster.tiles.value + context_.cluster.tile(context_.rank);
      ptx::copy_to_cluster(ptx::map_to_rank(received(slice, part()), rank), sent(slice), slice_bytes(),
                           ptx::map_to_rank(barrier_, rank));
    }
    __syncwarp();
    context_.profile.enter(Activity::kAwaitSums);
    if (owned() > 0) ptx::mbarrier_wait(barrier_, 0);
    context_.profile.enter(Activity::kEpilogue);
  }

  // The sums of all parts, of a slice that this warp owns; zeros where a lane has no row.
  JAXBW_DEVICE void gather(float (&values)[kSumColumns], uint32_t slice) const {
#pragma unroll
    for (float& value : values) value = 0.0f;
    uint32_t from = received(slice, 0);
#pragma unroll 4  // so many parts are under way at a time
    for (uint32_t part = 0; part < parts().value; ++part, from += slice_bytes()) {
      float of_part[kSumColumns / kGroup][kGroup] = {};
#pragma unroll
      for (uint32_t i = 0; i < kSumColumns; i += kGroup) {
        ptx::load_shared_if(holds_row(), of_part[i / kGroup], lane_address(from, i));
      }
#pragma unroll
      for (uint32_t i = 0; i < kSumColumns; ++i) values[i] += of_part[i / kGroup][i % kGroup];
    }
  }

 private:
  static constexpr uint32_t kGroup = 4;  // floats of one lane that lie together

  JAXBW_DEVICE Divisor parts() const { return context_.cluster.k; }
  JAXBW_DEVICE uint32_t part() const { return context_.cluster.part(context_.rank); }
  JAXBW_DEVICE uint32_t owner(uint32_t slice) const { return (slice + warp_) % parts(); }
  JAXBW_DEVICE uint32_t owned() const { return (slices_ + parts().value - 1 - first()) / parts(); }
  JAXBW_DEVICE uint32_t slice_bytes() const { return sum_slice_bytes(rows_); }
  JAXBW_DEVICE bool holds_row() const { return ptx::lane_index() < rows_; }

  JAXBW_DEVICE uint32_t sent(uint32_t slice) const { return context_.a(0) + (warp_ * slices_ + slice) * slice_bytes(); }
  // At the owner, from one part.
  JAXBW_DEVICE uint32_t received(uint32_t slice, uint32_t part) const {
    return context_.staging(warp_) + (slice / parts() * parts().value + part) * slice_bytes();
  }
  // Of values i to i + kGroup - 1 of this lane.
  JAXBW_DEVICE uint32_t lane_address(uint32_t slice_address, uint32_t i) const {
    return slice_address + (i / kGroup * rows_ + ptx::lane_index()) * kGroup * uint32_t{sizeof(float)};
  }

  const Context& context_;
  uint32_t rows_, slices_, warp_, barrier_;
};

}  // namespace jaxbw::sm100
