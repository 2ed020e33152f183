// Grouped matmuls by the Hopper kernel (groups.h): the roles, ring, main loop and stores of sm90.cuh, where the tiles
// of D are those of a table that lies in device memory. What is left out is what a grouped matmul does not have: parts
// of K, clusters, and of epilogues what EpiloguePath::kElementwise is not. A C of a grouped contraction is D itself, in
// float32, to which TMA adds.
//
// Whether rows or the contraction fall into groups follows from the layout of A: its rows are K-major, "n", or they are
// the contraction, "t". So the instances of a tile share one source, as those of sm90.cuh do.
#pragma once

#include "gemm/groups.h"
#include "gemm/sm90.cuh"
#include "ptx/global.h"
#include "ptx/tma_ragged.h"

namespace jaxbw::sm90 {

constexpr uint32_t kClearWarp = kPrefetchWarp;  // when that is done

JAXBW_DEVICE GroupRows group_at(const GroupRows* entry) {
  uint32_t words[4];
  ptx::load_global(words, entry);
  return {words[0], words[1], words[2], words[3]};
}

// A tile of D: its rows by their group, the first row in D's matrix where the contraction is grouped, the first column.
struct GroupedItem {
  GroupRows group;
  uint32_t row, column;
};

// The work items, in the order in which they are handed out.
class GroupedItems {
 public:
  JAXBW_DEVICE GroupedItems(const GroupedParams& params, bool contraction)
      : params_(params), contraction_(contraction), entries_(ptx::load_relaxed(params.count)) {}

  JAXBW_DEVICE uint32_t count() const {
    const TileOrder& order = params_.gemm.order;
    return entries_ * (contraction_ ? order.batch.value : order.along);
  }

  // The group comes from memory: it is asked for one item ahead. Behind the last item there is none.
  JAXBW_DEVICE GroupedItem at(uint32_t number) const {
    GroupedItem item{};
    if (number >= count()) return item;
    const GemmParams& p = params_.gemm;
    const Tile tile = contraction_ ? rasterise(number, p.order) : in_bands(number, p.order);
    item.group = group_at(params_.table + (contraction_ ? tile.batch : tile.m));
    item.row = tile.m * p.block_m;
    item.column = tile.n * p.tile_columns;
    return item;
  }

  JAXBW_DEVICE uint32_t blocks(const GroupedItem& item) const {
    constexpr uint32_t kBlockK = span_elements(DataType::kBF16);
    const uint32_t k = contraction_ ? item.group.rows : item.group.matrix == kNoMatrix ? 0 : params_.gemm.k;
    return (k + kBlockK - 1) / kBlockK;
  }

  // Where rows are grouped: kRaggedRows less what is left of the group.
  static JAXBW_DEVICE uint32_t ragged(const GroupedItem& item) { return kRaggedRows - item.group.rows; }

 private:
  // rasterise() for a number of row tiles that is only known here. The last band may be narrower.
  JAXBW_DEVICE Tile in_bands(uint32_t number, const TileOrder& order) const {
    const uint32_t first = number / order.band * order.width.value;
    const uint32_t within = number - first * order.along;
    const uint32_t width = min(order.width.value, entries_ - first);
    const uint32_t column = width == order.width.value ? within / order.width : within / width;
    return {first + within - column * width, column, 0};
  }

  const GroupedParams& params_;
  bool contraction_;
  uint32_t entries_;
};

// Stores of tiles whose rows are those of a group: the others of a box are left alone. There `row` of a StoreOrigin is
// that of RaggedBoxOrigin, and `batch` the group's end.
class GroupedStores : public StoreRing {
 public:
  JAXBW_DEVICE GroupedStores(const GemmParams& params, uint32_t buffers, bool contraction)
      : StoreRing(params, buffers, kSm90Epilogue.rows_per_warp * kSwizzleSpan, kSm90Epilogue.rows_per_warp),
        rows_(contraction ? params.m : kRaggedRows),
        contraction_(contraction),
        adds_(contraction && params.epilogue.c.data != nullptr) {}

  // In place of StoreRing's.
  JAXBW_DEVICE void store_by_tma(const TensorMap& map, StoreOrigin origin) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) {
      if (origin.column < params_.n && origin.row < rows_) {
        if (adds_) {
          ptx::tma_add(map, {origin.column, origin.row, origin.batch}, buffer());
        } else if (contraction_) {
          ptx::tma_store(map, {origin.column, origin.row, origin.batch}, buffer());
        } else {
          ptx::tma_store_ragged(map, {origin.column, origin.row, kRaggedRows, origin.batch}, buffer());
        }
      }
      ptx::bulk_commit_group();
    }
    advance();
  }

 private:
  uint32_t rows_;
  bool contraction_, adds_;
};

