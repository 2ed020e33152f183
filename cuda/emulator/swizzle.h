// Shared-memory swizzling: a permutation of the 16-byte chunks of a 128-byte line that depends on the
// line's place in a repeating pattern (PTX 5.5.7). TMA writes with it, wgmma and tcgen05.mma read with it.
//
//   128 B swizzle, address bits:   9 8 7 | 6 5 4 | 3 2 1 0
//                                  line    chunk   byte        chunk ^= line
//
// The pattern is anchored to absolute shared-memory addresses: that is why a tile must be aligned to
// its pattern (1024, 512 or 256 bytes) or its descriptor must say where its pattern starts, and
// why a descriptor's start address may be advanced inside a line without losing the pattern.
#pragma once

#include <cstdint>

namespace jaxbw::emulator {

// The values of CUtensorMapSwizzle.
enum class Swizzle : uint8_t { kNone, k32B, k64B, k128B, k128BAtom32B, k128BAtom32BFlip8B, k128BAtom64B };

// Bytes of a row that the pattern permutes among themselves.
constexpr uint32_t swizzle_span(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 32;
    case Swizzle::k64B:
      return 64;
    default:
      return 128;
  }
}

// The bits of `address` to invert, given the address bits that select the line of the pattern.
constexpr uint32_t swizzle_mask(Swizzle swizzle, uint32_t line_address) {
  const uint32_t line = line_address >> 7;
  switch (swizzle) {
    case Swizzle::kNone:
      return 0;
    case Swizzle::k32B:
      return (line & 1) << 4;
    case Swizzle::k64B:
      return (line & 3) << 4;
    case Swizzle::k128B:
      return (line & 7) << 4;
    case Swizzle::k128BAtom32B:
      return (line & 3) << 5;
    case Swizzle::k128BAtom32BFlip8B:
      return (line & 3) << 5 | (line & 1) << 3;
    case Swizzle::k128BAtom64B:
      return (line & 1) << 6;
  }
  return 0;
}

constexpr uint32_t swizzle_address(Swizzle swizzle, uint32_t address) {
  return address ^ swizzle_mask(swizzle, address);
}

static_assert(swizzle_address(Swizzle::k128B, 0x400 + 3 * 128 + 16) == 0x400 + 3 * 128 + 2 * 16);

}  // namespace jaxbw::emulator
