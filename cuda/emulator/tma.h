// The Tensor Memory Accelerator: which bytes of global and shared memory a cp.async.bulk.tensor or
// cp.reduce.async.bulk.tensor touches (PTX 5.5.3, 5.5.7, 9.7.9.25.5), in tile mode. What is moved when, and
// what it signals, is the machine's affair.
//
//   box in the tensor (dims 0 = contiguous, 1)          the same box in shared memory, 128 B swizzle
//   coordinate (c0, c1)                                 line 0:  0 1 2 3 4 5 6 7      (16-byte chunks)
//    +-----------+. . . .+                              line 1:  1 0 3 2 5 4 7 6
//    | in bounds | fill  |  one piece = 16 bytes        line 2:  2 3 0 1 6 7 4 5
//    +-----------+. . . .+  of one row of the box       ...
//
// 16U4_ALIGN16B puts 16 numbers of 4 bits into the first 8 bytes of each chunk. A box of it is 128 numbers wide, 64
// bytes of the tensor and 128 of shared memory, and begins at a multiple of them. The gaps stay as they are, which is
// one reading of "gap"; a barrier counts what is moved, as published kernels expect (CUTLASS, DeepGEMM), not the gaps.
//
// Four rules are no document's, but what an H200 does (tests/emulator/calibration): a box starts at a
// multiple of 16 bytes of its row; only a load may start before the tensor; a store or a reduction
// moves whole pieces, the elements behind the end of a row that ends within one included; and rows that a load
// leaves of a box narrower than its swizzle span are a span apart, with what lies between as it was.
//
// And of the types that convert on the way, as an H200 does: a load of TFLOAT32 rounds to the nearest tf32 value,
// ties to even, and gives one NaN for all; FTZ types flush nothing.
//
// Refused, because no public document fixes their effect on the bytes: im2col modes (no entry point),
// interleaved layouts, the padded 6-bit type, stores of the padded 4-bit one, NaN fill (which NaN), stores of types
// that convert, and stores of a box narrower than its swizzle span.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor_map.h"

namespace jaxbw::emulator {

// A run of bytes that stays whole through the swizzle: 16 bytes, or 8 in the 8-byte-flip mode, and of 16U4_ALIGN16B.
struct TmaPiece {
  uint64_t global;  // address of the first byte; meaningless where count = 0
  uint32_t shared;  // address of the piece in the window that the instruction's address is in
  uint8_t bytes;    // of the piece in shared memory
  uint8_t count;    // of these, so many are moved; a load fills the others with zeros
};

// Throws Error where the map asks for something that the engine does not do.
void check_tma_supported(const TensorMapFields& map);

// Bytes that one instruction moves: the whole box, out-of-bounds elements included. That is what a load
// reports to its mbarrier.
uint32_t tma_box_bytes(const TensorMapFields& map);

enum class TmaDirection : uint8_t { kLoad, kStore };  // a reduction is a store

// Fills `pieces` with the box at `coordinates` (elements; one per dimension of the map, dimension 0
// first), in ascending order of the unswizzled shared address. `shared` must be a multiple of 128.
void tma_pieces(const TensorMapFields& map, TmaDirection direction, std::span<const int32_t> coordinates,
                uint32_t shared, std::vector<TmaPiece>& pieces);

// tile::gather4 and tile::scatter4 (PTX 5.5.3.3): a column, and four rows, which follow each other in shared memory as
// those of a box do.
inline constexpr uint32_t kGatheredRows = 4;
void tma_row_pieces(const TensorMapFields& map, TmaDirection direction, std::span<const int32_t> coordinates,
                    uint32_t shared, std::vector<TmaPiece>& pieces);

constexpr bool tma_converts(TensorMapType type) {
  return type == TensorMapType::kF32Ftz || type == TensorMapType::kTf32 || type == TensorMapType::kTf32Ftz;
}
// What a load leaves of the whole elements of a piece.
void tma_convert(TensorMapType type, std::span<uint8_t> bytes);

enum class Reduction : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

// destination = op(destination, source), element by element (cp.reduce.async.bulk.tensor, and PTX
// 9.7.9.25.4.2 for the types that each operation takes; others throw Error). Both spans have the same
// size, whole elements. No type flushes subnormals (on an H200 not f32 either, whatever PTX says).
void tma_reduce(Reduction op, TensorMapType type, std::span<const uint8_t> source, std::span<uint8_t> destination);

}  // namespace jaxbw::emulator
