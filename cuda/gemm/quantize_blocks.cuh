// An array in a block-scaled format: QuantizeBlocksParams in params.h says what, quantize_blocks.h how the work is
// divided. Bound by memory: x is read once, whatever is wanted of it, and scales are written as tensor cores read them.
#pragma once

#include "gemm/block_formats.cuh"
#include "gemm/quantize_blocks.h"
#include "gemm/quantize_elements.cuh"
#include "ptx/programmatic_launch.h"

namespace jaxbw {

constexpr uint32_t kBlocksWarps = kBlocksThreads / ptx::kWarpSize;
constexpr uint32_t kMostScaleTiles = kBlocksTile / kNvBlock / kScaleTileBlocks;  // that a tile of elements has
static_assert(kBlocksRows % 4 == 0 && kBlocksTile == ptx::kWarpSize * kBlocksColumns &&
              kBlocksTile == kBlocksWarps * kBlocksRows);

// Of all formats the same, so that a kernel has it once.
struct BlocksShared {
  uint32_t maxima[kBlocksWarps][kBlocksTile];                 // of the columns of a warp's rows
  uint32_t scales[2][kMostScaleTiles * kScaleTileBytes / 4];  // along columns, along rows
  uint2 turned[kBlocksTile * kBlocksWarps];                   // data of blocks down columns
};
JAXBW_DEVICE BlocksShared& blocks_shared() {
  __shared__ BlocksShared memory;
  return memory;
}

// What a thread has of the tile: kBlocksRows by kBlocksColumns elements, zeros where the array has none.
template <DataType kType>
class BlocksPart {
  static constexpr uint32_t kWords = kBlocksColumns * size_bytes(kType) / 4;

 public:
  static constexpr uint32_t kPacked = kBlocksColumns / kWords;  // columns in a word

  // `first`: of the matrix; `row` and `column`: of the part in it.
  JAXBW_DEVICE void load(const QuantizeBlocksParams& p, uint64_t first, uint32_t row, uint32_t column) {
    if (p.matrix_columns % kBlocksColumns == 0) {
      load_vectors(p, first, row, column, words_);
    } else {
      load_elements(p, first, row, column, words_);
    }
  }

  // What is to be rotated, by these signs.
  JAXBW_DEVICE void load_rotated(const QuantizeBlocksParams& p, uint64_t first, uint32_t row, uint32_t column,
                                 uint32_t signs) {
    if (p.matrix_columns % kBlocksColumns == 0) {
      rotate(row, signs, [&](uint32_t row, Row& words) { load_vectors(p, first, row, column, words); });
    } else {
      rotate(row, signs, [&](uint32_t row, Row& words) { load_elements(p, first, row, column, words); });
    }
  }

  // All that the array has becomes NaN.
  JAXBW_DEVICE void invalidate(const QuantizeBlocksParams& p, uint32_t row, uint32_t column) {
    constexpr uint32_t kNan = kType == DataType::kF32 ? 0x7fc00000 : kType == DataType::kBF16 ? 0x7fc0 : 0x7e00;
#pragma unroll
    for (uint32_t i = 0; i < kBlocksRows; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < kBlocksColumns; ++j) {
        set(i, j, row + i < p.matrix_rows && column + j < p.matrix_columns ? kNan : 0);
      }
    }
  }

  // The first kPacked columns are no longer there, and the next ones are the first.
  JAXBW_DEVICE void move_columns() {
#pragma unroll
    for (uint32_t i = 0; i < kBlocksRows; ++i) {
#pragma unroll
      for (uint32_t word = 0; word + 1 < kWords; ++word) words_[i][word] = words_[i][word + 1];
    }
  }

  // The first two rows become the last ones.
  JAXBW_DEVICE void turn_rows() {
#pragma unroll
    for (uint32_t word = 0; word < kWords; ++word) {
      const uint32_t first = words_[0][word], second = words_[1][word];
#pragma unroll
      for (uint32_t i = 0; i + 2 < kBlocksRows; ++i) words_[i][word] = words_[i + 2][word];
      words_[kBlocksRows - 2][word] = first;
      words_[kBlocksRows - 1][word] = second;
    }
  }

