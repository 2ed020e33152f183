// Grouped matmuls by the Blackwell kernel (groups.h): the roles and rings of sm100.cuh, of one CTA and one MMA tile of
// 64 or 128 rows, or of a pair and one of 256, where the tiles of D are those of a table that lies in device memory
// (grouped_items.cuh). All roles read it, a tile ahead. A tile without a main loop, rows of no group, has no
// accumulator either: zeros are stored.
// Of 8 bits rows in groups have scales, and so have the columns of each matrix. In a block-scaled format (sm100_mx.cuh)
// each entry of the table has a tile of scales for each CTA.
//
// Where the contraction is grouped the schedule warp, which has nothing to ask for, clears the results of empty groups,
// and so do epilogue warps that have no tile left.
#pragma once

#include <type_traits>

#include "gemm/sm100_gathered.cuh"
#include "gemm/sm100_items.cuh"

namespace jaxbw::sm100 {

// Rows of a tile in front of this CTA's.
template <uint32_t kCtaGroup>
JAXBW_DEVICE uint32_t rows_in_front(const Context& context) {
  return context.rank % kCtaGroup * (context.params.block_m / kCtaGroup);
}

template <uint32_t kCtaGroup>
JAXBW_DEVICE NoScales grouped_scale_loads(const GroupedParams&, const Context&) {
  return {};
}
template <uint32_t kCtaGroup, typename Mx>
JAXBW_DEVICE ScaleLoads<kCtaGroup, Mx> grouped_scale_loads(const GroupedMx<Mx>& params, const Context& context) {
  return {params, context};
}

// Load role: one warp.
template <uint32_t kCtaGroup, Kind kKind, typename Params>
JAXBW_DEVICE void load_grouped_tiles(const Context& context, const Params& params, bool contraction) {
  const GemmParams& p = context.params;
  constexpr uint32_t kBlockKLog2 = grouped_block_k_log2(kKind);
  constexpr bool kPair = kCtaGroup == 2;
  const LoadShare everything{divisor(1), 0, 0};
  // Of a pair's gated tile the even CTA brings the gate, and the odd one up.
  const bool gated = p.epilogue.gated != 0, both = gated && !kPair, odd = kPair && !context.leads_group();
  auto scales = grouped_scale_loads<kCtaGroup>(params, context);
  constexpr bool kKMajorOnly = decltype(scales)::kKMajorOnly;
  const OperandTile a_tile = context.a_tile<kKMajorOnly>(), b_tile = context.b_tile<kKMajorOnly>();
  const uint32_t b_extent = both ? p.b_columns / 2 : p.b_columns;
  const uint32_t group_bytes =
      kCtaGroup * (a_tile.bytes() + b_tile.bytes() + scales.stage_bytes() - scales.stage_gaps());
  GroupedLoaders load{{p.a, a_tile, 0, p.block_m / kCtaGroup, everything},
                      {{gated && odd ? p.b_up : p.b, b_tile, 0, b_extent, everything},
                       {p.b_up, b_tile, b_extent, b_extent, everything},
                       both},
                      contraction};
  context.await_barriers();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params, contraction);
  const RingBarriers stages = context.stages();
  RingPosition at = RingPosition::producer(p.stages);
  for_each_item<kCtaGroup>(context, items, [&](const GroupedItem& item) {
    GroupedItem part = item;
    if constexpr (kPair) {  // this CTA's rows, and its columns of B
      if (odd && !gated) part.column += p.block_n / kCtaGroup;
      if (contraction) {
        part.row += rows_in_front<kCtaGroup>(context);
      } else {
        part.group.rows -= rows_in_front<kCtaGroup>(context);  // none are left, or less: zeros are loaded
      }
    }
    load.start_at(part, items.first(item, kBlockKLog2));
    if constexpr (is_mx(kKind)) {  // each CTA has the rows of one tile of scales
      scales.start_at_tiles((item.row + rows_in_front<kCtaGroup>(context)) / kScaleTileRows,
                            item.group.matrix * scale_tiles(p.n) + item.column / kScaleTileRows);
    }
#pragma unroll 1
    for (uint32_t left = items.blocks(item, kBlockKLog2); left > 0; --left, at.advance()) {
      context.profile.enter(Activity::kAwaitEmpty, at.slot());
      stages.wait_empty(at);
      context.profile.enter(Activity::kLoad, at.slot());
      scales.pass_on();
      if (ptx::elect_one()) {
        const uint32_t full = stages.full(at.slot());
        if (!odd) ptx::mbarrier_arrive_expect_tx(full, group_bytes);
        load.load<false, false, kPair>(context.a(at.slot()), context.b(at.slot()), full);
      }
      if constexpr (is_mx(kKind)) scales.load(at.slot(), stages.full(at.slot()));
      load.advance();
    }
  });
  context.profile.enter(Activity::kAwaitExit);
  stages.await_empty(at, p.stages);
}

