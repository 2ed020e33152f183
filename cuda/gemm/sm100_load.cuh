// Load role of the sm_100 kernel: one warp of every CTA brings its share of each operand tile from global memory to the
// ring of stages, by TMA, and sends it to all CTAs of the cluster that need the tile. What it does before its first
// load nobody multiplies during: hence no division but by a Divisor, and all that is known where a cluster is one
// group.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/sm100_context.h"
#include "ptx/programmatic_launch.h"
#include "ptx/tma.h"

namespace jaxbw::sm100 {

// Of a matmul without scales of blocks; sm100_mx.cuh has the others'.
struct NoScales {
  static constexpr bool kKMajorOnly = false;  // operands of 4 bits are

  JAXBW_DEVICE uint32_t stage_bytes() const { return 0; }
  JAXBW_DEVICE uint32_t stage_gaps() const { return 0; }
  JAXBW_DEVICE void pass_on() const {}
  JAXBW_DEVICE void start_at(const Tile&, uint32_t) {}
  JAXBW_DEVICE void load(uint32_t, uint32_t) {}
};

// How an operand's part of a stage comes: to several CTAs or to one, and in one box along K or in any boxes.
template <bool kMulticastValue, bool kOneBoxValue>
struct LoadForm {
  static constexpr bool kMulticast = kMulticastValue, kOneBox = kOneBoxValue;
};

// One operand. A warp calls, and elects a lane around each copy and nothing else: of that ptxas makes the copy alone,
// where around several it would make a jump and two barriers of the warp.
template <uint32_t kCtaGroup>
class OperandLoads {
 public:
  // Loads from `map` the M or N indices first .. first + extent - 1 of this CTA's tile (all of it, but for a gated
  // matmul).
  JAXBW_DEVICE OperandLoads(const TensorMap& map, const Context& context, const OperandTile& tile, uint32_t first,
                            uint32_t extent, LoadShare share)
      : map_(map),
        k_major_(tile.major == Major::kK),
        multicast_(share.peers.value > 1),
        mask_(static_cast<uint16_t>(share.mask)),
        box_bytes_(tile.block_bytes()),
        box_x_(context.span()) {
    boxes_ = k_major_ ? tile.blocks : context.spans(extent);
    row_ = share.peer * ((k_major_ ? extent : tile.rows) / share.peers);
    offset_ = row_ * kSwizzleSpan + first * (k_major_ ? kSwizzleSpan : context.element_bytes() * tile.rows);
    step_ = context.block_k();
  }

  // The next tile to load is the one at (mn, k) of batch index `batch`.
  JAXBW_DEVICE void start_at(uint32_t mn, uint32_t k, uint32_t batch) {
    box_ = k_major_ ? ptx::BoxOrigin{k, mn + row_, batch} : ptx::BoxOrigin{mn, k + row_, batch};
  }

  // Calls function.operator()<LoadForm>().
  template <typename Function>
  JAXBW_DEVICE void with_form(const Function& function) const {
    with_bool(multicast_, [&]<bool kMulticast>() {
      with_bool(k_major_ && boxes_ == 1,
                [&]<bool kOneBox>() { function.template operator()<LoadForm<kMulticast, kOneBox>>(); });
    });
  }

  // Loads the tile to `destination`, counted on `barrier`, and goes on to the next one along K.
  template <typename Form>
  JAXBW_DEVICE void load(uint32_t destination, uint32_t barrier) {
    ptx::BoxOrigin box = box_;
    destination += offset_;
    if (ptx::elect_one()) copy<Form::kMulticast>(destination, box, barrier);
    if constexpr (Form::kOneBox) {
      box_.x += step_;
      return;
    }
    const uint32_t last = destination + (boxes_ - 1) * box_bytes_;
#pragma unroll 1
    while (destination != last) {
      destination += box_bytes_;
      box.x += box_x_;
      if (ptx::elect_one()) copy<Form::kMulticast>(destination, box, barrier);
    }
    box_.x += k_major_ ? step_ : 0;
    box_.y += k_major_ ? 0 : step_;
  }

  // Brings the next `tiles` tiles along K into the L2 cache. One thread of the CTA does.
  JAXBW_DEVICE void prefetch(uint32_t tiles) const {
#pragma unroll 1
    for (uint32_t k = 0; k < tiles * step_; k += step_) {
#pragma unroll 1
      for (uint32_t box = 0; box < boxes_; ++box) {
        const uint32_t x = box_.x + box * box_x_;
        ptx::tma_prefetch(map_,
                          k_major_ ? ptx::BoxOrigin{x + k, box_.y, box_.z} : ptx::BoxOrigin{x, box_.y + k, box_.z});
      }
    }
  }

 private:
  // A multicast to this CTA alone would do what a plain load does, but slower: 7.9 us for 7.0 at 1024^3 on an H200.
  template <bool kMulticast>
  JAXBW_DEVICE void copy(uint32_t destination, ptx::BoxOrigin box, uint32_t barrier) const {
    if constexpr (kCtaGroup == 2) barrier &= ptx::kPairLeaderMask;
    if constexpr (kCtaGroup == 1 && kMulticast) {
      ptx::tma_load_multicast(destination, map_, box, barrier, mask_);
    } else if constexpr (kCtaGroup == 1) {
      ptx::tma_load(destination, map_, box, barrier);
    } else if constexpr (kMulticast) {
      ptx::tma_load_pair_multicast(destination, map_, box, barrier, mask_);
    } else {
      ptx::tma_load_pair(destination, map_, box, barrier);
    }
  }

