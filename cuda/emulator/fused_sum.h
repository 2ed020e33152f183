// The sum of one MMA as tensor cores compute it, as far as it is known: arXiv 2511.10909 and 2512.07004 found it by
// experiment on H100 and B200.
//
// All products of K and the old D are one sum. Each term is exact, is shifted to the largest exponent among them, and
// loses there what lies below `fraction_bits`, toward zero; then they are added exactly. A product's exponent is
// the sum of its factors', so that its significand is in [1, 4); a subnormal number has its format's smallest.
#pragma once

#include <cstdint>

#include "number_formats.h"

namespace jaxbw::emulator {

struct FusedSum {
  NumberFormat a_format, b_format;
  bool f32_result;         // truncated; or f16, rounded to nearest even
  uint32_t fraction_bits;  // of the terms
  uint32_t result_bits;    // fraction bits of a float32 result, at most 23

  // Powers of two by which the rows of a and the columns of b count. They only add to the exponents of products.
  struct Scales {
    const float *a, *b;
  };

  // 13 for fp8 on Hopper, whose result has no more either; 25 for all others.
  static FusedSum of_wgmma(NumberFormat a, NumberFormat b, bool f32_result);
  static FusedSum of_umma(NumberFormat a, NumberFormat b, bool f32_result);
};

// As multiply_accumulate (mma_kernel.h). An f16 result is left as a float32 that f32_to_f16 rounds correctly.
void fused_multiply_accumulate(const FusedSum& sum, const float* a, const float* b, uint32_t b_stride, uint32_t m,
                               uint32_t n, uint32_t k, float scale, uint32_t* const* d,
                               const FusedSum::Scales* scales = nullptr);

}  // namespace jaxbw::emulator
