// What a work item is: which cluster tile of the output, and which part of K.
#pragma once

#include "params.h"

namespace jaxbw {

// The number of a work item's part among those that its tile is split into.
constexpr uint32_t split_part(const GemmParams& p, uint32_t item) {
  return item < p.whole_tiles ? 0 : (item - p.whole_tiles) % p.split_k;
}

// What the CTAs of number `cluster_part` along K in a cluster have of it.
constexpr KPart k_part(const GemmParams& p, uint32_t item, uint32_t cluster_part = 0) {
  if (item < p.whole_tiles) return {cluster_part, p.cluster.k};
  return {split_part(p, item) * p.cluster.k.value + cluster_part, p.parts};
}

// A cluster tile, or a part of it.
struct WorkItem {
  Tile tile;
  uint32_t part, parts;  // of the tile
  uint32_t split_tile;   // number of the tile among those that are split
};

constexpr WorkItem work_item(const GemmParams& p, uint32_t item) {
  if (item < p.whole_tiles) return {rasterise(item, p.order), 0, 1, 0};
  const uint32_t split_tile = (item - p.whole_tiles) / p.split_k;
  return {rasterise(p.whole_tiles + split_tile, p.order), split_part(p, item), p.split_k.value, split_tile};
}

// First row and column of the tile of D of one CTA of a cluster, and the batch index. (Without pairs.)
constexpr Tile cta_origin(const GemmParams& p, const ClusterShape& cluster, const Tile& tile, uint32_t rank) {
  return {(tile.m * cluster.m.value + cluster.row(rank)) * p.block_m,
          (tile.n * cluster.n.value + cluster.column(rank)) * p.tile_columns, tile.batch};
}

}  // namespace jaxbw