  JAXBW_DEVICE float at(uint32_t i, uint32_t j) const { return element<kType>(words_[i], j); }

  // The largest magnitudes, as the bits of a float32: of a row,
  JAXBW_DEVICE uint32_t row_maximum(uint32_t i) const {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t word = 0; word < kWords; ++word) largest = larger(largest, words_[i][word] & kMagnitude);
    return kPacked == 1 ? largest : max(bits_of(largest, 0), bits_of(largest, 1));
  }

  // and of each column.
  JAXBW_DEVICE void column_maxima(uint32_t (&maxima)[kBlocksColumns]) const {
#pragma unroll
    for (uint32_t word = 0; word < kWords; ++word) {
      uint32_t largest = 0;
#pragma unroll
      for (uint32_t i = 0; i < kBlocksRows; ++i) largest = larger(largest, words_[i][word] & kMagnitude);
#pragma unroll
      for (uint32_t k = 0; k < kPacked; ++k) maxima[word * kPacked + k] = bits_of(largest, k);
    }
  }

 private:
  static constexpr uint32_t kMagnitude = kPacked == 1 ? 0x7fffffff : 0x7fff7fff;

  JAXBW_DEVICE static uint32_t larger(uint32_t x, uint32_t y) {
    return kPacked == 1 ? max(x, y) : ptx::max_s16x2(x, y);
  }
  JAXBW_DEVICE static uint32_t bits_of(uint32_t word, uint32_t k) { return __float_as_uint(element<kType>(&word, k)); }

  using Row = uint32_t[1][kWords];

  JAXBW_DEVICE void set(uint32_t i, uint32_t j, uint32_t bits) { set(words_[i], j, bits); }
  JAXBW_DEVICE static void set(uint32_t (&words)[kWords], uint32_t j, uint32_t bits) {
    uint32_t& word = words[j / kPacked];
    word = j % kPacked == 0 ? bits : word | bits << 16;
  }

  // x is rotated in blocks of rows of which a thread has half: first the sums, or the differences, of the block's rows
  // that are half of it apart, and then those of its own.
  template <typename LoadRow>
  JAXBW_DEVICE void rotate(uint32_t row, uint32_t signs, const LoadRow& load_row) {
    static_assert(kRotatedRows == 2 * kBlocksRows);
    const bool second = row % kRotatedRows != 0;
    row -= row % kRotatedRows;
    float rotated[kBlocksColumns][kBlocksRows];
#pragma unroll
    for (uint32_t i = 0; i < kBlocksRows; ++i) {
      Row words, others;
      load_row(row + i, words);
      load_row(row + kBlocksRows + i, others);
#pragma unroll
      for (uint32_t j = 0; j < kBlocksColumns; ++j) {
        const float x = rotated_input(element<kType>(words[0], j), signs, i),
                    y = rotated_input(element<kType>(others[0], j), signs, kBlocksRows + i);
        rotated[j][i] = second ? __fsub_rn(x, y) : __fadd_rn(x, y);
      }
    }
    constexpr float kNorm = 0.25f;  // 1 / sqrt(kRotatedRows)
#pragma unroll
    for (uint32_t j = 0; j < kBlocksColumns; ++j) mix(rotated[j]);
#pragma unroll
    for (uint32_t i = 0; i < kBlocksRows; ++i) {
#pragma unroll
      for (uint32_t word = 0; word < kWords; ++word) {
        const float x = kNorm * rotated[word * kPacked][i];
        if constexpr (kPacked == 1) {
          words_[i][word] = __float_as_uint(x);
        } else {
          words_[i][word] = ptx::pack<kType>(x, kNorm * rotated[word * kPacked + 1][i]);
        }
      }
    }
  }

  template <uint32_t kRows>
  JAXBW_DEVICE static void load_vectors(const QuantizeBlocksParams& p, uint64_t first, uint32_t row, uint32_t column,
                                        uint32_t (&words)[kRows][kWords]) {
    using Vector = std::conditional_t<kPacked == 1, uint4, uint2>;
    const uint32_t pitch = p.matrix_columns / kBlocksColumns;
    const auto* vector =
        static_cast<const Vector*>(p.x) + first / kBlocksColumns + uint64_t{row} * pitch + column / kBlocksColumns;
    const uint32_t rows = column < p.matrix_columns && row < p.x_rows ? p.x_rows - row : 0;
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i, vector += pitch) {
      const Vector v = i < rows ? __ldcs(vector) : Vector{};
      words[i][0] = v.x, words[i][1] = v.y;
      if constexpr (kPacked == 1) words[i][2] = v.z, words[i][3] = v.w;
    }
  }

  // Where rows begin anywhere.
  template <uint32_t kRows>
  JAXBW_DEVICE static void load_elements(const QuantizeBlocksParams& p, uint64_t first, uint32_t row, uint32_t column,
                                         uint32_t (&words)[kRows][kWords]) {
    uint64_t at = first + uint64_t{row} * p.matrix_columns + column;
    const uint32_t rows = row < p.x_rows ? p.x_rows - row : 0;
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i, at += p.matrix_columns) {
#pragma unroll
      for (uint32_t j = 0; j < kBlocksColumns; ++j) {
        const bool inside = i < rows && column + j < p.matrix_columns;
        set(words[i], j, inside ? load_element<kType>(p.x, at + j) : 0);
      }
    }
  }

  uint32_t words_[kBlocksRows][kWords];
};

