// Turns the sizes of groups into the table of a grouped matmul (groups.h), by one block. Sizes are clamped: negative
// ones are zero, and no group reaches beyond the rows that there are. Rows behind the last group, and those of groups
// that the matmul has no matrix for, become tiles of zeros.
#pragma once

#include "gemm/groups.h"
#include "ptx/global.h"
#include "ptx/programmatic_launch.h"

namespace jaxbw {

// Sums of a value of each thread: over those before it, and over all.
class BlockScan {
 public:
  struct Sums {
    uint32_t before, all;
  };

  // `sum` is associative, and 0 is nothing to it.
  template <typename Sum>
  static JAXBW_DEVICE Sums scan(uint32_t value, const Sum& sum) {
    constexpr uint32_t kWarps = kGroupTableThreads / ptx::kWarpSize;
    __shared__ uint32_t of_warps[kWarps];
    const uint32_t lane = ptx::lane_index(), warp = threadIdx.x / ptx::kWarpSize;
    uint32_t through = value;
#pragma unroll
    for (uint32_t step = 1; step < ptx::kWarpSize; step *= 2) {
      const uint32_t below = __shfl_up_sync(ptx::kFullWarp, through, step);
      if (lane >= step) through = sum(through, below);
    }
    if (lane == ptx::kWarpSize - 1) of_warps[warp] = through;
    uint32_t before = __shfl_up_sync(ptx::kFullWarp, through, 1);
    if (lane == 0) before = 0;
    __syncthreads();
    Sums sums{before, 0};
#pragma unroll
    for (uint32_t i = 0; i < kWarps; ++i) {
      if (i == warp) sums.before = sum(sums.all, before);
      sums.all = sum(sums.all, of_warps[i]);
    }
    __syncthreads();
    return sums;
  }
};

// The last of the ascending values that is not above `value`, of which the first is one.
JAXBW_DEVICE uint32_t last_not_above(const uint32_t (&values)[kGroupTableThreads], uint32_t value) {
  uint32_t found = 0;
#pragma unroll
  for (uint32_t step = kGroupTableThreads / 2; step > 0; step /= 2) {
    if (values[found + step] <= value) found += step;
  }
  return found;
}

JAXBW_DEVICE void store_rows(GroupRows* entry, const GroupRows& rows) {
  ptx::store_global(entry, rows.rows, rows.a_end, rows.other_end, rows.matrix);
}

JAXBW_DEVICE void store_place(BandPlace* address, BandPlace place) {
  ptx::store_global(reinterpret_cast<uint64_t>(address), place.bits);
}

// The entries of a matmul whose contraction is grouped: groups that have rows from the front on, others from the back.
// If one has more than half of all rows, and its tiles are to be split, it is the last of those that have any.
class GroupOrder {
 public:
  // `longest`: in shared memory.
  JAXBW_DEVICE GroupOrder(const GroupTableParams& p, GroupRows& longest) : p_(p), longest_(longest) {
    if (threadIdx.x == 0) longest.rows = 0;
    __syncthreads();
  }

  // By all threads, each with a group of its own, or none.
  JAXBW_DEVICE void add(bool is_there, const GroupRows& group) {
    constexpr uint32_t kEmpty = 1u << 16;  // counted in the upper half of a word
    static_assert(kGroupTableThreads < kEmpty);
    const bool is_longest = is_there && p_.split_tiles != 0 && group.rows > p_.batch * p_.rows / 2;
    if (is_longest) longest_ = group;
    const uint32_t counted = !is_there || is_longest ? 0 : group.rows > 0 ? 1 : kEmpty;
    const BlockScan::Sums sums = BlockScan::scan(counted, [](uint32_t a, uint32_t b) { return a + b; });
    if (counted == 1) {
      store_rows(p_.table + with_rows_ + sums.before % kEmpty, group);
    } else if (counted == kEmpty) {
      store_rows(p_.table + p_.batch * p_.groups - 1 - empty_ - sums.before / kEmpty, group);
    }
    with_rows_ += sums.all % kEmpty;
    empty_ += sums.all / kEmpty;
  }

