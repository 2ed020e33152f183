// The GEMM kernel of Hopper: persistent, warp-specialised, wgmma on operands that TMA brings.
//
//   warpgroup 0       load: global -> ring of shared-memory stages (TMA, multicast in the cluster)
//   warpgroups 1, 2   multiply, as consumers 0 and 1: stages -> register accumulators (wgmma);
//                     then epilogue: registers -> staging -> global (stmatrix, TMA store)
//
// How the consumer warpgroups divide the work is chosen at launch:
//
//   cooperative   each has half of every tile, 0 some blocks      0  [ main loop 0 ][epilogue][ main loop 1 ]
//                 of K ahead of 1 at its end                      1  [ main loop 0    ][epilogue][ main loop 1 ]
//   pingpong      they take turns at tiles: the epilogue of       0  [main 0][epilogue][main 2][epilogue]
//                 one runs beside the main loop of the other      1          [main 1][epilogue][main 3]
//
// Barriers (one full and one empty for each stage, in every CTA):
//   full    1 arrival, by this CTA's load thread, and the bytes of a whole stage, from all CTAs that multicast to it
//   empty   one arrival of each warpgroup that reads the stage, in every CTA that receives what this CTA loads
//
// Work is dealt out statically: cluster c of C computes items c, c + C, c + 2C, ...
#pragma once

#include "gemm/descriptors.h"
#include "gemm/operand_loader.h"
#include "gemm/pipeline.h"
#include "gemm/request_parameters.h"
#include "gemm/sm90_context.h"
#include "gemm/sm90_delayed.cuh"
#include "gemm/sm90_elementwise.cuh"
#include "gemm/sm90_epilogue.cuh"
#include "gemm/sm90_multiply.cuh"
#include "gemm/sm90_residual.cuh"
#include "gemm/sm90_scales.cuh"
#include "gemm/sm90_stages.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/cluster.h"
#include "ptx/programmatic_launch.h"
#include "ptx/wgmma.h"

namespace jaxbw::sm90 {

// What the load role brings.
template <Config kConfig>
struct Loaders {
  OperandLoader<> a;
  OperandLoader<kConfig.block_n <= span_elements(DataType::kBF16)> b, b_up;  // what is not of 16 bits is K-major
  bool gated;

  JAXBW_DEVICE void start_at(Tile origin, uint32_t k, const GemmParams& p) {
    a.start_at(origin.m, k, origin.batch * p.a_batched);
    b.start_at(origin.n, k, origin.batch * p.b_batched);
    b_up.start_at(origin.n, k, origin.batch * p.b_batched);
  }

