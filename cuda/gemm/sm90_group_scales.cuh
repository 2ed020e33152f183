// What sums of grouped rows of 8 bits are multiplied by, on accumulators where wgmma leaves them: scales of their rows
// of A, and of the columns of their group's matrix of B.
#pragma once

#include "gemm/grouped_items.cuh"
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
  template <uint32_t kBelow, uint32_t kQuarter, uint32_t kCount>
  JAXBW_DEVICE void add(float (&sums)[kCount], const Epilogue&) const {
    apply<kQuarter>(sums, [](float sum, float column) { return sum + column; });
  }

  // function(sum, what its column has), of the accumulators of one quarter.
  template <uint32_t kQuarter, uint32_t kCount, typename Function>
  JAXBW_DEVICE void apply(float (&sums)[kCount], const Function& function) const {
    const uint32_t of_fragment = ptx::lane_index_here() % 4;
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += 4) {
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const float column = ptx::of_lane(values_[kQuarter][j], i + of_fragment);
        sums[i + j] = function(sums[i + j], column);
        sums[i + j + 2] = function(sums[i + j + 2], column);
      }
    }
  }

 private:
  static constexpr uint32_t kColumns = kBlockN / kQuarters;

  float values_[kQuarters][2];
};

// The scales of a warp's part of a tile.
template <uint32_t kBlockN>
class HeldScales {
 public:
  // `row`: the warp's first one in the tile.
  JAXBW_DEVICE void load(const GemmParams& p, const GroupedItem& item, uint32_t row) {
    constexpr uint32_t kRowsBelow = 8, kHalf = kQuarters / 2;
    const Epilogue& e = p.epilogue;
    const GroupRows& group = item.group;
    if (e.a_scales != nullptr) {
      const float* const of_rows = e.a_scales + (group.a_end - group.rows);
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = row + ptx::lane_index_here() / 4 + i * kRowsBelow;
        rows_[i] = at < group.rows ? of_rows[at] : 0.0f;
      }
    }
    if (e.b_scales == nullptr) return;
    const uint64_t of_matrix = uint64_t{group.matrix} * p.n;
    if (e.gated == 0) {
      columns_.template load<DataType::kF32, 0, kQuarters>(p, e.b_scales + of_matrix, item.column);
    } else {
      columns_.template load<DataType::kF32, 0, kHalf>(p, e.b_scales + of_matrix, item.column);
      columns_.template load<DataType::kF32, kHalf, kQuarters>(p, e.b_up_scales + of_matrix, item.column);
    }
  }

  template <uint32_t kCount>
  JAXBW_DEVICE void multiply(float (&accumulators)[kCount], const Epilogue& e) const {
    constexpr uint32_t kStep = registers_of(kBlockN) / kQuarters;
    static_assert(kCount == registers_of(kBlockN));  // one m64
    if (e.a_scales != nullptr) {
#pragma unroll
      for (uint32_t i = 0; i < kCount; ++i) accumulators[i] *= rows_[i % 4 / 2];
    }
    if (e.b_scales == nullptr) return;
    for_each_step<kStep, kCount>([&]<uint32_t kFirst>() {
      columns_.template apply<kFirst / kStep>(reinterpret_cast<float (&)[kStep]>(accumulators[kFirst]),
                                              [](float sum, float scale) { return sum * scale; });
    });
  }

 private:
  float rows_[2];
  HeldColumns<kBlockN> columns_;
};

// As apply_elementwise, of sums that are scaled first. The bias comes from memory only then: there are not the
// registers to hold both.
template <uint32_t kBlockN, uint32_t kCount>
JAXBW_DEVICE void apply_scaled(float (&accumulators)[kCount], const GemmParams& p, const GroupedItem& item,
                               const HeldScales<kBlockN>& scales) {
  scales.multiply(accumulators, p.epilogue);
  HeldColumns<kBlockN> bias;
  if (const EpilogueOperand of_group = bias_of(p, item.group.matrix); of_group.data != nullptr) {
    with_type(of_group.type,
              [&]<DataType kType>() { bias.template load<kType, 0, kQuarters>(p, of_group.data, item.column); });
  }
  apply_elementwise(accumulators, p.epilogue, bias);
}

}  // namespace jaxbw::sm90
