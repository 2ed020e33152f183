// The GEMM kernel of the sm_100 family: persistent with cluster launch control, warp-specialised, tcgen05.mma from
// shared memory into Tensor Memory. kCtaGroup 1: a CTA computes a tile alone. kCtaGroup 2: a pair of CTAs computes one
// together; each holds half of the rows of A and of the accumulator, and half of the columns of B. A CTA's tile is one
// MMA tile of 64 or 128 rows, or two of 128 on top of each other that share B and fill all of Tensor Memory.
//
//   warp 0       load: global -> ring of shared-memory stages (TMA, multicast in the cluster); every CTA
//   warp 1       multiply: stages -> a ring of TMEM accumulators (UMMA); the leader CTA of each group
//   warp 2       schedule: asks the hardware for the next work item (CLC, if so launched); rank 0 of the cluster
//   warp 3       allocates and frees Tensor Memory
//   warps 4-7    epilogue: TMEM -> registers -> results (sm100_epilogue.cuh); every CTA
//
// Barriers (counts in cluster_protocol.h), where they live, and who arrives:
//
//   stage full             leader of the group       its load thread, and the bytes of the group's whole stage
//   stage empty            every CTA                 the commit of every group that receives what the CTA loads
//   accumulator full       every CTA                 the commit of its group
//   accumulator empty      leader of the group       the epilogue warps of the group
//   response full          every CTA                 the scheduler of rank 0, and the 16 bytes of the response
//   response empty         rank 0 of the cluster     every reader of the response in the cluster
//
// All tcgen05 instructions are ordered by those waits together with tcgen05_fence_after_sync, and by commits or
// tcgen05_fence_before_sync ahead of the arrivals (PTX 9.7.16.6.4).
#pragma once

#include "gemm/descriptors.h"
#include "gemm/operand_loader.h"
#include "gemm/sm100_context.h"
#include "gemm/sm100_epilogue.cuh"
#include "ptx/programmatic_launch.h"

