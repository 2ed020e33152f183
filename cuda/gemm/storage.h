// How a GEMM kernel lays out its dynamic shared memory, and how its tiles are cut for TMA and for the epilogue's warps.
// Shared by kernels and host, which asks how many stages fit and encodes the boxes.
#pragma once

#include <bit>
#include <cstdint>

#include "params.h"

namespace jaxbw {

constexpr uint32_t kSwizzleSpan = 128;  // bytes of the contiguous dimension that the 128-byte swizzle covers
// A constant: of std::countr_zero that runs in a kernel, nvcc 13.0 makes an undefined value without a warning.
constexpr uint32_t kSwizzleSpanLog2 = std::countr_zero(kSwizzleSpan);
constexpr uint32_t kHalfSpan = 64;                              // bytes; the 64-byte swizzle's
constexpr uint32_t kSwizzleRows = 8;                            // that a swizzle permutes together
constexpr uint32_t kSwizzleAtom = kSwizzleRows * kSwizzleSpan;  // the alignment of every swizzled tile
constexpr uint32_t kCacheLine = 128;                            // bytes of L1 and L2 that a request for memory touches
constexpr uint32_t kMaxBoxRows = 256;                           // of a box of TMA
constexpr uint32_t kMaxStages = 12;
constexpr uint32_t kMaxKSpans = 4;             // in a stage
constexpr uint32_t kStoreBuffers = 2;          // staging buffers of an epilogue warp
constexpr uint32_t kMaxSharedMemory = 232448;  // per block on sm_90 and sm_100, opt-in (227 KB)

// Numbers of K in one swizzle span.
constexpr uint32_t span_elements(DataType input) {
  return kSwizzleSpan / size_bytes(input) * (input == DataType::kE2M1 ? 2 : 1);
}

// Epilogue warps of a CTA, and the rows of the accumulator that each of them owns.
struct EpilogueShape {
  uint32_t warps, rows_per_warp;
};
constexpr EpilogueShape kSm90Epilogue{8, 16};   // two warpgroups; a warp's rows of an m64
constexpr EpilogueShape kSm100Epilogue{4, 32};  // one warp for each 32 lanes of TMEM

// sm_100: how a CTA's accumulator of `rows` x `columns` lies in the lanes of Tensor Memory (PTX 9.7.16.10.5), and so in
// the hands of the four epilogue warps, 32 lanes each:
//
//   rows = 128                  warp w: rows 32 w .. 32 w + 31, all columns
//   rows = 64, alone            warp w: rows 16 w .. 16 w + 15 in its first 16 lanes, all columns
//   rows = 64, CTA of a pair    warps 0, 1: rows 32 w ..., the first half of the columns; warps 2, 3: the second half
struct AccumulatorSlice {
  uint32_t first_row, rows;
  uint32_t first_column, columns;
};
constexpr AccumulatorSlice sm100_slice(uint32_t warp, uint32_t rows, uint32_t columns, uint32_t cta_group) {
  if (rows == 64 && cta_group == 1) return {warp * 16, 16, 0, columns};
  if (rows == 64) return {warp % 2 * 32, 32, warp / 2 * (columns / 2), columns / 2};
  return {warp * 32, 32, 0, columns};
}

// Columns that an epilogue warp of sm_100 handles at a time: the widest tcgen05.ld that divides its slice. A gated
// matmul's slice is half gate, half up.
constexpr uint32_t sm100_chunk(uint32_t slice_columns) {
  return slice_columns % 32 == 0 ? 32 : slice_columns % 16 == 0 ? 16 : 8;
}
constexpr uint32_t kGroupedChunk = 32;  // where a matmul is grouped

// One TMA store, and one box of the tensor map of D. Its staging buffer is swizzled over its row: 128, 64 or 32 bytes,
// or not at all where a row has 16.
struct StoreBox {
  uint32_t rows, columns;

