// Grouped matmuls by the Hopper kernel (groups.h): the roles, ring, main loop and stores of sm90.cuh, where the tiles
// of D are those of a table that lies in device memory. What is left out is what a grouped matmul does not have:
// clusters, parts of K where rows are grouped, and of epilogues what EpiloguePath::kElementwise is not. A C of a
// grouped contraction is D itself, in float32, to which TMA adds. Of 8 bits, which wgmma takes K-major only, rows alone
// are grouped, and these have scales.
//
// Whether rows or the contraction fall into groups follows from the layout of A: its rows are K-major, "n", or they are
// the contraction, "t". So the instances of a tile share one source, as those of sm90.cuh do.
#pragma once

#include "gemm/grouped_items.cuh"
#include "gemm/sm90.cuh"
#include "gemm/sm90_gathered.cuh"
#include "gemm/sm90_scales.cuh"

namespace jaxbw::sm90 {

constexpr uint32_t kClearWarp = kPrefetchWarp;  // when that is done

// Load role: one warp. A gated matmul's tile of B is half gate, half up, side by side.
template <Config kConfig>
JAXBW_DEVICE void load_grouped_tiles(const Context& context, const GroupedParams& params) {
  const GemmParams& p = params.gemm;
  const uint32_t step = gridDim.x;
  const LoadShare everything{divisor(1), 0, 0};
  const OperandsOfKernel<kConfig> operands(p);
  const bool contraction = operands.a_major() == Major::kMN, gated = p.tile_columns != kConfig.block_n;
  const uint32_t b_extent = gated ? kConfig.block_n / 2 : kConfig.block_n;
  const OperandTile a_tile = operands.a_tile(p.block_m);
  const OperandTile b_tile = operands.b_tile(kConfig.block_n);
  GroupedLoaders load{{p.a, a_tile, 0, p.block_m, everything},
                      {{p.b, b_tile, 0, b_extent, everything}, {p.b_up, b_tile, b_extent, b_extent, everything}, gated},
                      contraction};
  context.await_barriers();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params, contraction);
  RingPosition at = RingPosition::producer(p.stages);
  RequestedItem next = items.request(blockIdx.x);
  for (uint32_t number = blockIdx.x; number < items.count(); number += step) {
    context.profile.enter(Activity::kNextItem, number);
    const GroupedItem item = items.item(next);
    next = items.request(number + step);
    load.start_at(item, items.first(item, context.block_k_log2()));
    fill_stages(
        context, at, items.blocks(item, context.block_k_log2()), [] {},
        [&](uint32_t to_a, uint32_t to_b, uint32_t full) {
          if (ptx::elect_one()) load.load<false, false>(to_a, to_b, full);
          load.advance();
        });
  }
  context.profile.enter(Activity::kAwaitExit);
}

// As apply_elementwise, of sums that are scaled first. The bias comes from memory only then: there are not the
// registers to hold both.
template <uint32_t kBlockN, uint32_t kM64s, uint32_t kCount>
JAXBW_DEVICE void apply_scaled(float (&accumulators)[kCount], const GemmParams& p, const GroupedItem& item,
                               const HeldScales<kBlockN, kM64s>& scales) {
  scales.multiply(accumulators, p);
  HeldColumns<kBlockN> bias;
  if (const EpilogueOperand of_group = bias_of(p, item.group.matrix); of_group.data != nullptr) {
    with_type(of_group.type,
              [&]<DataType kType>() { bias.template load<kType, 0, kQuarters>(p, of_group.data, item.column); });
  }
  apply_elementwise(accumulators, p.epilogue, alpha_of(p.epilogue), bias, [] {});
}

