// Parts of K that CTAs of one cluster compute: how their sums come together, through distributed shared memory.
//
// A CTA's tile is cut into slices, the rows of a warp and a chunk of columns each, numbered down the rows first. Of the
// k CTAs that share a tile, CTA p owns the slices p, p + k, ..., and its warps divide these among themselves. After the
// main loop every warp sends its sums to the owners. An owner adds up those of all parts, in the order of the parts,
// and goes on to the epilogue: so the CTAs share that, too, and the result does not depend on the timing.
//
// Sums leave and land where the ring of stages was. A cluster barrier stands before: until then the multiplying warps
// of a CTA have waited for every stage that anybody brings them, and for the wgmmas that read it, so behind it no ring
// is written or read any more. Nor does the main loop come back: such a launch has one work item for each cluster.
//
// They travel by bulk copies, a slice at a time, whose bytes count on a barrier of the warp that waits for them. (By
// st.async every 16 bytes count for themselves: 2.4 cycles each on an H200, 10k for a tile of 64 KB.) What an owner has
// itself stays where it was laid down to be sent: an SM sends some 20 bytes a cycle, a quarter of what it could write.
#pragma once

#include "gemm/cluster_protocol.h"
#include "gemm/storage.h"
#include "gemm/store_ring.h"
#include "ptx/cluster.h"
#include "ptx/mbarrier.h"

namespace jaxbw {

constexpr uint32_t kSumBarrier = 6;  // a named barrier; sm90_context.h has those before

// One multiplying warp's view. kChunk: values that a lane has of a slice, in groups of four, which cover eight columns.
// Of a gated matmul a slice has two halves, of so many values each.
template <uint32_t kChunk>
class ClusterSum {
 public:
  // `tile`: where the CTA's tile starts in D. `warp`: of those that multiply. `slots`, `barriers`: shared addresses of
  // the ring, and of a barrier for each warp.
  JAXBW_DEVICE ClusterSum(const GemmParams& params, ClusterShape cluster, uint32_t rank, StoreOrigin tile,
                          uint32_t warp, uint32_t slots, uint32_t barriers)
      : params_(params), cluster_(cluster), rank_(rank), tile_(tile), warp_(warp), slots_(slots), barriers_(barriers) {}

  JAXBW_DEVICE bool shared() const { return cluster_.k.value > 1; }

  // That share the tile: one warpgroup has it alone where they take turns, and there is one turn.
  JAXBW_DEVICE uint32_t warps() const { return warpgroups() * kSm90WarpgroupWarps; }

  // Slices of the tile: below each other (a power of two), beside each other, in all. And the values of all lanes in
  // one.
  JAXBW_DEVICE uint32_t down() const { return params_.block_m / kRows; }
  JAXBW_DEVICE uint32_t across() const { return params_.tile_columns / kColumns; }
  JAXBW_DEVICE uint32_t count() const { return down() * across(); }
  JAXBW_DEVICE uint32_t slice_floats() const { return halves() * kChunk * ptx::kWarpSize; }

  // The slices that this warp owns are number(i) for i = warp, warp + warps(), ... below owned().
  JAXBW_DEVICE uint32_t owned() const { return count() / cluster_.k; }
  JAXBW_DEVICE uint32_t number(uint32_t i) const { return i * cluster_.k.value + cluster_.part(rank_); }
  JAXBW_DEVICE uint32_t below(uint32_t number) const { return number & (down() - 1); }
  JAXBW_DEVICE uint32_t beside(uint32_t number) const { return number >> __popc(down() - 1); }

  // The barrier counts all that comes to this warp, whatever comes first: bytes or their announcement. So this may
  // stand before the main loop.
  JAXBW_DEVICE void announce() const {
    uint32_t groups = 0;
    for (uint32_t i = warp_; i < owned(); i += warps()) {
      groups += groups_inside(number(i));
    }
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive_expect_tx(warp_barrier(warp_), groups * (cluster_.k.value - 1) * halves() * kGroupBytes);
    }
  }

  // What a lane sends of its warp's sums: a slice, or nothing.
  struct Outgoing {
    uint32_t source, bytes;
    uint32_t destination, barrier;  // of the owner
  };

  // A warp's kCount accumulators are slices beside each other, of each half, and then of every kWgmmaRows below. Its
  // rows of the tile start at `row`.
  template <uint32_t kTile, uint32_t kCount>
  JAXBW_DEVICE Outgoing outgoing(uint32_t row) const {
    constexpr uint32_t kSlices = kCount / kChunk, kBeside = kTile / kChunk;
    static_assert(kSlices <= ptx::kWarpSize);
    const uint32_t lane = ptx::lane_index_here();
    const uint32_t slice_row = row / kRows + lane / kBeside * (kWgmmaRows / kRows), chunk = lane % kBeside;
    const uint32_t half = chunk < across() ? 0 : 1, column = chunk - half * across();
    const uint32_t owner = slice_row % cluster_.k * cluster_.tiles.value + cluster_.tile(rank_);
    const uint32_t i = column * (down() / cluster_.k) + slice_row / cluster_.k;
    const bool sends = lane < kSlices && owner != rank_;
    return {.source = laid_down(warp_ * kSlices + lane),
            .bytes = sends ? groups_inside(column * down() + slice_row) * kGroupBytes : 0,
            .destination = ptx::map_to_rank(slot(i, half, cluster_.part(rank_)), sends ? owner : rank_),
            .barrier = ptx::map_to_rank(warp_barrier(i & (warps() - 1)), sends ? owner : rank_)};
  }

