// What sums of a block of K are multiplied by where they are promoted (multiply_promoted): nothing, or the scales of
// that block. A thread has two rows of a wgmma (ptx/wgmma.h), and a block of B has all columns of a tile.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/sm90_context.h"
#include "gemm/store_ring.h"
#include "ptx/global.h"

namespace jaxbw::sm90 {

template <Config kConfig>
using Sums = float[kConfig.accumulators()];

template <Config kConfig>
struct Unscaled {
  template <uint32_t kSet>
  JAXBW_DEVICE void request(uint32_t) {}

  template <uint32_t kSet>
  JAXBW_DEVICE void add(Sums<kConfig>& accumulators, const Sums<kConfig>& sums, uint32_t) const {
#pragma unroll
    for (uint32_t i = 0; i < kConfig.accumulators(); ++i) accumulators[i] += sums[i];
  }
};

template <Config kConfig>
class Scaled {
 public:
  // Of the blocks from `first_block` on, of a tile at this origin, whose rows begin at `row` for this warp.
  JAXBW_DEVICE Scaled(const PromotedParams& params, StoreOrigin tile, uint32_t row, uint32_t k_blocks,
                      uint32_t first_block) {
    static_assert(kScaleBlock % kConfig.block_n == 0 && kScaleBlock == span_elements(DataType::kE4M3));
    const GemmParams& p = params.gemm;
    const uint32_t first_row = tile.row + row + ptx::lane_index() / 4;
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {  // outside of the matrix: those of another row, for sums that nobody wants
      a_[i] = of_vector(params.scales.a, p.a_batched, p.m, tile.batch, min(first_row + i * kRowStep, p.m - 1), k_blocks,
                        first_block);
    }
    const uint32_t column = min(tile.column, p.n - 1) / kScaleBlock;
    b_ = of_vector(params.scales.b, p.b_batched, (p.n + kScaleBlock - 1) / kScaleBlock, tile.batch, column, k_blocks,
                   first_block);
  }

  // Two blocks ahead: a load waits behind wgmmas that were issued before it, and what waits for a load of one block
  // waits for those of later ones, too.
  template <uint32_t kSet>
  JAXBW_DEVICE void request(uint32_t block) {
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) of_rows_[kSet][i] = a_[i] == nullptr ? 1 : ptx::load_read_only(a_[i] + block);
    of_columns_[kSet] = b_ == nullptr ? 1 : ptx::load_read_only(b_ + block);
  }

  // Requests those of `next` in the place of those it has used.
  template <uint32_t kSet>
  JAXBW_DEVICE void add(Sums<kConfig>& accumulators, const Sums<kConfig>& sums, uint32_t next) {
    float scales[kRows];
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) scales[i] = of_rows_[kSet][i] * of_columns_[kSet];
    request<kSet>(next);
#pragma unroll
    for (uint32_t i = 0; i < kConfig.accumulators(); ++i) {
      accumulators[i] = __fmaf_rn(sums[i], scales[i % 4 / 2], accumulators[i]);
    }
  }

 private:
  static constexpr uint32_t kRows = 2, kRowStep = 8;  // of a thread in a wgmma
  static_assert(kConfig.wgmmas() == 1);

  static JAXBW_DEVICE const float* of_vector(const float* scales, uint32_t batched, uint32_t extent, uint32_t batch,
                                             uint32_t index, uint32_t k_blocks, uint32_t first_block) {
    if (scales == nullptr) return nullptr;
    return scales + (uint64_t{batched * batch} * extent + index) * k_blocks + first_block;
  }

  const float *a_[kRows], *b_;
  float of_rows_[2][kRows], of_columns_[2];  // of a block and the next
};

}  // namespace jaxbw::sm90
