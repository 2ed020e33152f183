// The sm_100 kernels of formats with a scale for each block of K, by which the tensor core multiplies: of 8 bits MXFP8,
// of 4 bits MXFP4 and NVFP4, and MXFP4 beside MXFP8 (kE2M1Padded). Everything but loading and multiplying is that of
// the other kernels; how scales lie is said at MxParams in params.h, and in storage.h.
//
// A CTA loads the scales of its rows of A and, of a pair too, those of all columns of B: by TMA, on the barrier of the
// stage. Ahead of a stage's MMAs the leader copies them into Tensor Memory, at the leader for both. Of a gated tile
// half of B's columns, those of one tile of scales, are the gate's, the others up's. Of a narrow one each has half a
// tile, which do not lie side by side: there gate and up are multiplied by an instruction each.
#pragma once

#include <type_traits>

#include "gemm/descriptors.h"
#include "gemm/sm100_load.cuh"

namespace jaxbw::sm100 {

// Tiles of scales along K in a swizzle span.
JAXBW_DEVICE uint32_t span_tiles(const MxParams&) { return span_scale_tiles(DataType::kE4M3, kMxBlock); }
JAXBW_DEVICE uint32_t span_tiles(const Mx4BitParams& params) { return params.span_tiles; }

// Tiles of B's scales in a tile of K.
JAXBW_DEVICE uint32_t b_tiles(const GemmParams& p) { return mx_b_tiles(p.block_n, p.epilogue.gated != 0); }

template <typename Params>
JAXBW_DEVICE uint32_t accumulator_step(const Params& params) {
  const GemmParams& p = params.gemm;
  return mx_accumulator_step(p.block_n, b_tiles(p), p.k_spans * span_tiles(params), p.stages, p.accumulators);
}

// The loads of scales, as the load role does them beside those of operands. Params: MxParams or Mx4BitParams.
template <uint32_t kCtaGroup, typename Params>
class ScaleLoads {
 public:
  static constexpr bool kKMajorOnly = std::is_same_v<Params, Mx4BitParams>;

  JAXBW_DEVICE ScaleLoads(const Params& params, const Context& context)
      : params_(params), first_stage_(context.a(params.gemm.stages)) {}

  JAXBW_DEVICE uint32_t stage_bytes() const { return mx_stage_bytes(b_tiles(params_.gemm), k_tiles()); }
  JAXBW_DEVICE uint32_t stage_gaps() const {
    if constexpr (kKMajorOnly)
      return 0;
    else
      return params_.stage_gaps;
  }

  // A stage that is empty is so for Tensor Memory, too, whose columns the multiply role then overwrites: the load role
  // hands on what it was told (PTX 9.7.16.6.4).
  JAXBW_DEVICE void pass_on() const {
    ptx::tcgen05_fence_after_sync();
    ptx::tcgen05_fence_before_sync();
  }

  JAXBW_DEVICE void start_at(const Tile& origin, uint32_t k) {
    const GemmParams& p = params_.gemm;
    k_tile_ = k * span_tiles(params_) / kSwizzleSpan;
    a_tile_ = origin.batch * p.a_batched * scale_tiles(p.m) + origin.m / kScaleTileRows;
    b_tile_ = origin.batch * p.b_batched * scale_tiles(p.n) + origin.n / kScaleTileRows;
  }

  // Of A and B, along all of K.
  JAXBW_DEVICE void start_at_tiles(uint32_t a_tile, uint32_t b_tile) {
    k_tile_ = 0;
    a_tile_ = a_tile;
    b_tile_ = b_tile;
  }

  JAXBW_DEVICE void load(uint32_t slot, uint32_t barrier) {
    const uint32_t part = k_tiles() * kScaleTileBytes;
    uint32_t destination = first_stage_ + slot * stage_bytes();
    const bool gated = params_.gemm.epilogue.gated != 0;
    copy(destination, params_.a_scales, a_tile_, barrier);
#pragma unroll 1
    for (uint32_t tile = 0; tile < b_tiles(params_.gemm); ++tile) {
      destination += part;
      const uint32_t up = gated ? tile : 0;
      copy(destination, params_.b_scales[up], b_tile_ + tile - up, barrier);
    }
    k_tile_ += k_tiles();
  }

 private:
  // Of a stage.
  JAXBW_DEVICE uint32_t k_tiles() const { return params_.gemm.k_spans * span_tiles(params_); }