// A CTA's tile of a matrix, to a format: see block_formats.cuh.
template <DataType kType, typename Format>
class BlocksTile {
 public:
  // `i` and `j` are its first row and column.
  JAXBW_DEVICE BlocksTile(const QuantizeBlocksParams& p, const Format& format, BlocksPart<kType>& part, uint32_t matrix,
                          uint32_t i, uint32_t j)
      : p_(p), format_(format), part_(part), matrix_(matrix), i_(i), j_(j) {}

  JAXBW_DEVICE void quantize() {
    uint32_t maxima[kBlocksColumns];
    if (p_.rows.scale != nullptr || p_.square != 0) find_column_maxima(maxima);
    if (p_.columns.scale != nullptr) quantize_columns(maxima[0]);
    if (p_.rows.scale != nullptr) quantize_rows(maxima);
    __syncthreads();
    if (p_.columns.scale != nullptr) copy_scales(p_.columns, i_, j_, p_.matrix_rows, p_.matrix_columns, 0);
    if (p_.rows.scale == nullptr) return;
    copy_scales(p_.rows, j_, i_, p_.matrix_columns, p_.matrix_rows, 1);
    if (p_.rows.data != nullptr) copy_turned();
  }

 private:
  using Scale = typename Format::Scale;
  static constexpr uint32_t kPacking = packing(Format::kElement), kBlock = Format::kBlock;
  static constexpr uint32_t kLanes = kBlock / kBlocksColumns;  // threads that share blocks of a row
  static constexpr uint32_t kWarps = kBlock / kBlocksRows;     // that share blocks of a column
  static constexpr uint32_t kOwned = kBlocksRows / kLanes;     // rows whose scales a thread makes
  static constexpr uint32_t kScaleTiles = kBlocksTile / kBlock / kScaleTileBlocks;
  static_assert(kOwned > 0 && 2 % kOwned == 0 && kScaleTiles > 0 && kScaleTiles <= kMostScaleTiles);
  using Quad = std::conditional_t<kPacking == 1, uint32_t, uint16_t>;  // four numbers
  using Turned = std::conditional_t<kPacking == 1, uint2, uint32_t>;   // of a column, kBlocksRows

  JAXBW_DEVICE static uint32_t warp() { return threadIdx.x / ptx::kWarpSize; }
  JAXBW_DEVICE uint32_t row() const { return i_ + warp() * kBlocksRows; }
  JAXBW_DEVICE uint32_t column() const { return j_ + ptx::lane_index() * kBlocksColumns; }

