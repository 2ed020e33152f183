// The 64-bit descriptors by which wgmma (sm_90) and tcgen05.mma (sm_100) find an operand in shared memory, and the
// instruction descriptor of tcgen05.mma.
//
// Operand tiles lie in the 128-byte swizzle, 64 elements of the contiguous dimension to a span. K-major: one block of
// 128-byte rows, one row for each M or N index. MN-major: a block for each 64 M or N indices, 64 rows in it, one for
// each k:
//
//   K-major           k 0..63                    MN-major     mn 0..63        mn 64..127
//        mn 0    [ 128 bytes ]                        k 0   [ 128 bytes ]   [ 128 bytes ]
//        mn 1    [ 128 bytes ]                        k 1   [ 128 bytes ]   [ 128 bytes ]
//         ...     8 rows = SBO                         ...   8 rows = SBO    first block to second = LBO
#pragma once

#include <cstdint>

#include "gemm/storage.h"
#include "params.h"

namespace jaxbw {

// `value` in bits first .. first + width - 1.
constexpr uint64_t field(uint64_t value, uint32_t first, uint32_t width) {
  return (value & ((uint64_t{1} << width) - 1)) << first;
}

constexpr uint32_t kMmaK = 16;                              // of one instruction: 32 bytes
constexpr uint32_t kMnBlock = kSwizzleSpan / 2;             // M or N indices of an MN-major block
constexpr uint32_t kMnBlockBytes = kBlockK * kSwizzleSpan;  // from one MN-major block to the next
constexpr uint32_t kStepBytesK = kMmaK * 2;                 // K-major: inside the swizzle span
constexpr uint32_t kStepBytesMn = kMmaK * kSwizzleSpan;     // MN-major: 16 rows

// What is added to the descriptor, in its units of 16 bytes, for each instruction's step along K.
constexpr uint64_t descriptor_step(Major major) { return (major == Major::kK ? kStepBytesK : kStepBytesMn) >> 4; }

// The fields that both generations share: start address, LBO (which K-major swizzled layouts ignore) and SBO.
constexpr uint64_t descriptor_geometry(uint32_t address, Major major) {
  const uint32_t leading_bytes = major == Major::kK ? 16 : kMnBlockBytes;
  return field(address >> 4, 0, 14)           // start address, in 16 bytes
         | field(leading_bytes >> 4, 16, 14)  // LBO
         | field(kSwizzleAtom >> 4, 32, 14);  // SBO: 8 rows
}

// PTX 9.7.15.5.1.2.2. Bits 62-63: 1 = 128-byte swizzle. Base offset (49-51) 0: tiles are aligned to the atom.
constexpr uint64_t wgmma_descriptor(uint32_t address, Major major) {
  return descriptor_geometry(address, major) | field(1, 62, 2);
}

// PTX 9.7.16.4.1. Bits 46-48: fixed to 1. Bits 61-63: 2 = 128-byte swizzle.
constexpr uint64_t umma_descriptor(uint32_t address, Major major) {
  return descriptor_geometry(address, major) | field(1, 46, 3) | field(2, 61, 3);
}

// PTX 9.7.16.4.2, table for kind::f16, float32 accumulators.
constexpr uint32_t umma_instruction(DataType input, Major a_major, Major b_major, uint32_t m, uint32_t n) {
  return static_cast<uint32_t>(field(1, 4, 2)                                  // D: float32
                               | field(static_cast<uint64_t>(input), 7, 3)     // A's format
                               | field(static_cast<uint64_t>(input), 10, 3)    // B's format
                               | field(static_cast<uint64_t>(a_major), 15, 1)  // A MN-major
                               | field(static_cast<uint64_t>(b_major), 16, 1)  // B MN-major
                               | field(n >> 3, 17, 6) | field(m >> 4, 24, 5));
}

static_assert(wgmma_descriptor(0x400, Major::kK) == 0x4000'0040'0001'0040);
static_assert(umma_descriptor(0x400, Major::kK) == 0x4000'4040'0001'0040);
static_assert(umma_descriptor(0x400, Major::kMN) == 0x4000'4040'0200'0040);
static_assert(umma_instruction(DataType::kBF16, Major::kK, Major::kMN, 256, 256) == 0x1041'0490);

}  // namespace jaxbw
