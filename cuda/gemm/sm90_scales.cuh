// What sums of 8 bits are multiplied by, on accumulators where wgmma leaves them: scales of their rows of A, and of
// their columns of B.
#pragma once

#include "gemm/sm90_elementwise.cuh"

namespace jaxbw::sm90 {

// What the columns of a warp's part of a tile have, in the layout of HeldBias.
template <uint32_t kBlockN>
class HeldColumns {
 public:
  // Of the quarters from kFirst to kEnd - 1. `data`: of all columns of D; the tile's first is `column`.
  template <DataType kType, uint32_t kFirst, uint32_t kEnd>
  JAXBW_DEVICE void load(const GemmParams& p, const void* data, uint32_t column) {
    const uint32_t mine = column + 2 * ptx::lane_index_here();
    const auto* const from = static_cast<const uint8_t*>(data) + uint64_t{mine} * size_bytes(kType);
#pragma unroll
    for (uint32_t i = kFirst; i < kEnd; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const uint32_t at = (i - kFirst) * kColumns + j;
        values_[i][j] = mine + at < p.n ? load_element<kType>(from, at) : 0.0f;
      }
    }
  }

  // As a bias (apply_elementwise).
  template <uint32_t kCount>
  JAXBW_DEVICE void add(float (&accumulators)[kCount], const Epilogue&, bool half) const {
    with_columns<kBlockN>(accumulators, values_, half, [](float sum, float column) { return sum + column; });
  }

  template <uint32_t kCount>
  JAXBW_DEVICE void multiply(float (&accumulators)[kCount]) const {
    with_columns<kBlockN>(accumulators, values_, false, [](float sum, float scale) { return sum * scale; });
  }

 private:
  static constexpr uint32_t kColumns = kBlockN / kQuarters;

  float values_[kQuarters][2];
};

// The scales of a warp's part of a tile: of its two rows in each of kM64s, and of its columns.
template <uint32_t kBlockN, uint32_t kM64s>
class HeldScales {
 public:
  // Brings what load() reads into L2. `row`: the warp's first one; `column`: the tile's.
  JAXBW_DEVICE static void prefetch(const GemmParams& p, const ScaleArrays& from, uint32_t row, uint32_t column) {
    const uint32_t lane = ptx::lane_index_here();
    if (from.rows != nullptr) ptx::prefetch_l2(from.rows + min(row + lane % kM64s * kWgmmaRows, from.row_count - 1));
    if (from.columns == nullptr) return;
    const bool gated = p.epilogue.gated != 0;
    const float* const columns = gated && lane % 2 != 0 ? from.up_columns : from.columns;
    ptx::prefetch_l2(columns + min(column + lane * p.tile_columns / ptx::kWarpSize, p.n - 1));
  }

  JAXBW_DEVICE void load(const GemmParams& p, const ScaleArrays& from, uint32_t row, uint32_t column) {
    if (from.rows != nullptr) load_rows(from, row);
    if (from.columns != nullptr) load_columns(p, from, column);
  }

  template <uint32_t kCount>
  JAXBW_DEVICE void multiply(float (&accumulators)[kCount], const GemmParams& p) const {
    in_order(p, [&] { multiply_rows(accumulators); }, [&] { columns_.multiply(accumulators); });
  }

  // Both, behind the main loop. ptxas would spill what one branch loads and another uses.
  template <uint32_t kCount>
  JAXBW_DEVICE void load_and_multiply(float (&accumulators)[kCount], const GemmParams& p, const ScaleArrays& from,
                                      uint32_t row, uint32_t column) {
    const auto by_rows = [&] {
      load_rows(from, row);
      multiply_rows(accumulators);
    };
    const auto by_columns = [&] {
      load_columns(p, from, column);
      columns_.multiply(accumulators);
    };
    in_order(p, by_rows, by_columns);
  }

 private:
  static constexpr uint32_t kTile = registers_of(kBlockN);

  // As the general way does (scale_sums): first by the scales along runs of D.
  template <typename ByRows, typename ByColumns>
  JAXBW_DEVICE static void in_order(const GemmParams& p, const ByRows& by_rows, const ByColumns& by_columns) {
    const bool rows = p.epilogue.a_scales != nullptr, down = runs_down(p);
    if (rows && down) by_rows();
    if (p.epilogue.b_scales != nullptr) by_columns();
    if (rows && !down) by_rows();
  }

  JAXBW_DEVICE void load_rows(const ScaleArrays& from, uint32_t row) {
    constexpr uint32_t kRowsBelow = 8;
#pragma unroll
    for (uint32_t i = 0; i < 2 * kM64s; ++i) {
      const uint32_t at = row + ptx::lane_index_here() / 4 + i / 2 * kWgmmaRows + i % 2 * kRowsBelow;
      rows_[i] = at < from.row_count ? from.rows[at] : 0.0f;
    }
  }

  JAXBW_DEVICE void load_columns(const GemmParams& p, const ScaleArrays& from, uint32_t column) {
    constexpr uint32_t kHalf = kQuarters / 2;
    if (p.epilogue.gated == 0) {
      columns_.template load<DataType::kF32, 0, kQuarters>(p, from.columns, column);
    } else {
      columns_.template load<DataType::kF32, 0, kHalf>(p, from.columns, column);
      columns_.template load<DataType::kF32, kHalf, kQuarters>(p, from.up_columns, column);
    }
  }

  template <uint32_t kCount>
  JAXBW_DEVICE void multiply_rows(float (&accumulators)[kCount]) const {
    static_assert(kCount == kM64s * kTile);
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) accumulators[i] *= rows_[i / kTile * 2 + i % 4 / 2];
  }

  float rows_[2 * kM64s];
  HeldColumns<kBlockN> columns_;
};

}  // namespace jaxbw::sm90