// Multiply role: one warp, of a pair the leader's. Of block-scaled formats it is multiply_mx_tiles.
template <uint32_t kCtaGroup, Kind kKind, typename Params>
JAXBW_DEVICE void multiply_grouped_tiles(const Context& context, const Params& params, bool contraction,
                                         uint32_t tmem) {
  const GemmParams& p = context.params;
  const uint32_t stage_step = context.layout.stage_bytes() >> 4;
  const UmmaOperand a(context.a(0), context.a_tile(), p.block_m / kCtaGroup),
      b(context.b(0), context.b_tile(), p.block_m / kCtaGroup);
  const uint32_t a_to_b = b.first - a.first;
  const uint32_t instruction = umma_instruction(p.a_type, p.b_type, p.a_major, p.b_major, p.block_m, p.block_n);
  const auto group = static_cast<uint16_t>(context.cluster.group_mask(context.rank));
  const RingBarriers stages = context.stages(), accumulators = context.accumulators();
  RingPosition stage = RingPosition::consumer(p.stages), accumulator = RingPosition::producer(p.accumulators);
  const GroupedItems items(params, contraction);
  for_each_item<kCtaGroup>(context, items, [&](const GroupedItem& item) {
    uint32_t left = items.blocks(item, grouped_block_k_log2(kKind));
    if (left == 0) return;
    context.profile.enter(Activity::kAwaitAccumulator, accumulator.slot());
    accumulators.wait_empty(accumulator);
    const uint32_t d = tmem + accumulator.slot() * kAccumulatorColumns;
    bool accumulate = false;
    do {
      RingRun run = RingRun::consumer(stages, stage, left);
      uint32_t a_low = a.first + stage.slot() * stage_step;
      left -= run.slots();
      stage.advance(run.slots());
#pragma unroll 1
      do {
        context.profile.enter(Activity::kAwaitFull, run.slot());
        run.wait_full();
        context.profile.enter(Activity::kMultiply, run.slot());
        ptx::tcgen05_fence_after_sync();
        multiply_span<kCtaGroup, kKind>(d, a, a_low, b, a_low + a_to_b, instruction, accumulate);
        accumulate = true;
        if (ptx::elect_one()) ptx::umma_commit<kCtaGroup>(run.signalled(), group);
        a_low += stage_step;
      } while (run.next());
    } while (left > 0);
    if (ptx::elect_one()) ptx::umma_commit<kCtaGroup>(accumulators.full(accumulator.slot()), group);
    accumulator.advance();
  });
  context.profile.enter(Activity::kAwaitExit);
  if (kCtaGroup > 1) accumulators.await_empty(accumulator, p.accumulators);
}

// The tiles that it multiplies, as MxTiles: those with a main loop.
template <uint32_t kCtaGroup, typename Params>
class GroupedMxTiles {
 public:
  JAXBW_DEVICE GroupedMxTiles(const Params& params, const Context&)
      : items_(params, false), number_(blockIdx.x / kCtaGroup), next_(items_.request(number_)) {}

  JAXBW_DEVICE uint32_t first() {
#pragma unroll 1
    for (; number_ < items_.count(); number_ += gridDim.x / kCtaGroup) {
      item_ = items_.item(next_);
      next_ = items_.request(number_ + gridDim.x / kCtaGroup);
      if (item_.group.matrix != kNoMatrix) return number_;
    }
    return WorkItems::kNone;
  }
  JAXBW_DEVICE uint32_t next() {
    number_ += gridDim.x / kCtaGroup;
    return first();
  }
  JAXBW_DEVICE uint32_t blocks(uint32_t, uint32_t k_blocks) const { return k_blocks; }
  JAXBW_DEVICE uint32_t column(uint32_t) const { return item_.column; }

 private:
  GroupedItems<Params> items_;
  uint32_t number_;
  RequestedItem next_;
  GroupedItem item_{};
};

// The scales of a lane's row of sums: of 16 bits and MXFP8 there are none.
struct NoGroupScales {
  JAXBW_DEVICE NoGroupScales(const GemmParams&, const GroupedItem&, uint32_t) {}

  JAXBW_DEVICE void load_columns(uint32_t, bool) {}
  JAXBW_DEVICE void multiply(auto&) const {}
  JAXBW_DEVICE void multiply_up(auto&) const {}
};

