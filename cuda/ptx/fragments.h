// Ordinary shared-memory accesses, ldmatrix and stmatrix, and the conversions at their ends.
#pragma once

#include <type_traits>

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw::ptx {

template <typename T = uint32_t>
JAXBW_DEVICE T load_shared(uint32_t address) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4);
  std::conditional_t<sizeof(T) == 1, uint16_t, T> value;  // no register is narrower
  if constexpr (sizeof(T) == 1) {
    asm volatile("ld.shared.b8 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  } else {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  }
  return static_cast<T>(value);
}

JAXBW_DEVICE void load_shared(float (&v)[4], uint32_t address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(address)
               : "memory");
}

JAXBW_DEVICE void load_shared(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}

// The same where `wanted`; elsewhere v stays as it is. No branch, so that several loads are under way at a time.
JAXBW_DEVICE void load_shared_if(bool wanted, float (&v)[4], uint32_t address) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.u32 p, %5, 0;\n\t"
      "@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
      : "r"(address), "r"(uint32_t{wanted})
      : "memory");
}

JAXBW_DEVICE void store_shared(uint32_t address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

JAXBW_DEVICE void store_shared(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

JAXBW_DEVICE void store_shared(uint32_t address, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

JAXBW_DEVICE void store_shared(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Four 8x8 matrices of 16-bit elements (PTX 9.7.14.5.15): lane l gives the address of row l % 8 of matrix l / 8, a
// multiple of 16 bytes, and gets elements 2 * (l % 4) and the next of row l / 4 of each.
JAXBW_DEVICE void ldmatrix_x4(uint32_t (&m)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row_address)
               : "memory");
}

// The same with each matrix transposed: lane l gets element l / 4 of rows 2 * (l % 4) and the next of each.
JAXBW_DEVICE void ldmatrix_x4_transposed(uint32_t (&m)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row_address)
               : "memory");
}

// Four 8x8 matrices of 16-bit elements (PTX 9.7.14.5.16): lane l gives the address of row l % 8 of matrix l / 8
// and holds elements 2 * (l % 4) and the next of row l / 4 of each.
JAXBW_DEVICE void stmatrix_x4(uint32_t row_address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(m0), "r"(m1),
               "r"(m2), "r"(m3)
               : "memory");
}

// The same with each matrix transposed: lane l gives the address of column l % 8 of matrix l / 8.
JAXBW_DEVICE void stmatrix_x4_transposed(uint32_t column_address, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(column_address), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

// Two floats rounded to nearest even and packed, `low` in the low half.
template <DataType kType>
JAXBW_DEVICE uint32_t pack(float low, float high) {
  static_assert(kType == DataType::kBF16 || kType == DataType::kF16);
  uint32_t packed;
  if constexpr (kType == DataType::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// One float rounded to nearest even.
template <DataType kType>
JAXBW_DEVICE uint16_t narrow(float value) {
  return static_cast<uint16_t>(pack<kType>(value, 0.0f));
}

// One 16-bit float widened.
template <DataType kType>
JAXBW_DEVICE float widen(uint16_t bits) {
  static_assert(kType == DataType::kBF16 || kType == DataType::kF16);
  if constexpr (kType == DataType::kBF16) return __uint_as_float(uint32_t{bits} << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// 2^x and 1/x to about 2 ulp (PTX 9.7.3.21, 9.7.3.13).
JAXBW_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
JAXBW_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace jaxbw::ptx
