// What a work item is: which cluster tile of the output, and which part of K. And the order in which cluster tiles are
// walked (rasterisation).
#pragma once

#include <cstdint>

#include "params.h"

namespace jaxbw {

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
constexpr Tile rasterise(uint32_t index, uint32_t tiles_m, uint32_t tiles_n, uint32_t swizzle, Raster raster) {
  const uint32_t batch = index / (tiles_m * tiles_n);
  const uint32_t within_batch = index - batch * (tiles_m * tiles_n);
  const bool along_m = raster == Raster::kAlongM;
  const uint32_t across = along_m ? tiles_m : tiles_n;  // the dimension that is cut into bands
  const uint32_t along = along_m ? tiles_n : tiles_m;
  const uint32_t first = within_batch / (swizzle * along) * swizzle;
  const uint32_t width = across - first < swizzle ? across - first : swizzle;
  const uint32_t within = within_batch - first * along;
  const uint32_t i = first + within % width, j = within / width;
  return along_m ? Tile{i, j, batch} : Tile{j, i, batch};
}

static_assert(rasterise(3, 3, 3, 2, Raster::kAlongM).m == 1 && rasterise(3, 3, 3, 2, Raster::kAlongM).n == 1);
static_assert(rasterise(8, 3, 3, 2, Raster::kAlongM).m == 2 && rasterise(8, 3, 3, 2, Raster::kAlongM).n == 2);
static_assert(rasterise(9, 3, 3, 2, Raster::kAlongM).batch == 1);
static_assert(rasterise(1, 3, 3, 2, Raster::kAlongN).n == 1 && rasterise(2, 3, 3, 2, Raster::kAlongN).m == 1);

// A cluster tile with all of K, or one of the equal parts of it.
struct WorkItem {
  Tile tile;
  uint32_t part, parts;
  uint32_t split_tile;  // number of the tile among those that are split

  // Of `blocks` steps along K, those of this part.
  constexpr uint32_t first_block(uint32_t blocks) const { return part * blocks / parts; }
  constexpr uint32_t end_block(uint32_t blocks) const { return (part + 1) * blocks / parts; }
};

constexpr WorkItem work_item(const GemmParams& p, uint32_t item) {
  uint32_t index = item, part = 0, parts = 1, split_tile = 0;
  if (item >= p.whole_tiles) {
    parts = p.split_k;
    split_tile = (item - p.whole_tiles) / parts;
    part = (item - p.whole_tiles) % parts;
    index = p.whole_tiles + split_tile;
  }
  return {rasterise(index, p.cluster_tiles_m, p.cluster_tiles_n, p.swizzle, p.raster), part, parts, split_tile};
}

}  // namespace jaxbw