namespace jaxbw::sm100 {

using Kind = ptx::UmmaKind;

enum Warp : uint32_t { kLoadWarp = 0, kMultiplyWarp = 1, kScheduleWarp = 2, kTmemWarp = 3, kFirstEpilogueWarp = 4 };
static_assert(kFirstEpilogueWarp % 4 == 0, "epilogue warp w reaches the TMEM lanes 32 (w % 4) ...");

// Roles are run by whole warps, which elect a lane where one thread acts: the compiler then keeps the roles' state in
// uniform registers.

// Schedule role: one warp of rank 0. Keeps asking, up to kResponses items ahead of the slowest reader, until the
// hardware has no cluster left to cancel.
JAXBW_DEVICE void schedule(const Context& context) {
  const RingBarriers responses = context.responses();
  const uint32_t lane = ptx::lane_index();
  RingPosition at = RingPosition::producer(kResponses);
  WorkItems items(context);
  for (uint32_t item = 0; item != WorkItems::kNone; at.advance()) {
    context.profile.enter(Activity::kAwaitResponse, at.slot());
    responses.wait_empty(at);
    context.profile.enter(Activity::kNextItem, item);
    if (lane < context.cluster.size()) {
      ptx::mbarrier_arrive_expect_tx_cluster(ptx::map_to_rank(responses.full(at.slot()), lane), ptx::kClcResponseBytes);
    }
    if (ptx::elect_one()) {
      ptx::acquire_slot();
      ptx::clc_try_cancel(context.response(at.slot()), responses.full(at.slot()));
    }
    item = items.next();
  }
  responses.await_empty(at, kResponses);
}

// What of a load is the same for all work items.
template <uint32_t kCtaGroup>
struct StageLoad {
  OperandLoader<kCtaGroup> a, b, b_up;
  bool announces;  // this lane tells the leader's barrier how many bytes come
  uint32_t group_bytes, b_offset, stage_bytes;
};

// How an operand's part of a stage comes: to one CTA or to several, and in one box along K or in any boxes.
template <bool kMulticastValue, bool kOneBoxValue>
struct LoadForm {
  static constexpr bool kMulticast = kMulticastValue, kOneBox = kOneBoxValue;
};

// Calls function.operator()<Form>().
template <uint32_t kCtaGroup, typename Function>
JAXBW_DEVICE void with_form(const OperandLoader<kCtaGroup>& operand, const Function& function) {
  with_bool(operand.multicast(), [&]<bool kMulticast>() {
    with_bool(operand.one_box_along_k(),
              [&]<bool kOneBox>() { function.template operator()<LoadForm<kMulticast, kOneBox>>(); });
  });
}

// Loads neighbouring stages, the first of them to `destination`, which goes on behind the last.
template <typename FormA, typename FormB, bool kBoth, uint32_t kCtaGroup>
JAXBW_DEVICE void load_run(const Context& context, StageLoad<kCtaGroup>& load, RingRun run, uint32_t& destination) {
#pragma unroll 1
  do {
    context.profile.enter(Activity::kAwaitEmpty, run.slot());
    run.wait_empty();
    context.profile.enter(Activity::kLoad, run.slot());
    if (load.announces) ptx::mbarrier_arrive_expect_tx(run.signalled(), load.group_bytes);
    load.a.template load_by_warp<FormA>(destination, run.signalled());
    load.b.template load_by_warp<FormB>(destination + load.b_offset, run.signalled());
    if (kBoth) load.b_up.template load_by_warp<FormB>(destination + load.b_offset, run.signalled());
    load.a.template advance<FormA::kOneBox>();
    load.b.template advance<FormB::kOneBox>();
    if (kBoth) load.b_up.template advance<FormB::kOneBox>();
    destination += load.stage_bytes;
  } while (run.next());
}

// Load role: one warp of every CTA.
//
// A gated product's tile of B is block_n / 2 columns of the gate and as many of up, side by side. A CTA alone loads
// both; of a pair, the even CTA loads its half, the gate, and the odd one up.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void load_tiles(const Context& context) {
  const GemmParams& p = context.params;
  const ClusterShape cluster = context.cluster;
  const uint32_t rank = context.rank;
  const OperandTile a_tile = context.a_tile(), b_tile = context.b_tile();
  const bool gated = p.epilogue.gated != 0, both = gated && kCtaGroup == 1, odd = rank % kCtaGroup != 0;
  const uint32_t b_columns = p.block_n / kCtaGroup;
  const uint32_t b_offset = odd && !gated ? b_columns : 0;  // this CTA's columns of the pair's tile
  const uint32_t b_extent = both ? b_columns / 2 : b_columns;
  const LoadShare b_share{cluster.b_peers(), cluster.b_peer(rank), cluster.b_mask(rank)};
  StageLoad<kCtaGroup> load{
      {p.a, a_tile, p.input, 0, context.cta_rows(), {cluster.a_peers(), cluster.a_peer(rank), cluster.a_mask(rank)}},
      {gated && odd ? p.b_up : p.b, b_tile, p.input, 0, b_extent, b_share},
      {p.b_up, b_tile, p.input, b_extent, b_extent, b_share},
      context.leads_group() && ptx::elect_one(),
      kCtaGroup * (a_tile.bytes() + b_tile.bytes()),
      context.layout.a_stage_bytes,
      context.layout.stage_bytes()};
  const uint32_t block_k = context.block_k(), k_blocks = context.k_blocks();
  const RingBarriers stages = context.stages();
  RingPosition at = RingPosition::producer(p.stages);
  uint32_t destination = context.a(0);
  WorkItems items(context);
  bool first = true;
  for (uint32_t number = items.first(); number != WorkItems::kNone; number = items.next()) {
    context.profile.enter(Activity::kNextItem, number);
    const WorkItem item = work_item(p, number);
    const Tile origin = context.origin(item.tile);
    const KPart part = k_part(p, number, divisor(1), 0);
    const uint32_t first_block = part.first_block(k_blocks);
    load.a.start_at(origin.m, first_block * block_k, origin.batch * p.a_batched);
    load.b.start_at(origin.n + b_offset, first_block * block_k, origin.batch * p.b_batched);
    load.b_up.start_at(origin.n, first_block * block_k, origin.batch * p.b_batched);
    if (first) {
      if (p.b_is_ready && ptx::elect_one()) load.b.prefetch(min(p.stages, k_blocks));
      context.profile.enter(Activity::kAwaitUpstream);
      ptx::wait_for_upstream();
      first = false;
    }
    uint32_t left = part.block_count(k_blocks);
    do {
      const RingRun run = RingRun::producer(stages, at, left);
      left -= run.slots();
      at.advance(run.slots());
      with_form(load.a, [&]<typename FormA>() {
        with_form(load.b, [&]<typename FormB>() {
          if constexpr (kCtaGroup == 1) {
            if (both) return load_run<FormA, FormB, true>(context, load, run, destination);
          }
          load_run<FormA, FormB, false>(context, load, run, destination);
        });
      });
      if (at.slot() == 0) destination = context.a(0);
    } while (left > 0);
  }
  context.profile.enter(Activity::kAwaitExit);
  stages.await_empty(at, p.stages);
}

