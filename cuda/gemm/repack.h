// How a repack kernel divides its work: shared by the kernel and the host, which chooses the grid.
#pragma once

#include <cstdint>

#include "gemm/storage.h"

namespace jaxbw {

constexpr uint32_t kRepackThreads = 256;
constexpr uint32_t kRepackVector = 16;         // bytes of the destination that a thread writes at a time
constexpr uint32_t kRepackInFlight = 3;        // vectors of a thread: loaded before the first is stored
constexpr uint32_t kRepackTransposeTile = 64;  // elements, either way

// A copy is cut into pieces: `rows` rows of the matrix, as many as the block has groups of `lanes` threads, and a chunk
// of each. Every thread has kRepackInFlight vectors of a piece at most.
struct RepackRows {
  uint32_t vectors;  // of a row, the last one perhaps not whole
  uint32_t lanes;    // that share a row: a power of two, a warp at most
  uint32_t rows;
  uint32_t chunks;  // of a row
  uint32_t chunk;   // vectors in it: whole lines of the cache, and all chunks about alike
};
constexpr RepackRows repack_rows(uint32_t columns, uint32_t element_bytes) {
  constexpr uint32_t kLineVectors = kCacheLine / kRepackVector;
  const uint32_t per_vector = kRepackVector / element_bytes;
  const uint32_t vectors = columns / per_vector + (columns % per_vector != 0);
  uint32_t lanes = 1;
  while (lanes < 32 && lanes * kRepackInFlight < vectors) lanes *= 2;
  const uint32_t most = lanes * kRepackInFlight;
  const uint32_t chunks = vectors / most + (vectors % most != 0);
  const uint32_t even = vectors / chunks + (vectors % chunks != 0);
  const uint32_t chunk = chunks == 1 ? vectors : (even + kLineVectors - 1) / kLineVectors * kLineVectors;
  return {vectors, lanes, kRepackThreads / lanes, chunks, chunk};
}
static_assert(repack_rows(3, 2).lanes == 1 && repack_rows(3, 2).rows == 256);
static_assert(repack_rows(4100, 2).vectors == 513 && repack_rows(4100, 2).rows == 8 &&
              repack_rows(4100, 2).chunks == 6 && repack_rows(4100, 2).chunk == 88);

// Pieces of all batch indices together; blocks walk them, so that any grid will do.
constexpr uint64_t repack_pieces(const RepackCopy& copy, uint32_t element_bytes) {
  if (copy.transposed != 0) {
    const uint64_t tile = kRepackTransposeTile;
    return (copy.rows + tile - 1) / tile * ((copy.columns + tile - 1) / tile) * copy.batch;
  }
  const RepackRows cut = repack_rows(copy.columns, element_bytes);
  return (uint64_t{copy.batch} * copy.rows + cut.rows - 1) / cut.rows * cut.chunks;
}

}  // namespace jaxbw
