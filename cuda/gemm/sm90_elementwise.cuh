// The formula of Epilogue (params.h) on accumulators where wgmma leaves them: Formula::kElementwise. What they become
// is then cast and stored as plain sums are, the later boxes of a tile beside the next one's products.
//
// The general way (sm90_formula.cuh) takes sums through shared memory, in blocks of 16x32 one after the other, 3000
// cycles each. Here an operation stands in the code once for each of many accumulators: hence the short activations
// only.
#pragma once

#include "gemm/sm90_epilogue.cuh"

namespace jaxbw::sm90 {

// Of a lane's accumulators, those of some fragments beside each other. `row`, `column`: where the first lies in D. (The
// layout is drawn in ptx/wgmma.h: of a fragment, eight columns, a lane has two neighbours, and two eight rows below.)
template <uint32_t kCount>
JAXBW_DEVICE void add_bias(float (&sums)[kCount], const GemmParams& p, uint32_t row, uint32_t column) {
  constexpr uint32_t kRowsBelow = 8;
  const EpilogueOperand bias = p.epilogue.bias;
  if (p.epilogue.bias_along_m != 0) {
    float of_row[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      of_row[i] = row + i * kRowsBelow < p.m ? load_element(bias, row + i * kRowsBelow) : 0.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) sums[i] += of_row[i % 4 / 2];
  } else {
    float of_column[kCount / 2];
    with_type(bias.type, [&]<DataType kType>() {
#pragma unroll
      for (uint32_t i = 0; i < kCount / 2; ++i) {
        const uint32_t at = column + i / 2 * kFragmentColumns + i % 2;
        of_column[i] = at < p.n ? load_element<kType>(bias.data, at) : 0.0f;
      }
    });
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) sums[i] += of_column[i / 4 * 2 + i % 2];
  }
}

// Sums -> what is left to be cast; as in apply_epilogue, `row` is the warp's first one in the tile. Of a gated product
// the first half of an m64's registers is gate, and becomes the result; the second is up.
//
// Registers have no run-time index: so it is always the first that are worked on, a quarter of an m64's columns, and
// then all move on. (More at once takes more registers than there are; each in its place, half as much code as all
// else.)
template <uint32_t kBlockN, uint32_t kCount>
JAXBW_DEVICE void apply_elementwise(float (&accumulators)[kCount], const GemmParams& p, StoreOrigin tile,
                                    uint32_t row) {
  constexpr uint32_t kTile = registers_of(kBlockN), kStep = kTile / 4;
  static_assert(kStep % registers_of(kFragmentColumns) == 0);
  const Epilogue& e = p.epilogue;
  const uint32_t lane = ptx::lane_index_here();
  const bool gated = sm90_gated_in_boxes(kBlockN) && e.gated != 0;
#pragma unroll 1
  for (uint32_t first = 0; first < kCount; first += kStep) {
    float sums[kStep];
#pragma unroll
    for (uint32_t i = 0; i < kStep; ++i) sums[i] = accumulators[i] * e.alpha;
    if (!gated || first % kTile < kTile / 2) {
      const uint32_t below = first / kTile * kWgmmaRows, beside = columns_of(first % kTile);
      if (e.bias.data != nullptr) {
        add_bias(sums, p, tile.row + row + below + lane / 4, tile.column + beside + lane % 4 * 2);
      }
      activate<kStep, false>(sums, e.activation);
    }
#pragma unroll
    for (uint32_t i = 0; i < kCount - kStep; ++i) accumulators[i] = accumulators[i + kStep];
#pragma unroll
    for (uint32_t i = 0; i < kStep; ++i) accumulators[kCount - kStep + i] = sums[i];
  }
  if (gated) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      if (i % kTile < kTile / 2) accumulators[i] *= accumulators[i + kTile / 2];
    }
  }
}

}  // namespace jaxbw::sm90
