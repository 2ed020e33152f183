// The load role of a grouped matmul that gathers: indices choose the rows of A (GatheredParams). A tensor map of rank
// 2, whose box is a span of one row, describes the array; each lane of the load warp has TMA bring four rows of a
// tile's block of K (tile::gather4, PTX 9.7.9.25.5.1). Rows that are not there have a number outside of the array, and
// become zeros.
#pragma once

#include "gemm/sm100_items.cuh"
#include "ptx/tma_gather.h"

namespace jaxbw::sm100 {

// The rows of a tile of A: a lane knows four.
class GatheredRows {
 public:
  JAXBW_DEVICE explicit GatheredRows(const GatheredParams& params)
      : params_(params), first_(ptx::lane_index() * ptx::kGatheredRows) {}

  // The next blocks are those of an item, which has some. There are no indices behind the last row.
  JAXBW_DEVICE void start_at(const GroupedItem& item) {
    const int32_t* const indices = params_.a.indices + (item.group.a_end - item.group.rows);
    const uint32_t rows = min(item.group.rows, params_.grouped.gemm.block_m);
#pragma unroll
    for (uint32_t i = 0; i < ptx::kGatheredRows; ++i) {
      constexpr uint32_t kNoRow = ~0u;
      const bool is_there = first_ + i < rows;
      const uint32_t index = is_there ? static_cast<uint32_t>(max(indices[first_ + i], 0)) : 0;
      rows_[i] = is_there ? min(index, params_.a.source_rows - 1) : kNoRow;
    }
  }

  // Loads the block at element k, counted on `barrier`. A warp calls.
  JAXBW_DEVICE void load(uint32_t to_a, uint32_t k, uint32_t barrier) const {
    const GemmParams& p = params_.grouped.gemm;
#pragma unroll 1
    for (uint32_t first = 0; first < p.block_m; first += kAtOnce * ptx::kGatheredRows) {
#pragma unroll
      for (uint32_t box = 0; box < kAtOnce; ++box) {
        const uint32_t row = first + box * ptx::kGatheredRows;
        uint32_t rows[ptx::kGatheredRows];
#pragma unroll
        for (uint32_t i = 0; i < ptx::kGatheredRows; ++i) {
          rows[i] = __shfl_sync(ptx::kFullWarp, rows_[i], row / ptx::kGatheredRows);
        }
        if (ptx::elect_one()) ptx::tma_gather(to_a + row * kSwizzleSpan, p.a, k, rows, barrier);
      }
    }
  }

 private:
  // Boxes in a step of the loop: a tile has a multiple of them. Unrolled, the four numbers of one are on their way to
  // uniform registers, where TMA takes them, while others are loaded.
  static constexpr uint32_t kAtOnce = 8;

  const GatheredParams& params_;
  uint32_t first_;
  uint32_t rows_[ptx::kGatheredRows];
};

// Load role: one warp.
template <Kind kKind>
JAXBW_DEVICE void load_gathered_tiles(const Context& context, const GatheredParams& params) {
  const GemmParams& p = context.params;
  constexpr uint32_t kBlockKLog2 = grouped_block_k_log2(kKind);
  const LoadShare everything{divisor(1), 0, 0};
  const bool gated = p.epilogue.gated != 0;
  const OperandTile a_tile = context.a_tile(), b_tile = context.b_tile();
  const uint32_t b_extent = gated ? p.b_columns / 2 : p.b_columns, bytes = a_tile.bytes() + b_tile.bytes();
  GatheredRows a(params);
  GroupedWeights b{{p.b, b_tile, 0, b_extent, everything}, {p.b_up, b_tile, b_extent, b_extent, everything}, gated};
  context.await_barriers();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params.grouped, false);
  const RingBarriers stages = context.stages();
  RingPosition at = RingPosition::producer(p.stages);
  for_each_item(context, items, [&](const GroupedItem& item) {
    const uint32_t blocks = items.blocks(item, kBlockKLog2);
    if (blocks == 0) return;
    a.start_at(item);
    b.start_at(item);
#pragma unroll 1
    for (uint32_t block = 0; block < blocks; ++block, at.advance()) {
      context.profile.enter(Activity::kAwaitEmpty, at.slot());
      stages.wait_empty(at);
      context.profile.enter(Activity::kLoad, at.slot());
      const uint32_t full = stages.full(at.slot());
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive_expect_tx(full, bytes);
        b.template load<false>(context.b(at.slot()), full);
      }
      __syncwarp();
      a.load(context.a(at.slot()), block << kBlockKLog2, full);
      b.advance();
    }
  });
  context.profile.enter(Activity::kAwaitExit);
  stages.await_empty(at, p.stages);
}

}  // namespace jaxbw::sm100
