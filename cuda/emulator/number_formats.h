// The number formats of the tensor cores' operands, decoded to float32 and encoded from it.
//
// Every value of every format here is exact in float32. Encoding rounds to nearest, ties to even.
#pragma once

#include <cstdint>
#include <span>

namespace jaxbw::emulator {

// kE2M1Packed is E2M1 as kind::mxf4 and kind::mxf4nvf4 read it: two elements a byte, the lower half first.
enum class NumberFormat : uint8_t { kF16, kBf16, kTf32, kE4M3, kE5M2, kE2M3, kE3M2, kE2M1, kE2M1Packed };

// Bits of an element, and how many lie in 16 bytes of a matrix operand: 6- and 4-bit elements lie packed
// in the first 12 or 8 bytes of these, as TMA's 16U6/16U4_ALIGN16B types leave them (PTX 9.7.16.10.4).
constexpr uint32_t format_bits(NumberFormat format) {
  switch (format) {
    case NumberFormat::kTf32:
      return 32;
    case NumberFormat::kF16:
    case NumberFormat::kBf16:
      return 16;
    case NumberFormat::kE2M3:
    case NumberFormat::kE3M2:
      return 6;
    case NumberFormat::kE2M1:
    case NumberFormat::kE2M1Packed:
      return 4;
    default:
      return 8;
  }
}
// Of all formats but kE2M1Packed, whose elements have no bytes of their own.
constexpr uint32_t container_bytes(NumberFormat format) {
  return format_bits(format) <= 8 ? 1 : format_bits(format) / 8;
}
constexpr uint32_t chunk_elements(NumberFormat format) {
  return format == NumberFormat::kE2M1Packed ? 32 : 16 / container_bytes(format);
}

// Bytes of such a chunk that hold elements.
constexpr uint32_t chunk_data_bytes(NumberFormat format) { return chunk_elements(format) * format_bits(format) / 8; }

// Decodes the elements of one 16-byte chunk of a matrix operand.
// tf32 ignores the low 13 bits (PTX 9.7.15.5.2).
void decode_chunk(NumberFormat format, const uint8_t* chunk, float* values);

// The NaN that f16 and bf16 arithmetic gives, whatever its operands (PTX 9.7.4), and conversion to them.
inline constexpr uint16_t kNan16 = 0x7fff;

// E4M3, E5M2, E2M3, E3M2 and E2M1. To them: saturating to the largest finite value, as cvt's .satfinite does; a NaN
// becomes the format's NaN, or its largest value where it has none (PTX 9.7.9.21).
float mini_to_f32(NumberFormat format, uint8_t bits);
uint8_t f32_to_mini(NumberFormat format, float value);

// Of a normal number.
int smallest_exponent(NumberFormat format);

float f16_to_f32(uint16_t bits);
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
uint16_t f32_to_bf16(float value);

}  // namespace jaxbw::emulator