  // To a stage that has been free, and is announced; then on to the next one along K. A lane is elected for each copy:
  // of that ptxas makes the copy alone, where for several it makes a jump and two barriers of the warp.
  template <bool kMulticastA, bool kMulticastB>
  JAXBW_DEVICE void load(uint32_t to_a, uint32_t to_b, uint32_t full) {
    if (ptx::elect_one()) a.load<kMulticastA>(to_a, full);
    if (ptx::elect_one()) b.template load<kMulticastB>(to_b, full);
    if (gated && ptx::elect_one()) b_up.template load<kMulticastB>(to_b, full);
    a.advance();
    b.advance();
    b_up.advance();
  }
};

// Before the first load of all.
template <typename Loads>
JAXBW_DEVICE void await_start(const Context& context, const Loads& load, uint32_t blocks) {
  context.await_barriers();
  if (context.params.b_is_ready && ptx::elect_one()) load.b.prefetch(min(context.params.stages, blocks));
  __syncwarp();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
}

// The load role's main loop: fills `blocks` stages, each by load(to_a, to_b, full). A stage of a narrow tile is
// multiplied in 128 cycles, and this is where it would be late: so the lane that announces what comes is elected once.
// start() is called before a run of stages, where all that leads to its first load has been done.
template <typename Start, typename Load>
JAXBW_DEVICE void fill_stages(const Context& context, RingPosition& at, uint32_t blocks, const Start& start,
                              const Load& load) {
  const uint32_t stage_bytes = context.layout.stage_bytes();
  const bool announces = ptx::elect_one();
  while (blocks > 0) {
    RingRun run = RingRun::producer(context.ring(), at, blocks);
    uint32_t to_a = context.a(at.slot());
    blocks -= run.slots();
    at.advance(run.slots());
    start();
#pragma unroll 1
    do {
      context.profile.enter(Activity::kAwaitEmpty, run.slot());
      run.wait_empty();
      context.profile.enter(Activity::kLoad, run.slot());
      if (announces) ptx::mbarrier_arrive_expect_tx(run.signalled(), stage_bytes);
      load(to_a, to_a + context.layout.a_stage_bytes, run.signalled());
      to_a += stage_bytes;
    } while (run.next());
  }
}

// Where CTAs share a tile along K, all warps of their cluster meet before sums are sent: all rings are free then.
JAXBW_DEVICE void meet_before_sums(const Context& context) {
  if (context.cluster.k.value == 1) return;
  context.profile.enter(Activity::kAwaitCluster);
  ptx::cluster_sync();
}

// Load role: one warp. A gated matmul's tile of B is half gate, half up, side by side.
template <Config kConfig>
JAXBW_DEVICE void load_tiles(const Context& context) {
  const GemmParams& p = context.params;
  const ClusterShape cluster = context.cluster;
  const uint32_t rank = context.rank;
  // What says so by name is far from all that is needed here.
  const bool gated = !kConfig.casts() && p.tile_columns != kConfig.tile_columns(p);
  const uint32_t b_extent = gated ? kConfig.block_n / 2 : kConfig.tile_columns(p);
  const OperandsOfKernel<kConfig> operands(p);
  const OperandTile b_tile = operands.b_tile(kConfig.block_n);
  const LoadShare b_share{cluster.b_peers(), cluster.b_peer(rank), cluster.b_mask(rank)};
  Loaders<kConfig> load{
      {p.a, operands.a_tile(p.block_m), 0, p.block_m, {cluster.a_peers(), cluster.a_peer(rank), cluster.a_mask(rank)}},
      {p.b, b_tile, 0, b_extent, b_share},
      {p.b_up, b_tile, b_extent, b_extent, b_share},
      gated};
  const bool multicast_a = load.a.multicast(), multicast_b = load.b.multicast();
  const uint32_t k_blocks = context.k_blocks();
  RingPosition at = RingPosition::producer(p.stages);
  bool first = true;
  for (uint32_t number = context.cluster_index(); number < p.work_items; number += context.cluster_count()) {
    context.profile.enter(Activity::kNextItem, number);
    const WorkItem item = context.work_item(number);
    const KPart part = context.k_part(number);
    const Tile origin = cta_origin(p, cluster, item.tile, rank);
    load.start_at(origin, part.first_block(k_blocks) << context.block_k_log2(), p);
    const uint32_t blocks = part.block_count(k_blocks);
    const auto start = [&] {
      if (first) await_start(context, load, blocks);
      first = false;
    };
    // A loop of its own for each way to share the operands.
    const auto fill = [&]<bool kMulticastA, bool kMulticastB>() {
      fill_stages(context, at, blocks, start, [&](uint32_t to_a, uint32_t to_b, uint32_t full) {
        ptx::acquire_slot();  // which may have held a residual
        load.template load<kMulticastA, kMulticastB>(to_a, to_b, full);
      });
    };
    if (multicast_a && multicast_b) {
      fill.template operator()<true, true>();
    } else if (multicast_a) {
      fill.template operator()<true, false>();
    } else if (multicast_b) {
      fill.template operator()<false, true>();
    } else {
      fill.template operator()<false, false>();
    }
    if constexpr (kConfig.fuses_all()) {
      if (p.residual_stages != 0) load_residual<kConfig>(context, at, origin);
    }
  }
  meet_before_sums(context);
  context.profile.enter(Activity::kAwaitExit);
  if (context.has_peers()) context.ring().await_empty(at, p.stages);
}

// Of the two warpgroups, one after the other.
//
// Pingpong: a warpgroup reads stages only when the other has seen all of its own full. Barriers of the ring tell one
// round from the next by a parity: who waited for a round further ahead would take an old one for it. These are the
// stages of a residual, too, which are full soon after the last block of K, and read later.
//
// Cooperative: see Stagger.
class Turn {
 public:
  explicit JAXBW_DEVICE Turn(uint32_t warpgroup) : warpgroup_(warpgroup) {}

