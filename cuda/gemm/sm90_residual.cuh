// A residual that comes by TMA: the load role brings its tile through the ring, behind the last block of K, and a
// multiplying warp adds it to its accumulators where EpiloguePath::kElementwise has left them.
//
//   ring     [ K block ][ K block ][ K block ][ residual ][ residual ][ K block ]...      stages
//                                              0 1 2       3                              boxes of columns of the tile
//
// Read from global memory when it is wanted, it would cost more than the whole of a short main loop: 645 instructions
// for each block of 16x32 sums, whose loads wait for memory one after the other.
//
// Each CTA loads its own tile; nobody multicasts it. All CTAs of a cluster have the same stages in the same order,
// though, and a warpgroup lets go of one of these as of any other: it tells all who load for it, since they write there
// next.
//
// Only in clusters of one row or one column of CTAs. A stage of K cannot be full in CTA R before CTA X, which loads for
// it, has loaded; a stage of the residual can. So R may let go of it while X still waits for somebody to let go of what
// the slot held before, and X's empty barrier takes R's arrival for that one. In a row or column nothing comes of it:
// all of its CTAs load for each other, so R's own barrier has told that everybody had read, and X's barrier passes its
// next phase only when all arrivals of both have come. In 2x2 the CTA across the corner tells X and not R: X would
// overwrite what it still reads. (The emulator found it, under the schedule "pct".)
#pragma once

#include "gemm/epilogue.h"
#include "gemm/sm90_context.h"
#include "gemm/sm90_formula.cuh"
#include "gemm/sm90_stages.h"
#include "gemm/store_ring.h"
#include "ptx/fragments.h"
#include "ptx/tma.h"

namespace jaxbw::sm90 {

// Known when compiled but for how the warpgroups divide the work.
template <Config kConfig>
JAXBW_DEVICE uint32_t residual_stage_boxes(const GemmParams& p) {
  return p.pingpong != 0 ? residual_tile(kConfig.warpgroup_rows, kConfig.block_n).stage_boxes
                         : residual_tile(kConsumerWarpgroups * kConfig.warpgroup_rows, kConfig.block_n).stage_boxes;
}

// The load role's part. What lies outside of the matrix comes as zeros, and counts: so there is nothing to tell apart.
template <Config kConfig>
JAXBW_DEVICE void load_residual(const Context& context, RingPosition& at, Tile origin) {
  constexpr ResidualTile kTile = residual_tile(kConfig.warpgroup_rows, kConfig.block_n);
  const GemmParams& p = context.params;
  const RingBarriers ring = context.ring();
  const uint32_t box_bytes = p.block_m * kTile.row_bytes(), stage_boxes = residual_stage_boxes<kConfig>(p);
  ptx::BoxOrigin box{origin.n, origin.m, origin.batch};
  for (uint32_t left = kTile.boxes(p.tile_columns); left > 0; at.advance()) {
    const uint32_t boxes = min(stage_boxes, left);
    context.profile.enter(Activity::kAwaitEmpty, at.slot());
    ring.wait_empty(at);
    context.profile.enter(Activity::kLoad, at.slot());
    if (ptx::elect_one()) {
      ptx::acquire_slot();
      const uint32_t full = ring.full(at.slot());
      ptx::mbarrier_arrive_expect_tx(full, boxes * box_bytes);
#pragma unroll 1
      for (uint32_t i = 0; i < boxes; ++i) {
        ptx::tma_load(context.a(at.slot()) + i * box_bytes, p.residual, {box.x + i * kTile.box.columns, box.y, box.z},
                      full);
      }
    }
    __syncwarp();
    box.x += boxes * kTile.box.columns;
    left -= boxes;
  }
}

// Adds a box, of whose rows this warp's start at the shared address `rows`, to the accumulators from kFirst on. The
// fragments of ldmatrix are those of wgmma (ptx/wgmma.h): matrices are rows 0-7 and 8-15 of eight columns, then of the
// next eight.
template <DataType kType, uint32_t kColumns, uint32_t kFirst, uint32_t kCount>
JAXBW_DEVICE void add_box(float (&accumulators)[kCount], uint32_t rows) {
  const uint32_t first = staged_fragments<kColumns * size_bytes(kType)>(rows);
#pragma unroll
  for (uint32_t i = 0; i < kColumns / kFragmentColumns; i += 2) {
    uint32_t pairs[4];
    ptx::ldmatrix_x4(pairs, staged_chunk(first, i));
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      float* const sums = accumulators + kFirst + i * 4 + j * 2;
      sums[0] += ptx::widen<kType>(static_cast<uint16_t>(pairs[j]));
      sums[1] += ptx::widen<kType>(static_cast<uint16_t>(pairs[j] >> 16));
    }
  }
}

// The multiply role's part. `row`: the warp's first one in the tile. Of a gated matmul the first half of an m64's
// registers is results.
template <Config kConfig>
JAXBW_DEVICE void add_residual(float (&accumulators)[kConfig.accumulators()], const Context& context,
                               uint32_t warpgroup, uint32_t row, StageReader& reader) {
  constexpr ResidualTile kResidual = residual_tile(kConfig.warpgroup_rows, kConfig.block_n);
  constexpr uint32_t kColumns = kResidual.box.columns, kTile = registers_of(kConfig.block_n);
  static_assert(kBlockRows * kResidual.row_bytes() % kSwizzleAtom ==
                0);  // so a warp's rows start a pattern of their own
  const GemmParams& p = context.params;
  const bool bf16 = p.epilogue.residual.type == DataType::kBF16;
  const uint32_t box_bytes = p.block_m * kResidual.row_bytes(), stage_boxes = residual_stage_boxes<kConfig>(p);
  const uint32_t boxes = kResidual.boxes(p.tile_columns);
  uint32_t slot = 0, in_stage = 0;
  for_each_step<registers_of(kColumns), kTile>([&]<uint32_t kFirst>() {
    constexpr uint32_t kBox = kFirst / registers_of(kColumns);
    if (kBox >= boxes) return;
    if (in_stage == 0) slot = reader.acquire();  // not stamped: 64x256 has no register left for that
    const uint32_t rows = context.a(slot) + in_stage * box_bytes + row * kResidual.row_bytes();
    for_each_step<kTile, kConfig.accumulators()>([&]<uint32_t kBelow>() {
      const uint32_t below = rows + kBelow / kTile * kWgmmaRows * kResidual.row_bytes();
      if (bf16) {
        add_box<DataType::kBF16, kColumns, kBelow + kFirst>(accumulators, below);
      } else {
        add_box<DataType::kF16, kColumns, kBelow + kFirst>(accumulators, below);
      }
    });
    if (++in_stage < stage_boxes && kBox + 1 < boxes) return;
    in_stage = 0;
    // A warp reads its own rows, and lets go of the stage for all of them.
    ptx::named_barrier_sync(kFirstWarpgroupBarrier + warpgroup, kWarpgroupWarps * ptx::kWarpSize);
    ptx::release_slot();
    reader.release(slot);
  });
}

}  // namespace jaxbw::sm90
