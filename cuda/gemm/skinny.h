// The tiles of the kernels of few rows (sm90_skinny.cuh): shared by kernels and host, which sizes their launches.
#pragma once

#include <cstdint>

#include "gemm/storage.h"

namespace jaxbw {

constexpr uint32_t kMmaColumns = 16;  // of D in one mma.sync, whose operands are exchanged
constexpr uint32_t kMmaRows = 8;
constexpr uint32_t kMmaDepth = 16;

// What a CTA computes: `rows` x `columns` of D, `depth` of K in a stage. Its warps divide the columns, and the depth:
// these add up what they have at the end.
struct SkinnyTile {
  uint32_t rows, columns, depth;
  uint32_t column_warps, depth_warps;
  uint32_t stages;

  constexpr uint32_t warps() const { return column_warps * depth_warps; }
  constexpr uint32_t threads() const { return warps() * 32; }
  constexpr uint32_t warp_columns() const { return columns / column_warps; }
  constexpr uint32_t warp_depth() const { return depth / depth_warps; }

  // Of a stage: weights, and behind them rows; elements of 16 bits.
  constexpr uint32_t weight_bytes() const { return columns * depth * 2; }
  constexpr uint32_t stage_bytes() const { return weight_bytes() + rows * depth * 2; }
  constexpr uint32_t ring_bytes() const { return stages * stage_bytes(); }

  // The sums of a CTA lie where stages were, [depth_warps, rows, columns]; those that peers send behind the ring,
  // [parts, rows, columns / parts], and behind them the barrier that counts them. Rows are padded by a chunk of 16
  // bytes: so lanes meet different banks.
  static constexpr uint32_t kPadding = 4;  // floats
  constexpr uint32_t sum_pitch() const { return columns + kPadding; }
  constexpr uint32_t sums_bytes() const { return depth_warps * rows * sum_pitch() * 4; }
  constexpr uint32_t received_bytes(uint32_t parts) const { return rows * (columns + parts * kPadding) * 4; }
  constexpr uint32_t shared_bytes(uint32_t parts) const {
    return ring_bytes() + (parts == 1 ? 0 : received_bytes(parts) + uint32_t{sizeof(uint64_t)});
  }
};

// Those that lost 0.2 % to 13 others in the geometric mean of 21 matmuls of 1 to 32 rows, on an H200, but for one of
// 256 columns, which gained 0.05 % over 960. Narrow ones for small weights, of which all SMs are to load some; wide
// ones for large weights. No columns: there is none so wide.
constexpr SkinnyTile skinny_tile(uint32_t rows, uint32_t columns) {
  switch (columns) {
    case 32:
      return {rows, 32, 128, 2, 4, 6};
    case 64:
      return {rows, 64, 128, 4, 2, 6};
    case 128:
      return {rows, 128, 64, 4, 1, 4};
  }
  return {};
}

// Whether there is code for gate and up side by side. The warps of such a tile do not divide K.
constexpr bool takes_gate(SkinnyTile tile) { return tile.columns % kSm90GatedStep == 0; }

constexpr uint32_t kMaxSkinnyRows = 32, kMaxSkinnyParts = 8;
namespace skinny_check {
constexpr bool fits(SkinnyTile tile) {
  return tile.sums_bytes() <= tile.ring_bytes() && tile.shared_bytes(kMaxSkinnyParts) <= kMaxSharedMemory;
}
static_assert(fits(skinny_tile(kMaxSkinnyRows, 32)) && fits(skinny_tile(kMaxSkinnyRows, 64)) &&
              fits(skinny_tile(kMaxSkinnyRows, 128)));
}  // namespace skinny_check

// CTAs that are on an SM at a time, as far as shared memory and threads go.
constexpr uint32_t skinny_ctas_per_sm(SkinnyTile tile, uint32_t parts) {
  constexpr uint32_t kReserved = 1024, kThreads = 2048;  // bytes of each CTA, threads of an SM
  const uint32_t by_memory = (kMaxSharedMemory + kReserved) / (tile.shared_bytes(parts) + kReserved);
  const uint32_t by_threads = kThreads / tile.threads();
  return by_memory < by_threads ? by_memory : by_threads;
}

}  // namespace jaxbw