  JAXBW_DEVICE void await() const { ptx::named_barrier_sync(kFirstTurnBarrier + warpgroup_, kConsumerThreads); }
  JAXBW_DEVICE void pass() const { ptx::named_barrier_arrive(kFirstTurnBarrier + (warpgroup_ ^ 1), kConsumerThreads); }

 private:
  static constexpr uint32_t kConsumerThreads = kConsumerWarpgroups * kWarpgroupWarps * ptx::kWarpSize;

  uint32_t warpgroup_;
};

// Cooperative: warpgroup 1 stops kBlocks before the end of a main loop until warpgroup 0 has issued its last MMAs. The
// tensor cores lose nothing, as long as warpgroup 0 finds its stages full; and then one warpgroup's epilogue, and the
// MMAs that it begins with afterwards, are beside MMAs of the other, where both would have waited for both epilogues.
//
// Warpgroup 0 gets that far: what warpgroup 1 holds back is a stage less than the ring has. And it does not get as far
// again, for the next tile, while warpgroup 1 still waits, which the barrier could not tell from the first time: a main
// loop that is shorter than the ring is not staggered.
class Stagger {
 public:
  JAXBW_DEVICE Stagger(const GemmParams& p, uint32_t warpgroup, uint32_t blocks) {
    const bool staggered = p.pingpong == 0 && blocks >= p.stages;
    leads_ = staggered && warpgroup == 0;
    if (staggered && warpgroup == 1) last_before_ = blocks - 1 - min(kBlocks, p.stages - 1);
  }

  JAXBW_DEVICE bool leads() const { return leads_; }
  JAXBW_DEVICE bool stops_behind(uint32_t block) const { return block == last_before_; }

 private:
  static constexpr uint32_t kBlocks = 3;  // five are a loss where tiles are narrow and loads the bound

