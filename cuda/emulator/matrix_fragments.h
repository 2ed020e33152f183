// ldmatrix and stmatrix of 8x8 matrices of 16-bit elements (PTX 9.7.14.5.15, 9.7.14.5.16).
//
// Matrix i takes its 8 row addresses from threads 8i to 8i + 7 and register i of every thread. Register of
// thread t, low half first (figures 104 and 107):
//
//            plain                       .trans
//   row      t / 4                       2*(t % 4), 2*(t % 4) + 1
//   column   2*(t % 4), 2*(t % 4) + 1    t / 4
//
// The 8-bit shapes of sm_100 (m16n16, m8n16, m16n8) have no entry point.
#pragma once

#include <cstdint>
#include <span>

namespace jaxbw::emulator {

inline constexpr uint32_t kMatrixRows = 8;
inline constexpr uint32_t kMatrixRowBytes = 16;

struct MatrixElement {
  uint32_t row, column;
};

// The element in half `half` (0 = low) of thread `thread`'s register.
constexpr MatrixElement matrix_element(bool transposed, uint32_t thread, uint32_t half) {
  const uint32_t along = 2 * (thread % 4) + half, across = thread / 4;
  return transposed ? MatrixElement{along, across} : MatrixElement{across, along};
}

// registers[matrix * 32 + thread] from rows[matrix * 128 + row * 16 + byte], and back. The sizes must be
// 1, 2 or 4 matrices' (.x1, .x2, .x4); others throw Error.
void load_matrices(bool transposed, std::span<const uint8_t> rows, std::span<uint32_t> registers);
void store_matrices(bool transposed, std::span<const uint32_t> registers, std::span<uint8_t> rows);

}  // namespace jaxbw::emulator
