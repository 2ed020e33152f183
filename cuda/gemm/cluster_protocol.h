// Who sends what to whom inside a cluster: multicast masks and the arrival counts of barriers.
//
// The CTA of rank r stands at column r / cluster_m, row r % cluster_m:
//
//        n = 0   1   2   3        A tile of a row:    one for all CTAs of the row (they share M),
//   m = 0   0   4   8  12                             each of them loads 1 / cluster_n of it
//       1   1   5   9  13         B tile of a column: one for all CTAs of the column (they share N); with pairs, one
//       2   2   6  10  14                             half for the even and one for the odd CTAs
//       3   3   7  11  15         CTA pairs (cta_group 2): ranks (0, 1), (2, 3), ...; the even one is the leader
//
// Everything is derived here, for kernels and host alike; the assertions at the end hold it to the numbers that the
// CUTLASS article on clusters works out by hand.
#pragma once

#include <cstdint>

namespace jaxbw {

struct ClusterShape {
  uint32_t m, n;
  uint32_t cta_group;

  constexpr uint32_t size() const { return m * n; }
  constexpr uint32_t row(uint32_t rank) const { return rank % m; }
  constexpr uint32_t column(uint32_t rank) const { return rank / m; }

  // CTAs that load one operand tile together.
  constexpr uint32_t a_peers() const { return n; }
  constexpr uint32_t b_peers() const { return m / cta_group; }

  // Which of them this CTA is.
  constexpr uint32_t a_peer(uint32_t rank) const { return column(rank); }
  constexpr uint32_t b_peer(uint32_t rank) const { return row(rank) / cta_group; }

  // They, as a bit mask of ranks.
  constexpr uint32_t a_mask(uint32_t rank) const {
    uint32_t mask = 0;
    for (uint32_t j = 0; j < n; ++j) mask |= 1u << (row(rank) + j * m);
    return mask;
  }
  constexpr uint32_t b_mask(uint32_t rank) const {
    uint32_t mask = 0;
    for (uint32_t i = row(rank) % cta_group; i < m; i += cta_group) mask |= 1u << (column(rank) * m + i);
    return mask;
  }

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
  constexpr uint32_t receiving_groups() const { return a_peers() + b_peers() - 1; }
};

// Ring stages. A stage is full when its one loading thread has announced the bytes and they have come; it is empty
// when all warps (sm_90), or the one commit (sm_100), of every receiving group have let go of it.
constexpr uint32_t kStageFullArrivals = 1;
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
constexpr ClusterShape kSingle{4, 4, 1};
static_assert(kSingle.a_mask(0) == 0x1111 && kSingle.b_mask(0) == 0x000f);
static_assert(kSingle.a_mask(11) == 0x8888 && kSingle.b_mask(11) == 0x0f00);
static_assert(kSingle.source_mask(0) == 0x111f && stage_empty_arrivals(kSingle, 1) == 7);
constexpr ClusterShape kPair{4, 4, 2};
static_assert(kPair.a_mask(0) == 0x1111 && kPair.b_mask(0) == 0x0005);
static_assert(kPair.source_mask(0) == 0x333f && stage_empty_arrivals(kPair, 1) == 5);
static_assert(kPair.group_mask(3) == 0x000c);
}  // namespace cluster_protocol_check

}  // namespace jaxbw