  bool leads_;
  uint32_t last_before_ = ~0u;
};

JAXBW_DEVICE ScaleArrays scale_arrays(const GemmParams& p, StoreOrigin tile) {
  const Epilogue& e = p.epilogue;
  return {scales_of(e.a_scales, p.a_batched, p.m, tile.batch), p.m, scales_of(e.b_scales, p.b_batched, p.n, tile.batch),
          scales_of(e.b_up_scales, p.b_batched, p.n, tile.batch)};
}

// Multiply role: two warpgroups of warps 0-3 and 4-7.
template <Config kConfig>
JAXBW_DEVICE void multiply_tiles(const Context& context, const LaunchParams<kConfig>& params, uint32_t warp) {
  // A warp polls until the load warps have returned registers: late, it finds them. Where accumulators take most of
  // them, ptxas would spill some.
  constexpr bool kLate = kConfig.accumulators() <= 64;
  // Of scales. Promoted sums leave registers for them only behind wgmmas.
  constexpr bool kScalesLate = kConfig.promoted;
  if constexpr (!kLate) ptx::increase_registers<kConsumerRegisters>();
  const GemmParams& p = context.params;
  const bool pingpong = p.pingpong != 0;
  const uint32_t warpgroup = warp / kWarpgroupWarps, warp_in_warpgroup = warp % kWarpgroupWarps;
  const uint32_t warpgroup_in_tile = pingpong ? 0 : warpgroup;
  // From one warpgroup to the other, in a tile that they share.
  constexpr uint32_t kRowsApart = kConfig.side_by_side() ? 0 : kConfig.warpgroup_rows;
  constexpr uint32_t kColumnsApart = kConfig.side_by_side() ? kConfig.block_n : 0;
  const EpiloguePath path = kConfig.casts()         ? EpiloguePath::kCast
                            : kConfig.elementwise() ? EpiloguePath::kElementwise
                                                    : p.epilogue.path;
  const OperandsOfKernel<kConfig> operands(p);
  const bool scaled = operands.is_8bit();
  const uint32_t k_blocks = context.k_blocks(), step = context.cluster_count();
  StageReader reader(context.ring(), p.stages, context.cluster, context.rank, warp_in_warpgroup);
  StoreRing stores(p, context.staging(warp), kSm90Epilogue.rows_per_warp * kSwizzleSpan);
  // More accumulators leave no registers to hold them rounded.
  constexpr bool kDelays = kConfig.accumulators() <= 128;
  DelayedStores<kConfig.block_n, kConfig.accumulators()> delayed(p, stores);
  const Turn turn(warpgroup);
  context.await_barriers();
  if constexpr (kLate) ptx::increase_registers<kConsumerRegisters>();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  // What an epilogue reads is asked for before the first tile where it is known that there is one: some of the other
  // kernels would spill registers.
  constexpr bool kAsksEarly = kConfig.elementwise();
  const float alpha = kAsksEarly ? alpha_of(p.epilogue) : 1.0f;
  for (uint32_t number = context.cluster_index(), count = 0; number < p.work_items; number += step, ++count) {
    if (pingpong && count % kConsumerWarpgroups != warpgroup) {
      reader.skip(context.stages_of(number));
      meet_before_sums(context);
      continue;
    }
    context.profile.enter(Activity::kNextItem, number);
    const WorkItem item = context.work_item(number);
    const Tile origin = cta_origin(p, context.cluster, item.tile, context.rank);
    const StoreOrigin tile{origin.m, origin.n + warpgroup_in_tile * kColumnsApart, origin.batch};
    const ClusterSum<kChunk> cluster(p, context.cluster, context.rank, tile, warp, context.a(0),
                                     context.sum_barriers());
    if (cluster.shared()) cluster.announce();
    const uint32_t row = warpgroup_in_tile * kRowsApart + warp_in_warpgroup * kSm90Epilogue.rows_per_warp;
    // Made where it is wanted: whole tiles have no use for what it reads. sm90_reduce.cuh finds the sums of a slice by
    // the same rule.
    const auto parts = [&] {
      const uint32_t cta = item.split_tile * context.cluster.tiles.value + context.cluster.tile(context.rank);
      const uint32_t slice = warpgroup_in_tile * kWarpgroupWarps + warp_in_warpgroup;
      return cluster.shared() ? SplitSum(p, item, cta * cluster.count(), cluster.slice_floats())
                              : SplitSum(p, item, cta * kSm90Epilogue.warps + slice,
                                         partial_floats(kConfig.wgmmas() * kConfig.block_n, kSm90Epilogue));
    };
    float accumulators[kConfig.accumulators()];
    HeldBias<kConfig.block_n> bias;
    [[maybe_unused]] HeldScales<kConfig.block_n, kConfig.wgmmas()> scales;
    context.profile.enter(Activity::kAwaitTurn);
    if (pingpong && count > 0) turn.await();
    const bool shares = SplitSum::shared_by(item.parts) && !cluster.shared();
    if (shares) parts().begin();
    const uint32_t blocks = context.k_part(number).block_count(k_blocks);
    const Stagger stagger(p, warpgroup, blocks);
    if (path == EpiloguePath::kGeneral && item.parts == 1 && !cluster.shared()) {
      prefetch_terms<kConfig.block_n>(p, tile, row, kConfig.wgmmas());
    }
    if (kAsksEarly && count < kConsumerWarpgroups) {  // later tiles find most of it in L2
      bias.prefetch(p, tile, row);
      if (scaled) scales.prefetch(p, scale_arrays(p, tile), tile.row + row, tile.column);
    }
    const PartOrigin part{warpgroup_in_tile * kRowsApart, warpgroup_in_tile * kColumnsApart};
    const auto meanwhile = [&](uint32_t block) {
      delayed.store_one();
      if (!stagger.stops_behind(block)) return;
      context.profile.enter(Activity::kAwaitTurn);
      turn.await();
    };
    const auto issued = [&] {
      if constexpr (kConfig.fuses_all()) {
        if (pingpong) reader.await_full(p.residual_stages);
      }
      if (pingpong ? number + step < p.work_items : stagger.leads()) turn.pass();
      delayed.await_buffers();
      if (path == EpiloguePath::kElementwise) {
        bias.load(p, tile, row);
        if (scaled && !kScalesLate) scales.load(p, scale_arrays(p, tile), tile.row + row, tile.column);
      }
    };
    if constexpr (kConfig.promoted) {
      if (params.scales.a == nullptr && params.scales.b == nullptr) {
        operands.call([&]<typename Operands>() {
          multiply_promoted<kConfig>(accumulators, context, Operands(), blocks, part, reader, Unscaled<kConfig>(),
                                     meanwhile, issued);
        });
      } else {
        const uint32_t first_block = context.k_part(number).first_block(k_blocks);
        const Scaled<kConfig> scales(params, tile, row, k_blocks, first_block);
        multiply_promoted<kConfig>(accumulators, context, operands, blocks, part, reader, scales, meanwhile, issued);
      }
    } else {
      multiply<kConfig>(accumulators, context, blocks, part, reader, meanwhile, issued);
    }

    context.profile.enter(Activity::kEpilogue);
    delayed.store_all();
    // The way of most tiles is asked for first, and jumped to once: each jump to code that is not cached yet costs some
    // 70 cycles.
    const bool takes = kDelays && delayed.takes() && !(pingpong && delayed.keeps());
    if (path == EpiloguePath::kCast && item.parts == 1 && !cluster.shared() && takes) {
      delayed.take(accumulators, tile, row, context.profile);
      continue;
    }
    if (path == EpiloguePath::kGeneral || cluster.shared() || shares) {
      apply_epilogue<kConfig.block_n, kConfig.casts()>(accumulators, p, cluster, parts(), tile, row, warp, stores,
                                                       context.profile);
      continue;
    }
    if (item.parts > 1 || path == EpiloguePath::kElementwise) {
      if (item.parts > 1) {
        const SplitSum split = parts();
        split.leave(accumulators, 0);
        if (split.added_up_later() || !split.last()) continue;
        split.gather_all(accumulators);
      }
      if (path == EpiloguePath::kElementwise) {
        if (scaled && !kScalesLate) {
          scales.multiply(accumulators, p);
        } else if (scaled) {
          scales.load_and_multiply(accumulators, p, scale_arrays(p, tile), tile.row + row, tile.column);
        }
        apply_elementwise(accumulators, p.epilogue, kAsksEarly ? alpha : alpha_of(p.epilogue), bias, [&] {
          if (!kConfig.fuses_all() || p.saved_output[0].data == nullptr) return;
          if (p.saved_output[0].type == DataType::kBF16) {
            save_boxes<DataType::kBF16, kConfig.block_n>(accumulators, p, tile, row, stores, context.profile);
          } else {
            save_boxes<DataType::kF16, kConfig.block_n>(accumulators, p, tile, row, stores, context.profile);
          }
        });
        if constexpr (kConfig.fuses_all()) {
          if (p.residual_stages != 0) add_residual<kConfig>(accumulators, context, warpgroup, row, reader);
        }
      }
    }
    if (delayed.keeps() && takes) {
      delayed.take(accumulators, tile, row, context.profile);
    } else {
      cast_tile<kConfig.block_n, kConfig.whole()>(accumulators, p, tile, row, stores, context.profile);
    }
  }
  delayed.store_all();
  context.profile.enter(Activity::kAwaitStaging);
  stores.drain();
}

JAXBW_DEVICE void init_barriers(const Context& context, uint32_t full_arrivals = kStageFullArrivals) {
  const GemmParams& p = context.params;
  const uint32_t readers = p.pingpong != 0 ? 1 : kConsumerWarpgroups;  // warpgroups that read a stage
  context.ring().init<kMaxStages>(full_arrivals, stage_empty_arrivals(context.cluster, readers));
#pragma unroll
  for (uint32_t warp = 0; warp < kSm90Epilogue.warps; ++warp) {
    ptx::mbarrier_init(context.sum_barriers() + warp * RingBarriers::kBarrierBytes, 1);
  }
  ptx::fence_mbarrier_init();
}

// Hopper has no CTA pairs, and CTAs whose tiles are whole no peers along K. Stated where the compiler sees it, since it
// would divide by their numbers.
template <Config kConfig>
JAXBW_DEVICE ClusterShape known_of(ClusterShape cluster) {
  cluster.cta_group = 1;
  if (kConfig.whole()) cluster.k = divisor(1);
  return cluster;
}

template <Config kConfig>
JAXBW_DEVICE void gemm(const LaunchParams<kConfig>& launch, ProfileArgument profile = {}) {
  const GemmParams& params = gemm_params(launch);
  const RequestedParameters requested(params, threadIdx.x / ptx::kWarpSize == kRequestWarp);
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Context context{{params, known_of<kConfig>(params.cluster), ptx::cluster_rank(),
                         storage_layout(params.block_m, kConfig.tile_columns(params), 1, kSm90Epilogue),
                         ptx::shared_address(shared_memory), Profile(profile)},
                        OperandsOfKernel<kConfig>(params).element_log2(),
                        kConfig.whole()};
  const uint32_t warp = ptx::warp_index();
  if (warp < kWarpgroupWarps) {
    if (warp == kPrefetchWarp && ptx::elect_one()) {  // before all else, as the first load waits for it
      ptx::prefetch_tensor_map(params.a);
      ptx::prefetch_tensor_map(params.b);
    }
    __syncwarp();
    ptx::decrease_registers<kLoadRegisters>();
    if (warp == kLoadWarp) {
      // Which waits for the kernel before this one when it must. A third of the instructions until its first load are
      // the cluster's: hence a copy without them.
      if (params.cluster.size() == 1) {
        const Context alone = context.alone();
        load_tiles<kConfig>(alone);
        alone.profile.finish();  // which has counted the stamps
        return;
      } else {
        load_tiles<kConfig>(context);
      }
    } else {
      if (warp == kInitWarp) {
        if (ptx::elect_one()) init_barriers(context);
      } else if (warp == kRequestWarp) {
        requested.await();
      } else if (ptx::elect_one()) {
        if (params.store_path == StorePath::kTma) ptx::prefetch_tensor_map(params.d);
        if (kConfig.fuses_all() && params.residual_stages != 0) ptx::prefetch_tensor_map(params.residual);
      }
      __syncwarp();
      context.await_barriers();
      context.profile.pair_clocks();
      meet_before_sums(context);
    }
  } else {
    multiply_tiles<kConfig>(context, launch, warp - kWarpgroupWarps);
  }
  context.profile.enter(Activity::kAwaitExit);
  // No CTA leaves while a peer may still receive what it has sent.
  if (context.cluster.k.value > 1) ptx::cluster_sync();
  context.profile.finish();
}

}  // namespace jaxbw::sm90
