// The arithmetic of one MMA instruction, on operands that are already plain float32 arrays.
#pragma once

#include <cstdint>

namespace jaxbw::emulator {

// d[i][j] = initial + sum over p of a[i * k + p] * b[p * b_stride + j], for i < m and j < n, where d[i]
// are pointers to rows of n float32 bit patterns, and initial = scale * d[i][j] (0 where scale = 0, even if
// d[i][j] is a NaN or was never written). m must be a multiple of 8 and n of 8.
//
// Order and rounding: float32, p ascending, initial first, one rounding for each p. The hardware
// does something else (fused_sum.h), so results agree with it exactly only where every partial sum is
// exact, for example on small integers. Products of 16-bit and smaller formats and of tf32 are exact in
// float32 short of overflow and underflow, so that fused and separate multiply-adds agree.
void multiply_accumulate(const float* a, const float* b, uint32_t b_stride, uint32_t m, uint32_t n, uint32_t k,
                         float scale, uint32_t* const* d);

}  // namespace jaxbw::emulator
