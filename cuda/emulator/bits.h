// Bit fields of descriptors, and alignment.
#pragma once

#include <cstdint>

namespace jaxbw::emulator {

// The `count` bits of `word` from bit `first` upwards.
constexpr uint64_t bit_field(uint64_t word, uint32_t first, uint32_t count) {
  return word >> first & ((uint64_t{1} << count) - 1);
}

constexpr uint64_t align_up(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

}  // namespace jaxbw::emulator
