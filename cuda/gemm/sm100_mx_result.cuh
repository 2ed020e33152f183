// Results in MXFP8: what a lane has of a chunk, kMxBlock columns of a row of D, is a block that shares a scale. Scales
// go to tiles as those of operands lie (MxParams in params.h), so that a next matmul reads D as its A. A tile of D is
// whole tiles of scales, whose padding is zero bytes: it is of blocks of zeros.
#pragma once

#include "gemm/block_formats.cuh"
#include "gemm/storage.h"
#include "params.h"
#include "ptx/global.h"

namespace jaxbw::sm100 {

// Of kernels without scales of blocks.
struct NoMxResult {
  static constexpr bool kOfMx = false;
};

// One warp's, of one tile.
class MxResult {
 public:
  static constexpr bool kOfMx = true;

  // `tiles`: null where D is not in MXFP8. `accumulator_step`: mx_accumulator_step().
  JAXBW_DEVICE MxResult(uint8_t* tiles, uint32_t accumulator_step)
      : tiles_(tiles), accumulator_step_(accumulator_step) {}

  JAXBW_DEVICE bool wanted() const { return tiles_ != nullptr; }
  JAXBW_DEVICE uint32_t accumulator_step() const { return accumulator_step_; }

  // Divides a block by its scale, which is kept until there are four. It starts at (row, column), a multiple of
  // kMxBlock; its first `inside` values are elements of D, and others become 0. Called along the columns.
  JAXBW_DEVICE void apply(float (&values)[kMxBlock], const GemmParams& p, uint32_t batch, uint32_t row, uint32_t column,
                          uint32_t inside) {
    uint32_t amax = 0;  // as bits, which are ordered as magnitudes; then come infinity and NaN
#pragma unroll
    for (uint32_t i = 0; i < kMxBlock; ++i) {
      if (i >= inside) values[i] = 0;
      amax = max(amax, __float_as_uint(values[i]) & 0x7fffffff);
    }
    uint32_t code = 0;
    const Format::Scale scale = Format().scale_of(amax, code);
#pragma unroll
    for (uint32_t i = 0; i < kMxBlock; ++i) values[i] = ptx::multiply_flushed(values[i], scale.inverse);
    codes_ = codes_ >> 8 | code << 24;
    constexpr uint32_t kTileColumns = kMxBlock * kScaleTileBlocks;
    if (column % kTileColumns == kTileColumns - kMxBlock) store(p, batch, row, column / kTileColumns);
  }

 private:
  using Format = MxFormat<DataType::kE4M3>;

  // The scales of a row's blocks in one tile.
  JAXBW_DEVICE void store(const GemmParams& p, uint32_t batch, uint32_t row, uint32_t column_tile) const {
    const uint32_t row_tile = row / kScaleTileRows, row_tiles = scale_tiles(p.m), column_tiles = scale_tiles(p.n);
    if (row_tile >= row_tiles || column_tile >= column_tiles) return;
    const uint64_t tile = (uint64_t{batch} * row_tiles + row_tile) * column_tiles + column_tile;
    ptx::store_global(reinterpret_cast<uint64_t>(tiles_) + tile * kScaleTileBytes + scale_offset(row), codes_);
  }

  uint8_t* tiles_;
  uint32_t accumulator_step_, codes_ = 0;
};

}  // namespace jaxbw::sm100