// Multiply role: two warpgroups of warps 0-3 and 4-7, which share tiles or take turns at them, as multiply_tiles says.
template <Config kConfig>
JAXBW_DEVICE void multiply_grouped_tiles(const Context& context, const GroupedParams& params, uint32_t warp) {
  constexpr uint32_t kAccumulators = kConfig.accumulators();
  ptx::increase_registers<kConsumerRegisters>();
  const GemmParams& p = params.gemm;
  const OperandsOfKernel<kConfig> operands(p);
  const bool contraction = operands.a_major() == Major::kMN, scaled = operands.is_8bit(), pingpong = p.pingpong != 0;
  const uint32_t warpgroup = warp / kWarpgroupWarps, warp_in_warpgroup = warp % kWarpgroupWarps;
  const uint32_t first_row = pingpong ? 0 : warpgroup * kConfig.warpgroup_rows;
  const uint32_t row = first_row + warp_in_warpgroup * kSm90Epilogue.rows_per_warp, step = gridDim.x;
  const uint32_t tile_warps = pingpong ? kWarpgroupWarps : kSm90Epilogue.warps;
  StageReader reader(context.ring(), p.stages, context.cluster, context.rank, warp_in_warpgroup);
  GroupedStores stores(p, context.staging(warp), kSm90Epilogue.rows_per_warp, contraction);
  DelayedStores<kConfig.block_n, kAccumulators, GroupedStores, !kConfig.promoted> delayed(p, stores);
  const Turn turn(warpgroup);
  context.await_barriers();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params, contraction);
  RequestedItem next = items.request(blockIdx.x);
  for (uint32_t number = blockIdx.x, count = 0; number < items.count(); number += step, ++count) {
    const GroupedItem item = items.item(next);
    next = items.request(number + step);
    const uint32_t blocks = items.blocks(item, context.block_k_log2());
    if (pingpong && count % kConsumerWarpgroups != warpgroup) {
      reader.skip(blocks);
      continue;
    }
    context.profile.enter(Activity::kNextItem, number);
    const StoreOrigin tile = contraction ? StoreOrigin{item.row, item.column, item.group.matrix}
                                         : StoreOrigin{item.ragged(), item.column, item.group.other_end};
    // Rows of no group stay zeros.
    const bool elementwise = p.epilogue.path == EpiloguePath::kElementwise && item.group.matrix != kNoMatrix;
    float accumulators[kAccumulators];
    HeldBias<kConfig.block_n> bias;
    HeldScales<kConfig.block_n, kConfig.wgmmas()> scales;
    context.profile.enter(Activity::kAwaitTurn);
    if (pingpong && count > 0) turn.await();
    const Stagger stagger(p, warpgroup, blocks);
    const auto meanwhile = [&](uint32_t block) {
      delayed.store_one();
      if (!stagger.stops_behind(block)) return;
      context.profile.enter(Activity::kAwaitTurn);
      turn.await();
    };
    const auto issued = [&] {
      if (pingpong ? number + step < items.count() : stagger.leads()) turn.pass();
      delayed.await_buffers();
      if (scaled) {
        if (elementwise) scales.load(p, scales_of_group(p, item), row, item.column);
      } else {
        if (elementwise && !contraction) bias.load(p, bias_of(p, item.group.matrix), tile, row);
      }
    };
    if (blocks > 0) {
      if constexpr (kConfig.promoted) {
        operands.call([&]<typename Operands>() {
          multiply_promoted<kConfig>(accumulators, context, Operands(), blocks, PartOrigin{first_row, 0}, reader,
                                     Unscaled<kConfig>(), meanwhile, issued);
        });
      } else {
        multiply<kConfig>(accumulators, context, blocks, PartOrigin{first_row, 0}, reader, meanwhile, issued);
      }
    } else {  // no stage to wait for, or to let go of
#pragma unroll
      for (float& sum : accumulators) sum = 0;
      issued();
    }
    context.profile.enter(Activity::kEpilogue);
    delayed.store_all();
    if (contraction && item.is_split()) {
      const SplitSum split(p, {{}, item.part, p.split_k.value, item.split_tile},
                           item.split_tile * kSm90Epilogue.warps + warp % tile_warps,
                           partial_floats(kConfig.wgmmas() * kConfig.block_n, kSm90Epilogue));
      split.leave(accumulators, 0);
      if (!split.last()) continue;
      split.gather_all(accumulators);
    }
    if (elementwise && contraction) {
      scale(accumulators, alpha_of(p.epilogue));
    } else if (elementwise) {
      if (scaled) {
        apply_scaled(accumulators, p, item, scales);
      } else {
        apply_elementwise(accumulators, p.epilogue, alpha_of(p.epilogue), bias, [] {});
      }
    }
    if (delayed.takes() && !(pingpong && delayed.keeps())) {
      delayed.take(accumulators, tile, row, context.profile);
    } else {
      with_type(p.output.type, [&]<DataType kType>() {
        cast_boxes<kType, kConfig.block_n>(accumulators, p, tile, row, stores, context.profile);
      });
    }
  }
  delayed.store_all();
  context.profile.enter(Activity::kAwaitStaging);
  stores.drain();
  if (contraction) clear_empty_groups(params, 0);
}

template <Config kConfig, typename Params>
JAXBW_DEVICE void grouped_gemm(const Params& launch, ProfileArgument profile = {}) {
  const GroupedParams& params = grouped_params(launch);
  const GemmParams& p = params.gemm;
  const RequestedParameters requested(p, threadIdx.x / ptx::kWarpSize == kRequestWarp);
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Context context{{p, cluster_shape(1, 1, 1), 0, storage_layout(p.block_m, kConfig.block_n, 1, kSm90Epilogue),
                         ptx::shared_address(shared_memory), Profile(profile)},
                        OperandsOfKernel<kConfig>(p).element_log2()};
  const uint32_t warp = ptx::warp_index();
  if (warp >= kWarpgroupWarps) {
    multiply_grouped_tiles<kConfig>(context, params, warp - kWarpgroupWarps);
    context.profile.enter(Activity::kAwaitExit);
    return context.profile.finish();
  }
  ptx::decrease_registers<kLoadRegisters>();
  if constexpr (!kConfig.gathered) {
    if (warp == kLoadWarp) {
      load_grouped_tiles<kConfig>(context, params);
      return context.profile.finish();
    }
  }
  if (warp == kInitWarp) {
    constexpr uint32_t kArrivals = kConfig.gathered ? gathered_full_arrivals(kLoadThreads) : kStageFullArrivals;
    if (ptx::elect_one()) init_barriers(context, kArrivals);
  } else if (warp == kRequestWarp) {
    requested.await();
  } else if (ptx::elect_one()) {
    if constexpr (!kConfig.gathered) ptx::prefetch_tensor_map(p.a);
    ptx::prefetch_tensor_map(p.b);
    ptx::prefetch_tensor_map(p.d);
  }
  __syncwarp();
  if constexpr (kConfig.gathered) {
    load_gathered_tiles<kConfig>(context, launch, warp);
    return context.profile.finish();
  }
  context.await_barriers();
  context.profile.pair_clocks();
  if (warp == kClearWarp && OperandsOfKernel<kConfig>(p).a_major() == Major::kMN) {
    context.profile.enter(Activity::kStore);
    ptx::wait_for_upstream();
    clear_empty_groups(params, kClearPause);
  }
  context.profile.enter(Activity::kAwaitExit);
  context.profile.finish();
}

}  // namespace jaxbw::sm90