  JAXBW_DEVICE void copy(uint32_t destination, const TensorMap& map, uint32_t row_tile, uint32_t barrier) const {
    const ptx::BoxOrigin box{0, k_tile_, row_tile};
    if constexpr (kCtaGroup == 2) {
      if (ptx::elect_one()) ptx::tma_load_pair(destination, map, box, barrier & ptx::kPairLeaderMask);
    } else {
      if (ptx::elect_one()) ptx::tma_load(destination, map, box, barrier);
    }
  }

  const Params& params_;
  uint32_t first_stage_;
  uint32_t k_tile_ = 0, a_tile_ = 0, b_tile_ = 0;
};

// Of a kind with scales.
template <ptx::UmmaKind kKind>
struct Scaled {
  static constexpr bool k8Bit = kKind == ptx::UmmaKind::kMx8Bit, kUe8m0 = kKind != ptx::UmmaKind::kNv4Bit;
  static constexpr uint32_t kSpanTiles =
      span_scale_tiles(k8Bit ? DataType::kE4M3 : DataType::kE2M1, kUe8m0 ? kMxBlock : kNvBlock);
  static constexpr uint32_t kTileMmas = kMmasPerSpan / kSpanTiles;  // that take their scales from one tile
  static constexpr uint32_t kNextMma = kScaleTileBlocks / kTileMmas * kNextScale;

  static constexpr uint32_t instruction(const GemmParams& p, uint32_t rows, uint32_t columns) {
    if (k8Bit) return mx_instruction(p.a_type, p.b_type, p.a_major, p.b_major, rows, columns);
    return mx_instruction(DataType::kE2M1, DataType::kE2M1, Major::kK, Major::kK, rows, columns, kUe8m0);
  }
};

// The tiles that a CTA or pair multiplies: their numbers, and of each the blocks that it has of all along K, and its
// first column.
class MxTiles : public WorkItems {
 public:
  template <typename Params>
  JAXBW_DEVICE MxTiles(const Params&, const Context& context) : WorkItems(context), context_(context) {}

  JAXBW_DEVICE uint32_t blocks(uint32_t number, uint32_t k_blocks) const {
    return context_.k_blocks_of(number, k_blocks).count;
  }
  JAXBW_DEVICE uint32_t column(uint32_t number) const {
    return context_.origin(work_item(context_.params, number).tile).n;
  }

