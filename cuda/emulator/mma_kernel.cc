#include "mma_kernel.h"

#include <cstring>

// One copy of the loops for each x86-64 level, chosen when the library is loaded. Other compilers and
// machines, and sanitizers (whose run-time is not up when the choice is made), get the plain one.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define JAXBW_MULTIVERSION __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define JAXBW_MULTIVERSION
#endif

namespace jaxbw::emulator {
namespace {

// A register block of D: 8 rows of 16 columns, or of 8 for the columns that are left over.
constexpr uint32_t kRows = 8;
typedef float Wide __attribute__((vector_size(64)));
typedef float Narrow __attribute__((vector_size(32)));

}  // namespace

JAXBW_MULTIVERSION
void multiply_accumulate(const float* a, const float* b, uint32_t b_stride, uint32_t m, uint32_t n, uint32_t k,
                         float scale, uint32_t* const* d) {
  const auto block = [&]<class Vector>(uint32_t row, uint32_t column, Vector*) __attribute__((always_inline)) {
    Vector sum[kRows];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
      sum[i] = Vector{};
      if (scale != 0) {
        std::memcpy(&sum[i], d[row + i] + column, sizeof(Vector));
        sum[i] *= scale;
      }
    }
    for (uint32_t p = 0; p < k; ++p) {
      Vector right;
      std::memcpy(&right, b + p * b_stride + column, sizeof(Vector));
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kRows; ++i) sum[i] += a[(row + i) * k + p] * right;
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) std::memcpy(d[row + i] + column, &sum[i], sizeof(Vector));
  };
  for (uint32_t row = 0; row < m; row += kRows) {
    uint32_t column = 0;
    for (; column + 16 <= n; column += 16) block(row, column, static_cast<Wide*>(nullptr));
    if (column < n) block(row, column, static_cast<Narrow*>(nullptr));
  }
}

}  // namespace jaxbw::emulator
