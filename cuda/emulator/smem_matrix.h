// A matrix operand in shared memory, as wgmma and tcgen05.mma descriptors describe it: where each 16-byte
// chunk of it lies (PTX 9.7.15.5.1.2, 9.7.16.3, 9.7.16.10.6), and its elements decoded to float32.
//
// Both instruction families share the canonical layouts. A tile has a contiguous dimension, cut into
// 16-byte chunks (`inner`), and an outer one; 8 outer lines make a group. S = swizzle span in bytes.
//
//                  contiguous  outer   chunk (outer o, inner i) lies at start + ...
//   K-major, none      K        MN     o%8 * 16 + o/8 * SBO + i * LBO
//   K-major, swizzled  K        MN     o%8 * S  + o/8 * SBO + i * 16                 (LBO unused)
//   MN-major, none     MN       K      o%8 * 16 + o/8 * LBO + i * SBO
//   MN-major, swizzled MN       K      o%8 * S  + o/8 * SBO + i*16 % S + i*16 / S * LBO
//   MN-major, 128 B with 32 B atoms: as swizzled, in groups of 4 lines (CUTLASS's canonical layout; PTX
//   draws only the 8x4 atom. K-major has no documented layout in this mode and is refused.)
//
// These agree, element by element, with the tiles and descriptors that CuTe (CUTLASS 4) builds for bf16, tf32 and
// 8-bit elements in every mode and majorness, K-advance included: compared once, on the host.
//
// Then the swizzle permutes the address bits: it acts on the sum, so a start address that was advanced
// inside a line (the K-advance of every published GEMM) keeps working.
//
// Base offset b (bits 49-51): "the pattern start address >> 7 & 7" for patterns that do not start at their
// natural alignment. Taken here as: line 0 of the pattern is 128-byte line b of its alignment unit. Nothing
// independent confirms this reading; every public kernel has b = 0.
#pragma once

#include <cstdint>

#include "number_formats.h"
#include "swizzle.h"

namespace jaxbw::emulator {

enum class OperandMajor : uint8_t { kK, kMN };

inline constexpr uint32_t kChunkBytes = 16;
// K of every dense wgmma and tcgen05.mma spans 32 bytes (6- and 4-bit elements: of containers).
inline constexpr uint32_t kMmaKBytes = 32;

// The shared memory of one CTA: `bytes` bytes that start at shared address `base`.
struct SharedView {
  const uint8_t* data;
  uint32_t base, bytes;

  const uint8_t* at(uint32_t address, uint32_t count) const {
    if (address < base || address - base > bytes || bytes - (address - base) < count) fail_outside(address);
    return data + (address - base);
  }
  [[noreturn]] void fail_outside(uint32_t address) const;
};

// The decoded fields of a shared-memory matrix descriptor; offsets and address in bytes.
struct SharedMatrix {
  uint32_t start = 0;
  uint32_t leading_offset = 0;  // LBO
  uint32_t stride_offset = 0;   // SBO
  uint32_t base_offset = 0;
  Swizzle swizzle = Swizzle::kNone;

  bool operator==(const SharedMatrix&) const = default;
};

// The descriptor fields that both generations have in the same bits: 0-13, 16-29, 32-45, 49-51. The
// caller decodes the swizzle mode and checks the others.
SharedMatrix decode_shared_matrix(uint64_t descriptor, Swizzle swizzle);

// Shared address of a chunk, see the table above.
uint32_t chunk_address(const SharedMatrix& matrix, OperandMajor major, uint32_t outer, uint32_t inner);

// Calls visit(address, outer, inner) for every chunk of the operand of one MMA: `mn` rows (columns, for B)
// by 32 bytes of K. For MN-major operands `mn` must be a multiple of the elements of a chunk.
template <class Visit>
void for_each_chunk(const SharedMatrix& matrix, OperandMajor major, NumberFormat format, uint32_t mn, Visit visit) {
  const uint32_t element = container_bytes(format);
  const bool k_major = major == OperandMajor::kK;
  const uint32_t outer_count = k_major ? mn : kMmaKBytes / element;
  const uint32_t inner_count = k_major ? kMmaKBytes / kChunkBytes : mn * element / kChunkBytes;
  for (uint32_t outer = 0; outer < outer_count; ++outer) {
    for (uint32_t inner = 0; inner < inner_count; ++inner) {
      visit(chunk_address(matrix, major, outer, inner), outer, inner);
    }
  }
}

// Decodes that operand: element (row, k) goes to values[row * row_stride + k * k_stride].
void read_operand(const SharedView& shared, const SharedMatrix& matrix, OperandMajor major, NumberFormat format,
                  uint32_t mn, float* values, uint32_t row_stride, uint32_t k_stride);

}  // namespace jaxbw::emulator