// Of 8 bits its own, and those of columns, of which a lane loads one for all; of NVFP4 these are its global ones.
class GroupScales {
 public:
  // `row`: of the tile. A tile of no group has none.
  JAXBW_DEVICE GroupScales(const GemmParams& p, const GroupedItem& item, uint32_t row) : n_(p.n) {
    if (item.group.matrix == kNoMatrix) return;
    arrays_ = scales_of_group(p, item);
    if (arrays_.rows != nullptr && row < arrays_.row_count) of_row_ = arrays_.rows[row];
  }

  JAXBW_DEVICE void load_columns(uint32_t column, bool gated) {
    if (arrays_.columns == nullptr || column >= n_) return;
    of_column_ = arrays_.columns[column];
    if (gated) of_up_column_ = arrays_.up_columns[column];
  }
  template <uint32_t kColumns>
  JAXBW_DEVICE void multiply(float (&sums)[kColumns]) const {
    multiply(sums, of_column_);
  }
  template <uint32_t kColumns>
  JAXBW_DEVICE void multiply_up(float (&sums)[kColumns]) const {
    multiply(sums, of_up_column_);
  }

 private:
  // In Hopper's order.
  template <uint32_t kColumns>
  JAXBW_DEVICE void multiply(float (&sums)[kColumns], float of_lane) const {
    if (arrays_.columns != nullptr) {
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) sums[i] *= ptx::of_lane(of_lane, i);
    }
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) sums[i] *= of_row_;
  }

  uint32_t n_;
  float of_row_ = 1, of_column_ = 1, of_up_column_ = 1;
  ScaleArrays arrays_{};
};

// What an epilogue warp does with a tile, kColumns at a time: the formula of rows in groups, or alpha. `bias`: of the
// tile's group.
template <DataType kType, uint32_t kColumns, typename Scales>
JAXBW_DEVICE void finish_grouped_slice(const GemmParams& p, uint32_t source, uint32_t columns, bool multiplied,
                                       Scales scales, EpilogueOperand bias, StoreOrigin box, GroupedStores& stores,
                                       AccumulatorRelease release) {
  constexpr uint32_t kRowBytes = kColumns * size_bytes(kType);
  const Epilogue& e = p.epilogue;
  const bool gated = kColumns % 16 == 0 && e.gated != 0;
  const uint32_t lane = ptx::lane_index();
#pragma unroll 1
  for (uint32_t column = 0; column < columns; column += kColumns, box.column += kColumns) {
    float z[kColumns];
#pragma unroll
    for (float& value : z) value = 0;
    if (multiplied) {
      float up[kColumns];
      ptx::tmem_load(z, source + column);
      if (gated) ptx::tmem_load(up, source + column + columns);
      const uint32_t of_lane = box.column + (lane < kColumns ? lane : 0);
      const float of_column = bias.data != nullptr && of_lane < p.n ? load_element(bias, of_lane) : 0.0f;
      scales.load_columns(of_lane, gated);
      ptx::tmem_wait_load(z);
      if (gated) ptx::tmem_wait_load(up);
      if (column + kColumns == columns) release();
      scales.multiply(z);
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) z[i] = fmaf(z[i], e.alpha, ptx::of_lane(of_column, i));
      activate<kColumns, false>(z, e.activation);
      if (gated) {
        scales.multiply_up(up);
#pragma unroll
        for (uint32_t i = 0; i < kColumns; ++i) z[i] *= e.alpha * up[i];
      }
    }
    uint32_t words[kRowBytes / 4];
    cast<kType>(p, z, words);
    stage_row<kRowBytes>(words, stores.acquire_by_warp());
    stores.store_by_tma(p.d, box);
  }
}

