// The 64-bit descriptors by which wgmma (sm_90) and tcgen05.mma (sm_100) find an operand in shared memory, and the
// instruction descriptor of tcgen05.mma. How operands lie there is drawn in storage.h (OperandTile).
#pragma once

#include <cstdint>

#include "gemm/storage.h"
#include "params.h"

namespace jaxbw {

// `value` in bits first .. first + width - 1.
constexpr uint64_t field(uint64_t value, uint32_t first, uint32_t width) {
  return (value & ((uint64_t{1} << width) - 1)) << first;
}

constexpr uint32_t kMmaKBytes = 32;                           // of one instruction, whatever the type
constexpr uint32_t kMmasPerSpan = kSwizzleSpan / kMmaKBytes;  // instructions along K in a swizzle span

// What is added to an operand's descriptor, in its units of 16 bytes, from one instruction along K to the next, and
// after each swizzle span.
struct DescriptorSteps {
  uint64_t mma, span;
};

constexpr DescriptorSteps descriptor_steps(const OperandTile& tile) {
  if (tile.major == Major::kMN) {
    const uint32_t mma = (kMmaKBytes >> tile.element_log2) * tile.row_bytes;  // the rows of k of one instruction
    return {mma >> 4, kMmasPerSpan * mma >> 4};
  }
  return {kMmaKBytes >> 4, tile.block_bytes() >> 4};
}

// ... and from one MMA tile of `rows` M indices to the next, where a CTA's tile of A has several.
constexpr uint64_t descriptor_mma_tile_step(const OperandTile& tile, uint32_t rows) {
  const uint32_t bytes =
      tile.major == Major::kK ? rows * tile.row_bytes : rows / tile.row_elements() * tile.block_bytes();
  return bytes >> 4;
}

// A start address, which has 14 bits of 16 bytes: shared memory ends below 2^18 bytes, and in a cluster's window an
// address has the CTA's rank above.
constexpr uint32_t descriptor_start(uint32_t address) { return static_cast<uint32_t>(field(address >> 4, 0, 14)); }

// The fields that both generations share: start address, LBO (from block to block; a K-major operand has none,
// as an instruction stays within one span) and SBO (from 8 rows to the next 8).
constexpr uint64_t descriptor_geometry(uint32_t address, const OperandTile& tile) {
  const uint32_t leading = tile.major == Major::kK ? 16 : tile.block_bytes();
  return descriptor_start(address)                             // start address
         | field(leading >> 4, 16, 14)                         // LBO
         | field(kSwizzleRows * tile.row_bytes >> 4, 32, 14);  // SBO
}

// PTX 9.7.15.5.1.2.2. Bits 62-63: 1 = 128-byte swizzle, 2 = 64-byte swizzle. Base offset (49-51) 0: tiles are aligned
// to the atom.
constexpr uint64_t wgmma_descriptor(uint32_t address, const OperandTile& tile) {
  return descriptor_geometry(address, tile) | field(tile.row_bytes == kSwizzleSpan ? 1 : 2, 62, 2);
}

// PTX 9.7.16.4.1. Bits 46-48: fixed to 1. Bits 61-63: 2 = 128-byte swizzle.
constexpr uint64_t umma_descriptor(uint32_t address, const OperandTile& tile) {
  return descriptor_geometry(address, tile) | field(1, 46, 3) | field(2, 61, 3);
}

// The upper word is the same for every operand, since all lie in the 128-byte swizzle.
constexpr uint32_t kUmmaDescriptorHigh =
    static_cast<uint32_t>(umma_descriptor(0, operand_tile(Major::kK, DataType::kBF16, kSwizzleRows, 1)) >> 32);

// The descriptors of one operand of tcgen05.mma, of the first stage of the ring: lower words, and what is added to
// them. They never carry into what stands above a start address.
struct UmmaOperand {
  constexpr UmmaOperand(uint32_t first_stage, const OperandTile& tile, uint32_t mma_rows)
      : first(static_cast<uint32_t>(umma_descriptor(first_stage, tile))),
        mma_tile_step(static_cast<uint32_t>(descriptor_mma_tile_step(tile, mma_rows))),
        span_step(static_cast<uint32_t>(descriptor_steps(tile).span)),
        step(static_cast<uint32_t>(descriptor_steps(tile).mma)) {}

