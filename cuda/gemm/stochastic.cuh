// What makes rounding to few bits unbiased: jaxbw/_src/stochastic.py says what it is, and these are the same bits.
#pragma once

#include "gemm/quantize_blocks.h"
#include "ptx/thread.h"

namespace jaxbw {

// Threefry-2x32-20 (https://doi.org/10.1145/2063384.2063405).
JAXBW_DEVICE uint2 threefry(uint2 key, uint2 counter) {
  constexpr uint32_t kParity = 0x1bd11bda, kRounds = 20, kInjected = 4;  // rounds between two injections of the key
  constexpr uint32_t kRotations[2][kInjected] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[] = {key.x, key.y, kParity ^ key.x ^ key.y};
  uint2 x = {counter.x + keys[0], counter.y + keys[1]};
#pragma unroll
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t injection = round / kInjected + 1, distance = kRotations[(injection - 1) % 2][round % kInjected];
    x.x += x.y;
    x.y = (x.y << distance | x.y >> (32 - distance)) ^ x.x;
    if (round % kInjected == kInjected - 1) {
      x.x += keys[injection % 3];
      x.y += keys[(injection + 1) % 3] + injection;
    }
  }
  return x;
}

// The points of a matrix's elements, 16 bits each, at which numbers go up.
class Points {
 public:
  // `first_pair`: of the matrix's rows, counted through all matrices of the seed.
  JAXBW_DEVICE Points(uint2 seed, uint32_t first_pair) : seed_(seed), first_pair_(first_pair) {}

  // Those of two rows from an even one on, and two columns: a word for each row, the first column's in the low half.
  JAXBW_DEVICE uint2 patch(uint32_t row, uint32_t column) const {
    return threefry(seed_, {first_pair_ + row / 2, column / 2});
  }

 private:
  uint2 seed_;
  uint32_t first_pair_;
};

// A number as a rotation takes it, that of row i of a block. So large, no sum or difference is subnormal; and what pads
// x stays 0.
JAXBW_DEVICE float rotated_input(float x, uint32_t signs, uint32_t i) {
  constexpr float kLeast = 0x1p-100f;
  constexpr uint32_t kSign = 0x80000000;
  return fabsf(x) < kLeast ? 0.0f : __uint_as_float(__float_as_uint(x) ^ (signs << (31 - i) & kSign));
}

// Numbers that a Walsh-Hadamard transform mixes at these distances, from the largest one on.
template <uint32_t kCount>
JAXBW_DEVICE void mix(float (&x)[kCount]) {
#pragma unroll
  for (uint32_t distance = kCount / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      if (i & distance) continue;
      const float low = x[i], high = x[i + distance];
      x[i] = __fadd_rn(low, high);
      x[i + distance] = __fsub_rn(low, high);
    }
  }
}

}  // namespace jaxbw