  constexpr uint32_t row_bytes(DataType output) const { return columns * size_bytes(output); }
};

// Columns of sums that an epilogue warp of sm_90 handles at a time, where it does more than cast: a span of floats.
constexpr uint32_t kSm90Chunk = kSwizzleSpan / sizeof(float);

// A swizzle span wide, where that divides the tile.
constexpr StoreBox sm90_store_box(uint32_t block_n, DataType output) {
  return {kSm90Epilogue.rows_per_warp, output == DataType::kF32 || block_n % 64 != 0 ? 32u : 64u};
}

// The tile of a residual of 16 bits, as the load role of sm_90 brings it: in boxes that have all rows of the CTA's tile
// and the columns of a box of D of 16 bits, swizzled over their rows. A stage of the ring holds as many as fit into it.
struct ResidualTile {
  StoreBox box;
  uint32_t stage_boxes;

  constexpr uint32_t row_bytes() const { return box.row_bytes(DataType::kBF16); }
  constexpr uint32_t box_bytes() const { return box.rows * row_bytes(); }
  constexpr uint32_t boxes(uint32_t tile_columns) const { return tile_columns / box.columns; }
  constexpr uint32_t stages(uint32_t tile_columns) const {
    return (boxes(tile_columns) + stage_boxes - 1) / stage_boxes;
  }
};

// Columns of a tile of gate and up, sm_90: halves in the columns in which TMA brings them where they are MN-major, and
// whole boxes of results.
constexpr uint32_t kSm90GatedStep = 128;

// Whether half of a tile's columns, the results of a gated matmul, are whole boxes of any output.
constexpr bool sm90_gated_in_boxes(uint32_t block_n) {
  return block_n / 2 % sm90_store_box(block_n, DataType::kBF16).columns == 0 &&
         block_n / 2 % sm90_store_box(block_n, DataType::kF32).columns == 0;
}
static_assert(sm90_gated_in_boxes(128) && sm90_gated_in_boxes(256) && !sm90_gated_in_boxes(192));

// A CTA's tile of `rows` x `columns` of accumulators. Where the epilogue only casts, a box is a whole swizzle span
// wide.
constexpr StoreBox sm100_store_box(uint32_t rows, uint32_t columns, uint32_t cta_group, bool gated, bool casts,
                                   DataType output) {
  const AccumulatorSlice slice = sm100_slice(0, rows, columns, cta_group);
  const uint32_t span = kSwizzleSpan / size_bytes(output);
  if (casts && slice.columns % span == 0) return {slice.rows, span};
  return {slice.rows, sm100_chunk(gated ? slice.columns / 2 : slice.columns)};
}

// Rows of one MMA of a CTA. A CTA's tile may be two of them (full TMEM).
constexpr uint32_t kTmemLanes = 128, kTmemColumns = 512;
constexpr uint32_t kMaxAccumulators = 2;
constexpr uint32_t kAccumulatorColumns = kTmemColumns / kMaxAccumulators;  // from one to the next
constexpr uint32_t sm100_mma_rows(uint32_t cta_rows) { return cta_rows < kTmemLanes ? cta_rows : kTmemLanes; }
constexpr uint32_t sm100_mma_tiles(uint32_t cta_rows) { return cta_rows > kTmemLanes ? cta_rows / kTmemLanes : 1; }

// sm_90: two warpgroups, warpgroups that multiply, share a tile (cooperative) or take turns at tiles (pingpong). What a
// warpgroup has of a tile is one m64 of wgmma, or several, one below the other.
constexpr uint32_t kWgmmaRows = 64;
constexpr uint32_t kSm90ConsumerWarpgroups = 2;
constexpr uint32_t kSm90WarpgroupWarps = kSm90Epilogue.warps / kSm90ConsumerWarpgroups;

// Those that share a tile divide its rows; of the largest tiles, whose rows may be an odd number of m64, its columns:
//
//   128x256   [    0    ]     192x192   [  0  |  1  ]
//             [    1    ]               [     |     ]
//                                       [     |     ]
constexpr uint32_t sm90_warpgroup_rows(uint32_t block_m, bool pingpong) {
  return pingpong ? block_m : block_m / kSm90ConsumerWarpgroups;
}
constexpr bool sm90_side_by_side(uint32_t tile_accumulators) { return tile_accumulators > 256 * 128; }
struct WarpgroupTile {
  uint32_t rows, columns;
};
constexpr WarpgroupTile sm90_warpgroup_tile(uint32_t block_m, uint32_t block_n, bool pingpong) {
  if (!pingpong && sm90_side_by_side(block_m * block_n)) return {block_m, block_n / kSm90ConsumerWarpgroups};
  return {sm90_warpgroup_rows(block_m, pingpong), block_n};
}
static_assert(sm90_warpgroup_tile(256, 128, false).rows == 128 && sm90_warpgroup_tile(192, 192, false).columns == 96);

// How one operand's part of a stage lies in shared memory: blocks, whose rows are one span of the contiguous
// dimension; half a span, under the 64-byte swizzle, where what one instruction reads of an MN-major tile is no whole
// number of spans wide (96 or 160 columns).
//
//   K-major        k 0..63         k 64..127      MN-major     mn 0..63        mn 64..127
//        mn 0   [ 128 bytes ]   [ 128 bytes ]          k 0   [ 128 bytes ]   [ 128 bytes ]
//        mn 1   [ 128 bytes ]   [ 128 bytes ]          k 1   [ 128 bytes ]   [ 128 bytes ]
//         ...      block 0         block 1              ...      block 0         block 1
struct OperandTile {
  Major major;
  uint32_t element_log2;  // of its bytes
  uint32_t row_bytes;     // of a block
  uint32_t rows;          // of a block: M or N indices (K-major), or k (MN-major)
  uint32_t blocks;

