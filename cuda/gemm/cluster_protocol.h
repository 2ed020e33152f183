// Who sends what to whom inside a cluster: multicast masks and the arrival counts of barriers.
//
// The CTA of rank r stands at row r % m and column r / m:
//
//        n = 0   1   2   3        A tile of a row:    one for all CTAs of the row (they share M),
//   m = 0   0   4   8  12                             each of them loads 1 / cluster_n of it
//       1   1   5   9  13         B tile of a column: one for all CTAs of the column (they share N); with pairs, one
//       2   2   6  10  14                             half for the even and one for the odd CTAs
//       3   3   7  11  15         CTA pairs (cta_group 2): ranks (0, 1), (2, 3), ...; the even one is the leader
//
// With k > 1 the cluster is k such rectangles, one behind the other: r / (m * n) is the part of K that a CTA computes,
// and column and row are those of r % (m * n). CTAs of different parts load nothing for each other.
//
// Everything is derived here, for kernels and host alike; the assertions at the end hold it to the numbers that the
// CUTLASS article on clusters works out by hand.
#pragma once

#include <cstdint>

#include "gemm/division.h"

namespace jaxbw {

constexpr uint32_t kMaxClusterSize = 16;  // CTAs; beyond 8 the launch asks for a non-portable size

// Made by cluster_shape().
struct ClusterShape {
  Divisor m, n;
  uint32_t cta_group;
  Divisor k;
  Divisor tiles;         // m * n: what the CTAs of one part have
  Divisor ctas;          // in all
  Divisor b_sharers;     // CTAs that load one tile of B together
  uint32_t row_mask;     // ranks of the CTAs that share rank 0's tile of A
  uint32_t column_mask;  // ... and its tile of B

  constexpr uint32_t size() const { return ctas.value; }
  constexpr uint32_t part(uint32_t rank) const { return rank / tiles; }
  constexpr uint32_t tile(uint32_t rank) const { return rank % tiles; }
  constexpr uint32_t row(uint32_t rank) const { return rank % m; }
  constexpr uint32_t column(uint32_t rank) const { return tile(rank) / m; }

  // CTAs that load one operand tile together.
  constexpr Divisor a_peers() const { return n; }
  constexpr Divisor b_peers() const { return b_sharers; }

  // Which of them this CTA is.
  constexpr uint32_t a_peer(uint32_t rank) const { return column(rank); }
  constexpr uint32_t b_peer(uint32_t rank) const { return row(rank) / cta_group; }

  // They, as a bit mask of ranks.
  constexpr uint32_t a_mask(uint32_t rank) const { return row_mask << (rank - column(rank) * m.value); }
  constexpr uint32_t b_mask(uint32_t rank) const { return column_mask << (rank - row(rank) + row(rank) % cta_group); }

  constexpr uint32_t pair_leader(uint32_t rank) const { return rank - rank % cta_group; }

  // The CTAs of one MMA: this CTA, or the pair.
  constexpr uint32_t group_mask(uint32_t rank) const {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < cta_group; ++i) mask |= 1u << (pair_leader(rank) + i);
    return mask;
  }

  // Every CTA that loads something for the MMA of this CTA's group: these wait for it before they overwrite a stage.
  constexpr uint32_t source_mask(uint32_t rank) const {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < cta_group; ++i) {
      mask |= a_mask(pair_leader(rank) + i) | b_mask(pair_leader(rank) + i);
    }
    return mask;
  }

  // How many groups use what one CTA loads: those of its row of groups and those of its column, itself counted once.
  constexpr uint32_t receiving_groups() const { return a_peers().value + b_peers().value - 1; }
};

constexpr ClusterShape cluster_shape(uint32_t m, uint32_t n, uint32_t cta_group, uint32_t k = 1) {
  ClusterShape shape{
      divisor(m), divisor(n), cta_group, divisor(k), divisor(m * n), divisor(m * n * k), divisor(m / cta_group), 0, 0};
  for (uint32_t j = 0; j < n; ++j) shape.row_mask |= 1u << (j * m);
  for (uint32_t i = 0; i < m; i += cta_group) shape.column_mask |= 1u << i;
  return shape;
}

// Which CTAs load one tile together. Each of `peers` CTAs, of which this one is number `peer`, loads an equal share of
// every block's rows and multicasts it to the ranks of `mask`.
struct LoadShare {
  Divisor peers;
  uint32_t peer, mask;
};

// Ring stages. A stage is full when its one loading thread has announced the bytes and they have come; it is empty
// when every warpgroup (sm_90), or the one commit (sm_100), of every receiving group has let go of it.
constexpr uint32_t kStageFullArrivals = 1;
// Where threads copy a part of it themselves, each has an arrival, too.
constexpr uint32_t gathered_full_arrivals(uint32_t copying_threads) { return kStageFullArrivals + copying_threads; }
constexpr uint32_t stage_empty_arrivals(ClusterShape cluster, uint32_t arrivals_per_group) {
  return cluster.receiving_groups() * arrivals_per_group;
}

// TMEM accumulators: full with one commit; empty, on the leader, with one arrival of each epilogue warp of the group.
constexpr uint32_t kAccumulatorFullArrivals = 1;
constexpr uint32_t accumulator_empty_arrivals(ClusterShape cluster, uint32_t epilogue_warps) {
  return cluster.cta_group * epilogue_warps;
}

// CLC responses: full with the scheduler's announcement and the response's bytes; empty, on rank 0, when all readers
// in the cluster are done: the load warp and the epilogue warps of every CTA, the MMA warp of every group, and the
// scheduler itself.
constexpr uint32_t kClcFullArrivals = 1;
constexpr uint32_t clc_empty_arrivals(ClusterShape cluster, uint32_t epilogue_warps) {
  return cluster.size() * (1 + epilogue_warps) + cluster.size() / cluster.cta_group + 1;
}

namespace cluster_protocol_check {
constexpr ClusterShape kSingle = cluster_shape(4, 4, 1);
static_assert(kSingle.a_mask(0) == 0x1111 && kSingle.b_mask(0) == 0x000f);
static_assert(kSingle.a_mask(11) == 0x8888 && kSingle.b_mask(11) == 0x0f00);
static_assert(kSingle.source_mask(0) == 0x111f && stage_empty_arrivals(kSingle, 1) == 7);
constexpr ClusterShape kPair = cluster_shape(4, 4, 2);
static_assert(kPair.a_mask(0) == 0x1111 && kPair.b_mask(0) == 0x0005);
static_assert(kPair.source_mask(0) == 0x333f && stage_empty_arrivals(kPair, 1) == 5);
static_assert(kPair.group_mask(3) == 0x000c);
constexpr ClusterShape kParts = cluster_shape(2, 2, 1, 2);
static_assert(kParts.part(6) == 1 && kParts.tile(6) == 2 && kParts.row(6) == 0 && kParts.column(6) == 1);
static_assert(kParts.a_mask(6) == 0x50 && kParts.b_mask(6) == 0xc0);
static_assert(kParts.source_mask(0) == 0x07 && stage_empty_arrivals(kParts, 1) == 3);
}  // namespace cluster_protocol_check

}  // namespace jaxbw