 private:
  const Context& context_;
};

// Multiply role, as multiply_tiles has it for the other kinds. kParts: instructions side by side, 2 of a narrow gated
// tile.
template <uint32_t kCtaGroup, ptx::UmmaKind kKind, uint32_t kParts, typename Tiles, typename Params>
JAXBW_DEVICE void multiply_mx_tiles(const Params& params, const Context& context, uint32_t tmem) {
  using Kind = Scaled<kKind>;
  const GemmParams& p = context.params;
  constexpr uint32_t mma_rows = kTmemLanes;
  const uint32_t stage_step = context.layout.stage_bytes() >> 4;
  const UmmaOperand a(context.a(0), context.a_tile<!Kind::k8Bit>(), mma_rows);
  const UmmaOperand b(context.b(0), context.b_tile<!Kind::k8Bit>(), mma_rows);
  const uint32_t a_to_b = b.first - a.first;
  const uint32_t instruction = Kind::instruction(p, mma_rows * kCtaGroup, p.block_n / kParts);
  const auto sources = static_cast<uint16_t>(context.cluster.source_mask(context.rank));
  const auto group = static_cast<uint16_t>(context.cluster.group_mask(context.rank));
  const uint32_t k_blocks = context.k_blocks(), k_spans = p.k_spans, parts = 1 + b_tiles(p);
  const uint32_t k_tiles = k_spans * Kind::kSpanTiles;  // of a stage
  const uint32_t scale_columns = mx_stage_tiles(parts - 1, k_tiles) * kScaleTileColumns;
  const uint32_t scales = tmem + ptx::kTmemColumns - p.stages * scale_columns;  // those of the first stage
  const uint64_t source = scales_descriptor(context.a(p.stages));
  const uint32_t source_low = static_cast<uint32_t>(source), source_high = static_cast<uint32_t>(source >> 32);
  const RingBarriers stages = context.stages(), accumulators = context.accumulators();
  RingPosition stage = RingPosition::consumer(p.stages), accumulator = RingPosition::producer(p.accumulators);
  const uint32_t accumulator_columns = accumulator_step(params);
  Tiles tiles(params, context);
  for (uint32_t number = tiles.first(); number != WorkItems::kNone; number = tiles.next()) {
    context.profile.enter(Activity::kNextItem, number);
    uint32_t left = tiles.blocks(number, k_blocks);
    // In columns: where the tile begins in its first tile of B's scales.
    const uint32_t b_first = tiles.column(number) % kScaleTileRows / ptx::kWarpSize;
    context.profile.enter(Activity::kAwaitAccumulator, accumulator.slot());
    accumulators.wait_empty(accumulator);
    const uint32_t d = tmem + accumulator.turn(1) * accumulator_columns;
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
        uint32_t from = source_low + slot * (mx_stage_bytes(parts - 1, k_tiles) >> 4);
#pragma unroll 1
        for (uint32_t span = 0; span < k_spans; ++span) {
#pragma unroll
          for (uint32_t tile = 0; tile < Kind::kSpanTiles; ++tile) {
            const uint32_t a_scales = at + tile * parts * kScaleTileColumns, b_scales = a_scales + kScaleTileColumns;
            const uint32_t first = from + tile * (kScaleTileBytes >> 4);
#pragma unroll 1
            for (uint32_t part = 0; part < parts; ++part) {
              const uint64_t copied = ptx::wide(first + part * (k_tiles * kScaleTileBytes >> 4), source_high);
              if (ptx::elect_one()) ptx::tmem_copy_scales<kCtaGroup>(a_scales + part * kScaleTileColumns, copied);
            }
#pragma unroll
            for (uint32_t mma = 0; mma < Kind::kTileMmas; ++mma) {
              const uint32_t step = tile * Kind::kTileMmas + mma;
              const uint64_t a_at = ptx::wide(a_low + step * a.step, kUmmaDescriptorHigh);
#pragma unroll
              for (uint32_t part = 0; part < kParts; ++part) {
                constexpr uint32_t kColumns = kMxNarrowGatedColumns / 2;  // of each of several
                const uint32_t b_part = part * (kColumns * kSwizzleSpan >> 4);
                const uint64_t b_at = ptx::wide(b_low + step * b.step + b_part, kUmmaDescriptorHigh);
                if (ptx::elect_one()) {
                  ptx::umma_scaled<kCtaGroup, kKind>(
                      d + part * kColumns, a_at, b_at, instruction + mma * Kind::kNextMma, a_scales,
                      b_scales + part * kScaleTileColumns + b_first, accumulate || step > 0);
                }
              }
            }
          }
          accumulate = true;
          a_low += a.span_step;
          b_low += b.span_step;
          at += Kind::kSpanTiles * parts * kScaleTileColumns;
          from += Kind::kSpanTiles * kScaleTileBytes >> 4;
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

template <uint32_t kCtaGroup, ptx::UmmaKind kKind, typename Tiles, typename Params>
JAXBW_DEVICE void multiply_mx(const Params& params, const Context& context, uint32_t tmem) {
  if constexpr (kCtaGroup == 1) {
    const GemmParams& p = context.params;
    if (p.epilogue.gated != 0 && p.block_n == kMxNarrowGatedColumns) {
      return multiply_mx_tiles<kCtaGroup, kKind, 2, Tiles>(params, context, tmem);
    }
  }
  multiply_mx_tiles<kCtaGroup, kKind, 1, Tiles>(params, context, tmem);
}

// Of MxParams or Mx4BitParams.
template <uint32_t kCtaGroup, typename Tiles, typename Params>
JAXBW_DEVICE void multiply_scaled(const Params& params, const Context& context, uint32_t tmem) {
  if constexpr (std::is_base_of_v<MxParams, Params>) {
    multiply_mx<kCtaGroup, ptx::UmmaKind::kMx8Bit, Tiles>(params, context, tmem);
  } else if (params.span_tiles == Scaled<ptx::UmmaKind::kNv4Bit>::kSpanTiles) {
    multiply_mx<kCtaGroup, ptx::UmmaKind::kNv4Bit, Tiles>(params, context, tmem);
  } else {
    multiply_mx<kCtaGroup, ptx::UmmaKind::kMx4Bit, Tiles>(params, context, tmem);
  }
}

}  // namespace jaxbw::sm100
