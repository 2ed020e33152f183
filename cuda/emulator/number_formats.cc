#include "number_formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace jaxbw::emulator {
namespace {

// A format of at most 8 bits: sign, exponent, mantissa. Only E5M2 has infinities; E4M3 has one NaN
// pattern, the 6- and 4-bit formats have none (OCP 8-bit and microscaling specifications).
struct MiniFloat {
  int exponent_bits, mantissa_bits;
  bool has_infinity, has_nan;
};

constexpr float decode_mini_float(MiniFloat format, uint32_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint32_t mantissa_mask = (1u << format.mantissa_bits) - 1, exponent_mask = (1u << format.exponent_bits) - 1;
  const uint32_t sign = bits >> (format.exponent_bits + format.mantissa_bits) & 1;
  const uint32_t exponent = bits >> format.mantissa_bits & exponent_mask, mantissa = bits & mantissa_mask;
  uint32_t f32 = 0;
  if (format.has_infinity && exponent == exponent_mask) {
    f32 = mantissa ? 0x7fc00000 : 0x7f800000;
  } else if (format.has_nan && exponent == exponent_mask && mantissa == mantissa_mask) {
    f32 = 0x7fc00000;
  } else {
    // value = significand * 2^scale, by repeated halving or doubling: all steps are exact
    float value = static_cast<float>(exponent ? mantissa | (mantissa_mask + 1) : mantissa);
    for (int scale = static_cast<int>(exponent ? exponent : 1) - bias - format.mantissa_bits; scale != 0;
         scale += scale < 0 ? 1 : -1) {
      value = scale < 0 ? value / 2 : value * 2;
    }
    f32 = std::bit_cast<uint32_t>(value);
  }
  return std::bit_cast<float>(f32 | sign << 31);
}

template <size_t kCount>
constexpr std::array<float, kCount> decode_table(MiniFloat format) {
  std::array<float, kCount> table{};
  for (size_t i = 0; i < kCount; ++i) table[i] = decode_mini_float(format, static_cast<uint32_t>(i));
  return table;
}

constexpr MiniFloat kFormatE4M3{4, 3, false, true}, kFormatE5M2{5, 2, true, true}, kFormatE2M3{2, 3, false, false},
    kFormatE3M2{3, 2, false, false}, kFormatE2M1{2, 1, false, false};
constexpr auto kE4M3 = decode_table<256>(kFormatE4M3);
constexpr auto kE5M2 = decode_table<256>(kFormatE5M2);
constexpr auto kE2M3 = decode_table<64>(kFormatE2M3);
constexpr auto kE3M2 = decode_table<64>(kFormatE3M2);
constexpr auto kE2M1 = decode_table<16>(kFormatE2M1);

constexpr int smallest_exponent(MiniFloat format) { return 2 - (1 << (format.exponent_bits - 1)); }

MiniFloat mini_float_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::kE4M3:
      return kFormatE4M3;
    case NumberFormat::kE5M2:
      return kFormatE5M2;
    case NumberFormat::kE2M3:
      return kFormatE2M3;
    case NumberFormat::kE3M2:
      return kFormatE3M2;
    default:
      return kFormatE2M1;
  }
}

template <class Integer>
Integer load(const uint8_t* bytes) {
  Integer value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

template <size_t kCount>
void decode_packed(const std::array<float, kCount>& table, const uint8_t* chunk, float* values) {
  constexpr uint32_t kBits = std::bit_width(kCount - 1);
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t bit = i * kBits;
    values[i] = table[load<uint16_t>(chunk + bit / 8) >> bit % 8 & (kCount - 1)];
  }
}

}  // namespace

// A half's exponent and mantissa, moved to their places in a float, give the value times 2^-112: also for
// subnormals, which become subnormal floats. Infinities and NaNs need their exponent filled up.
float f16_to_f32(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fff;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00 ? 0x7f800000 : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | (bits & 0x8000u) << 16);
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return kNan16;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return kNan16;
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16; from 65520 on, rounding gets there
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 1/2 leaves the multiple of 2^-24, rounded to nearest even, in the low bits.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

int smallest_exponent(NumberFormat format) {
  if (format_bits(format) <= 8) return smallest_exponent(mini_float_of(format));
  return format == NumberFormat::kF16 ? -14 : -126;
}

float mini_to_f32(NumberFormat format, uint8_t bits) { return decode_mini_float(mini_float_of(format), bits); }

uint8_t f32_to_mini(NumberFormat format, float value) {
  const MiniFloat mini = mini_float_of(format);
  const int bits = mini.exponent_bits + mini.mantissa_bits, smallest = smallest_exponent(mini);
  // Without the codes that infinities and NaNs take: of E5M2 four, of E4M3 one.
  const uint32_t largest = (1u << bits) - 1 - (mini.has_infinity ? 1u << mini.mantissa_bits : mini.has_nan ? 1u : 0u);
  if (value != value) return uint8_t(mini.has_nan ? (1u << bits) - 1 : largest);
  const uint32_t sign = uint32_t{std::signbit(value)} << bits;
  const float magnitude = std::fabs(value);
  if (magnitude >= decode_mini_float(mini, largest)) return uint8_t(sign | largest);
  const int exponent = magnitude == 0 ? smallest : std::max(std::ilogb(magnitude), smallest);
  // In units of the last place; the hidden bit, and a carry out of the mantissa, count up the exponent field.
  const auto units = uint32_t(std::nearbyint(std::ldexp(magnitude, mini.mantissa_bits - exponent)));
  return uint8_t(sign | std::min(largest, (uint32_t(exponent - smallest) << mini.mantissa_bits) + units));
}

void decode_chunk(NumberFormat format, const uint8_t* chunk, float* values) {
  switch (format) {
    case NumberFormat::kF16:
      for (uint32_t i = 0; i < 8; ++i) values[i] = f16_to_f32(load<uint16_t>(chunk + 2 * i));
      return;
    case NumberFormat::kBf16:
      for (uint32_t i = 0; i < 8; ++i) values[i] = bf16_to_f32(load<uint16_t>(chunk + 2 * i));
      return;
    case NumberFormat::kTf32:
      for (uint32_t i = 0; i < 4; ++i) values[i] = std::bit_cast<float>(load<uint32_t>(chunk + 4 * i) & 0xffffe000);
      return;
    case NumberFormat::kE4M3:
      for (uint32_t i = 0; i < 16; ++i) values[i] = kE4M3[chunk[i]];
      return;
    case NumberFormat::kE5M2:
      for (uint32_t i = 0; i < 16; ++i) values[i] = kE5M2[chunk[i]];
      return;
    case NumberFormat::kE2M3:
      return decode_packed(kE2M3, chunk, values);
    case NumberFormat::kE3M2:
      return decode_packed(kE3M2, chunk, values);
    case NumberFormat::kE2M1:
      return decode_packed(kE2M1, chunk, values);
    case NumberFormat::kE2M1Packed:
      for (uint32_t i = 0; i < 32; ++i) values[i] = kE2M1[chunk[i / 2] >> i % 2 * 4 & 15];
      return;
  }
}

}  // namespace jaxbw::emulator
