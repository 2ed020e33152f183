// The epilogue of the Hopper kernel: a warp's accumulators, in the registers where wgmma leaves them, become results. A
// warp has 16 rows of each m64 of its warpgroup's tile, one after the other in its registers. The layout of
// accumulators is drawn in ptx/wgmma.h.
#pragma once

#include "gemm/cluster_sum.h"
#include "gemm/profile.h"
#include "gemm/sm90_formula.cuh"
#include "gemm/split_k.h"
#include "gemm/store_ring.h"

namespace jaxbw::sm90 {

constexpr uint32_t columns_of(uint32_t registers) { return registers / 4 * kFragmentColumns; }

// Accumulators kFirst ... of one box of D, kColumns wide -> staging, cast.
template <DataType kType, uint32_t kColumns, uint32_t kFirst, uint32_t kCount>
JAXBW_DEVICE void stage_box(const float (&accumulators)[kCount], uint32_t buffer) {
  constexpr uint32_t kRowBytes = kColumns * size_bytes(kType);
  if constexpr (kType == DataType::kF32) {
    static_assert(kRowBytes == kSwizzleSpan);
    const uint32_t first = first_fragment(buffer);
#pragma unroll
    for (uint32_t i = 0; i < kColumns / kFragmentColumns; ++i) stage_fragment(accumulators + kFirst + i * 4, first, i);
  } else {
    const uint32_t first = staged_fragments<kRowBytes>(buffer);
#pragma unroll
    for (uint32_t i = 0; i < kColumns / kFragmentColumns; i += 2) {  // eight columns are one chunk
      const float* v = accumulators + kFirst + i * 4;
      ptx::stmatrix_x4(staged_chunk(first, i), ptx::pack<kType>(v[0], v[1]), ptx::pack<kType>(v[2], v[3]),
                       ptx::pack<kType>(v[4], v[5]), ptx::pack<kType>(v[6], v[7]));
    }
  }
}

// Half of the rows of a box of D, the upper or the lower one of each fragment's two, of kColumns columns from
// accumulator kFirst on -> staging, cast.
template <DataType kType, uint32_t kColumns, uint32_t kFirst, uint32_t kHalf, uint32_t kCount>
JAXBW_DEVICE void stage_half(const float (&accumulators)[kCount], uint32_t buffer) {
  constexpr uint32_t kRowBytes = kColumns * size_bytes(kType);
  if constexpr (kType == DataType::kF32) {
    const uint32_t first = first_fragment<kRowBytes>(buffer);
#pragma unroll
    for (uint32_t i = 0; i < kColumns / kFragmentColumns; ++i) {
      const float* v = accumulators + kFirst + i * 4 + kHalf * 2;
      ptx::store_shared(staged_chunk(first, 2 * i), v[0], v[1]);
    }
  } else {
    const uint32_t lane = ptx::lane_index_here();
    const uint32_t first = buffer + staged_offset<kRowBytes>(lane % 8, lane / 8);
#pragma unroll
    for (uint32_t i = 0; i < kColumns / kFragmentColumns; i += 4) {  // matrices: chunks i to i + 3
      const float* v = accumulators + kFirst + i * 4 + kHalf * 2;
      ptx::stmatrix_x4(staged_chunk(first, i), ptx::pack<kType>(v[0], v[1]), ptx::pack<kType>(v[4], v[5]),
                       ptx::pack<kType>(v[8], v[9]), ptx::pack<kType>(v[12], v[13]));
    }
  }
}

// Sums of one chunk of columns -> staging, cast and transposed: what is staged of a column is contiguous.
template <DataType kType>
JAXBW_DEVICE void stage_transposed(const float (&sums)[kChunk], uint32_t buffer) {
  constexpr uint32_t kColumnBytes = kBlockRows * size_bytes(kType);
  constexpr uint32_t kFragmentBytes = kFragmentColumns * kColumnBytes;
  static_assert(kFragmentBytes % kSwizzleSpan == 0);  // so columns of all fragments are swizzled alike
  const uint32_t lane = ptx::lane_index_here();
  if constexpr (kType == DataType::kF32) {
    // A lane's upper row of its first column; the other column is swizzled as this one, the lower row two chunks away.
    const uint32_t first = buffer + staged_offset<kColumnBytes>(lane % 4 * 2, lane / 16) + lane / 4 % 4 * 4;
#pragma unroll
    for (uint32_t i = 0; i < kChunk; ++i) {
      ptx::store_shared(staged_chunk(first, i / 2 % 2 * 2) + i / 4 * kFragmentBytes + i % 2 * kColumnBytes, sums[i]);
    }
  } else {
    // Matrices: rows 0-7 and 8-15 of eight columns, then of the next eight.
    const uint32_t first = buffer + staged_offset<kColumnBytes>(lane % 8, lane / 8 % 2) + lane / 16 * kFragmentBytes;
#pragma unroll
    for (uint32_t i = 0; i < kSm90Chunk / kFragmentColumns; i += 2) {
      const float* v = sums + i * 4;
      ptx::stmatrix_x4_transposed(first + i * kFragmentBytes, ptx::pack<kType>(v[0], v[1]),
                                  ptx::pack<kType>(v[2], v[3]), ptx::pack<kType>(v[4], v[5]),
                                  ptx::pack<kType>(v[6], v[7]));
    }
  }
}

// Sums of one chunk of columns -> D, where the formula is a cast. What copies a chunk stands in the code once for all
// types and both ways: it is much of a kernel.
JAXBW_DEVICE void cast_chunk(const float (&sums)[kChunk], const GemmParams& p, StoreOrigin box, StoreRing& stores) {
  const uint32_t buffer = stores.acquire_all();
  StagedRuns staged;  // set to zero here, ptxas spills registers of wide tiles of 8 bits
  with_type(p.output.type, [&]<DataType kType>() {
    if (runs_down(p)) {
      stage_transposed<kType>(sums, buffer);
      staged = StagedRuns::of<size_bytes(kType), kBlockRows>(kSm90Chunk, kBlockRows, true);
    } else {
      stage_box<kType, kSm90Chunk, 0>(sums, buffer);
      staged = StagedRuns::of<size_bytes(kType), kSm90Chunk>(kBlockRows, kSm90Chunk);
    }
  });
  stores.copy_any(p.output.data, box, staged);
}

// Leaves a part's sums. Returns what this warp has to finish of its slice.
template <uint32_t kCount>
JAXBW_DEVICE SplitSum::Share leave_part(const float (&accumulators)[kCount], const SplitSum& split,
                                        const Profile& profile) {
  if (!split.shared()) {
    split.leave(accumulators, 0);
    return split.added_up_later() || !split.last() ? SplitSum::nothing() : SplitSum::everything();
  }
  const bool stays = split.all_begun();
  split.leave(accumulators, 0);
  profile.enter(Activity::kAwaitSums);
  const SplitSum::Share share = split.share(stays);
  profile.enter(Activity::kEpilogue);
  return share;
}

// What a multiplying warp does with its accumulators of a work item. From here on `tile` is where the CTA's tile starts
// in D, and `row` the first row in it of this warp's.
//
// The general way, a chunk of columns at a time: sums of parts of K are brought together, and the formula of Epilogue
// is applied. It stands in the code once, and registers have no run-time index, so the sums reach it by way of shared
// memory; where it is a cast they are spared that. Of a gated matmul the first half of an m64's registers is gate, the
// second up.
//
// The warp finishes its own rows, of a split tile a share of them; where CTAs of the cluster share the tile, the slices
// that it owns. kCasts: the formula is known to be a cast.
template <uint32_t kBlockN, bool kCasts, uint32_t kCount>
JAXBW_DEVICE void apply_epilogue(const float (&accumulators)[kCount], const GemmParams& p,
                                 const ClusterSum<kChunk>& cluster, const SplitSum& split, StoreOrigin tile,
                                 uint32_t row, uint32_t warp, StoreRing& stores, const Profile& profile) {
  constexpr uint32_t kTile = registers_of(kBlockN), kTiles = kCount / kTile;
  constexpr uint32_t kInFlight = kCount > 64 ? 4 : 8;  // accumulators have the other registers
  const bool shared = cluster.shared();
  SplitSum::Share share = SplitSum::everything();
  if (shared) {
    const auto outgoing = cluster.template outgoing<kTile, kCount>(row);
    profile.enter(Activity::kAwaitCluster);
    ptx::cluster_sync();  // with the load warps: all rings are free
    profile.enter(Activity::kEpilogue);
    cluster.send(accumulators, outgoing);
    profile.enter(Activity::kAwaitSums);
    cluster.wait();
    profile.enter(Activity::kEpilogue);
  } else if (split.split()) {
    share = leave_part(accumulators, split, profile);
    if (share.step == 0) return;
    stores.drain();  // whole tiles may have gone by TMA before
  }
  const SumBlocks blocks{stores.acquire_all()};  // where all lanes wait for the one that drains
  const uint32_t halves = !kCasts && p.epilogue.gated != 0 ? 2 : 1, results = kTile / halves;
  OutputScale out_scale(p);
  const auto chunk = [&](uint32_t i, uint32_t first, StoreOrigin box) {
    const SplitSum slice = shared ? split.behind(cluster.number(i)) : split;
    if (shared && split.split()) {
#pragma unroll 1
      for (uint32_t half = 0; half < halves; ++half) {
        float sums[kChunk];
        cluster.gather(sums, i, half);
        slice.leave(sums, half * kChunk);
      }
      if (slice.added_up_later() || !slice.last()) return;
    }
#pragma unroll 1
    for (uint32_t half = 0; half < halves; ++half) {
      const uint32_t from = first + half * results;
      float sums[kChunk];
      if (split.split()) {
        slice.template gather_in_flight<kInFlight>(sums, shared ? half * kChunk : from);
      } else if (shared) {
        cluster.gather(sums, i, half);
      } else {
        for_each_step<kChunk, kCount>([&]<uint32_t kFirst>() {
#pragma unroll
          for (uint32_t j = 0; j < kChunk; ++j) {
            if (kFirst == 0 || from == kFirst) sums[j] = accumulators[kFirst + j];
          }
        });
      }
      if (kCasts || p.epilogue.path == EpiloguePath::kCast) return cast_chunk(sums, p, box, stores);
      stage_box<DataType::kF32, kSm90Chunk, 0>(sums, blocks.at(half));
    }
    __syncwarp();
    finish_block<ptx::kWarpSize>(p, blocks, box, ptx::lane_index_here(), out_scale);
    __syncwarp();
  };
  // Slices are numbered down the rows first; those below each other are so far apart.
  const uint32_t row_step = shared ? kSm90Epilogue.rows_per_warp : kWgmmaRows;
  const uint32_t first_row = tile.row + (shared ? 0 : row);
  const uint32_t end = shared ? cluster.owned() : kTiles * (results / kChunk);
  const uint32_t step = shared ? cluster.warps() : share.step;
#pragma unroll 1
  for (uint32_t i = shared ? warp : share.first; i < end; i += step) {
    const uint32_t number = shared ? cluster.number(i) : i;
    const uint32_t below = shared ? cluster.below(number) : number % kTiles;
    const uint32_t beside = shared ? cluster.beside(number) : number / kTiles;
    chunk(i, below * kTile + beside * kChunk,
          {first_row + below * row_step, tile.column + beside * kSm90Chunk, tile.batch});
    // Not behind the loop: there it takes the uniform registers of some tiles' main loops, which become half as long
    // again.
    if (!kCasts && i + step >= end) out_scale.leave_maximum(tile.batch);
  }
}

// Where the box whose registers start at kFirst lies in D.
template <uint32_t kBlockN, uint32_t kFirst>
JAXBW_DEVICE StoreOrigin box_origin(StoreOrigin tile, uint32_t row) {
  constexpr uint32_t kTile = registers_of(kBlockN);
  return {tile.row + row + kFirst / kTile * kWgmmaRows, tile.column + columns_of(kFirst % kTile), tile.batch};
}

// Whether the box whose registers start at `first` is one of results: of a gated matmul the first half of an m64's is.
template <uint32_t kBlockN>
JAXBW_DEVICE bool holds_results(const GemmParams& p, uint32_t first) {
  constexpr uint32_t kTile = registers_of(kBlockN);
  return !sm90_gated_in_boxes(kBlockN) || first % kTile < kTile / 2 || p.epilogue.gated == 0;
}

// Stores the box whose registers start at kFirst.
template <DataType kType, uint32_t kBlockN, uint32_t kFirst, uint32_t kCount, typename Stores>
JAXBW_DEVICE void cast_box(const float (&accumulators)[kCount], const TensorMap& map, StoreOrigin box, Stores& stores,
                           const Profile& profile) {
  profile.enter(Activity::kAwaitStaging);
  const uint32_t buffer = stores.acquire();
  profile.enter(Activity::kEpilogue);
  stage_box<kType, sm90_store_box(kBlockN, kType).columns, kFirst>(accumulators, buffer);
  profile.enter(Activity::kStore);
  stores.store_by_tma(map, box);
}

// Where a cast is all that is left to do: straight from the accumulators, a box at a time.
template <DataType kType, uint32_t kBlockN, uint32_t kCount, typename Stores>
JAXBW_DEVICE void cast_boxes(const float (&accumulators)[kCount], const GemmParams& p, StoreOrigin tile, uint32_t row,
                             Stores& stores, const Profile& profile) {
  constexpr uint32_t kStep = registers_of(sm90_store_box(kBlockN, kType).columns);
  for_each_step<kStep, kCount>([&]<uint32_t kFirst>() {
    if (!holds_results<kBlockN>(p, kFirst)) return;
    cast_box<kType, kBlockN, kFirst>(accumulators, p.d, box_origin<kBlockN, kFirst>(tile, row), stores, profile);
  });
}

// The same of z; of a gated matmul also of u, the second half of an m64's registers.
template <DataType kType, uint32_t kBlockN, uint32_t kCount>
JAXBW_DEVICE void save_boxes(const float (&accumulators)[kCount], const GemmParams& p, StoreOrigin tile, uint32_t row,
                             StoreRing& stores, const Profile& profile) {
  constexpr uint32_t kTile = registers_of(kBlockN), kStep = registers_of(sm90_store_box(kBlockN, kType).columns);
  for_each_step<kStep, kCount>([&]<uint32_t kFirst>() {
    StoreOrigin box = box_origin<kBlockN, kFirst>(tile, row);
    const bool up = !holds_results<kBlockN>(p, kFirst);
    if (up) box.column -= columns_of(kTile / 2);
    cast_box<kType, kBlockN, kFirst>(accumulators, p.saved[up ? 1 : 0], box, stores, profile);
  });
}

// Boxes of kStep accumulators, of kCount, that TMA does not store, each in kParts: stages each part by
// stage.operator()<kFirst, kPart>(buffer), and stores it by store(box, part). The latter stands in the code once.
template <uint32_t kBlockN, uint32_t kStep, uint32_t kParts, uint32_t kCount, typename Stage, typename Store>
JAXBW_DEVICE void copy_boxes(const GemmParams& p, StoreOrigin tile, uint32_t row, StoreRing& stores, const Stage& stage,
                             const Store& store) {
#pragma unroll 1
  for (uint32_t at = 0; at < kParts * kCount; at += kStep) {
    if (!holds_results<kBlockN>(p, at / (kParts * kStep) * kStep)) continue;
    const uint32_t buffer = stores.acquire_all();
    StoreOrigin box;
    for_each_step<kStep, kParts * kCount>([&]<uint32_t kAt>() {
      if (at != kAt) return;
      constexpr uint32_t kFirst = kAt / (kParts * kStep) * kStep;
      stage.template operator()<kFirst, kAt / kStep % kParts>(buffer);
      box = box_origin<kBlockN, kFirst>(tile, row);
    });
    store(box, at / kStep % kParts);
  }
}

// Columns of a tile that are staged at a time where rows are stored whole: as many as divide it, in steps of a chunk,
// and fit, and whose rows are whole swizzle spans or a chunk.
constexpr uint32_t row_columns(uint32_t block_n, uint32_t most, uint32_t size) {
  uint32_t columns = most;
  while (block_n % columns != 0 || (columns * size > kSwizzleSpan && columns * size % kSwizzleSpan != 0)) {
    columns -= kSm90Chunk;
  }
  return columns;
}
static_assert(row_columns(256, 256, 2) == 256 && row_columns(192, 128, 4) == 96 && row_columns(96, 256, 2) == 32);

// The same as cast_boxes, by rows that TMA cannot store: eight whole rows of the tile at a time, or as much of them as
// the two staging buffers hold.
template <uint32_t kSize, uint32_t kBlockN, uint32_t kCount>
JAXBW_DEVICE void cast_rows(const float (&accumulators)[kCount], const GemmParams& p, StoreOrigin tile, uint32_t row,
                            StoreRing& stores) {
  constexpr uint32_t kRows = kBlockRows / 2, kMost = 2 * kSwizzleSpan * kBlockRows / kRows / kSize;
  constexpr uint32_t kColumns = row_columns(kBlockN, kMost, kSize);
  const uint32_t columns = min(kColumns, p.tile_columns);  // of a gated matmul, half of a tile is results
  copy_boxes<kBlockN, registers_of(kColumns), 2, kCount>(
      p, tile, row, stores,
      [&]<uint32_t kFirst, uint32_t kHalf>(uint32_t buffer) {
        with_type_of_size<kSize>(
            p.output.type, [&]<DataType kType>() { stage_half<kType, kColumns, kFirst, kHalf>(accumulators, buffer); });
      },
      [&](StoreOrigin box, uint32_t half) {
        box.row += half * kRows;
        stores.copy<kSize, kColumns>(p.output.data, box, kRows, columns);
      });
}

// The same, where D's neighbours are below each other.
template <uint32_t kSize, uint32_t kBlockN, uint32_t kCount>
JAXBW_DEVICE void cast_columns(const float (&accumulators)[kCount], const GemmParams& p, StoreOrigin tile, uint32_t row,
                               StoreRing& stores) {
  copy_boxes<kBlockN, kChunk, 1, kCount>(
      p, tile, row, stores,
      [&]<uint32_t kFirst, uint32_t>(uint32_t buffer) {
        with_type_of_size<kSize>(p.output.type, [&]<DataType kType>() {
          stage_transposed<kType>(reinterpret_cast<const float (&)[kChunk]>(accumulators[kFirst]), buffer);
        });
      },
      [&](StoreOrigin box, uint32_t) {
        stores.copy<kSize, kBlockRows>(p.output.data, box, kSm90Chunk, kBlockRows, true);
      });
}

// All boxes of a tile, whichever way D is stored. kByTma: it is known that TMA stores it.
template <uint32_t kBlockN, bool kByTma, uint32_t kCount>
JAXBW_DEVICE void cast_tile(const float (&accumulators)[kCount], const GemmParams& p, StoreOrigin tile, uint32_t row,
                            StoreRing& stores, const Profile& profile) {
  if (kByTma || p.store_path == StorePath::kTma) {
    return with_type(p.output.type, [&]<DataType kType>() {
      cast_boxes<kType, kBlockN>(accumulators, p, tile, row, stores, profile);
    });
  }
  const auto copy = [&]<uint32_t kSize>() {
    if (p.store_path == StorePath::kRows) {
      cast_rows<kSize, kBlockN>(accumulators, p, tile, row, stores);
    } else {
      cast_columns<kSize, kBlockN>(accumulators, p, tile, row, stores);
    }
  };
  if (p.output.type == DataType::kF32) return copy.template operator()<4>();
  copy.template operator()<2>();  // what has 8 bits takes the general way
}

}  // namespace jaxbw::sm90