  // Lays this warp's sums down, and sends them to their owners.
  template <uint32_t kCount>
  JAXBW_DEVICE void send(const float (&values)[kCount], const Outgoing& outgoing) const {
    const uint32_t first = laid_down(warp_ * (kCount / kChunk)) + ptx::lane_index_here() * kLaneBytes;
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += kGroup) {
      ptx::store_shared(first + i / kGroup * kGroupBytes, values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (outgoing.bytes > 0) {
      ptx::copy_to_cluster(outgoing.destination, outgoing.source, outgoing.bytes, outgoing.barrier);
    }
    __syncwarp();
  }

  // Until all that this warp owns has come, and the CTA's warps have laid down theirs.
  JAXBW_DEVICE void wait() const {
    ptx::named_barrier_sync(kSumBarrier, warps() * ptx::kWarpSize);
    ptx::mbarrier_wait(warp_barrier(warp_), 0);
  }

  // The sums of all parts, of slice number(i). What lies outside the matrix is zero.
  JAXBW_DEVICE void gather(float (&values)[kChunk], uint32_t i, uint32_t half) const {
    const uint32_t groups = groups_inside(number(i)), own_part = cluster_.part(rank_);
    const uint32_t own = laid_down(place(number(i), half)), lane = ptx::lane_index_here() * kLaneBytes;
    uint32_t received = slot(i, half, 0);
#pragma unroll
    for (float& value : values) value = 0.0f;
#pragma unroll 1
    for (uint32_t part = 0; part < cluster_.k.value; ++part, received += kSliceBytes) {
      const uint32_t from = (part == own_part ? own : received) + lane;
      float of_part[kChunk / kGroup][kGroup] = {};  // a zero changes no sum: none is -0
#pragma unroll
      for (uint32_t group = 0; group < kChunk / kGroup; ++group) {
        ptx::load_shared_if(group < groups, of_part[group], from + group * kGroupBytes);
      }
#pragma unroll
      for (uint32_t j = 0; j < kChunk; ++j) values[j] += of_part[j / kGroup][j % kGroup];
    }
  }

 private:
  static constexpr uint32_t kRows = kSm90Epilogue.rows_per_warp;
  static constexpr uint32_t kGroup = 4, kGroupColumns = 8;
  static constexpr uint32_t kColumns = kChunk / kGroup * kGroupColumns;
  static constexpr uint32_t kLaneBytes = kGroup * sizeof(float);
  static constexpr uint32_t kGroupBytes = kLaneBytes * ptx::kWarpSize;
  static constexpr uint32_t kSliceBytes = kChunk / kGroup * kGroupBytes;

  JAXBW_DEVICE uint32_t halves() const { return params_.epilogue.gated != 0 ? 2 : 1; }
  JAXBW_DEVICE uint32_t warpgroups() const { return params_.pingpong != 0 ? 1 : kSm90ConsumerWarpgroups; }

  // Of a slice, how many groups have columns of the matrix; the others are not sent.
  JAXBW_DEVICE uint32_t groups_inside(uint32_t number) const {
    const uint32_t row = tile_.row + below(number) * kRows, column = tile_.column + beside(number) * kColumns;
    if (row >= params_.m || column >= params_.n) return 0;
    return min(kChunk / kGroup, (params_.n - column + kGroupColumns - 1) / kGroupColumns);
  }

  // Where the owner of a slice, its i-th, receives what one part has.
  JAXBW_DEVICE uint32_t slot(uint32_t i, uint32_t half, uint32_t part) const {
    return slots_ + ((i * halves() + half) * cluster_.k.value + part) * kSliceBytes;
  }

  // Where a slice of this CTA's sums lies that send() has laid down: warp by warp, as it numbers them.
  JAXBW_DEVICE uint32_t laid_down(uint32_t place) const {
    return slots_ + params_.block_m * params_.block_n * uint32_t{sizeof(float)} + place * kSliceBytes;
  }
  JAXBW_DEVICE uint32_t place(uint32_t number, uint32_t half) const {
    const uint32_t rows_of_warpgroup = down() / warpgroups(), row = below(number);  // powers of two
    const uint32_t warpgroup = row >> __popc(rows_of_warpgroup - 1), row_of_warpgroup = row & (rows_of_warpgroup - 1);
    const uint32_t warp = warpgroup * kSm90WarpgroupWarps + row % kSm90WarpgroupWarps,
                   m64 = row_of_warpgroup / kSm90WarpgroupWarps;
    return ((warp * (rows_of_warpgroup / kSm90WarpgroupWarps) + m64) * halves() + half) * across() + beside(number);
  }

  JAXBW_DEVICE uint32_t warp_barrier(uint32_t warp) const { return barriers_ + warp * uint32_t{sizeof(uint64_t)}; }

  const GemmParams& params_;
  ClusterShape cluster_;
  uint32_t rank_;
  StoreOrigin tile_;
  uint32_t warp_, slots_, barriers_;
};

}  // namespace jaxbw
