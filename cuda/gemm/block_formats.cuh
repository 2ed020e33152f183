// The arithmetic of block-scaled formats: jaxbw/_src/block_formats.py says what it is, and these are the same bits.
//
// A format makes of the amax of a block, the bits of a float32 that may be infinity or NaN, its Scale and that's code,
// a byte; and of four numbers, their Scale and points what is stored. Points are 16 bits of each number in two words,
// and come from a patch of 2x2 elements: of where they lie in a matrix, if the format is dithered.
#pragma once

#include "gemm/quantize_blocks.h"
#include "gemm/stochastic.cuh"
#include "ptx/float8.h"
#include "ptx/thread.h"

namespace jaxbw {

constexpr uint32_t kInfinity = 0x7f800000, kFractionBits = 23, kFraction = (1u << kFractionBits) - 1;

// x / divisor, by the divisor's rounded reciprocal and one correction. It is on the side of each tie on which the
// rounded quotient is, and equal to it where that is a tie (tests/emulator/test_quantize_blocks.py has all that come
// near).
JAXBW_DEVICE float quotient(float x, float divisor, float inverse) {
  const float close = __fmul_rn(x, inverse);
  return __fmaf_rn(__fmaf_rn(-close, divisor, x), inverse, close);
}

// The magnitudes of four numbers as e2m1 of four bits each: rounded to nearest even, and 6 of what is beyond, NaN too.
// No instruction of sm_90 does it.
//
// A code is y * 2 up to 2, y + 2 up to 4 and y / 2 + 4 from there, the least of the three everywhere; a sum with 2^23
// rounds it to an integer, in its last bits, and an even code is an even integer in each.
JAXBW_DEVICE uint32_t e2m1_magnitudes(const float (&y)[4]) {
  constexpr float kInteger = 0x1p23f;
  uint32_t codes = 0;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float magnitude = fminf(fabsf(y[i]), 6.0f);
    const uint32_t low = __float_as_uint(__fmaf_rn(magnitude, 2.0f, kInteger)),
                   middle = __float_as_uint(__fadd_rn(magnitude, kInteger + 2)),
                   high = __float_as_uint(__fmaf_rn(magnitude, 0.5f, kInteger + 4));
    codes += min(min(low, middle), high) << 4 * i;  // what is above 2^23's exponent is not read
  }
  return codes & 0x7777;
}

// Their signs, where e2m1 has them.
JAXBW_DEVICE uint32_t e2m1_signs(const float (&y)[4]) {
  const uint32_t even = __byte_perm(__float_as_uint(y[0]), __float_as_uint(y[2]), 0x73),
                 odd = __byte_perm(__float_as_uint(y[1]), __float_as_uint(y[3]), 0x73);
  return (even >> 4 & 0x0808) | (odd & 0x8080);
}

// Four numbers as e2m1, the first one lowest; NaN becomes 7.
JAXBW_DEVICE uint32_t e2m1_numbers(const float (&y)[4]) {
#if __CUDA_ARCH__ >= 1000
  return ptx::pack_e2m1(y);
#else
  return e2m1_magnitudes(y) | e2m1_signs(y);
#endif
}

struct ToNearest {
  static constexpr bool kTakesPoints = false;

  JAXBW_DEVICE uint2 patch(uint32_t, uint32_t) const { return {}; }
};

// MXFP8 and MXFP4: the scale is a power of two.
template <DataType kOf>
class MxFormat : public ToNearest {
 public:
  static constexpr DataType kElement = kOf;
  static constexpr uint32_t kBlock = kMxBlock;

  struct Scale {
    float inverse;  // 0 of NaN: what is finite becomes 0, the rest NaN

    JAXBW_DEVICE Scale of_lane(uint32_t lane) const { return {ptx::of_lane(inverse, lane)}; }
  };

  // 2^e >= amax / max: one more than of the quotient of exponents where amax has the larger fraction.
  JAXBW_DEVICE Scale scale_of(uint32_t amax, uint32_t& code) const {
    constexpr uint32_t kLargest = kOf == DataType::kE4M3   ? 0x43e00000   // 448
                                  : kOf == DataType::kE5M2 ? 0x47600000   // 57344
                                                           : 0x40c00000;  // 6
    constexpr uint32_t kUp = kFraction - (kLargest & kFraction), kExponent = (kLargest >> kFractionBits) - 127;
    const bool is_number = amax < kInfinity;
    const uint32_t exponent = max((amax + kUp) >> kFractionBits, kExponent) - kExponent;
    code = is_number ? exponent : 0xff;
    return {__uint_as_float(is_number ? (254 - exponent) << kFractionBits : 0)};
  }

  // Four numbers, the first one lowest.
  JAXBW_DEVICE uint32_t quantized(const float (&x)[4], Scale scale, uint2) const {
    float y[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) y[i] = ptx::multiply_flushed(x[i], scale.inverse);
    if constexpr (kOf == DataType::kE2M1) {
      return e2m1_numbers(y);
    } else {
      return ptx::pack_float8<kOf>(y[0], y[1]) | uint32_t{ptx::pack_float8<kOf>(y[2], y[3])} << 16;
    }
  }
};

