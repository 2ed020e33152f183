// Copies operands that TMA cannot address into ones that it can: RepackCopy in params.h says what, repack.h how the
// work is divided. Bound by memory: every byte is read once from DRAM and written once.
#pragma once

#include "gemm/repack.h"
#include "ptx/programmatic_launch.h"
#include "ptx/thread.h"

namespace jaxbw {

// The 16 bytes that start `shift` bytes (0..15) into the 32 of two neighbouring vectors.
JAXBW_DEVICE uint4 extract_vector(uint4 low, uint4 high, uint32_t shift) {
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t by_two[6], by_one[5];
#pragma unroll
  for (uint32_t i = 0; i < 6; ++i) by_two[i] = shift & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (uint32_t i = 0; i < 5; ++i) by_one[i] = shift & 4 ? by_two[i + 1] : by_two[i];
  const uint32_t bits = shift % 4 * 8;
  return {__funnelshift_r(by_one[0], by_one[1], bits), __funnelshift_r(by_one[1], by_one[2], bits),
          __funnelshift_r(by_one[2], by_one[3], bits), __funnelshift_r(by_one[3], by_one[4], bits)};
}

// One row as a group of threads copies it, in vectors of the destination, which starts at a multiple of 16 bytes. The
// source row may start at any element; it is read in aligned vectors too, of which two neighbours make one of the
// destination. (Threads next to each other load the same vectors: from L1.) The last vector may take along what follows
// in the source.
template <typename Element>
class RowCopy {
 public:
  // `source_end`: of the whole source, which starts at a multiple of 16 bytes; nothing is read past it.
  JAXBW_DEVICE RowCopy(const Element* source, Element* destination, uint32_t columns, const Element* source_end)
      : source_(source), destination_(destination), columns_(columns) {
    const auto address = reinterpret_cast<uint64_t>(source);
    shift_ = address % kRepackVector;
    aligned_ = reinterpret_cast<const uint4*>(address - shift_);
    const uint64_t readable = (reinterpret_cast<uint64_t>(source_end) - (address - shift_)) / kRepackVector;
    const uint64_t fast = shift_ == 0 || readable == 0 ? readable : readable - 1;
    fast_ = static_cast<uint32_t>(min(fast, uint64_t{columns}));
  }