  constexpr uint32_t block_bytes() const { return rows * row_bytes; }
  constexpr uint32_t bytes() const { return blocks * block_bytes(); }
  constexpr uint32_t row_elements() const { return row_bytes >> element_log2; }
};

// `extent`: M or N indices of one CTA's part of a tile.
constexpr OperandTile operand_tile(Major major, DataType input, uint32_t extent, uint32_t k_spans) {
  const uint32_t bytes = size_bytes(input), log2 = size_log2(input);
  if (major == Major::kK) return {major, log2, kSwizzleSpan, extent, k_spans};
  const uint32_t row_bytes = extent % span_elements(input) == 0 ? kSwizzleSpan : kHalfSpan;
  return {major, log2, row_bytes, k_spans * span_elements(input), extent * bytes / row_bytes};
}

// sm_100: the columns that a CTA loads to multiply `columns` of B. A swizzle has to be the same for all of an
// instruction's operand, so an MN-major part comes in whole spans: the rest of the last one, columns of the tile beside
// it, is loaded and not multiplied.
constexpr uint32_t loaded_columns(Major major, DataType input, uint32_t columns) {
  const uint32_t step = major == Major::kK ? 1 : span_elements(input);
  return (columns + step - 1) / step * step;
}
static_assert(loaded_columns(Major::kMN, DataType::kBF16, 112) == 128);

// Barriers, CLC responses and the TMEM pointer: a fixed block.
constexpr uint32_t kControlBytes = 1024;

// Control block, staging, ring of stages: in front what every kernel has alike, so that its addresses do not wait for
// launch parameters.

struct StorageLayout {
  uint32_t a_stage_bytes, b_stage_bytes;  // one CTA's part of a stage
  uint32_t store_bytes;                   // epilogue staging

