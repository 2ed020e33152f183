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
//   sums                   each epilogue warp        that warp, and the bytes of the sums that it owns, from the CTAs
//                                                    of the other parts of K (sm100_cluster_sum.cuh)
//
// All tcgen05 instructions are ordered by those waits together with tcgen05_fence_after_sync, and by commits or
// tcgen05_fence_before_sync ahead of the arrivals (PTX 9.7.16.6.4).
#pragma once

#include <type_traits>

#include "gemm/descriptors.h"
#include "gemm/operand_bits.h"
#include "gemm/request_parameters.h"
#include "gemm/sm100_context.h"
#include "gemm/sm100_epilogue.cuh"
#include "gemm/sm100_load.cuh"
#include "gemm/sm100_mx.cuh"
#include "ptx/programmatic_launch.h"

namespace jaxbw::sm100 {

constexpr bool is_mx(Kind kind) { return kind == Kind::kMx8Bit || kind == Kind::kMx4Bit; }

// Calls function.operator()<Kind>(), of operands that have no scales of blocks.
template <typename Function>
JAXBW_DEVICE void with_kind(uint32_t log2, const Function& function) {
  if (log2 == element_log2(Kind::k16Bit)) return function.template operator()<Kind::k16Bit>();
  if (log2 == element_log2(Kind::k8Bit)) return function.template operator()<Kind::k8Bit>();
  function.template operator()<Kind::kTf32>();
}

enum Warp : uint32_t { kLoadWarp = 0, kMultiplyWarp = 1, kScheduleWarp = 2, kTmemWarp = 3, kFirstEpilogueWarp = 4 };
static_assert(kFirstEpilogueWarp % 4 == 0, "epilogue warp w reaches the TMEM lanes 32 (w % 4) ...");
static_assert(kFirstEpilogueWarp + kSm100Epilogue.warps == kWarps);

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
  const uint32_t a_to_b = b.first - a.first;  // from lower word to lower word, in every stage: one cursor serves both
  const uint32_t instruction =
      umma_instruction(p.a_type, p.b_type, p.a_major, p.b_major, mma_rows * kCtaGroup, p.block_n);
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
    uint32_t left = context.k_blocks_of(number, k_blocks).count;
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
  if constexpr (kCtaGroup == 1) {
#pragma unroll
    for (uint32_t warp = 0; warp < kSm100Epilogue.warps; ++warp) {
      ptx::mbarrier_init(context.sums(warp), kSumArrivals);
    }
  }
  ptx::fence_mbarrier_init();
}

// What all warps but the load warp do before their roles, each what the others need not wait for. Returns the address
// of Tensor Memory, to those that access it.
template <uint32_t kCtaGroup>
JAXBW_DEVICE uint32_t set_up(const Context& context, uint32_t warp) {
  const GemmParams& p = context.params;
  const uint32_t tmem_slot = context.control(offsetof(Control, tmem));
  if (warp == kMultiplyWarp && ptx::elect_one()) {
    ptx::prefetch_tensor_map(p.a);
    ptx::prefetch_tensor_map(p.b);
    if (p.store_path == StorePath::kTma) ptx::prefetch_tensor_map(p.d);
  }
  if (warp == kScheduleWarp && ptx::elect_one()) init_barriers<kCtaGroup>(context);
  if (warp == kFirstEpilogueWarp) RequestedParameters(p, true).await();
  __syncwarp();
  context.await_barriers();
  if (warp == kScheduleWarp) return 0;
  if (warp == kTmemWarp) {
    ptx::tmem_allocate<kCtaGroup, ptx::kTmemColumns>(tmem_slot);  // of a pair together, both of whose CTAs are running
    ptx::tmem_relinquish_allocation<kCtaGroup>();
  }
  ptx::named_barrier_sync(kTmemBarrier, kTmemThreads);
  return ptx::load_shared(tmem_slot);
}