  uint32_t first, mma_tile_step, span_step, step;
};

// PTX 9.7.16.4.2, table for kind::f16, kind::tf32 and kind::f8f6f4, float32 accumulators.
constexpr uint32_t umma_instruction(DataType a, DataType b, Major a_major, Major b_major, uint32_t m, uint32_t n) {
  return static_cast<uint32_t>(field(1, 4, 2)                                  // D: float32
                               | field(static_cast<uint64_t>(a), 7, 3)         // A's format
                               | field(static_cast<uint64_t>(b), 10, 3)        // B's format
                               | field(static_cast<uint64_t>(a_major), 15, 1)  // A MN-major
                               | field(static_cast<uint64_t>(b_major), 16, 1)  // B MN-major
                               | field(n >> 3, 17, 6) | field(m >> 4, 24, 5));
}

// PTX 9.7.16.4.2, tables for kind::mxf8f6f4 and kind::mxf4nvf4: scales, ue8m0 or ue4m3, which begin in byte 0 of their
// cells.
constexpr uint32_t mx_instruction(DataType a, DataType b, Major a_major, Major b_major, uint32_t m, uint32_t n,
                                  bool ue8m0 = true) {
  return static_cast<uint32_t>(field(static_cast<uint64_t>(a), 7, 3)           // A's format
                               | field(static_cast<uint64_t>(b), 10, 3)        // B's format
                               | field(static_cast<uint64_t>(a_major), 15, 1)  // A MN-major
                               | field(static_cast<uint64_t>(b_major), 16, 1)  // B MN-major
                               | field(n >> 3, 17, 6) | field(ue8m0, 23, 1) | field(m >> 7, 27, 2));
}
// Added to it: they begin in the next byte, A's and B's.
constexpr uint32_t kNextScale = static_cast<uint32_t>(field(1, 29, 2) | field(1, 4, 2));

// The source of tcgen05.cp of a tile of scales: no swizzle, 8 rows of 16 bytes to the next 8.
constexpr uint64_t scales_descriptor(uint32_t address) {
  return descriptor_start(address) | field(kSwizzleRows * 16 >> 4, 32, 14) | field(1, 46, 3);
}

namespace descriptors_check {
constexpr OperandTile kKMajor = operand_tile(Major::kK, DataType::kBF16, 128, 1);
constexpr OperandTile kMnMajor = operand_tile(Major::kMN, DataType::kBF16, 128, 1);
constexpr OperandTile kHalfSpans = operand_tile(Major::kMN, DataType::kBF16, 160, 1);
static_assert(wgmma_descriptor(0x400, kKMajor) == 0x4000'0040'0001'0040);
static_assert(wgmma_descriptor(0x400, kHalfSpans) == 0x8000'0020'0100'0040);
static_assert(umma_descriptor(0x400, kKMajor) == 0x4000'4040'0001'0040);
static_assert(umma_descriptor(0x400, kMnMajor) == 0x4000'4040'0200'0040);
static_assert(umma_descriptor(0x400, kMnMajor) >> 32 == kUmmaDescriptorHigh);
constexpr OperandTile k8Bit = operand_tile(Major::kMN, DataType::kE5M2, 128, 1);
static_assert(descriptor_steps(k8Bit).mma == 4096 >> 4 && descriptor_steps(kMnMajor).mma == 2048 >> 4);
static_assert(umma_instruction(DataType::kBF16, DataType::kBF16, Major::kK, Major::kMN, 256, 256) == 0x1041'0490);
static_assert(umma_instruction(DataType::kE4M3, DataType::kE5M2, Major::kK, Major::kK, 128, 256) == 0x0840'0410);
// As Triton and the CuTe DSL have them.
static_assert(mx_instruction(DataType::kE4M3, DataType::kE4M3, Major::kK, Major::kK, 128, 128) == 0x08A0'0000);
static_assert(mx_instruction(DataType::kE4M3, DataType::kE4M3, Major::kK, Major::kMN, 128, 128) == 0x08A1'0000);
static_assert(mx_instruction(DataType::kE4M3, DataType::kE4M3, Major::kK, Major::kK, 256, 256) == 0x10C0'0000);
static_assert(mx_instruction(DataType::kE4M3, DataType::kE2M1Padded, Major::kK, Major::kK, 128, 128) == 0x08A0'1400);
static_assert(0x08A0'0000 + 3 * kNextScale == 0x68A0'0030);
static_assert(mx_instruction(DataType::kE2M1, DataType::kE2M1, Major::kK, Major::kK, 128, 192) == 0x08B0'0480);
static_assert(mx_instruction(DataType::kE2M1, DataType::kE2M1, Major::kK, Major::kK, 256, 256, false) == 0x1040'0480);
static_assert(scales_descriptor(0) >> 32 == 0x4008);
}  // namespace descriptors_check

}  // namespace jaxbw
