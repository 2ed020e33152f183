// Rung 1: a matmul on CUDA cores, a thread for each element of D[m, n] = A[m, k] B[n, k]^T, in bfloat16.
//
// Each multiply-add reads two elements from global memory, or its caches: 2 m n k of them, where A and B have only
// (m + n) k. All other rungs are about that: data are brought to shared memory once and used many times.
#include "ptx/fragments.h"

using namespace jaxbw;

constexpr uint32_t kRows = 8, kColumns = 32;  // of D, by a block: warp w has row w, lane l column l

// A bfloat16 is the upper half of a float32.
JAXBW_DEVICE float widen(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }

extern "C" __global__ void __launch_bounds__(kRows* kColumns)
    naive(const uint16_t* a, const uint16_t* b, uint16_t* d, uint32_t m, uint32_t n, uint32_t k) {
  const uint32_t row = blockIdx.y * kRows + threadIdx.x / kColumns;
  const uint32_t column = blockIdx.x * kColumns + threadIdx.x % kColumns;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (uint32_t i = 0; i < k; ++i) sum += widen(a[uint64_t{row} * k + i]) * widen(b[uint64_t{column} * k + i]);
  d[uint64_t{row} * n + column] = static_cast<uint16_t>(ptx::pack<DataType::kBF16>(sum, 0.0f));
}
