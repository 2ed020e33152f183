#include "fused_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace jaxbw::emulator {
namespace {

// Of float32, and what a zero counts as.
constexpr int kSmallestExponent = -126;
constexpr uint32_t kNan = 0x7fffffff;

int exponent_of(float value, int smallest) {
  return value == 0 || !std::isfinite(value) ? kSmallestExponent : std::max(std::ilogb(value), smallest);
}

// Toward zero. What is lost makes the last bit 1 if `odd`, so that a second rounding is as good as a single one.
uint32_t truncate(double value, uint32_t bits, bool odd) {
  if (value == 0) return 0;
  const int unit = std::max(std::ilogb(value), kSmallestExponent) - int(bits);
  const double units = std::ldexp(value, -unit), whole = std::trunc(units);
  auto result = std::bit_cast<uint32_t>(float(std::ldexp(whole, unit)));
  if (odd && whole != units) result |= 1;
  return result;
}

}  // namespace

FusedSum FusedSum::of_wgmma(NumberFormat a, NumberFormat b, bool f32_result) {
  if (format_bits(a) == 8) return {a, b, f32_result, 13, 13};
  return {a, b, f32_result, 25, 23};
}
FusedSum FusedSum::of_umma(NumberFormat a, NumberFormat b, bool f32_result) { return {a, b, f32_result, 25, 23}; }

void fused_multiply_accumulate(const FusedSum& sum, const float* a, const float* b, uint32_t b_stride, uint32_t m,
                               uint32_t n, uint32_t k, float scale, uint32_t* const* d,
                               const FusedSum::Scales* scales) {
  const int a_smallest = smallest_exponent(sum.a_format), b_smallest = smallest_exponent(sum.b_format);
  const int d_smallest = sum.f32_result ? kSmallestExponent : smallest_exponent(NumberFormat::kF16);
  std::vector<int> a_exponents(m * k), b_exponents(k * n);
  for (uint32_t i = 0; i < m * k; ++i) a_exponents[i] = exponent_of(a[i], a_smallest);
  for (uint32_t p = 0; p < k; ++p)
    for (uint32_t j = 0; j < n; ++j) b_exponents[p * n + j] = exponent_of(b[p * b_stride + j], b_smallest);

  for (uint32_t i = 0; i < m; ++i) {
    for (uint32_t j = 0; j < n; ++j) {
      const float initial = scale == 0 ? 0 : std::bit_cast<float>(d[i][j]) * scale;
      const double factor = scales ? double(scales->a[i]) * scales->b[j] : 1;
      const int shift = std::isfinite(factor) ? std::ilogb(factor) : 0;
      int largest = exponent_of(initial, d_smallest);
      double plain = initial;  // has the infinities and NaNs of the sum
      for (uint32_t p = 0; p < k; ++p) {
        const double product = double(a[i * k + p]) * b[p * b_stride + j];
        largest = std::max(largest, a_exponents[i * k + p] + b_exponents[p * n + j] + (product == 0 ? 0 : shift));
        plain += product * factor;
      }
      if (!std::isfinite(plain)) {
        d[i][j] = plain != plain ? kNan : std::bit_cast<uint32_t>(float(plain));
        continue;
      }
      // A power of two, by which all of this stays exact: terms have at most 24 + 25 bits.
      const double units = std::ldexp(1.0, int(sum.fraction_bits) - largest);
      double total = std::trunc(initial * units);
      for (uint32_t p = 0; p < k; ++p) total += std::trunc(double(a[i * k + p]) * b[p * b_stride + j] * factor * units);
      d[i][j] = truncate(total / units, sum.f32_result ? sum.result_bits : 23, !sum.f32_result);
    }
  }
}

}  // namespace jaxbw::emulator