  constexpr uint32_t stage_bytes() const { return a_stage_bytes + b_stage_bytes; }
  constexpr uint32_t store_offset() const { return kControlBytes; }
  constexpr uint32_t stage_offset(uint32_t stage) const { return store_offset() + store_bytes + stage * stage_bytes(); }
  constexpr uint32_t total_bytes(uint32_t stages) const { return stage_offset(stages); }
  constexpr uint32_t max_stages() const {
    const uint32_t fit = (kMaxSharedMemory - store_bytes - kControlBytes) / stage_bytes();
    return fit < kMaxStages ? fit : kMaxStages;
  }
};

// A CTA that holds `rows` of A and `columns` of B. A narrow B is rounded up to whole swizzle atoms.
constexpr StorageLayout storage_layout(uint32_t rows, uint32_t columns, uint32_t k_spans, EpilogueShape epilogue) {
  const uint32_t b_bytes = columns * kSwizzleSpan * k_spans;
  return {.a_stage_bytes = rows * kSwizzleSpan * k_spans,
          .b_stage_bytes = (b_bytes + kSwizzleAtom - 1) / kSwizzleAtom * kSwizzleAtom,
          .store_bytes = epilogue.warps * epilogue.rows_per_warp * kSwizzleSpan * kStoreBuffers};
}

static_assert(storage_layout(128, 256, 1, kSm90Epilogue).max_stages() == 4);
static_assert(storage_layout(128, 128, 1, kSm100Epilogue).max_stages() == 6);
static_assert(storage_layout(256, 128, 1, kSm100Epilogue).max_stages() == 4);

constexpr ResidualTile residual_tile(uint32_t block_m, uint32_t block_n) {
  ResidualTile tile{{block_m, sm90_store_box(block_n, DataType::kBF16).columns}, 0};
  tile.stage_boxes = storage_layout(block_m, block_n, 1, kSm90Epilogue).stage_bytes() / tile.box_bytes();
  return tile;
}
static_assert(residual_tile(128, 256).stages(256) == 2 && residual_tile(64, 256).stages(256) == 1);
static_assert(residual_tile(128, 96).stage_boxes == 3 && residual_tile(256, 128).stages(128) == 2);

// sm_90, CTAs of a cluster that compute parts of K: a tile's sums are handed over in slices, the rows of a warp and a
// chunk of columns each. A CTA owns 1 / cluster_k of them, and receives these of every part, where the ring was; behind
// lies what it sends. So the least number of stages follows from the tile alone.
constexpr uint32_t cluster_slices(uint32_t block_m, uint32_t tile_columns) {
  return block_m / kSm90Epilogue.rows_per_warp * (tile_columns / kSm90Chunk);
}
constexpr uint32_t cluster_sum_stages(uint32_t block_m, uint32_t block_n) {
  const uint32_t sums = 2 * block_m * block_n * uint32_t{sizeof(float)};
  const uint32_t stage = storage_layout(block_m, block_n, 1, kSm90Epilogue).stage_bytes();
  return (sums + stage - 1) / stage;
}

// sm_100, with scales of blocks along K: behind the ring lies a second one, of tiles of scales. A stage has for each
// of its `k_tiles` along K one of A's, and those that the columns of B touch, which may begin in the middle of the
// first. They go to the top of Tensor Memory, to columns of their stage: what an MMA still reads is then never
// overwritten.
constexpr uint32_t kScaleTileColumns = 4;  // of Tensor Memory
constexpr uint32_t kMxColumnStep = 32;     // of block_n: the columns of B whose scales fill one of Tensor Memory
// block_n: of gate and up whole tiles of scales, or of each half of one, which a CTA alone multiplies apart
constexpr uint32_t kMxGatedColumns = 2 * kScaleTileRows, kMxNarrowGatedColumns = kMxGatedColumns / 2;
constexpr uint32_t kMxChunk = 32;  // sm100_chunk() of these
static_assert(sm100_chunk(kMxColumnStep) == kMxChunk && sm100_chunk(kMxGatedColumns / 2) == kMxChunk);
static_assert(sm100_chunk(kMxNarrowGatedColumns / 2) == kMxChunk);
constexpr uint32_t scale_tiles(uint32_t rows) { return (rows + kScaleTileRows - 1) / kScaleTileRows; }
// Most that a tile touches, which starts at any multiple of block_n: of 96 and 160 columns 2, of 224 3.
constexpr uint32_t mx_b_tiles(uint32_t block_n, bool gated) {
  const uint32_t divisor = block_n & (0 - block_n);  // the largest power of two
  return gated ? 2 : scale_tiles(block_n + (divisor < kScaleTileRows ? kScaleTileRows - divisor : 0));
}
static_assert(mx_b_tiles(32, false) == 1 && mx_b_tiles(96, false) == 2 && mx_b_tiles(128, false) == 1);
static_assert(mx_b_tiles(160, false) == 2 && mx_b_tiles(192, false) == 2 && mx_b_tiles(224, false) == 3);
constexpr uint32_t mx_stage_tiles(uint32_t b_tiles, uint32_t k_tiles) { return (1 + b_tiles) * k_tiles; }
constexpr uint32_t mx_stage_bytes(uint32_t b_tiles, uint32_t k_tiles) {
  return mx_stage_tiles(b_tiles, k_tiles) * kScaleTileBytes;
}
// Of numbers of such a type, `block` of which share a scale: tiles along K in a span.
constexpr uint32_t span_scale_tiles(DataType input, uint32_t block) {
  return span_elements(input) / (block * kScaleTileBlocks);
}
static_assert(span_scale_tiles(DataType::kE4M3, kMxBlock) == 1);
static_assert(span_scale_tiles(DataType::kE2M1, kMxBlock) == 2 && span_scale_tiles(DataType::kE2M1, kNvBlock) == 4);

// How many stages leave room, in Tensor Memory for the accumulators, and in shared memory.
constexpr uint32_t mx_tmem_stages(uint32_t block_n, uint32_t b_tiles, uint32_t k_tiles, uint32_t accumulators) {
  return (kTmemColumns - accumulators * block_n) / (mx_stage_tiles(b_tiles, k_tiles) * kScaleTileColumns);
}
constexpr uint32_t mx_max_stages(const StorageLayout& layout, uint32_t block_n, uint32_t b_tiles, uint32_t k_tiles,
                                 uint32_t accumulators) {
  const uint32_t in_tmem = mx_tmem_stages(block_n, b_tiles, k_tiles, accumulators);
  const uint32_t in_shared =
      (kMaxSharedMemory - layout.stage_offset(0)) / (layout.stage_bytes() + mx_stage_bytes(b_tiles, k_tiles));
  const uint32_t fit = in_tmem < in_shared ? in_tmem : in_shared;
  return fit < kMaxStages ? fit : kMaxStages;
}
// Columns from a tile's accumulator to the next one's. Two accumulators lie side by side. Where there is room for one,
// tiles take turns at either end of it; the epilogue reads first what both have, and the next tile's MMAs may begin:
//
//   column   0          step               block_n         step + block_n
//            [ tiles 0, 2, 4 ...             ]                          [ scales of stages ]
//                       [ tiles 1, 3, 5 ...                   ]
constexpr uint32_t mx_accumulator_step(uint32_t block_n, uint32_t b_tiles, uint32_t k_tiles, uint32_t stages,
                                       uint32_t accumulators) {
  if (accumulators > 1) return block_n;
  const uint32_t scales = stages * mx_stage_tiles(b_tiles, k_tiles) * kScaleTileColumns;
  const uint32_t read = block_n % 64 == 0 ? 64 : kMxChunk;  // columns of a box of 16 bits (sm100_store_box)
  const uint32_t room = (kTmemColumns - block_n - scales) / read * read;
  return room < block_n ? room : block_n - read;
}
static_assert(mx_accumulator_step(256, 2, 1, 5, 1) == 192 && mx_accumulator_step(256, 2, 4, 5, 1) == 0);
static_assert(mx_accumulator_step(224, 3, 1, 6, 1) == 192 && mx_accumulator_step(160, 2, 4, 6, 1) == 64);
// There are two accumulators where they leave five stages or more of one span.
constexpr bool mx_two_accumulators(uint32_t block_n, uint32_t b_tiles, uint32_t span_tiles) {
  return mx_tmem_stages(block_n, b_tiles, span_tiles, 2) >= 5;
}
static_assert(mx_two_accumulators(192, 2, 2) && !mx_two_accumulators(256, 2, 1) && !mx_two_accumulators(192, 2, 4));
static_assert(mx_two_accumulators(160, 2, 2) && !mx_two_accumulators(224, 3, 1) && !mx_two_accumulators(160, 2, 4));

// Split tiles. Every epilogue warp reduces its slices on its own: each has a counter, and floats for the sums of one
// part. A slice is what the warp has of an MMA tile; where CTAs of a cluster share a tile, what was said of it above.
constexpr uint64_t slice_count(uint32_t mma_tiles, EpilogueShape epilogue) { return mma_tiles * epilogue.warps; }
constexpr uint64_t partial_floats(uint32_t block_n, EpilogueShape epilogue) {
  return uint64_t{epilogue.rows_per_warp} * block_n;
}

}  // namespace jaxbw