  const TensorMap& map_;
  bool k_major_, multicast_;
  uint16_t mask_;
  uint32_t boxes_, box_bytes_, box_x_;  // of a tile: number, bytes of shared memory, elements from one to the next
  uint32_t row_, offset_;               // of this CTA's share in a box, and its place in the tile
  uint32_t step_;                       // elements from tile to tile
  ptx::BoxOrigin box_{};
};

// What of a stage is the same for all work items. Scales: the loads of scales, NoScales where there are none.
template <uint32_t kCtaGroup, typename Scales>
struct StageLoads {
  OperandLoads<kCtaGroup> a, b, b_up;
  [[no_unique_address]] Scales scales;
  bool announces;  // this lane tells the leader's barrier how many bytes come
  uint32_t group_bytes, b_offset, stage_bytes;
};

// Loads neighbouring stages, the first of them to `destination`, which goes on behind the last. kBoth: gate and up.
template <typename FormA, typename FormB, bool kBoth, uint32_t kCtaGroup, typename Scales>
JAXBW_DEVICE void load_run(const Context& context, StageLoads<kCtaGroup, Scales>& loads, RingRun run,
                           uint32_t& destination) {
#pragma unroll 1
  do {
    context.profile.enter(Activity::kAwaitEmpty, run.slot());
    run.wait_empty();
    context.profile.enter(Activity::kLoad, run.slot());
    loads.scales.pass_on();
    if (loads.announces) ptx::mbarrier_arrive_expect_tx(run.signalled(), loads.group_bytes);
    loads.a.template load<FormA>(destination, run.signalled());
    loads.b.template load<FormB>(destination + loads.b_offset, run.signalled());
    if (kBoth) loads.b_up.template load<FormB>(destination + loads.b_offset, run.signalled());
    loads.scales.load(run.slot(), run.signalled());
    destination += loads.stage_bytes;
  } while (run.next());
}

// A gated matmul's tile of B is block_n / 2 columns of the gate and as many of up, side by side. A CTA alone loads
// both; of a pair, the even CTA loads its half, the gate, and the odd one up.
template <uint32_t kCtaGroup, typename Scales = NoScales>
JAXBW_DEVICE void load_tiles(const Context& context, const Scales& scales = {}) {
  const GemmParams& p = context.params;
  const ClusterShape cluster = context.cluster;
  const uint32_t rank = context.rank;
  const OperandTile a_tile = context.a_tile<Scales::kKMajorOnly>(), b_tile = context.b_tile<Scales::kKMajorOnly>();
  const bool gated = p.epilogue.gated != 0, both = gated && kCtaGroup == 1, odd = rank % kCtaGroup != 0;
  const uint32_t b_first = odd && !gated ? p.block_n / kCtaGroup : 0;  // this CTA's columns of the pair's tile
  const uint32_t b_extent = both ? p.b_columns / 2 : p.b_columns;
  const LoadShare b_share{cluster.b_peers(), cluster.b_peer(rank), cluster.b_mask(rank)};
  StageLoads<kCtaGroup, Scales> loads{
      {p.a, context, a_tile, 0, context.cta_rows(), {cluster.a_peers(), cluster.a_peer(rank), cluster.a_mask(rank)}},
      {gated && odd ? p.b_up : p.b, context, b_tile, 0, b_extent, b_share},
      {p.b_up, context, b_tile, b_extent, b_extent, b_share},
      scales,
      context.leads_group() && ptx::elect_one(),
      kCtaGroup * (a_tile.bytes() + b_tile.bytes() + scales.stage_bytes() - scales.stage_gaps()),
      context.layout.a_stage_bytes,
      context.layout.stage_bytes()};
  const uint32_t k_blocks = context.k_blocks();
  const RingBarriers stages = context.stages();
  RingPosition at = RingPosition::producer(p.stages);
  uint32_t destination = context.a(0);
  WorkItems items(context);
  bool first = true;
  for (uint32_t number = items.first(); number != WorkItems::kNone; number = items.next()) {
    context.profile.enter(Activity::kNextItem, number);
    const Tile origin = context.origin(work_item(p, number).tile);
    const KBlocks blocks = context.k_blocks_of(number, k_blocks);
    const uint32_t k = blocks.first * context.block_k();
    loads.a.start_at(origin.m, k, origin.batch * p.a_batched);
    loads.b.start_at(origin.n + b_first, k, origin.batch * p.b_batched);
    loads.b_up.start_at(origin.n, k, origin.batch * p.b_batched);
    loads.scales.start_at(origin, k);
    if (first) {
      context.await_barriers();
      if (p.b_is_ready && ptx::elect_one()) loads.b.prefetch(min(p.stages, k_blocks));
      __syncwarp();
      context.profile.enter(Activity::kAwaitUpstream);
      ptx::wait_for_upstream();
      first = false;
    }
    uint32_t left = blocks.count;
    do {
      const RingRun run = RingRun::producer(stages, at, left);
      left -= run.slots();
      at.advance(run.slots());
      loads.a.with_form([&]<typename FormA>() {
        loads.b.with_form([&]<typename FormB>() {
          if constexpr (kCtaGroup == 1) {
            if (both) return load_run<FormA, FormB, true>(context, loads, run, destination);
          }
          load_run<FormA, FormB, false>(context, loads, run, destination);
        });
      });
      if (at.slot() == 0) destination = context.a(0);
    } while (left > 0);
  }
  context.profile.enter(Activity::kAwaitExit);
  stages.await_empty(at, p.stages);
}

}  // namespace jaxbw::sm100
