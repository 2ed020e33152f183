// How a repack kernel divides its work: shared by the kernel and the host, which chooses the grid.
#pragma once

#include <cstdint>

#include "params.h"

namespace jaxbw {

constexpr uint32_t kRepackThreads = 256;
constexpr uint32_t kRepackVector = 16;         // bytes of the destination that a thread writes at a time
constexpr uint32_t kRepackChunk = 512;         // vectors of a row that one warp, or a part of it, copies
constexpr uint32_t kRepackTransposeTile = 64;  // elements, either way

// A copy is cut into pieces: as many rows as the block has groups of `lanes` threads, a chunk of each.
struct RepackRows {
  uint32_t vectors;  // of a row, the last one perhaps not whole
  uint32_t lanes;    // that share a row: a power of two, a warp at most
  uint32_t rows;     // of a piece
  uint32_t chunks;   // of a row
};
constexpr RepackRows repack_rows(uint32_t columns, uint32_t element_bytes) {
  const uint32_t per_vector = kRepackVector / element_bytes;
  const uint32_t vectors = columns / per_vector + (columns % per_vector != 0);
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < vectors) lanes *= 2;
  return {vectors, lanes, kRepackThreads / lanes, vectors / kRepackChunk + (vectors % kRepackChunk != 0)};
}
static_assert(repack_rows(3, 2).lanes == 1 && repack_rows(3, 2).rows == 256);
static_assert(repack_rows(4100, 2).vectors == 513 && repack_rows(4100, 2).rows == 8 &&
              repack_rows(4100, 2).chunks == 2);

// Pieces of all batch indices together; blocks walk them, so that any grid will do.
constexpr uint64_t repack_pieces(const RepackParams& p, uint32_t element_bytes) {
  if (p.transposed != 0) {
    const uint64_t tile = kRepackTransposeTile;
    return (p.rows + tile - 1) / tile * ((p.columns + tile - 1) / tile) * p.batch;
  }
  const RepackRows cut = repack_rows(p.columns, element_bytes);
  return (uint64_t{p.batch} * p.rows + cut.rows - 1) / cut.rows * cut.chunks;
}

}  // namespace jaxbw
