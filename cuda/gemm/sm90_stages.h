// The multiplying warps' side of the ring of stages.
#pragma once

#include "gemm/pipeline.h"
#include "gemm/sm90_context.h"

namespace jaxbw::sm90 {

// A multiplying warp's place in the ring, and how its warpgroup lets go of a stage: it tells every CTA that loads for
// this one, once, by that one's empty barrier. wgmma is the warpgroup's, and so is the completion that wgmma.wait_group
// tells any warp of (PTX 9.7.15.7.3): so the warps divide the CTAs, warp w telling those of rank 4 i + w by its lane i.
// Whether and where a lane tells is found once, since this stands in the main loop.
class StageReader {
 public:
  JAXBW_DEVICE StageReader(RingBarriers ring, uint32_t stages, ClusterShape cluster, uint32_t rank,
                           uint32_t warp_in_warpgroup)
      : ring_(ring), at_(RingPosition::consumer(stages)) {
    constexpr uint32_t kRanksOfWarp = kMaxClusterSize / kWarpgroupWarps;
    const uint32_t lane = ptx::lane_index(), peer = lane * kWarpgroupWarps + warp_in_warpgroup;
    tells_ = lane < kRanksOfWarp && (cluster.source_mask(rank) >> peer & 1) != 0;
    if (tells_) to_peer_ = ptx::map_to_rank(ring.first_empty, peer) - ring.first_empty;
  }

  // Leaves the next stages to the other warpgroup.
  JAXBW_DEVICE void skip(uint32_t stages) { at_.skip(stages); }

  // The slot of the next stage, once it is full.
  JAXBW_DEVICE uint32_t acquire() {
    const uint32_t slot = ptx::uniform(at_.slot());
    ring_.wait_full(at_);
    at_.advance();
    return slot;
  }

  // The next stages up to the ring's end, `most` of them at most; not yet full.
  JAXBW_DEVICE RingRun run(uint32_t most) {
    const RingRun run = RingRun::consumer(ring_, at_, most);
    at_.advance(run.slots());
    return run;
  }

  // Until the next stages are full, none of which is read yet. They are fewer than the ring has.
  JAXBW_DEVICE void await_full(uint32_t stages) const {
    RingPosition at = at_;
    for (; stages > 0; --stages, at.advance()) ring_.wait_full(at);
  }

  JAXBW_DEVICE void release(uint32_t slot) const { release_by(ring_.empty(slot)); }

  // `empty`: this CTA's barrier of the stage.
  JAXBW_DEVICE void release_by(uint32_t empty) const {
    if (tells_) ptx::mbarrier_arrive_cluster(empty + to_peer_);
  }

 private:
  RingBarriers ring_;
  RingPosition at_;
  bool tells_;
  uint32_t to_peer_ = 0;  // from a barrier's address to that of the CTA that this lane tells
};

}  // namespace jaxbw::sm90