// The row of the bias that a group has: one for each matrix of B.
JAXBW_DEVICE EpilogueOperand bias_of(const GemmParams& p, uint32_t matrix) {
  EpilogueOperand bias = p.epilogue.bias;
  const uint64_t first = uint64_t{matrix} * p.n * size_bytes(bias.type);
  if (bias.data != nullptr) bias.data = static_cast<const uint8_t*>(bias.data) + first;
  return bias;
}

// Has what empty groups of a contraction have for results, zeros, by a warp that does nothing else: so they are written
// beside the multiplications, and their tiles are nobody's work. (A C is their result as it is.)
JAXBW_DEVICE void clear_empty_groups(const GroupedParams& params) {
  constexpr uint32_t kVectorBytes = 16;
  const GemmParams& p = params.gemm;
  if (p.epilogue.c.data != nullptr) return;
  ptx::wait_for_upstream();
  const uint32_t matrices = p.work_items / p.order.batch;
  const uint64_t vectors = uint64_t{p.m} * p.n * size_bytes(p.output.type) / kVectorBytes;
#pragma unroll 1
  for (uint32_t entry = ptx::load_relaxed(params.count); entry < matrices; ++entry) {
    const uint64_t first = group_at(params.table + entry).matrix * vectors;
    auto* const matrix = static_cast<uint8_t*>(p.output.data) + first * kVectorBytes;
#pragma unroll 4
    for (uint64_t i = blockIdx.x * ptx::kWarpSize + ptx::lane_index(); i < vectors; i += gridDim.x * ptx::kWarpSize) {
      ptx::store_global(matrix + i * kVectorBytes, 0, 0, 0, 0);
    }
  }
}

// What the load role brings, as Loaders.
struct GroupedLoaders {
  OperandLoader a, b, b_up;
  bool contraction, gated;

  JAXBW_DEVICE void start_at(const GroupedItem& item) {
    const uint32_t ragged = GroupedItems::ragged(item);
    if (contraction) {
      a.start_at(item.row, ragged, item.group.a_end);
      b.start_at(item.column, ragged, item.group.other_end);
    } else {
      a.start_at(ragged, 0, item.group.a_end);
      b.start_at(item.column, 0, item.group.matrix);
      b_up.start_at(item.column, 0, item.group.matrix);
    }
  }

  template <bool kMulticastA, bool kMulticastB>
  JAXBW_DEVICE void load(uint32_t to_a, uint32_t to_b, uint32_t full) const {
    a.load<kMulticastA, true>(to_a, full);
    if (contraction) {
      b.load<kMulticastB, true>(to_b, full);
    } else {
      b.load<kMulticastB>(to_b, full);
      if (gated) b_up.load<kMulticastB>(to_b, full);
    }
  }

  JAXBW_DEVICE void advance() {
    a.advance();
    b.advance();
    b_up.advance();
  }

  static constexpr bool kMayBeResidual = false;
};

// Load role: one warp. A gated matmul's tile of B is half gate, half up, side by side.
template <Config kConfig>
JAXBW_DEVICE void load_grouped_tiles(const Context& context, const GroupedParams& params) {
  const GemmParams& p = params.gemm;
  const uint32_t step = gridDim.x;
  const LoadShare everything{divisor(1), 0, 0};
  const OperandsOfKernel<kConfig> operands;
  const bool contraction = operands.a_major() == Major::kMN, gated = p.tile_columns != kConfig.block_n;
  const uint32_t b_extent = gated ? kConfig.block_n / 2 : kConfig.block_n;
  const OperandTile a_tile = stage_tile<kConfig>(operands.a_major(), p.block_m);
  const OperandTile b_tile = stage_tile<kConfig>(operands.b_major(), kConfig.block_n);
  GroupedLoaders load{{p.a, a_tile, kConfig.input, 0, p.block_m, everything},
                      {p.b, b_tile, kConfig.input, 0, b_extent, everything},
                      {p.b_up, b_tile, kConfig.input, b_extent, b_extent, everything},
                      contraction,
                      gated};
  context.await_barriers();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params, contraction);
  RingPosition at = RingPosition::producer(p.stages);
  GroupedItem next = items.at(blockIdx.x);
  for (uint32_t number = blockIdx.x; number < items.count(); number += step) {
    context.profile.enter(Activity::kNextItem, number);
    const GroupedItem item = next;
    next = items.at(number + step);
    load.start_at(item);
    fill_stages<false, false>(context, load, at, items.blocks(item));
  }
  context.profile.enter(Activity::kAwaitExit);
}