  // Vectors first, first + step, ... before `end`, kRepackInFlight of them at most.
  JAXBW_DEVICE void copy(uint32_t first, uint32_t end, uint32_t step) const {
    const uint32_t fast_end = min(end, fast_);
    uint4 low[kRepackInFlight], high[kRepackInFlight];
#pragma unroll
    for (uint32_t i = 0; i < kRepackInFlight; ++i) {
      const uint32_t v = first + i * step;
      if (v < fast_end) {
        low[i] = __ldcs(aligned_ + v);
        high[i] = __ldcs(aligned_ + v + (shift_ != 0));
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kRepackInFlight; ++i) {
      const uint32_t v = first + i * step;
      if (v < fast_end) {
        reinterpret_cast<uint4*>(destination_)[v] = extract_vector(low[i], high[i], shift_);
      } else if (v < end) {
        copy_elements(v);
      }
    }
  }

 private:
  JAXBW_DEVICE void copy_elements(uint32_t v) const {
    constexpr uint32_t kElements = kRepackVector / sizeof(Element);
#pragma unroll 1
    for (uint32_t i = v * kElements; i < columns_ && i < (v + 1) * kElements; ++i) destination_[i] = source_[i];
  }

  const Element* source_;
  Element* destination_;
  uint32_t columns_;
  uint32_t shift_;
  const uint4* aligned_;
  uint32_t fast_;  // vectors whose loads stay inside the source
};

template <typename Element>
JAXBW_DEVICE void copy_piece(const RepackCopy& p, uint32_t piece) {
  const auto* source = static_cast<const Element*>(p.source);
  auto* destination = static_cast<Element*>(p.destination);
  const RepackRows cut = repack_rows(p.columns, sizeof(Element));
  const uint64_t rows = uint64_t{p.batch} * p.rows;
  const uint64_t row = uint64_t{piece / cut.chunks} * cut.rows + threadIdx.x / cut.lanes;
  if (row >= rows) return;
  const RowCopy<Element> copy(source + row * p.columns, destination + row * p.destination_pitch, p.columns,
                              source + rows * p.columns);
  const uint32_t first = piece % cut.chunks * cut.chunk;
  copy.copy(first + threadIdx.x % cut.lanes, min(first + cut.chunk, cut.vectors), cut.lanes);
}

// The tile of a piece: its first row and column in the destination, and the two matrices of its batch index.
template <typename Element>
struct TransposedTile {
  uint32_t i, j;
  const Element* source;
  Element* destination;
};

template <typename Element>
JAXBW_DEVICE TransposedTile<Element> transposed_tile(const RepackCopy& p, uint32_t piece) {
  constexpr uint32_t kTile = kRepackTransposeTile;
  const uint32_t tiles_i = (p.rows + kTile - 1) / kTile, tiles_j = (p.columns + kTile - 1) / kTile;
  const uint64_t first_row = uint64_t{piece / tiles_i / tiles_j} * p.rows;
  return {piece % tiles_i * kTile, piece / tiles_i % tiles_j * kTile,
          static_cast<const Element*>(p.source) + first_row * p.columns,
          static_cast<Element*>(p.destination) + first_row * p.destination_pitch};
}

// Tile by tile through shared memory, so that both reads and writes are along rows.
template <typename Element>
JAXBW_DEVICE void transpose_piece(const RepackCopy& p, uint32_t piece) {
  constexpr uint32_t kTile = kRepackTransposeTile;
  constexpr uint32_t kPitch = kTile + 4 / sizeof(Element);  // an odd number of words: a column touches every bank
  constexpr uint32_t kStep = kRepackThreads / kTile;
  __shared__ Element tile[kTile * kPitch];
  const uint32_t x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  const auto [i, j, source, destination] = transposed_tile<Element>(p, piece);
#pragma unroll
  for (uint32_t k = y; k < kTile; k += kStep) {
    if (i + x < p.rows && j + k < p.columns) tile[k * kPitch + x] = source[uint64_t{j + k} * p.rows + i + x];
  }
  __syncthreads();
#pragma unroll
  for (uint32_t k = y; k < kTile; k += kStep) {
    if (i + k < p.rows && j + x < p.columns) {
      destination[uint64_t{i + k} * p.destination_pitch + j + x] = tile[x * kPitch + k];
    }
  }
  __syncthreads();
}

// Bytes 0..3 of the result are byte `index` of each word.
JAXBW_DEVICE uint32_t gather_byte(const uint32_t (&words)[4], uint32_t index) {
  const uint32_t select = index | (4 + index) << 4;
  return __byte_perm(__byte_perm(words[0], words[1], select), __byte_perm(words[2], words[3], select), 0x5410);
}

// Of bytes: a thread turns blocks of four by four in its registers, so that memory is accessed by words.
template <>
JAXBW_DEVICE void transpose_piece<uint8_t>(const RepackCopy& p, uint32_t piece) {
  constexpr uint32_t kTile = kRepackTransposeTile, kWords = kTile / 4;
  constexpr uint32_t kPitch = kWords + 1;
  static_assert(kRepackThreads == kWords * kWords, "a thread has one block of a tile");
  __shared__ uint32_t tile[kTile * kPitch];
  const uint32_t x = threadIdx.x % kWords, y = threadIdx.x / kWords;
  const auto [i, j, source, destination] = transposed_tile<uint8_t>(p, piece);
  const uint32_t from = i + 4 * x;
  uint32_t words[4];
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t row = j + 4 * y + k;
    const uint8_t* at = source + uint64_t{row} * p.rows + from;
    words[k] = 0;
    if (row >= p.columns) continue;
    if (p.rows % 4 == 0) {
      if (from < p.rows) words[k] = *reinterpret_cast<const uint32_t*>(at);
    } else {
#pragma unroll 1
      for (uint32_t byte = 0; byte < 4 && from + byte < p.rows; ++byte) words[k] |= uint32_t{at[byte]} << 8 * byte;
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) tile[(4 * x + k) * kPitch + y] = gather_byte(words, k);
  __syncthreads();
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t row = y + k * kWords, column = j + 4 * x;
    // A row's pitch is a multiple of 16 bytes: a word that begins in it ends in it.
    if (i + row < p.rows && column < p.columns) {
      *reinterpret_cast<uint32_t*>(destination + uint64_t{i + row} * p.destination_pitch + column) =
          tile[row * kPitch + x];
    }
  }
  __syncthreads();
}

template <typename Element>
JAXBW_DEVICE void repack(const RepackParams& p) {
  ptx::wait_for_upstream();
  ptx::launch_dependents();  // they wait for what is written here
  uint32_t piece = blockIdx.x;
#pragma unroll 1
  for (const RepackCopy& copy : p.copies) {
    if (copy.transposed != 0) {
      for (; piece < copy.pieces; piece += gridDim.x) transpose_piece<Element>(copy, piece);
    } else {
      for (; piece < copy.pieces; piece += gridDim.x) copy_piece<Element>(copy, piece);
    }
    piece -= copy.pieces;
  }
}

}  // namespace jaxbw
