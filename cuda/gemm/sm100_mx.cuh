// The sm_100 kernel of MX formats: operands of 8 bits with a power of two for each 32 of K, by which the tensor core
// multiplies. Everything but loading and multiplying is that of the other kernels; how scales lie is said at MxParams
// in params.h, and in storage.h.
//
// A CTA loads the scales of its rows of A and, of a pair too, those of all columns of B: by TMA, on the barrier of the
// stage. Ahead of a stage's MMAs the leader copies them into Tensor Memory, at the leader for both.
#pragma once

#include "gemm/descriptors.h"
#include "gemm/sm100_load.cuh"

namespace jaxbw::sm100 {

// The loads of scales, as the load role does them beside those of operands.
template <uint32_t kCtaGroup>
class ScaleLoads {
 public:
  JAXBW_DEVICE ScaleLoads(const MxParams& params, const Context& context)
      : params_(params), first_stage_(context.a(params.gemm.stages)) {}

  JAXBW_DEVICE uint32_t stage_bytes() const { return mx_stage_bytes(params_.gemm.block_n, params_.gemm.k_spans); }

  // A stage that is empty is so for Tensor Memory, too, whose columns the multiply role then overwrites: the load role
  // hands on what it was told (PTX 9.7.16.6.4).
  JAXBW_DEVICE void pass_on() const {
    ptx::tcgen05_fence_after_sync();
    ptx::tcgen05_fence_before_sync();
  }

  JAXBW_DEVICE void start_at(const Tile& origin, uint32_t k) {
    const GemmParams& p = params_.gemm;
    k_tile_ = k / (kMxBlock * kScaleTileBlocks);
    a_tile_ = origin.batch * p.a_batched * scale_tiles(p.m) + origin.m / kScaleTileRows;
    b_tile_ = origin.batch * p.b_batched * scale_tiles(p.n) + origin.n / kScaleTileRows;
  }

  JAXBW_DEVICE void load(uint32_t slot, uint32_t barrier) {
    const uint32_t part = params_.gemm.k_spans * kScaleTileBytes;
    uint32_t destination = first_stage_ + slot * stage_bytes();
    copy(destination, params_.a_scales, a_tile_, barrier);
#pragma unroll 1
    for (uint32_t tile = 0; tile < scale_tiles(params_.gemm.block_n); ++tile) {
      destination += part;
      copy(destination, params_.b_scales, b_tile_ + tile, barrier);
    }
    k_tile_ += params_.gemm.k_spans;
  }

 private:
  JAXBW_DEVICE void copy(uint32_t destination, const TensorMap& map, uint32_t row_tile, uint32_t barrier) const {
    const ptx::BoxOrigin box{0, k_tile_, row_tile};
    if constexpr (kCtaGroup == 2) {
      if (ptx::elect_one()) ptx::tma_load_pair(destination, map, box, barrier & ptx::kPairLeaderMask);
    } else {
      if (ptx::elect_one()) ptx::tma_load(destination, map, box, barrier);
    }
  }