// NVFP4: the scale is e4m3, of what a scale of the whole array has divided.
class NvFormat : public ToNearest {
 public:
  static constexpr DataType kElement = DataType::kE2M1;
  static constexpr uint32_t kBlock = kNvBlock;

  struct Scale {
    float scale, inverse;  // 0 of a scale of 0 and of NaN: all becomes 0

    JAXBW_DEVICE Scale of_lane(uint32_t lane) const { return {ptx::of_lane(scale, lane), ptx::of_lane(inverse, lane)}; }
  };

  // The global scale as a power of two and a number in [2, 4): no power is subnormal. `whole`: a positive normal
  // number.
  JAXBW_DEVICE explicit NvFormat(float whole)
      : power_(__uint_as_float(0x7f800000 - (__float_as_uint(whole) & kInfinity))),
        divisor_(__uint_as_float((__float_as_uint(whole) & kFraction) | 0x40000000)),
        inverse_(__frcp_rn(divisor_)) {}

  JAXBW_DEVICE Scale scale_of(uint32_t amax, uint32_t& code) const {
    const float largest = quotient(ptx::multiply_flushed(__uint_as_float(amax), power_), divisor_, inverse_);
    const float sixth = quotient(largest, 6.0f, 1.0f / 6.0f);
    // Beyond the range that is infinity or NaN, and 448.
    const uint32_t rounded = ptx::pack_float8<DataType::kE4M3>(fminf(sixth, 448.0f), 0.0f);
    const bool is_number = amax < kInfinity;
    code = is_number ? rounded : 0x7f;
    if (!is_number || code == 0) return {0.0f, 0.0f};
    const float scale = __uint_as_float(code << (kFractionBits - 3)) * 0x1p120f;
    return {scale, __frcp_rn(scale)};
  }

  JAXBW_DEVICE uint32_t quantized(const float (&x)[4], Scale scale, uint2) const {
    float of_all[4], y[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      of_all[i] = ptx::multiply_flushed(x[i], power_);
      const float divided = quotient(of_all[i], divisor_, inverse_);
      y[i] = quotient(divided, scale.scale, scale.inverse);  // beyond the range infinity, or NaN
    }
    // The signs of infinities and of NaN, which those of y are not.
    return (e2m1_numbers(y) & (scale.inverse == 0 ? 0 : 0x7777)) | e2m1_signs(of_all);
  }

 protected:
  float power_, divisor_, inverse_;
};

// NVFP4 whose data are rounded stochastically: a random fraction is added to what then is rounded down.
class DitheredNvFormat : public NvFormat {
 public:
  static constexpr bool kTakesPoints = true;

  struct Scale {
    float inverse;  // of the scale and of divisor_; 0 of a scale of 0 and of NaN: all becomes 0

    JAXBW_DEVICE Scale of_lane(uint32_t lane) const { return {ptx::of_lane(inverse, lane)}; }
  };

  JAXBW_DEVICE DitheredNvFormat(const NvFormat& format, const Points& points) : NvFormat(format), points_(points) {}

  JAXBW_DEVICE uint2 patch(uint32_t row, uint32_t column) const { return points_.patch(row, column); }

  JAXBW_DEVICE Scale scale_of(uint32_t amax, uint32_t& code) const {
    return {__fmul_rn(NvFormat::scale_of(amax, code).inverse, inverse_)};
  }

  JAXBW_DEVICE uint32_t quantized(const float (&x)[4], Scale scale, uint2 points) const {
    uint32_t codes = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float of_all = ptx::multiply_flushed(x[i], power_);
      const uint32_t point = (i < 2 ? points.x : points.y) >> i % 2 * 16 & 0xffff,
                     sign = __float_as_uint(of_all) >> 28 & 8;
      codes |= (sign | magnitude(__fmul_rn(fabsf(of_all), scale.inverse), point)) << 4 * i;
    }
    return codes & (scale.inverse == 0 ? 0x8888 : 0xffff);
  }

 private:
  // Of y as e2m1. A code is the least of three (see e2m1_magnitudes); here it is less by 1, which the fraction has
  // more.
  JAXBW_DEVICE static uint32_t magnitude(float y, uint32_t point) {
    constexpr float kInteger = 0x1p23f;
    y = fminf(y, 6.0f);
    const float code = fminf(fminf(__fmaf_rn(y, 2.0f, -1.0f), __fadd_rn(y, 1.0f)), __fmaf_rn(y, 0.5f, 3.0f));
    const float dithered = __fadd_rn(code, __uint_as_float(0x3f800040 | point << 7));
    return __float_as_uint(__fadd_rz(dithered, kInteger)) & 7;
  }

  Points points_;
};

}  // namespace jaxbw