// The MMAs along one swizzle span. ptxas makes of an election around one tcgen05 instruction, and nothing else, that
// instruction alone: the warp issues it once. Around several it would be a jump and two barriers of the warp.
template <uint32_t kCtaGroup, Kind kKind>
JAXBW_DEVICE void multiply_span(uint32_t d, UmmaOperand a, uint32_t a_low, UmmaOperand b, uint32_t b_low,
                                uint32_t instruction, bool accumulate) {
#pragma unroll
  for (uint32_t step = 0; step < kMmasPerSpan; ++step) {
    const uint64_t a_at = ptx::wide(a_low + step * a.step, kUmmaDescriptorHigh);
    const uint64_t b_at = ptx::wide(b_low + step * b.step, kUmmaDescriptorHigh);
    if (ptx::elect_one()) ptx::umma<kCtaGroup, kKind>(d, a_at, b_at, instruction, accumulate || step > 0);
  }
}

// Multiply role: one warp of the leader CTA of each group. kOneSpan: a stage holds one swizzle span.
template <uint32_t kCtaGroup, Kind kKind, uint32_t kMmaTiles, bool kOneSpan>
JAXBW_DEVICE void multiply_tiles(const Context& context, uint32_t tmem) {
  const GemmParams& p = context.params;
  const uint32_t mma_rows = context.mma_rows(), stage_step = context.layout.stage_bytes() >> 4;
  const UmmaOperand a(context.a(0), context.a_tile(), mma_rows), b(context.b(0), context.b_tile(), mma_rows);
  const uint32_t a_to_b = b.first - a.first;
  const uint32_t instruction = umma_instruction(p.input, p.a_major, p.b_major, mma_rows * kCtaGroup, p.block_n);
  const auto sources = static_cast<uint16_t>(context.cluster.source_mask(context.rank));
  const auto group = static_cast<uint16_t>(context.cluster.group_mask(context.rank));
  const uint32_t k_blocks = context.k_blocks(), k_spans = kOneSpan ? 1 : p.k_spans;
  const RingBarriers stages = context.stages(), accumulators = context.accumulators();
  RingPosition stage = RingPosition::consumer(p.stages);
  RingPosition accumulator[kMmaTiles];  // of each MMA tile of the current item
  for (uint32_t mma = 0; mma < kMmaTiles; ++mma) accumulator[mma] = RingPosition::producer(p.accumulators, mma);
  WorkItems items(context);
  for (uint32_t number = items.first(); number != WorkItems::kNone; number = items.next()) {
    context.profile.enter(Activity::kNextItem, number);
    uint32_t left = k_part(p, number, divisor(1), 0).block_count(k_blocks);
    bool accumulate = false;
    do {
      // The first block, which overwrites the accumulators, is a run by itself.
      RingRun run = RingRun::consumer(stages, stage, accumulate ? left : 1);
      uint32_t a_low = a.first + stage.slot() * stage_step;
      left -= run.slots();
      stage.advance(run.slots());
      if (!accumulate) {
        context.profile.enter(Activity::kAwaitAccumulator, accumulator[0].slot());
        accumulators.wait_empty(accumulator[0]);
      }
#pragma unroll 1
      do {
        context.profile.enter(Activity::kAwaitFull, run.slot());
        run.wait_full();
        context.profile.enter(Activity::kMultiply, run.slot());
#pragma unroll
        for (uint32_t mma = 0; mma < kMmaTiles; ++mma) {
          if (mma > 0 && !accumulate) accumulators.wait_empty(accumulator[mma]);
          ptx::tcgen05_fence_after_sync();
          const uint32_t d = tmem + accumulator[mma].slot() * kAccumulatorColumns;
          uint32_t span = 0;
          do {
            multiply_span<kCtaGroup, kKind>(d, a, a_low + mma * a.mma_tile_step + span * a.span_step, b,
                                            a_low + a_to_b + span * b.span_step, instruction, accumulate || span > 0);
          } while (++span < k_spans);
        }
        if (ptx::elect_one()) ptx::umma_commit<kCtaGroup>(run.signalled(), sources);
        a_low += stage_step;
      } while (run.next());
      accumulate = true;
    } while (left > 0);
#pragma unroll
    for (uint32_t mma = 0; mma < kMmaTiles; ++mma) {
      if (ptx::elect_one()) ptx::umma_commit<kCtaGroup>(accumulators.full(accumulator[mma].slot()), group);
      accumulator[mma].advance(kMmaTiles);
    }
  }
  context.profile.enter(Activity::kAwaitExit);
  if (kCtaGroup > 1) accumulators.await_empty(accumulator[0], p.accumulators);
}