  const MxParams& params_;
  uint32_t first_stage_;
  uint32_t k_tile_ = 0, a_tile_ = 0, b_tile_ = 0;
};

// Multiply role, as multiply_tiles has it for the other kinds.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void multiply_mx_tiles(const Context& context, uint32_t tmem) {
  const GemmParams& p = context.params;
  const uint32_t mma_rows = context.mma_rows(), stage_step = context.layout.stage_bytes() >> 4;
  const UmmaOperand a(context.a(0), context.a_tile(), mma_rows), b(context.b(0), context.b_tile(), mma_rows);
  const uint32_t a_to_b = b.first - a.first;
  const uint32_t instruction =
      mx_instruction(p.a_type, p.b_type, p.a_major, p.b_major, mma_rows * kCtaGroup, p.block_n);
  const auto sources = static_cast<uint16_t>(context.cluster.source_mask(context.rank));
  const auto group = static_cast<uint16_t>(context.cluster.group_mask(context.rank));
  const uint32_t k_blocks = context.k_blocks(), k_spans = p.k_spans, parts = 1 + scale_tiles(p.block_n);
  const uint32_t scale_columns = mx_stage_tiles(p.block_n, k_spans) * kScaleTileColumns;
  const uint32_t scales = tmem + ptx::kTmemColumns - p.stages * scale_columns;  // those of the first stage
  const uint64_t source = scales_descriptor(context.a(p.stages));
  const uint32_t source_low = static_cast<uint32_t>(source), source_high = static_cast<uint32_t>(source >> 32);
  const RingBarriers stages = context.stages(), accumulators = context.accumulators();
  RingPosition stage = RingPosition::consumer(p.stages), accumulator = RingPosition::producer(p.accumulators);
  WorkItems items(context);
  for (uint32_t number = items.first(); number != WorkItems::kNone; number = items.next()) {
    context.profile.enter(Activity::kNextItem, number);
    uint32_t left = context.k_blocks_of(number, k_blocks).count;
    // In columns: where the tile begins in its first tile of B's scales.
    const uint32_t b_first = context.origin(work_item(p, number).tile).n % kScaleTileRows / ptx::kWarpSize;
    context.profile.enter(Activity::kAwaitAccumulator, accumulator.slot());
    accumulators.wait_empty(accumulator);
    const uint32_t d = tmem + accumulator.slot() * kAccumulatorColumns;
    bool accumulate = false;
    do {
      RingRun run = RingRun::consumer(stages, stage, left);
      uint32_t slot = stage.slot();
      left -= run.slots();
      stage.advance(run.slots());
#pragma unroll 1
      do {
        context.profile.enter(Activity::kAwaitFull, run.slot());
        run.wait_full();
        context.profile.enter(Activity::kMultiply, run.slot());
        ptx::tcgen05_fence_after_sync();
        uint32_t a_low = a.first + slot * stage_step, b_low = a_low + a_to_b;
        uint32_t at = scales + slot * scale_columns;
        uint32_t from = source_low + slot * (mx_stage_bytes(p.block_n, k_spans) >> 4);
#pragma unroll 1
        for (uint32_t span = 0; span < k_spans; ++span) {
#pragma unroll 1
          for (uint32_t part = 0; part < parts; ++part) {
            const uint64_t tile = ptx::wide(from + part * (k_spans * kScaleTileBytes >> 4), source_high);
            if (ptx::elect_one()) ptx::tmem_copy_scales<kCtaGroup>(at + part * kScaleTileColumns, tile);
          }
#pragma unroll
          for (uint32_t step = 0; step < kMmasPerSpan; ++step) {
            const uint64_t a_at = ptx::wide(a_low + step * a.step, kUmmaDescriptorHigh);
            const uint64_t b_at = ptx::wide(b_low + step * b.step, kUmmaDescriptorHigh);
            if (ptx::elect_one()) {
              ptx::umma_scaled<kCtaGroup>(d, a_at, b_at, instruction + step * kNextScale, at,
                                          at + kScaleTileColumns + b_first, accumulate || step > 0);
            }
          }
          accumulate = true;
          a_low += a.span_step;
          b_low += b.span_step;
          at += parts * kScaleTileColumns;
          from += kScaleTileBytes >> 4;
        }
        if (ptx::elect_one()) ptx::umma_commit<kCtaGroup>(run.signalled(), sources);
        ++slot;
      } while (run.next());
    } while (left > 0);
    if (ptx::elect_one()) ptx::umma_commit<kCtaGroup>(accumulators.full(accumulator.slot()), group);
    accumulator.advance(1);
  }
  context.profile.enter(Activity::kAwaitExit);
  if (kCtaGroup > 1) accumulators.await_empty(accumulator, p.accumulators);
}

}  // namespace jaxbw::sm100
