// Adds up what the parts of split tiles have left (split_k.h), and applies the epilogue: a launch behind that of the
// Hopper kernel, with the same parameters. Where a matmul has few tiles in many parts, the warps that come last would
// be a few SMs' work; here all SMs share it. Bound by L2: every sum is read once.
#pragma once

#include "gemm/reduce.h"
#include "gemm/request_parameters.h"
#include "gemm/sm90_formula.cuh"
#include "gemm/split_k.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/programmatic_launch.h"

namespace jaxbw::sm90 {

constexpr uint32_t kReduceFirstBarrier = 1;  // named barriers, one for each warpgroup; 0 is __syncthreads'
constexpr uint32_t kReduceRequestWarp = kReduceThreads / ptx::kWarpSize - 1;
static_assert(kReduceWarpgroupThreads / ptx::kWarpSize * kFragmentColumns == kBlockColumns);

// What a warpgroup adds up: the chunk of a CTA's tile whose first row and column are `box`.
struct ReducedChunk {
  StoreOrigin box;
  SplitSum sums;
  uint32_t first;      // value of a lane with which the chunk begins, in the sums of its slice,
  uint32_t half_step;  // and how much further on it does in the other half of a gated matmul
};

class ReducedChunks {
 public:
  JAXBW_DEVICE explicit ReducedChunks(const GemmParams& p)
      : p_(p),
        down_(p.block_m / kBlockRows),
        count_((p.work_items - p.whole_tiles) / p.split_k * p.cluster.tiles.value * p.tile_slices.value) {}

  JAXBW_DEVICE uint32_t count() const { return count_; }

  // The chunks of a CTA's tile are numbered down the rows first, those of its cluster one CTA after the other.
  JAXBW_DEVICE ReducedChunk chunk(uint32_t index) const {
    const uint32_t cta = index / p_.tile_slices, number = index % p_.tile_slices;
    const uint32_t below = number & (down_ - 1), beside = number >> __popc(down_ - 1);
    const uint32_t split_tile = cta / p_.cluster.tiles, rank = cta % p_.cluster.tiles;
    const Tile tile = rasterise(p_.whole_tiles + split_tile, p_.order);
    const Tile origin = cta_origin(p_, p_.cluster, tile, rank);
    const StoreOrigin box{origin.m + below * kBlockRows, origin.n + beside * kBlockColumns, origin.batch};
    const WorkItem item{tile, 0, p_.split_k.value, split_tile};
    if (p_.cluster.k.value > 1) {  // a chunk is a slice
      const uint32_t halves = p_.epilogue.gated != 0 ? 2 : 1;
      return {box, SplitSum(p_, item, index, halves * kChunk * ptx::kWarpSize), 0, kChunk};
    }
    // A slice is what a warp has: 16 rows of each m64 of its warpgroup.
    const uint32_t rows_of_warpgroup = sm90_warpgroup_rows(down_, p_.pingpong != 0);
    const uint32_t warpgroup = below >> __popc(rows_of_warpgroup - 1), row = below & (rows_of_warpgroup - 1);
    const uint32_t slice = cta * kSm90Epilogue.warps + warpgroup * kSm90WarpgroupWarps + row % kSm90WarpgroupWarps;
    const uint64_t floats = partial_floats(rows_of_warpgroup / kSm90WarpgroupWarps * p_.block_n, kSm90Epilogue);
    const uint32_t first = row / kSm90WarpgroupWarps * registers_of(p_.block_n) + beside * kChunk;
    return {box, SplitSum(p_, item, slice, floats), first, registers_of(p_.tile_columns)};
  }

 private:
  const GemmParams& p_;
  uint32_t down_, count_;  // a power of two
};

JAXBW_DEVICE void reduce(const GemmParams& p) {
  __shared__ __align__(kSwizzleAtom) float shared_blocks[kReduceWarpgroups][2][kBlockRows * kBlockColumns];
  const uint32_t warpgroup = threadIdx.x / kReduceWarpgroupThreads, thread = threadIdx.x % kReduceWarpgroupThreads;
  const uint32_t fragment = thread / ptx::kWarpSize, halves = p.epilogue.gated != 0 ? 2 : 1;
  const SumBlocks blocks{ptx::shared_address(shared_blocks[warpgroup])};
  const auto await_warpgroup = [&] {
    ptx::named_barrier_sync(kReduceFirstBarrier + warpgroup, kReduceWarpgroupThreads);
  };
  const bool asks = threadIdx.x / ptx::kWarpSize == kReduceRequestWarp;
  const RequestedParameters requested(p, asks);
  if (asks) requested.await();
  const ReducedChunks chunks(p);
#pragma unroll 1
  for (uint32_t i = warpgroup * gridDim.x + blockIdx.x; i < chunks.count(); i += kReduceWarpgroups * gridDim.x) {
    const ReducedChunk chunk = chunks.chunk(i);
    if (chunk.box.row >= p.m || chunk.box.column >= p.n) continue;
    ptx::wait_for_upstream();  // the first time: all that could be known before is
#pragma unroll 1
    for (uint32_t half = 0; half < halves; ++half) {
      float sums[4];
      chunk.sums.gather_in_flight<kReduceInFlight>(sums, chunk.first + half * chunk.half_step + fragment * 4);
      stage_fragment(sums, first_fragment(blocks.at(half)), fragment);
    }
    await_warpgroup();
    OutputScale out_scale(p);
    finish_block<kReduceWarpgroupThreads>(p, blocks, chunk.box, thread, out_scale);
    out_scale.leave_maximum(chunk.box.batch);
    await_warpgroup();
  }
}

}  // namespace jaxbw::sm90
