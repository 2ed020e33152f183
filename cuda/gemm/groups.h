// Grouped matmuls: consecutive rows of A, of sizes that lie in device memory, are groups.
//
//   rows           D[rows of g] = A[rows of g] * B[g]            tiles of D begin at the first row of their group
//   contraction    D[g] = A[rows of g]^T * B[rows of g]          a group is the K of its matrix of D
//
// A launch in front of the matmul (group_table.cuh) turns sizes into a table in the workspace, which says what there is
// to do: the host never knows.
//
// Where rows are grouped, bands of at most `swizzle` rows of tiles are walked together, as in tile_order.h, and a band
// is of one group: its tiles share columns of B. The bands of a group are equal, but for the last one.
//
// Tiles of a contraction have as much to do as their groups have rows. Where one group has most of them, its tiles are
// nearly all the work, and the last, incomplete wave of them may be long: so its tiles are split into parts of K, which
// are items of their own (split_k.h). No other group is.
//
// An array of rows that fall into groups has a tensor map of rank 4, by which no box reaches beyond a group:
//
//   dimension    extent           stride       coordinate
//   columns      columns          -            column
//   rows         kRaggedRows      s            kRaggedRows - left, `left` rows before the group's end
//   wrap         kRaggedExtent    2^34 - s     kRaggedRows = 2^30
//   end          kRaggedExtent    s            the group's end, a row of the array
//
// The sum of these is the address of the row, and 2^64, which is nothing. Rows at the group's end and behind are
// outside of the second dimension: they read as zeros, whatever lies there, and are not written. (As Triton's and
// QuACK's ragged tensor maps. Groups start at any row.)
#pragma once

#include <cstdint>

#include "params.h"

namespace jaxbw {

constexpr uint32_t kRaggedRows = 1u << 30;
constexpr uint32_t kRaggedExtent = 0x7fffffff;
constexpr uint64_t kRaggedWrap = 1ull << 34;  // bytes
static_assert(kRaggedRows * kRaggedWrap == 0);

// Of a matmul whose rows are grouped: rows of A that one tile of D begins with, which go on to the group's end. Of one
// whose contraction is: all rows of a group.
struct alignas(16) GroupRows {
  uint32_t rows;       // up to the group's end
  uint32_t a_end;      // the end: a row of A, all batch indices one behind the other,
  uint32_t other_end;  // and one of D, or where the contraction is grouped of B
  uint32_t matrix;     // of B, or of D; kNoMatrix: D is zero here
};
constexpr uint32_t kNoMatrix = ~0u;

// Where rows are grouped: the place of an entry of the table in its band.
struct BandPlace {
  uint32_t bits = 0;  // a register of the load role's few

  constexpr uint32_t index() const { return bits & 0xffff; }
  constexpr uint32_t entries() const { return bits >> 16; }  // of the band
};

// The place of the tile with this number, of so many that a group has. `most`: entries of a band.
constexpr BandPlace band_place(uint32_t tile, uint32_t tiles, uint32_t most) {
  const uint32_t bands = (tiles + most - 1) / most, entries = (tiles + bands - 1) / bands;
  const uint32_t index = tile % entries, left = tiles - (tile - index);
  return {(left < entries ? left : entries) << 16 | index};
}
static_assert(band_place(8, 9, 4).index() == 2 && band_place(8, 9, 4).entries() == 3);  // 3, 3, 3
static_assert(band_place(9, 10, 8).index() == 4 && band_place(9, 10, 8).entries() == 5);
static_assert(band_place(4, 5, 2).index() == 0 && band_place(4, 5, 2).entries() == 1);

// What there is to do, beside the table. Where the contraction is grouped:
struct GroupCounts {
  uint32_t entries;      // of the table that have tiles;
  uint32_t split_tiles;  // of the last of them the last so many tiles have their K in parts;
  uint32_t empty;        // groups that follow, without rows;
  uint32_t cleared;      // chunks of their results that somebody clears, or has.
};

struct GroupedParams {
  GemmParams gemm;
  const GroupRows* table;
  const BandPlace* places;
  GroupCounts* counts;
};

// Where rows are grouped, A's may be those of another array: row i is the one that index i says, or the nearest one
// that there is.
struct GatheredRowsOfA {
  const uint8_t* source;
  const int32_t* indices;  // [m]
  uint32_t source_rows;
};

struct GatheredParams {
  GroupedParams grouped;
  GatheredRowsOfA a;
};

// Where rows in groups are in a block-scaled format, of MxParams or Mx4BitParams. No tile of scales has rows of two
// groups: A's are those of the table's entries, one behind the other, each block_m / kScaleTileRows of them.
template <typename Mx>
struct GroupedMx : Mx {
  const GroupRows* table;
  const BandPlace* places;
  GroupCounts* counts;
};

// What the launch in front does: see group_table.cuh.
struct GroupTableParams {
  const int32_t* sizes;   // [batch, total_groups]
  const int32_t* offset;  // the group of the first matrix
  GroupRows* table;
  BandPlace* places;
  GroupCounts* counts;
  uint32_t split_tiles;  // GroupCounts' where a group has most of the rows
  uint32_t contraction;  // 1: it is what is grouped
  uint32_t batch, total_groups, groups;
  uint32_t rows;          // of a batch index
  uint32_t block_m;       // of a tile of D
  uint32_t band_entries;  // at most
  uint32_t a_batched, b_batched;
};

// Threads of its one block: each has a group at a time.
constexpr uint32_t kGroupTableThreads = 512;

// Tiles of so many rows of D that begin where groups do; rows behind the last group are one more.
constexpr uint64_t max_row_tiles(uint64_t rows, uint64_t total_groups, uint64_t block_m) {
  const uint64_t groups = total_groups + 1 < rows ? total_groups + 1 : rows;
  return (rows + groups * (block_m - 1)) / block_m;
}
static_assert(max_row_tiles(256, 0, 128) == 2 && max_row_tiles(3, 8, 128) == 3 && max_row_tiles(256, 1, 128) == 3);

}  // namespace jaxbw
