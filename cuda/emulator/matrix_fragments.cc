#include "matrix_fragments.h"

#include <cstring>

#include "error.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kThreads = 32;
constexpr uint32_t kMatrixBytes = kMatrixRows * kMatrixRowBytes;

void check_sizes(size_t row_bytes, size_t registers) {
  const size_t count = registers / kThreads;
  if ((count != 1 && count != 2 && count != 4) || registers != count * kThreads || row_bytes != count * kMatrixBytes) {
    throw Error("ldmatrix/stmatrix: needs 1, 2 or 4 whole matrices");
  }
}

// Byte offset of an element of matrix `i` in the rows.
size_t byte_offset(bool transposed, size_t i, uint32_t thread, uint32_t half) {
  const MatrixElement element = matrix_element(transposed, thread, half);
  return i * kMatrixBytes + element.row * kMatrixRowBytes + element.column * 2;
}

}  // namespace

void load_matrices(bool transposed, std::span<const uint8_t> rows, std::span<uint32_t> registers) {
  check_sizes(rows.size(), registers.size());
  for (size_t i = 0; i < registers.size(); ++i) {
    uint16_t halves[2];
    for (uint32_t half = 0; half < 2; ++half) {
      std::memcpy(&halves[half], &rows[byte_offset(transposed, i / kThreads, i % kThreads, half)], 2);
    }
    registers[i] = halves[0] | uint32_t{halves[1]} << 16;
  }
}

void store_matrices(bool transposed, std::span<const uint32_t> registers, std::span<uint8_t> rows) {
  check_sizes(rows.size(), registers.size());
  for (size_t i = 0; i < registers.size(); ++i) {
    for (uint32_t half = 0; half < 2; ++half) {
      const uint16_t value = static_cast<uint16_t>(registers[i] >> 16 * half);
      std::memcpy(&rows[byte_offset(transposed, i / kThreads, i % kThreads, half)], &value, 2);
    }
  }
}

void load_byte_matrices(std::span<const uint8_t> rows, std::span<uint32_t> registers) {
  check_sizes(rows.size(), registers.size());
  for (size_t i = 0; i < registers.size(); ++i) {
    const size_t thread = i % kThreads, reg = i / kThreads;
    const size_t first = reg / 2 * 2 * kMatrixBytes + 4 * (thread % 4) * kMatrixRowBytes + thread / 4 + 8 * (reg % 2);
    registers[i] = 0;
    for (size_t b = 0; b < 4; ++b) registers[i] |= uint32_t{rows[first + b * kMatrixRowBytes]} << 8 * b;
  }
}

void store_byte_matrices(std::span<const uint32_t> registers, std::span<uint8_t> rows) {
  check_sizes(rows.size(), registers.size());
  for (size_t i = 0; i < registers.size(); ++i) {
    const size_t thread = i % kThreads, reg = i / kThreads;
    const size_t first = reg * kMatrixBytes + 2 * (thread % 4) * kMatrixRowBytes + thread / 4;
    for (size_t b = 0; b < 4; ++b)
      rows[first + b % 2 * kMatrixRowBytes + 8 * (b / 2)] = static_cast<uint8_t>(registers[i] >> 8 * b);
  }
}

}  // namespace jaxbw::emulator
