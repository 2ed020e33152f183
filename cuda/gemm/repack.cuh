// Copies an operand that TMA cannot address into one that it can: RepackParams in params.h says what, repack.h how the
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

// One row as a thread copies it: vectors v of the destination, which starts at a multiple of 16 bytes. The source row
// may start at any element; it is read in aligned vectors too, of which two neighbours make one of the destination.
// (Threads next to each other load the same vectors: from L1.)
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
    const uint32_t whole = columns / kElements;
    fast_ = fast < whole ? static_cast<uint32_t>(fast) : whole;
  }

  // Vectors first, first + step, ... before `end`.
  JAXBW_DEVICE void copy(uint32_t first, uint32_t end, uint32_t step) const {
    const uint32_t fast_end = min(end, fast_);
    uint32_t v = first;
    for (; v + (kInFlight - 1) * step < fast_end; v += kInFlight * step) {
      uint4 low[kInFlight], high[kInFlight];
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) load(low[i], high[i], v + i * step);
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) store(low[i], high[i], v + i * step);
    }
    for (; v < fast_end; v += step) {
      uint4 low, high;
      load(low, high, v);
      store(low, high, v);
    }
    for (; v < end; v += step) copy_elements(v);
  }

 private:
  static constexpr uint32_t kElements = kRepackVector / sizeof(Element);  // of a vector
  static constexpr uint32_t kInFlight = 4;                                // loads before the first store

  JAXBW_DEVICE void load(uint4& low, uint4& high, uint32_t v) const {
    low = aligned_[v];
    high = shift_ == 0 ? low : aligned_[v + 1];
  }
  JAXBW_DEVICE void store(uint4 low, uint4 high, uint32_t v) const {
    reinterpret_cast<uint4*>(destination_)[v] = extract_vector(low, high, shift_);
  }
  JAXBW_DEVICE void copy_elements(uint32_t v) const {
    for (uint32_t i = v * kElements; i < columns_ && i < (v + 1) * kElements; ++i) destination_[i] = source_[i];
  }

  const Element* source_;
  Element* destination_;
  uint32_t columns_;
  uint32_t shift_;
  const uint4* aligned_;
  uint32_t fast_;  // vectors that are whole and whose loads stay inside the source
};

template <typename Element>
JAXBW_DEVICE void copy_with_pitch(const RepackParams& p) {
  const auto* source = static_cast<const Element*>(p.source);
  auto* destination = static_cast<Element*>(p.destination);
  const RepackRows cut = repack_rows(p.columns, sizeof(Element));
  const uint64_t rows = uint64_t{p.batch} * p.rows, pieces = repack_pieces(p, sizeof(Element));
  const uint32_t lane = threadIdx.x % cut.lanes;
  for (uint64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const uint64_t row = piece / cut.chunks * cut.rows + threadIdx.x / cut.lanes;
    if (row >= rows) continue;
    const uint32_t first = static_cast<uint32_t>(piece % cut.chunks) * kRepackChunk;
    const RowCopy<Element> copy(source + row * p.columns, destination + row * p.destination_pitch, p.columns,
                                source + rows * p.columns);
    copy.copy(first + lane, min(first + kRepackChunk, cut.vectors), cut.lanes);
  }
}

// Tile by tile through shared memory, so that both reads and writes are along rows.
template <typename Element>
JAXBW_DEVICE void transpose_with_pitch(const RepackParams& p) {
  constexpr uint32_t kTile = kRepackTransposeTile;
  constexpr uint32_t kPitch = kTile + 4 / sizeof(Element);  // an odd number of words: a column touches every bank
  constexpr uint32_t kStep = kRepackThreads / kTile;
  __shared__ Element tile[kTile * kPitch];
  const uint32_t x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  const uint64_t tiles_i = (uint64_t{p.rows} + kTile - 1) / kTile;
  const uint64_t tiles_j = (uint64_t{p.columns} + kTile - 1) / kTile;
  for (uint64_t piece = blockIdx.x; piece < tiles_i * tiles_j * p.batch; piece += gridDim.x) {
    const uint64_t i = piece % tiles_i * kTile, j = piece / tiles_i % tiles_j * kTile,
                   batch = piece / tiles_i / tiles_j;
    const auto* source = static_cast<const Element*>(p.source) + batch * p.rows * p.columns;
    auto* destination = static_cast<Element*>(p.destination) + batch * p.rows * p.destination_pitch;
#pragma unroll
    for (uint32_t k = y; k < kTile; k += kStep) {
      if (i + x < p.rows && j + k < p.columns) tile[k * kPitch + x] = source[(j + k) * p.rows + i + x];
    }
    __syncthreads();
#pragma unroll
    for (uint32_t k = y; k < kTile; k += kStep) {
      if (i + k < p.rows && j + x < p.columns) {
        destination[(i + k) * p.destination_pitch + j + x] = tile[x * kPitch + k];
      }
    }
    __syncthreads();
  }
}

template <typename Element>
JAXBW_DEVICE void repack(const RepackParams& p) {
  ptx::wait_for_upstream();
  ptx::launch_dependents();  // they wait for what is written here
  if (p.transposed != 0) {
    transpose_with_pitch<Element>(p);
  } else {
    copy_with_pitch<Element>(p);
  }
}

}  // namespace jaxbw
