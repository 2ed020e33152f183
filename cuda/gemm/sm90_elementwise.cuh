// The formula of Epilogue (params.h) on accumulators where wgmma leaves them: EpiloguePath::kElementwise. What they
// become is then cast and stored as plain sums are, the later boxes of a tile beside the next one's MMAs. What is saved
// for a gradient goes the same way, all of it before.
//
// The general way (sm90_formula.cuh) takes sums through shared memory, in blocks of 16x32 one after the other, 3000
// cycles each. Here an operation stands in the code once for each of many accumulators: hence the short activations
// only.
#pragma once

#include "gemm/sm90_epilogue.cuh"

namespace jaxbw::sm90 {

constexpr uint32_t kQuarters = 4;  // of an m64's columns

// Calls function(sum, value of its column) for all accumulators of a warp, of all its m64s; `half`: of the first half
// of the columns only. Of columns 2 l and 2 l + 1 of each quarter, lane l has the values.
template <uint32_t kBlockN, uint32_t kCount, typename Function>
JAXBW_DEVICE void with_columns(float (&accumulators)[kCount], const float (&columns)[kQuarters][2], bool half,
                               const Function& function) {
  constexpr uint32_t kTile = registers_of(kBlockN);
  const uint32_t of_fragment = ptx::lane_index_here() % 4;
#pragma unroll
  for (uint32_t first = 0; first < kTile; first += 4) {
    constexpr uint32_t kQuarter = kTile / kQuarters;
    if (half && first >= kTile / 2) return;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const float column = ptx::of_lane(columns[first / kQuarter][j], first % kQuarter + of_fragment);
#pragma unroll
      for (uint32_t i = first + j; i < kCount; i += kTile) {
        accumulators[i] = function(accumulators[i], column);
        accumulators[i + 2] = function(accumulators[i + 2], column);
      }
    }
  }
}

// The bias of a warp's part of a tile. Along n, lane l holds that of columns 2 l and 2 l + 1 of each quarter, for all
// lanes; along m, that of its own two rows in each m64. (The layout is drawn in ptx/wgmma.h: of a fragment, eight
// columns, a lane has two neighbours, and two eight rows below.)
//
// It lies in memory: loaded while the last MMAs run.
template <uint32_t kBlockN>
class HeldBias {
 public:
  // Brings what load() reads into L2. `row`: the warp's first one in the tile.
  JAXBW_DEVICE static void prefetch(const GemmParams& p, StoreOrigin tile, uint32_t row) {
    const EpilogueOperand& bias = p.epilogue.bias;
    if (bias.data == nullptr) return;
    const uint64_t at = Place(p, tile, row).at(ptx::lane_index_here() % kQuarters, 0);
    ptx::prefetch_l2(static_cast<const uint8_t*>(bias.data) + at * size_bytes(bias.type));
  }

  JAXBW_DEVICE void load(const GemmParams& p, StoreOrigin tile, uint32_t row) { load(p, p.epilogue.bias, tile, row); }

  JAXBW_DEVICE void load(const GemmParams& p, EpilogueOperand bias, StoreOrigin tile, uint32_t row) {
    if (bias.data == nullptr) return;
    const Place place(p, tile, row);
    with_type(bias.type, [&]<DataType kType>() {
#pragma unroll
      for (uint32_t i = 0; i < kQuarters; ++i) {
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) values_[i][j] = load_element<kType>(bias.data, place.at(i, j));
      }
    });
  }

  // `half`: to the first half of the columns only.
  template <uint32_t kCount>
  JAXBW_DEVICE void add(float (&accumulators)[kCount], const Epilogue& e, bool half) const {
    constexpr uint32_t kTile = registers_of(kBlockN);
    const auto sum = [](float accumulator, float bias) { return accumulator + bias; };
    if (e.bias_along_m == 0) return with_columns<kBlockN>(accumulators, values_, half, sum);
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      if (i % kTile < kTile / 2 || !half) accumulators[i] = sum(accumulators[i], values_[i / kTile][i % 4 / 2]);
    }
  }

 private:
  // The indices of a lane's elements. Behind the last of the bias is the last again, for what is not stored: a
  // condition for each load would have them wait for each other, as there are fewer predicates than loads.
  class Place {
   public:
    JAXBW_DEVICE Place(const GemmParams& p, StoreOrigin tile, uint32_t row) {
      constexpr uint32_t kColumns = kBlockN / kQuarters, kRowsBelow = 8;
      const uint32_t lane = ptx::lane_index_here();
      const bool along_m = p.epilogue.bias_along_m != 0;
      first_ = along_m ? tile.row + row + lane / 4 : tile.column + 2 * lane;
      last_ = (along_m ? p.m : p.n) - 1;
      step_ = along_m ? kWgmmaRows : kColumns;
      next_ = along_m ? kRowsBelow : 1;
    }

    JAXBW_DEVICE uint32_t at(uint32_t i, uint32_t j) const { return min(first_ + i * step_ + j * next_, last_); }

   private:
    uint32_t first_, last_, step_, next_;
  };

  float values_[kQuarters][2];
};

template <uint32_t kCount>
JAXBW_DEVICE void scale(float (&accumulators)[kCount], float alpha) {
  if (alpha == 1.0f) return;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) accumulators[i] *= alpha;
}

// Sums -> what is left to be cast. Of a gated matmul the first half of an m64's registers is gate, and becomes the
// result; the second is up. Bias: HeldBias, or what adds as it does. save() is called when accumulators are z and u of
// Epilogue. What is decided is decided once for the tile: jumps between parts of it, each of which begins with an empty
// pipeline, took as long as the arithmetic.
template <template <uint32_t> typename Bias, uint32_t kBlockN, uint32_t kCount, typename Save>
JAXBW_DEVICE void apply_elementwise(float (&accumulators)[kCount], const Epilogue& e, float alpha,
                                    const Bias<kBlockN>& bias, const Save& save) {
  constexpr uint32_t kTile = registers_of(kBlockN), kHalf = kTile / 2;
  const bool gated = sm90_gated_in_boxes(kBlockN) && e.gated != 0;
  scale(accumulators, alpha);
  if (e.bias.data != nullptr) bias.add(accumulators, e, gated);
  save();
  with_activation<false>(e.activation, [&](const auto& activation) {
    for_each_step<kHalf, kCount>([&]<uint32_t kFirst>() {
      if (gated && kFirst % kTile != 0) return;
      apply<kHalf>(reinterpret_cast<float (&)[kHalf]>(accumulators[kFirst]), activation);
    });
  });
  if (gated) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      if (i % kTile < kHalf) accumulators[i] *= accumulators[i + kHalf];
    }
  }
}

}  // namespace jaxbw::sm90