// Epilogue role: `warp` 0 to 3. It lets go of the last box before it stores it; shared memory outlives the store.
template <uint32_t kCtaGroup, Kind kKind, typename Params>
JAXBW_DEVICE void store_grouped_tiles(const Context& context, const Params& params, bool contraction, uint32_t tmem,
                                      uint32_t warp) {
  constexpr bool kScaled = kKind == Kind::k8Bit || kKind == Kind::kMx4Bit;
  using Scales = std::conditional_t<kScaled, GroupScales, NoGroupScales>;
  const GemmParams& p = context.params;
  const AccumulatorSlice slice = sm100_slice(warp, p.block_m / kCtaGroup, p.block_n, kCtaGroup);
  const uint32_t first_row = rows_in_front<kCtaGroup>(context) + slice.first_row;
  const uint32_t columns = p.epilogue.gated ? slice.columns / 2 : slice.columns;
  const RingBarriers accumulators = context.accumulators();
  RingPosition accumulator = RingPosition::consumer(p.accumulators);
  GroupedStores stores(p, context.staging(warp), kSm100Epilogue.rows_per_warp, contraction);
  const GroupedItems items(params, contraction);
  for_each_item<kCtaGroup>(context, items, [&](const GroupedItem& item) {
    const bool multiplied = items.blocks(item, grouped_block_k_log2(kKind)) > 0;
    const uint32_t lanes = tmem + (warp * ptx::kWarpSize << 16);
    uint32_t source = lanes + accumulator.slot() * kAccumulatorColumns;
    if constexpr (is_mx(kKind)) source = lanes + accumulator.turn(0) * accumulator_step(params);
    const AccumulatorRelease release{
        ptx::map_to_rank(accumulators.empty(accumulator.slot()), context.cluster.pair_leader(context.rank))};
    const Scales scales(p, item, first_row + ptx::lane_index());
    if (multiplied) {
      context.profile.enter(Activity::kAwaitAccumulator, accumulator.slot());
      accumulators.wait_full(accumulator);
      ptx::tcgen05_fence_after_sync();
      accumulator.advance();
    }
    context.profile.enter(Activity::kEpilogue);
    const StoreOrigin tile = contraction ? StoreOrigin{item.row, item.column, item.group.matrix}
                                         : StoreOrigin{item.ragged(), item.column, item.group.other_end};
    with_type(p.output.type, [&]<DataType kType>() {
      finish_grouped_slice<kType, kGroupedChunk>(p, source, columns, multiplied, scales,
                                                 bias_of(p, contraction ? 0 : item.group.matrix),
                                                 {tile.row + first_row, tile.column, tile.batch}, stores, release);
    });
  });
}

template <uint32_t kCtaGroup, Kind kKind, typename Params>
JAXBW_DEVICE void grouped_gemm(const Params& launch, ProfileArgument profile = {}) {
  constexpr bool kGathered = std::is_same_v<Params, GatheredParams>;
  static_assert(!kGathered || kCtaGroup == 1);
  const auto& params = grouped_params(launch);
  const GemmParams& p = params.gemm;
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Context context{{p, cluster_shape(kCtaGroup, 1, kCtaGroup), kCtaGroup == 1 ? 0 : ptx::cluster_rank(),
                         storage_layout(p.block_m / kCtaGroup, p.b_columns, 1, kSm100Epilogue),
                         ptx::shared_address(shared_memory), Profile(profile)},
                        element_log2(kKind)};
  const uint32_t warp = ptx::warp_index();
  const bool contraction = !kGathered && !is_mx(kKind) && p.a_major == Major::kMN;
  uint32_t tmem = 0;
  if (warp == kLoadWarp) {
    if constexpr (kGathered) {
      load_gathered_tiles<kKind>(context, launch);
    } else {
      load_grouped_tiles<kCtaGroup, kKind>(context, params, contraction);
    }
  } else {
    tmem = set_up<kCtaGroup>(context, warp);
    context.profile.enter(Activity::kAwaitUpstream);
    ptx::wait_for_upstream();
    context.profile.pair_clocks();
  }
  if (warp == kMultiplyWarp) {
    if constexpr (is_mx(kKind)) {
      if (context.leads_group()) {
        multiply_scaled<kCtaGroup, GroupedMxTiles<kCtaGroup, Params>>(launch, context, tmem);
      }
    } else if (context.leads_group()) {
      multiply_grouped_tiles<kCtaGroup, kKind>(context, params, contraction, tmem);
    }
  } else if (warp == kScheduleWarp) {
    if (contraction) clear_empty_groups(params, kClearPause);
  } else if (warp >= kFirstEpilogueWarp) {
    store_grouped_tiles<kCtaGroup, kKind>(context, params, contraction, tmem, warp - kFirstEpilogueWarp);
    if (contraction) clear_empty_groups(params, 0);
  }
  __syncwarp();

  context.profile.enter(Activity::kAwaitExit);
  context.meet();  // no TMEM is freed while somebody needs it
  ptx::tcgen05_fence_after_sync();
  if (warp == kTmemWarp) ptx::tmem_free<kCtaGroup, ptx::kTmemColumns>(tmem);
  // Shared memory must outlive the stores that read it.
  if (warp >= kFirstEpilogueWarp) ptx::bulk_wait_group_read<0>();
  context.profile.finish();
}

}  // namespace jaxbw::sm100