  // Where the scale lies of a row, or column, of the tile and a block in it.
  JAXBW_DEVICE static uint8_t& scale_at(uint32_t direction, uint32_t row, uint32_t block) {
    const uint32_t in_tile = row % 32 * 16 + row / 32 * kScaleTileBlocks + block % kScaleTileBlocks;
    auto* scales = reinterpret_cast<uint8_t*>(blocks_shared().scales[direction]);
    return scales[block / kScaleTileBlocks * kScaleTileBytes + in_tile];
  }

  // Of the blocks that the thread's columns are in, or where these are square of all of it.
  JAXBW_DEVICE void find_column_maxima(uint32_t (&maxima)[kBlocksColumns]) const {
    part_.column_maxima(maxima);
    const uint32_t first = ptx::lane_index() * kBlocksColumns;
    *reinterpret_cast<uint4*>(&blocks_shared().maxima[warp()][first]) = {maxima[0], maxima[1], maxima[2], maxima[3]};
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < kWarps; ++k) {
      const uint4 v = *reinterpret_cast<const uint4*>(&blocks_shared().maxima[warp() / kWarps * kWarps + k][first]);
      maxima[0] = max(maxima[0], v.x), maxima[1] = max(maxima[1], v.y);
      maxima[2] = max(maxima[2], v.z), maxima[3] = max(maxima[3], v.w);
    }
    if (p_.square == 0) return;
    uint32_t largest = max(max(maxima[0], maxima[1]), max(maxima[2], maxima[3]));
#pragma unroll
    for (uint32_t distance = 1; distance < kLanes; distance *= 2) {
      largest = max(largest, __shfl_xor_sync(ptx::kFullWarp, largest, distance));
    }
#pragma unroll
    for (uint32_t j = 0; j < kBlocksColumns; ++j) maxima[j] = largest;
  }

  // Which of the threads of a block of columns makes the scale of a row, and the first row of a thread: at each
  // distance between threads those with the bit set go on with the second half of the rows.
  JAXBW_DEVICE static constexpr uint32_t owner(uint32_t row) {
    uint32_t lane = 0;
    for (uint32_t distance = 1, half = kBlocksRows / 2; distance < kLanes; distance *= 2, half /= 2) {
      if (row & half) lane |= distance;
    }
    return lane;
  }
  JAXBW_DEVICE static uint32_t first_owned() {
    uint32_t row = 0;
#pragma unroll
    for (uint32_t distance = 1, half = kBlocksRows / 2; distance < kLanes; distance *= 2, half /= 2) {
      if (threadIdx.x & distance) row += half;
    }
    return row;
  }

  // Blocks along a row. `of_square` is their amax where blocks are square.
  JAXBW_DEVICE void quantize_columns(uint32_t of_square) {
    uint32_t maxima[kBlocksRows];
#pragma unroll
    for (uint32_t i = 0; i < kBlocksRows; ++i) maxima[i] = p_.square != 0 ? of_square : part_.row_maximum(i);
#pragma unroll
    for (uint32_t distance = 1, half = kBlocksRows / 2; distance < kLanes; distance *= 2, half /= 2) {
      const bool second = threadIdx.x & distance;
#pragma unroll
      for (uint32_t i = 0; i < half; ++i) {
        const uint32_t kept = second ? maxima[i + half] : maxima[i], given = second ? maxima[i] : maxima[i + half];
        maxima[i] = max(kept, __shfl_xor_sync(ptx::kFullWarp, given, distance));
      }
    }
    Scale scales[kOwned];
#pragma unroll
    for (uint32_t k = 0; k < kOwned; ++k) {
      const uint32_t i = first_owned() + k;
      uint32_t code;
      scales[k] = format_.scale_of(maxima[k], code);
      const bool inside = row() + i < p_.matrix_rows;
      scale_at(0, warp() * kBlocksRows + i, ptx::lane_index() / kLanes) = static_cast<uint8_t>(inside ? code : 0);
    }
    const uint64_t pitch = padded_k(p_.matrix_columns);
    const bool inside = column() < pitch && p_.columns.data != nullptr;
    const uint64_t at = ((uint64_t{matrix_} * p_.matrix_rows + row()) * pitch + column()) / kBlocksColumns;
    const uint32_t first_lane = ptx::lane_index() / kLanes * kLanes;
    // Where there are points besides rows of 32 bits, a loop: the registers do not suffice for all rows at a time.
    constexpr bool kLoops = Format::kTakesPoints && BlocksPart<kType>::kPacked == 1;
#pragma unroll(kLoops ? 1 : kBlocksRows / 2)
    for (uint32_t pair = 0; pair < kBlocksRows; pair += 2) {
      const uint2 left = format_.patch(row() + pair, column()), right = format_.patch(row() + pair, column() + 2);
      const uint2 points[] = {{left.x, right.x}, {left.y, right.y}};
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t i = pair + k;
        const Scale scale = scales[k % kOwned].of_lane(first_lane + owner(i));
        const float x[] = {part_.at(k, 0), part_.at(k, 1), part_.at(k, 2), part_.at(k, 3)};
        const auto quad = static_cast<Quad>(format_.quantized(x, scale, points[k]));
        if (inside && row() + i < p_.matrix_rows) {
          static_cast<Quad*>(p_.columns.data)[at + i * (pitch / kBlocksColumns)] = quad;
        }
      }
      part_.turn_rows();
    }
  }

  // Blocks down a column, of these amax. What the data are is left in shared memory. A loop over columns, which are
  // moved to the front, since the registers do not suffice for all at a time.
  JAXBW_DEVICE void quantize_rows(uint32_t (&maxima)[kBlocksColumns]) const {
    constexpr uint32_t kAtATime = BlocksPart<kType>::kPacked;
#pragma unroll 1
    for (uint32_t first = 0; first < kBlocksColumns; first += kAtATime) {
      const uint32_t of_tile = ptx::lane_index() * kBlocksColumns + first;
      Scale scales[kAtATime];
#pragma unroll
      for (uint32_t j = 0; j < kAtATime; ++j) {
        uint32_t code;
        scales[j] = format_.scale_of(maxima[j], code);
        const bool inside = j_ + of_tile + j < p_.matrix_columns;
        if (warp() % kWarps == 0) scale_at(1, of_tile + j, warp() / kWarps) = static_cast<uint8_t>(inside ? code : 0);
      }
#pragma unroll
      for (uint32_t i = 0; i < kBlocksRows; i += 4) {
        const uint2 upper = format_.patch(row() + i, column() + first),
                    lower = format_.patch(row() + i + 2, column() + first);
#pragma unroll
        for (uint32_t j = 0; j < kAtATime; ++j) {
          const uint32_t of_column = (first + j) % 2 == 0 ? 0x5410 : 0x7632;  // the halves of words
          const uint2 points = {__byte_perm(upper.x, upper.y, of_column), __byte_perm(lower.x, lower.y, of_column)};
          const float x[] = {part_.at(i, j), part_.at(i + 1, j), part_.at(i + 2, j), part_.at(i + 3, j)};
          auto* quads = reinterpret_cast<Quad*>(&turned_at(of_tile + j, warp()));
          quads[i / 4] = static_cast<Quad>(format_.quantized(x, scales[j], points));
        }
      }
      part_.move_columns();
#pragma unroll
      for (uint32_t j = 0; j + kAtATime < kBlocksColumns; ++j) maxima[j] = maxima[j + kAtATime];
    }
  }

  // Those of a warp's rows lie at warp ^ lane of their column, so that half a warp meets all banks either way.
  JAXBW_DEVICE static Turned& turned_at(uint32_t column, uint32_t warp) {
    auto* numbers = reinterpret_cast<Turned*>(blocks_shared().turned);
    return numbers[column * kBlocksWarps + (warp ^ column / kBlocksColumns % kBlocksWarps)];
  }

  JAXBW_DEVICE void copy_turned() const {
    const uint64_t pitch = padded_k(p_.matrix_rows);
#pragma unroll
    for (uint32_t step = 0; step < kBlocksTile * kBlocksWarps / kBlocksThreads; ++step) {
      const uint32_t index = step * kBlocksThreads + threadIdx.x;
      const uint32_t column = index / kBlocksWarps, warp = index % kBlocksWarps, row = i_ + warp * kBlocksRows;
      if (j_ + column < p_.matrix_columns && row < pitch) {
        const uint64_t at = (uint64_t{matrix_} * p_.matrix_columns + j_ + column) * pitch + row;
        static_cast<Turned*>(p_.rows.data)[at / kBlocksRows] = turned_at(column, warp);
      }
    }
  }

  // The tiles of scales whose first row is `row`, and their first element along k `k`.
  JAXBW_DEVICE void copy_scales(const BlocksAlong& along, uint32_t row, uint32_t k, uint32_t rows, uint32_t size,
                                uint32_t direction) const {
    constexpr uint32_t kWords = kScaleTileBytes / 4;
    if (threadIdx.x >= kScaleTiles * kWords) return;
    const uint64_t tiles = scale_tiles_along(size, kBlock), tile = k / (kScaleTileBlocks * kBlock);
    if (tile + threadIdx.x / kWords >= tiles) return;
    const uint64_t first = (uint64_t{matrix_} * blocks_tiles(rows) + row / kBlocksTile) * tiles + tile;
    static_cast<uint32_t*>(along.scale)[first * kWords + threadIdx.x] = blocks_shared().scales[direction][threadIdx.x];
  }

  const QuantizeBlocksParams& p_;
  const Format& format_;
  BlocksPart<kType>& part_;
  uint32_t matrix_, i_, j_;
};

