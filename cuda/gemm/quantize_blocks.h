// How quantizing to blocks divides its work: shared by the kernel and the host, which plans the launch.
#pragma once

#include <cstdint>

#include "params.h"

namespace jaxbw {

// A CTA's tile: rows and columns, of which either are the rows of a tile of scales.
constexpr uint32_t kBlocksTile = 128;
// A thread's part of it, the columns side by side: of 16-bit numbers a warp loads 256 bytes of a row at a time.
constexpr uint32_t kBlocksRows = 8, kBlocksColumns = 4;
constexpr uint32_t kBlocksThreads = kBlocksTile / kBlocksRows * (kBlocksTile / kBlocksColumns);

// Rows that a rotation mixes, and pads x to.
constexpr uint32_t kRotatedRows = 16;

// The data of a row along k are padded to rows of 16 bytes or 32.
constexpr uint64_t padded_k(uint64_t k) { return (k + 31) / 32 * 32; }

constexpr uint64_t blocks_tiles(uint64_t extent) { return (extent + kBlocksTile - 1) / kBlocksTile; }

// Tiles of scales along a k of so many elements.
constexpr uint64_t scale_tiles_along(uint64_t k, uint32_t block) {
  const uint64_t of_tile = uint64_t{kScaleTileBlocks} * block;
  return (padded_k(k) + of_tile - 1) / of_tile;
}

}  // namespace jaxbw
