#include "mma_kernel.h"

#include <cstring>
#include <utility>

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

// A register block of D is 8 rows of two vectors, or of one for the columns that are left over.
constexpr uint32_t kRows = 8;
typedef float Wide __attribute__((vector_size(64)));
typedef float Narrow __attribute__((vector_size(32)));
template <class Vector, uint32_t kVectors>
struct Block {};

}  // namespace

JAXBW_MULTIVERSION
void multiply_accumulate(const float* a, const float* b, uint32_t b_stride, uint32_t m, uint32_t n, uint32_t k,
                         float scale, uint32_t* const* d) {
  uint32_t row = 0, column = 0;
  const auto block = [&]<class Vector, uint32_t kVectors>(Block<Vector, kVectors>) __attribute__((always_inline)) {
    constexpr uint32_t kWidth = sizeof(Vector) / sizeof(float);
    const float* left = a + size_t{row} * k;
    const float* right = b + column;
    Vector sum[kRows][kVectors] = {};
    if (scale != 0) {
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < kVectors; ++v) {
          Vector initial;
          std::memcpy(&initial, d[row + i] + column + v * kWidth, sizeof initial);
          sum[i][v] = initial * scale;
        }
      }
    }
    for (size_t p = 0; p < k; ++p) {
#pragma GCC unroll 2
      for (uint32_t v = 0; v < kVectors; ++v) {
        Vector line;
        std::memcpy(&line, right + p * b_stride + v * kWidth, sizeof line);
#pragma GCC unroll 8
        for (size_t i = 0; i < kRows; ++i) sum[i][v] += left[i * k + p] * line;
      }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (uint32_t v = 0; v < kVectors; ++v) {
        const Vector result = sum[i][v];
        std::memcpy(d[row + i] + column + v * kWidth, &result, sizeof result);
      }
    }
    column += kVectors * kWidth;
  };
  for (; row < m; row += kRows) {
    for (column = 0; column + 32 <= n;) block(Block<Wide, 2>{});
    if (column + 16 <= n) block(Block<Wide, 1>{});
    if (column < n) block(Block<Narrow, 1>{});
  }
}

}  // namespace jaxbw::emulator
