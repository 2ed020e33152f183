// mma.sync: a warp multiplies fragments that lie in registers (PTX 9.7.14.5.14).
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw::ptx {

// c[16, 8] += a[16, 16] b[16, 8] (PTX 9.7.14.5.8 draws the fragments). In 8x8 matrices as ldmatrix brings them: a is
// rows 0-7 and 8-15 of its columns 0-7, then those of columns 8-15; b, K-major, rows 0-7 and 8-15. Of c, lane l has
// columns 2 (l % 4) and the next of rows l / 4 and l / 4 + 8.
template <DataType kType>
JAXBW_DEVICE void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(kType == DataType::kBF16 || kType == DataType::kF16);
  if constexpr (kType == DataType::kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace jaxbw::ptx