template <uint32_t kCtaGroup>
JAXBW_DEVICE void init_barriers(const Context& context) {
  const ClusterShape cluster = context.cluster;
  context.stages().init<kMaxStages>(kStageFullArrivals, stage_empty_arrivals(cluster, 1));
  context.accumulators().init<kMaxAccumulators>(kAccumulatorFullArrivals,
                                                accumulator_empty_arrivals(cluster, kSm100Epilogue.warps));
  context.responses().init<kResponses>(kClcFullArrivals, clc_empty_arrivals(cluster, kSm100Epilogue.warps));
  ptx::fence_mbarrier_init();
}

template <uint32_t kCtaGroup, Kind kKind>
JAXBW_DEVICE void gemm(const GemmParams& params, ProfileArgument profile = {}) {
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  ClusterShape cluster = params.cluster;
  cluster.cta_group = kCtaGroup;  // known at compile time
  const Context context{{params, cluster, ptx::cluster_rank(),
                         storage_layout(params.block_m, params.block_n, kCtaGroup, params.k_spans, kSm100Epilogue),
                         ptx::shared_address(shared_memory), Profile(profile)}};
  const uint32_t warp = ptx::warp_index();
  const uint32_t tmem_slot = context.control(offsetof(Control, tmem));

  if (warp == kLoadWarp && ptx::elect_one()) {
    ptx::prefetch_tensor_map(params.a);
    ptx::prefetch_tensor_map(params.b);
    if (params.store_path == StorePath::kTma) ptx::prefetch_tensor_map(params.d);
    init_barriers<kCtaGroup>(context);
  }
  __syncwarp();
  context.profile.enter(Activity::kAwaitBarriers);
  ptx::cluster_sync();  // barriers are ready; and for the pair's allocation both CTAs must be running
  if (warp == kTmemWarp) {
    ptx::tmem_allocate<kCtaGroup, ptx::kTmemColumns>(tmem_slot);  // of both CTAs of a pair together
    ptx::tmem_relinquish_allocation<kCtaGroup>();
  }
  __syncthreads();
  const uint32_t tmem = ptx::load_shared(tmem_slot);
  // Everything above may overlap the kernel before this one. The load role waits by itself: it has a use for the time.
  if (warp != kLoadWarp) context.profile.enter(Activity::kAwaitUpstream);
  if (warp != kLoadWarp) ptx::wait_for_upstream();
  context.profile.pair_clocks();

  if (warp == kLoadWarp) {
    load_tiles<kCtaGroup>(context);
  } else if (warp == kMultiplyWarp) {
    if (context.leads_group()) {
      with_bool(params.k_spans == 1, [&]<bool kOneSpan>() {
        if (context.mma_tiles() == 1) {
          multiply_tiles<kCtaGroup, kKind, 1, kOneSpan>(context, tmem);
        } else {
          multiply_tiles<kCtaGroup, kKind, 2, kOneSpan>(context, tmem);
        }
      });
    }
  } else if (warp == kScheduleWarp) {
    if (context.rank == 0 && params.scheduler == Scheduler::kClc) schedule(context);
  } else if (warp >= kFirstEpilogueWarp) {
    store_tiles<kCtaGroup>(context, tmem, warp - kFirstEpilogueWarp);
  }
  __syncwarp();

  context.profile.enter(Activity::kAwaitExit);
  ptx::cluster_sync();  // no CTA leaves, and no TMEM is freed, while a peer may still need it
  ptx::tcgen05_fence_after_sync();
  if (warp == kTmemWarp) ptx::tmem_free<kCtaGroup, ptx::kTmemColumns>(tmem);
  context.profile.finish();
}

}  // namespace jaxbw::sm100
