// The order in which cluster tiles of the output are walked (rasterisation).
#pragma once

#include <cstdint>

namespace jaxbw {

// A cluster tile: its place in the grid of cluster tiles, and its batch index.
struct Tile {
  uint32_t m, n, batch;
};

// Work items are numbered so that those which run at the same time share operand tiles in L2. Bands of `swizzle` tile
// rows are walked one after the other, and within a band column by column:
//
//   swizzle = 2      n = 0  1  2
//            m = 0       0  2  4
//                1       1  3  5
//                2       6  7  8     (the last band may be narrower)
constexpr Tile rasterise(uint32_t item, uint32_t tiles_m, uint32_t tiles_n, uint32_t swizzle) {
  const uint32_t batch = item / (tiles_m * tiles_n);
  const uint32_t index = item % (tiles_m * tiles_n);
  const uint32_t band = index / (swizzle * tiles_n);
  const uint32_t first_m = band * swizzle;
  const uint32_t rows = tiles_m - first_m < swizzle ? tiles_m - first_m : swizzle;
  const uint32_t within = index - band * swizzle * tiles_n;
  return {first_m + within % rows, within / rows, batch};
}

static_assert(rasterise(3, 3, 3, 2).m == 1 && rasterise(3, 3, 3, 2).n == 1);
static_assert(rasterise(8, 3, 3, 2).m == 2 && rasterise(8, 3, 3, 2).n == 2);
static_assert(rasterise(9, 3, 3, 2).batch == 1);

}  // namespace jaxbw
