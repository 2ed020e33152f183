// Conversions to floating point of 8 and 4 bits.
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw::ptx {

// Two floats rounded to nearest even, `low` in the low byte (PTX 9.7.9.21). What is beyond the largest number, infinity
// too, becomes that; NaN becomes 0x7f.
template <DataType kType>
JAXBW_DEVICE uint16_t pack_float8(float low, float high) {
  static_assert(kType == DataType::kE4M3 || kType == DataType::kE5M2);
  uint16_t packed;
  if constexpr (kType == DataType::kE4M3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

#if __CUDA_ARCH__ >= 1000
// Four floats as e2m1 likewise, the first one lowest; NaN becomes 7.
JAXBW_DEVICE uint32_t pack_e2m1(const float (&x)[4]) {
  uint32_t packed;
  asm("{\n\t"
      ".reg .b8 low, high;\n\t"
      "cvt.rn.satfinite.e2m1x2.f32 low, %2, %1;\n\t"
      "cvt.rn.satfinite.e2m1x2.f32 high, %4, %3;\n\t"
      "mov.b32 %0, {low, high, 0, 0};\n\t"
      "}"
      : "=r"(packed)
      : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
  return packed;
}
#endif

// The product, of which subnormal factors count as 0 with their sign, and so does a subnormal result.
JAXBW_DEVICE float multiply_flushed(float x, float y) {
  float product;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(y));
  return product;
}

// The larger ones of two signed halves each.
JAXBW_DEVICE uint32_t max_s16x2(uint32_t x, uint32_t y) {
  uint32_t larger;
  asm("max.s16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  return larger;
}

}  // namespace jaxbw::ptx