// Multiply role: two warpgroups of warps 0-3 and 4-7, which share tiles or take turns at them, as multiply_tiles says.
template <Config kConfig>
JAXBW_DEVICE void multiply_grouped_tiles(const Context& context, const GroupedParams& params, uint32_t warp) {
  constexpr uint32_t kAccumulators = kConfig.accumulators();
  ptx::increase_registers<kConsumerRegisters>();
  const GemmParams& p = params.gemm;
  const bool contraction = OperandsOfKernel<kConfig>().a_major() == Major::kMN, pingpong = p.pingpong != 0;
  const uint32_t warpgroup = warp / kWarpgroupWarps, warp_in_warpgroup = warp % kWarpgroupWarps;
  const uint32_t first_row = pingpong ? 0 : warpgroup * kConfig.warpgroup_rows;
  const uint32_t row = first_row + warp_in_warpgroup * kSm90Epilogue.rows_per_warp, step = gridDim.x;
  StageReader reader(context.ring(), p.stages, context.cluster, context.rank, warp_in_warpgroup);
  GroupedStores stores(p, context.staging(warp), contraction);
  DelayedStores<kConfig.block_n, kAccumulators, GroupedStores> delayed(p, stores);
  const Turn turn(warpgroup);
  context.await_barriers();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params, contraction);
  GroupedItem next = items.at(blockIdx.x);
  for (uint32_t number = blockIdx.x, count = 0; number < items.count(); number += step, ++count) {
    const GroupedItem item = next;
    next = items.at(number + step);
    const uint32_t blocks = items.blocks(item);
    if (pingpong && count % kConsumerWarpgroups != warpgroup) {
      reader.skip(blocks);
      continue;
    }
    context.profile.enter(Activity::kNextItem, number);
    const StoreOrigin tile = contraction ? StoreOrigin{item.row, item.column, item.group.matrix}
                                         : StoreOrigin{GroupedItems::ragged(item), item.column, item.group.other_end};
    // Rows of no group stay zeros.
    const bool elementwise = p.epilogue.path == EpiloguePath::kElementwise && item.group.matrix != kNoMatrix;
    float accumulators[kAccumulators];
    HeldBias<kConfig.block_n> bias;
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
      if (elementwise && !contraction) bias.load(p, bias_of(p, item.group.matrix), tile, row);
    };
    if (blocks > 0) {
      multiply<kConfig>(accumulators, context, blocks, first_row, reader, meanwhile, issued);
    } else {  // no stage to wait for, or to let go of
#pragma unroll
      for (float& sum : accumulators) sum = 0;
      issued();
    }
    context.profile.enter(Activity::kEpilogue);
    delayed.store_all();
    if (elementwise && contraction) {
      scale_by_alpha(accumulators, p.epilogue);
    } else if (elementwise) {
      apply_elementwise(accumulators, p.epilogue, bias);
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
}

template <Config kConfig>
JAXBW_DEVICE void grouped_gemm(const GroupedParams& params, ProfileArgument profile = {}) {
  const GemmParams& p = params.gemm;
  const RequestedParameters requested(p, threadIdx.x / ptx::kWarpSize == kRequestWarp);
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Context context{{p, cluster_shape(1, 1, 1), 0, storage_layout(p.block_m, kConfig.block_n, 1, kSm90Epilogue),
                         ptx::shared_address(shared_memory), Profile(profile)},
                        kConfig.block_k()};
  const uint32_t warp = ptx::warp_index();
  if (warp >= kWarpgroupWarps) {
    multiply_grouped_tiles<kConfig>(context, params, warp - kWarpgroupWarps);
    context.profile.enter(Activity::kAwaitExit);
    return context.profile.finish();
  }
  ptx::decrease_registers<kLoadRegisters>();
  if (warp == kLoadWarp) {
    load_grouped_tiles<kConfig>(context, params);
    return context.profile.finish();
  }
  if (warp == kInitWarp) {
    if (ptx::elect_one()) init_barriers(context);
  } else if (warp == kRequestWarp) {
    requested.await();
  } else if (ptx::elect_one()) {
    ptx::prefetch_tensor_map(p.a);
    ptx::prefetch_tensor_map(p.b);
    ptx::prefetch_tensor_map(p.d);
  }
  __syncwarp();
  context.await_barriers();
  context.profile.pair_clocks();
  if (warp == kClearWarp && OperandsOfKernel<kConfig>().a_major() == Major::kMN) {
    context.profile.enter(Activity::kStore);
    clear_empty_groups(params);
  }
  context.profile.enter(Activity::kAwaitExit);
  context.profile.finish();
}

}  // namespace jaxbw::sm90