template <uint32_t kCtaGroup>
JAXBW_DEVICE NoScales scale_loads(const GemmParams&, const Context&) {
  return {};
}
template <uint32_t kCtaGroup, typename Params>
JAXBW_DEVICE ScaleLoads<kCtaGroup, Params> scale_loads(const Params& argument, const Context& context) {
  return {argument, context};
}

JAXBW_DEVICE NoMxResult mx_result(const GemmParams&) { return {}; }
template <typename Params>
JAXBW_DEVICE MxResult mx_result(const Params& argument) {
  return MxResult(argument.d_scales, accumulator_step(argument));
}

// The argument: MxParams of 8 bits in an MX format, Mx4BitParams of both formats of 4 bits, GemmParams of others, of
// which an instance has one kind.
template <uint32_t kCtaGroup, typename Argument>
JAXBW_DEVICE void gemm(const Argument& argument, ProfileArgument profile = {}) {
  constexpr bool kMx = !std::is_same_v<Argument, GemmParams>;
  const GemmParams& params = gemm_params(argument);
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  ClusterShape cluster = params.cluster;
  cluster.cta_group = kCtaGroup;  // known at compile time
  if constexpr (kMx) cluster.k = divisor(1);
  const Context context{{params, cluster, ptx::cluster_rank(),
                         storage_layout(params.block_m / kCtaGroup, params.b_columns, params.k_spans, kSm100Epilogue),
                         ptx::shared_address(shared_memory), Profile(profile)},
                        kMx ? 0 : element_log2_of_instance()};
  const uint32_t warp = ptx::warp_index();
  uint32_t tmem = 0;

  if (warp == kLoadWarp) {
    // It waits for the others, and for the kernel before this one, when it must. Half of the instructions until its
    // first load are the cluster's: hence a copy without them.
    if (cluster.size() == kCtaGroup) {
      const Context alone = context.alone<kCtaGroup>();
      load_tiles<kCtaGroup>(alone, scale_loads<kCtaGroup>(argument, alone));
      context.profile.go_on_from(alone.profile);
    } else {
      load_tiles<kCtaGroup>(context, scale_loads<kCtaGroup>(argument, context));
    }
  } else {
    tmem = set_up<kCtaGroup>(context, warp);
    // Everything above may overlap the kernel before this one.
    context.profile.enter(Activity::kAwaitUpstream);
    ptx::wait_for_upstream();
    context.profile.pair_clocks();
  }

  if (warp == kMultiplyWarp) {
    if constexpr (kMx) {
      if (context.leads_group()) multiply_scaled<kCtaGroup, MxTiles>(argument, context, tmem);
    } else if (context.leads_group()) {
      with_kind(context.element_log2, [&]<Kind kKind>() {
        const Context of_kind = context.of_kind(kKind);
        with_bool(params.k_spans == 1, [&]<bool kOneSpan>() {
          if (context.mma_tiles() == 1) {
            multiply_tiles<kCtaGroup, kKind, 1, kOneSpan>(of_kind, tmem);
          } else {
            multiply_tiles<kCtaGroup, kKind, 2, kOneSpan>(of_kind, tmem);
          }
        });
        context.profile.go_on_from(of_kind.profile);
      });
    }
  } else if (warp == kScheduleWarp) {
    if (context.rank == 0 && params.scheduler == Scheduler::kClc) schedule(context);
  } else if (warp >= kFirstEpilogueWarp) {
    store_tiles<kCtaGroup>(context, tmem, warp - kFirstEpilogueWarp, mx_result(argument));
  }
  __syncwarp();

  context.profile.enter(Activity::kAwaitExit);
  context.meet();  // no CTA leaves, and no TMEM is freed, while a peer may still need it
  ptx::tcgen05_fence_after_sync();
  if (warp == kTmemWarp) ptx::tmem_free<kCtaGroup, ptx::kTmemColumns>(tmem);
  // Shared memory must outlive the stores that read it.
  if (warp >= kFirstEpilogueWarp) ptx::bulk_wait_group_read<0>();
  context.profile.finish();
}

}  // namespace jaxbw::sm100
