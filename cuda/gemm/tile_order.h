// The order in which cluster tiles are walked (rasterisation), and how K is cut into parts.
#pragma once

#include <cstdint>

#include "gemm/division.h"

namespace jaxbw {

// Rasterisation: the dimension along which bands of `swizzle` cluster tiles are walked together.
enum class Raster : uint32_t { kAlongM = 0, kAlongN = 1 };

// A cluster tile: its place in the grid of cluster tiles, and its batch index.
struct Tile {
  uint32_t m, n, batch;
};

// Tiles are numbered so that those which run at the same time share operand tiles in L2. Bands of `swizzle` tile rows
// are walked one after the other, and within a band column by column:
//
//   swizzle = 2      n = 0  1  2
//            m = 0       0  2  4
//                1       1  3  5
//                2       6  7  8     (the last band may be narrower)
//
// Raster::kAlongN has bands of tile columns instead, walked row by row.
struct TileOrder {
  Raster raster;
  uint32_t across, along;     // cluster tiles of the dimension that is cut into bands, and of the other
  Divisor batch;              // tiles of a batch index
  Divisor band;               // tiles of a band
  Divisor width, last_width;  // tiles across a band
};

constexpr TileOrder tile_order(uint32_t tiles_m, uint32_t tiles_n, uint32_t swizzle, Raster raster) {
  const uint32_t across = raster == Raster::kAlongM ? tiles_m : tiles_n;
  const uint32_t along = raster == Raster::kAlongM ? tiles_n : tiles_m;
  const uint32_t width = swizzle < across ? swizzle : across;  // which keeps products within 32 bits
  const uint32_t last_width = across % width == 0 ? width : across % width;
  return {raster, across, along, divisor(across * along), divisor(width * along), divisor(width), divisor(last_width)};
}

constexpr Tile rasterise(uint32_t index, const TileOrder& order) {
  const uint32_t batch = index / order.batch;
  const uint32_t within_batch = index - batch * order.batch.value;
  const uint32_t first = within_batch / order.band * order.width.value;
  const uint32_t left = order.across - first;
  const uint32_t within = within_batch - first * order.along;
  // Both quotients, and a choice of them: chosen divisors would be loaded from where the choice says.
  const uint32_t j_of_full = within / order.width, j_of_last = within / order.last_width;
  const bool is_last = left < order.width.value;
  const uint32_t j = is_last ? j_of_last : j_of_full;
  const uint32_t i = first + within - j * (is_last ? left : order.width.value);
  return order.raster == Raster::kAlongM ? Tile{i, j, batch} : Tile{j, i, batch};
}

namespace tile_order_check {
constexpr TileOrder kAlongM = tile_order(3, 3, 2, Raster::kAlongM), kAlongN = tile_order(3, 3, 2, Raster::kAlongN);
static_assert(rasterise(3, kAlongM).m == 1 && rasterise(3, kAlongM).n == 1);
static_assert(rasterise(8, kAlongM).m == 2 && rasterise(8, kAlongM).n == 2);
static_assert(rasterise(9, kAlongM).batch == 1);
static_assert(rasterise(1, kAlongN).n == 1 && rasterise(2, kAlongN).m == 1);
}  // namespace tile_order_check

// Which of the equal parts of K a CTA has of a work item; there may be one only.
struct KPart {
  uint32_t part;
  Divisor parts;

  // Of `blocks` steps along K, those of this part. The first parts have what is left over.
  constexpr uint32_t first_block(uint32_t blocks) const {
    const uint32_t rest = blocks % parts;
    return part * (blocks / parts) + (part < rest ? part : rest);
  }
  constexpr uint32_t block_count(uint32_t blocks) const { return blocks / parts + (part < blocks % parts ? 1 : 0); }
};

}  // namespace jaxbw
