// How quantizing divides its work: shared by the kernel and the host, which plans the launches.
#pragma once

#include <cstdint>

#include "params.h"

namespace jaxbw {

constexpr uint32_t kQuantizeThreads = 256;
constexpr uint32_t kQuantizeVector = 16;   // bytes of x that a thread loads at a time
constexpr uint32_t kQuantizeInFlight = 8;  // vectors that a thread loads before it needs the first
constexpr uint32_t kQuantizeTile = 128;    // elements, either way: a line of either result
constexpr uint32_t kQuantizeBlocks = 4;    // of the second launch at a time on an SM
// Of a group. Every block of the second launch reads the maxima of all.
constexpr uint32_t kQuantizeSlices = 4096;

constexpr uint32_t quantize_vector(DataType type) { return kQuantizeVector / size_bytes(type); }  // elements
// Elements that a block loads before it needs the first.
constexpr uint32_t quantize_piece(DataType type) {
  return kQuantizeThreads * kQuantizeInFlight * quantize_vector(type);
}

// Threads that share a group of kGroups: a power of two, since they are lanes of a warp, or whole warps. At least one
// for each element of two vectors, of which a group has parts at its ends.
constexpr uint32_t quantize_lanes(uint64_t group, DataType type) {
  const uint64_t vectors = group / quantize_vector(type);
  uint32_t lanes = 2 * quantize_vector(type);
  while (lanes < 32 && lanes < vectors) lanes *= 2;
  while (lanes < kQuantizeThreads && uint64_t{lanes} * kQuantizeInFlight < vectors) lanes *= 2;
  return lanes;
}
static_assert(quantize_lanes(4096, DataType::kBF16) == 64 && quantize_lanes(24, DataType::kBF16) == 16);

constexpr uint64_t quantize_tiles(uint64_t extent) { return (extent + kQuantizeTile - 1) / kQuantizeTile; }

}  // namespace jaxbw
