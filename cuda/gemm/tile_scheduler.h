// What a work item is: which cluster tile of the output, and which part of K.
#pragma once

#include "params.h"

namespace jaxbw {

// The number of a work item's part among those that its tile is split into.
constexpr uint32_t split_part(const GemmParams& p, uint32_t item) {
  return item < p.whole_tiles ? 0 : (item - p.whole_tiles) % p.split_k;
}

// What the CTAs of number `cluster_part` along K, of so many in a cluster, have of it.
constexpr KPart k_part(const GemmParams& p, uint32_t item, Divisor cluster_parts, uint32_t cluster_part) {
  KPart part{cluster_part, cluster_parts};
  if (item >= p.whole_tiles) part = {split_part(p, item) * cluster_parts.value + cluster_part, p.parts};
  return part;
}

// A cluster tile, or a part of it.
struct WorkItem {
  Tile tile;
  uint32_t part, parts;  // of the tile
  uint32_t split_tile;   // number of the tile among those that are split
};

// (The first load waits for this: whole tiles and parts come by the same rasterise(), without a jump to one of two.)
constexpr WorkItem work_item(const GemmParams& p, uint32_t item) {
  WorkItem found{{}, 0, 1, 0};
  uint32_t tile = item;
  if (item >= p.whole_tiles) {
    found.split_tile = (item - p.whole_tiles) / p.split_k;
    found.part = split_part(p, item);
    found.parts = p.split_k.value;
    tile = p.whole_tiles + found.split_tile;
  }
  found.tile = rasterise(tile, p.order);
  return found;
}

// First row and column of the tile of D of one CTA of a cluster, and the batch index. (Without pairs.)
constexpr Tile cta_origin(const GemmParams& p, const ClusterShape& cluster, const Tile& tile, uint32_t rank) {
  return {(tile.m * cluster.m.value + cluster.row(rank)) * p.block_m,
          (tile.n * cluster.n.value + cluster.column(rank)) * p.tile_columns, tile.batch};
}

}  // namespace jaxbw