template <DataType kType>
JAXBW_DEVICE void quantize_blocks(const QuantizeBlocksParams& p) {
  ptx::wait_for_upstream();
  ptx::launch_dependents();  // they wait for what is written here
  const uint32_t matrix = blockIdx.x / p.tiles_of_matrix, tile = blockIdx.x % p.tiles_of_matrix;
  const uint32_t i = tile / p.tiles_across * kBlocksTile, j = tile % p.tiles_across * kBlocksTile;
  const uint32_t row = i + threadIdx.x / ptx::kWarpSize * kBlocksRows, column = j + ptx::lane_index() * kBlocksColumns;
  BlocksPart<kType> part;
  const uint64_t first = uint64_t{matrix} * p.x_rows * p.matrix_columns;
  if (p.signs == nullptr) {
    part.load(p, first, row, column);
  } else {
    part.load_rotated(p, first, row, column, p.signs[matrix / p.matrices_per_scale]);
  }
  const auto quantize_to = [&](const auto& format) {
    BlocksTile<kType, std::remove_cvref_t<decltype(format)>>(p, format, part, matrix, i, j).quantize();
  };
  if (p.global_scale != nullptr) {
    constexpr float kLeastNormal = 0x1p-126f, kLargest = 0x1.fffffep127f;
    const uint32_t of_scale = matrix / p.matrices_per_scale;
    const float given = p.global_scale[of_scale];
    const bool is_scale = given >= kLeastNormal && given <= kLargest;
    if (!is_scale) part.invalidate(p, row, column);
    const NvFormat format(is_scale ? given : 1.0f);
    if (p.seeds == nullptr) return quantize_to(format);
    const uint32_t pairs = (p.matrix_rows + 1) / 2;
    const uint2 seed = {p.seeds[2 * of_scale], p.seeds[2 * of_scale + 1]};
    return quantize_to(DitheredNvFormat(format, Points(seed, matrix % p.matrices_per_scale * pairs)));
  }
  switch (p.element) {
    case DataType::kE4M3:
      return quantize_to(MxFormat<DataType::kE4M3>());
    case DataType::kE5M2:
      return quantize_to(MxFormat<DataType::kE5M2>());
    default:
      return quantize_to(MxFormat<DataType::kE2M1>());
  }
}

}  // namespace jaxbw
