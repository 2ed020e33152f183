// What the fake driver's launches compute with: elements of all types as they lie in memory, and activations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "params.h"

namespace fake {

using jaxbw::DataType;

inline float load_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                          : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                           : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

inline float load_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t store_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16_t store_f16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);
  const int scale = exponent < -13 ? -24 : exponent - 11;  // the weight of the last bit
  const int quotient = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -scale)));
  return static_cast<uint16_t>(sign | (((scale + 24) << 10) + quotient));
}

// e4m3 or e5m2, but for infinities and NaN, which no matmul here has.
inline float load_8bit(DataType type, uint8_t bits) {
  const int mantissa_bits = type == DataType::kE4M3 ? 3 : 2, bias = type == DataType::kE4M3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const int significand = exponent == 0 ? mantissa : mantissa | 1 << mantissa_bits;
  const float value =
      std::ldexp(static_cast<float>(significand), (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
  return bits & 0x80 ? -value : value;
}

inline float load(DataType type, const void* address) {
  if (is_8bit(type)) return load_8bit(type, *static_cast<const uint8_t*>(address));
  if (type == DataType::kF32) return *static_cast<const float*>(address);
  const uint16_t bits = *static_cast<const uint16_t*>(address);
  return type == DataType::kBF16 ? load_bf16(bits) : load_f16(bits);
}

// Rounded to nearest even; what is beyond the largest number becomes that where the cast saturates.
inline uint8_t store_8bit(DataType type, float value, bool saturates) {
  const int mantissa_bits = type == DataType::kE4M3 ? 3 : 2, bias = type == DataType::kE4M3 ? 7 : 15;
  const float largest = type == DataType::kE4M3 ? 448.0f : 57344.0f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7f;
  if (!saturates && magnitude > jaxbw::float8_limit(type)) return sign | (type == DataType::kE4M3 ? 0x7f : 0x7c);
  magnitude = std::min(magnitude, largest);
  if (magnitude == 0) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);
  const int least = 1 - bias - mantissa_bits, scale = std::max(exponent - 1 - mantissa_bits, least);
  const int quotient = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -scale)));
  return static_cast<uint8_t>(sign | (((scale - least) << mantissa_bits) + quotient));
}

inline void store(DataType type, void* address, float value, bool saturates = false) {
  if (is_8bit(type)) {
    *static_cast<uint8_t*>(address) = store_8bit(type, value, saturates);
  } else if (type == DataType::kF32) {
    *static_cast<float*>(address) = value;
  } else {
    *static_cast<uint16_t*>(address) = type == DataType::kBF16 ? store_bf16(value) : store_f16(value);
  }
}

inline float activate(jaxbw::Activation activation, float x) {
  switch (activation) {
    case jaxbw::Activation::kNone:
      return x;
    case jaxbw::Activation::kRelu:
      return x > 0 ? x : 0;
    case jaxbw::Activation::kGelu:
      return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case jaxbw::Activation::kSilu:
      return x / (1 + std::exp(-x));
    case jaxbw::Activation::kGeluExact:
      return 0.5f * x * (1 + std::erf(x / std::sqrt(2.0f)));
  }
  return NAN;
}

}  // namespace fake
