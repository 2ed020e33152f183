// ldmatrix and stmatrix (PTX 9.7.14.5.15, 9.7.14.5.16), first of 8x8 matrices of 16-bit elements.
//
// Matrix i takes its 8 row addresses from threads 8i to 8i + 7 and register i of every thread. Register of
// thread t, low half first (figures 104 and 107):
//
//            plain                       .trans
//   row      t / 4                       2*(t % 4), 2*(t % 4) + 1
//   column   2*(t % 4), 2*(t % 4) + 1    t / 4
//
// Of 8-bit elements sm_100 has ldmatrix.m16n16.trans, which makes two registers of B of mma.sync, and
// stmatrix.m16n8.trans, which takes an accumulator's four elements in one register. A row of the matrix in memory is 16
// bytes. Byte b:
//
//            m16n16, register r of two   m16n8
//   row      4*(t % 4) + b               2*(t % 4) + b % 2
//   column   t / 4 + 8*r                 t / 4 + 8*(b / 2)
//
// The shapes that unpack 6- and 4-bit elements have no entry point.
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

// Of 8-bit elements. A register stands for 8 rows in either.
void load_byte_matrices(std::span<const uint8_t> rows, std::span<uint32_t> registers);
void store_byte_matrices(std::span<const uint32_t> registers, std::span<uint8_t> rows);

}  // namespace jaxbw::emulator