  // Behind the last group: what has been added up.
  JAXBW_DEVICE GroupCounts finish() const {
    const bool is_split = longest_.rows != 0;
    if (threadIdx.x == 0 && is_split) store_rows(p_.table + with_rows_, longest_);
    return {with_rows_ + is_split, is_split ? p_.split_tiles : 0, empty_, 0};
  }

 private:
  const GroupTableParams& p_;
  GroupRows& longest_;
  uint32_t with_rows_ = 0, empty_ = 0;  // entries written so far
};

JAXBW_DEVICE void group_table(const GroupTableParams& p) {
  __shared__ uint32_t first_tiles[kGroupTableThreads], first_rows[kGroupTableThreads], end_rows[kGroupTableThreads];
  __shared__ GroupRows longest;
  const bool contraction = p.contraction != 0;
  ptx::wait_for_upstream();
  ptx::launch_dependents();  // they wait for what is written here
  const uint32_t offset = static_cast<uint32_t>(*p.offset);
  uint32_t tiles = 0;  // written so far
  GroupOrder order(p, longest);
#pragma unroll 1
  for (uint32_t batch = 0; batch < p.batch; ++batch) {
    const uint32_t a_first = batch * p.a_batched * p.rows, b_first = batch * p.b_batched;
    // The group behind the last one takes what is left.
    const uint32_t segments = p.total_groups + 1;
    uint32_t rows_before = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < segments; first += kGroupTableThreads) {
      const uint32_t group = first + threadIdx.x;
      uint32_t size = group == p.total_groups ? p.rows : 0;
      if (group < p.total_groups) {
        size = static_cast<uint32_t>(
            min(max(p.sizes[uint64_t{batch} * p.total_groups + group], 0), static_cast<int32_t>(p.rows)));
      }
      const auto up_to_all = [&](uint32_t a, uint32_t b) { return min(a + b, p.rows); };
      const BlockScan::Sums rows = BlockScan::scan(size, up_to_all);
      const uint32_t start = up_to_all(rows_before, rows.before), end = up_to_all(start, size);
      rows_before = up_to_all(rows_before, rows.all);
      if (contraction) {
        const uint32_t matrix = group - offset;
        order.add(group < p.total_groups && matrix < p.groups,
                  {end - start, a_first + end, b_first * p.rows + end, batch * p.groups + matrix});
        continue;
      }
      const uint32_t of_group = (end - start + p.block_m - 1) / p.block_m;
      const BlockScan::Sums counts = BlockScan::scan(of_group, [](uint32_t a, uint32_t b) { return a + b; });
      first_tiles[threadIdx.x] = counts.before;
      first_rows[threadIdx.x] = start;
      end_rows[threadIdx.x] = end;
      __syncthreads();
#pragma unroll 1
      for (uint32_t tile = threadIdx.x; tile < counts.all; tile += kGroupTableThreads) {
        const uint32_t found = last_not_above(first_tiles, tile), of = first + found, matrix = of - offset;
        const uint32_t row = first_rows[found] + (tile - first_tiles[found]) * p.block_m, last = end_rows[found];
        const bool here = of < p.total_groups && matrix < p.groups;
        store_rows(p.table + tiles + tile,
                   {last - row, a_first + last, batch * p.rows + last, here ? b_first * p.groups + matrix : kNoMatrix});
        const uint32_t tiles_of_found = (last - first_rows[found] + p.block_m - 1) / p.block_m;
        store_place(p.places + tiles + tile, band_place(tile - first_tiles[found], tiles_of_found, p.band_entries));
      }
      tiles += counts.all;
      __syncthreads();
    }
    if (!contraction) continue;
    // Matrices of groups that there are not.
#pragma unroll 1
    for (uint32_t first = 0; first < p.groups; first += kGroupTableThreads) {
      const uint32_t matrix = first + threadIdx.x;
      order.add(matrix < p.groups && matrix + offset >= p.total_groups, {0, 0, 0, batch * p.groups + matrix});
    }
  }
  const GroupCounts counts = contraction ? order.finish() : GroupCounts{tiles, 0, 0, 0};
  if (threadIdx.x == 0) *p.counts = counts;
}

}  // namespace jaxbw
