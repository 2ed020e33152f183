// The load role of a grouped matmul that gathers: indices choose the rows of A (GatheredParams), whose tile no tensor
// map describes. So all four load warps copy it, 16 bytes a lane, and one of them has TMA load B beside it. Both count
// on a stage's full barrier:
//
//   full    1 arrival that announces B's bytes, one of each load thread once its copies are complete, and the bytes
//
// What threads copy, wgmma reads through another proxy: the multiplying warps have a fence between (acquire_operands).
#pragma once

#include "gemm/grouped_items.cuh"
#include "gemm/sm90.cuh"
#include "ptx/async_copy.h"

namespace jaxbw::sm90 {

constexpr uint32_t kLoadThreads = kWarpgroupWarps * ptx::kWarpSize;

// A load thread's part of a tile of A: the same 16 bytes of a block of K, of every kStep-th row.
template <Config kConfig>
class GatheredRows {
 public:
  JAXBW_DEVICE GatheredRows(const GatheredParams& params, uint32_t thread)
      : params_(params),
        row_bytes_(params.grouped.gemm.k << OperandsOfKernel<kConfig>(params.grouped.gemm).element_log2()),
        first_(thread / kChunks),
        column_(thread % kChunks * ptx::kAsyncCopyBytes),
        two_warpgroups_(params.grouped.gemm.block_m > kConfig.warpgroup_rows) {
    const uint32_t swizzled = column_ ^ first_ % kSwizzleRows * ptx::kAsyncCopyBytes;
    offset_ = first_ * kSwizzleSpan + swizzled;
  }

  // The next blocks are those of an item, which has some. Its indices are read here, and no others: there are none
  // behind the last row.
  JAXBW_DEVICE void start_at(const GroupedItem& item) {
    const uint32_t rows = min(item.group.rows, params_.grouped.gemm.block_m);
    const int32_t* const indices = params_.a.indices + (item.group.a_end - item.group.rows);
    left_ = max(rows, first_) - first_;
    at_ = column_;
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      const int32_t index = is_there(i) ? max(indices[first_ + i * kStep], 0) : 0;
      rows_[i] = min(static_cast<uint32_t>(index), params_.a.source_rows - 1);
    }
  }

  // Copies a block of K to a stage; rows that are not there, and what is behind the end of K, become zeros.
  JAXBW_DEVICE void load(uint32_t to_a) const {
    const uint32_t bytes = at_ < row_bytes_ ? ptx::kAsyncCopyBytes : 0;
    const uint8_t* const source = params_.a.source + at_;
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      if (i * kStep == kConfig.warpgroup_rows && !two_warpgroups_) break;
      ptx::async_copy(to_a + offset_ + i * kStep * kSwizzleSpan, source + uint64_t{rows_[i]} * row_bytes_,
                      is_there(i) ? bytes : 0);
    }
  }

  JAXBW_DEVICE void advance() { at_ += kSwizzleSpan; }

 private:
  static constexpr uint32_t kChunks = kSwizzleSpan / ptx::kAsyncCopyBytes;  // of a row of a block
  static constexpr uint32_t kStep = kLoadThreads / kChunks;
  static constexpr uint32_t kRows = kConsumerWarpgroups * kConfig.warpgroup_rows / kStep;
  static_assert(kStep % kSwizzleRows == 0);  // so that all rows of a thread are swizzled alike

  JAXBW_DEVICE bool is_there(uint32_t i) const { return i * kStep < left_; }

  const GatheredParams& params_;
  uint32_t row_bytes_;
  uint32_t first_, column_, offset_;  // first row of the tile, byte of a block's row, both in a stage
  bool two_warpgroups_;               // share a tile, which has the rows of both
  uint32_t rows_[kRows];              // of the source
  uint32_t left_ = 0, at_ = 0;        // rows of the tile from the first one on; byte of the source's row
};

// Load role: four warps. A gated matmul's tile of B is half gate, half up, side by side.
template <Config kConfig>
JAXBW_DEVICE void load_gathered_tiles(const Context& context, const GatheredParams& params, uint32_t warp) {
  const GemmParams& p = params.grouped.gemm;
  const LoadShare everything{divisor(1), 0, 0};
  const bool gated = p.tile_columns != kConfig.block_n;
  const uint32_t b_extent = gated ? kConfig.block_n / 2 : kConfig.block_n;
  const OperandTile b_tile = OperandsOfKernel<kConfig>(p).b_tile(kConfig.block_n);
  GatheredRows<kConfig> a(params, threadIdx.x);
  GroupedWeights b{{p.b, b_tile, 0, b_extent, everything}, {p.b_up, b_tile, b_extent, b_extent, everything}, gated};
  const RingBarriers ring = context.ring();
  RingPosition at = RingPosition::producer(p.stages);
  context.await_barriers();
  context.profile.pair_clocks();
  context.profile.enter(Activity::kAwaitUpstream);
  ptx::wait_for_upstream();
  const GroupedItems items(params.grouped, false);
  RequestedItem next = items.request(blockIdx.x);
  for (uint32_t number = blockIdx.x; number < items.count(); number += gridDim.x) {
    context.profile.enter(Activity::kNextItem, number);
    const GroupedItem item = items.item(next);
    next = items.request(number + gridDim.x);
    uint32_t blocks = items.blocks(item, context.block_k_log2());
    if (blocks == 0) continue;
    a.start_at(item);
    b.start_at(item);
    for (; blocks > 0; --blocks, at.advance()) {
      context.profile.enter(Activity::kAwaitEmpty, at.slot());
      ring.wait_empty(at);
      context.profile.enter(Activity::kLoad, at.slot());
      const uint32_t full = ring.full(at.slot());
      if (warp == kLoadWarp && ptx::elect_one()) {
        const uint32_t to_b = context.b(at.slot());
        ptx::mbarrier_arrive_expect_tx(full, b_tile.bytes());
        b.template load<false>(to_b, full);
      }
      __syncwarp();
      a.load(context.a(at.slot()));
      ptx::async_copy_arrive(full);
      a.advance();
      b.advance();
    }
  }
  context.profile.enter(Activity::kAwaitExit);
  ring.await_empty(at, p.stages);  // no thread leaves copies behind
}

}  // namespace jaxbw::sm90
