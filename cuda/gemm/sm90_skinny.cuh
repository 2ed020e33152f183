// The Hopper kernel of few rows: mma.sync on operands that cp.async brings.
//
// A matmul of some rows reads its weights once, and is as quick as memory is: what counts is how soon the first loads
// are under way, and how many are. So there are no tensor maps, no barriers to set up and no roles: all warps load, all
// multiply. A CTA computes one tile, several are on an SM at a time, and those of a cluster have parts of K.
//
//   ring of stages                a stage, operands exchanged: D^T = B^T A^T
//   [ 0 ][ 1 ] ... [ S - 1 ]        B^T [columns, depth]: 16 columns are the "rows" of an MMA
//     ^ multiplied   ^ loaded       A^T [depth, rows]: 8 rows are its "columns"
//
// The warps divide a stage's columns and, of narrow tiles, its depth. At the end sums go to shared memory, where
// threads add up what the warps have of a tile; in a cluster to that of the CTA to which these columns belong, which
// adds up the parts. Always in the same order: results do not depend on the timing.
#pragma once

#include <bit>

#include "gemm/epilogue.h"
#include "gemm/operand_bits.h"
#include "gemm/profile.h"
#include "gemm/skinny.h"
#include "gemm/sm90_skinny_loads.cuh"
#include "gemm/store_ring.h"
#include "params.h"
#include "ptx/async_copy.h"
#include "ptx/cluster.h"
#include "ptx/mbarrier.h"
#include "ptx/mma.h"
#include "ptx/programmatic_launch.h"

namespace jaxbw::sm90 {

// There is code for each kind of epilogue, so that none is jumped over. A gated tile has columns of gate, and behind
// them as many of up.
template <SkinnyTile kTile, Major kBMajor, SkinnyEpilogue kKind>
class SkinnyGemm {
 public:
  JAXBW_DEVICE SkinnyGemm(const SkinnyParams& p, uint32_t shared, const Profile& profile)
      : p_(p), shared_(shared), profile_(profile), part_(blockIdx.x & ((1u << p.log2_parts) - 1)) {
    const uint32_t index = blockIdx.x >> p.log2_parts;
    Tile tile{0, index, 0};
    if (p.one_row == 0) tile = rasterise(index, p.order);
    row_ = tile.m * kTile.rows;
    column_ = tile.n * kResultColumns;
    batch_ = tile.batch;
  }

  JAXBW_DEVICE void run() {
    ptx::wait_for_upstream();
    multiply();
    profile_.enter(Activity::kEpilogue);
    leave_sums();
    if (!in_cluster()) return store_results<false>();
    send_sums();
    profile_.enter(Activity::kAwaitSums);
    ptx::mbarrier_wait(barrier(), 0);
    profile_.enter(Activity::kStore);
    store_results<true>();
  }

 private:
  static constexpr bool kKMajor = kBMajor == Major::kK;
  static constexpr uint32_t kWeightRows = kKMajor ? kTile.columns : kTile.depth;
  static constexpr uint32_t kWeightElements = kKMajor ? kTile.depth : kTile.columns;
  static constexpr uint32_t kColumnMmas = kTile.warp_columns() / kMmaColumns, kRowMmas = kTile.rows / kMmaRows;
  static constexpr bool kGated = kKind == SkinnyEpilogue::kGated;
  static constexpr uint32_t kResultColumns = kGated ? kTile.columns / 2 : kTile.columns;
  static constexpr uint32_t kUnit = 4;  // columns that a thread finishes at a time: 16 bytes of sums
  static constexpr uint32_t kUnits = kTile.columns / kUnit, kResultUnits = kResultColumns / kUnit;
  static constexpr uint32_t kResultColumnsLog2 = std::countr_zero(kResultColumns), kUnitLog2 = std::countr_zero(kUnit);

  JAXBW_DEVICE bool in_cluster() const { return p_.log2_parts != 0; }
  JAXBW_DEVICE uint32_t received() const { return shared_ + kTile.ring_bytes(); }
  JAXBW_DEVICE uint32_t barrier() const { return received() + kTile.received_bytes(1u << p_.log2_parts); }
  // Of the columns of D that a CTA of the cluster finishes: a power of two.
  JAXBW_DEVICE uint32_t log2_share() const { return kResultColumnsLog2 - p_.log2_parts; }

  // While the first loads are under way: a barrier that counts what all parts send, and word to the peers that it is
  // there.
  JAXBW_DEVICE void announce_barrier() const {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(barrier(), 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::cluster_arrive();
  }

  JAXBW_DEVICE void multiply() {
    const uint32_t blocks = (p_.k + kTile.depth - 1) / kTile.depth;
    const auto share = [&](uint32_t part) { return part * blocks >> p_.log2_parts; };
    const uint32_t count = share(part_ + 1) - share(part_), first = share(part_) * kTile.depth;
    const auto left = [](uint32_t extent, uint32_t from) { return static_cast<int32_t>(extent - from); };
    const auto* a = static_cast<const uint16_t*>(p_.a);
    if (batch_ != 0) a += batch_ * p_.a_matrix;
    const auto first_weights = [&](const void* data) {
      const auto* b = static_cast<const uint16_t*>(data);
      if (batch_ != 0) b += batch_ * p_.b_matrix;
      return kKMajor ? b + uint64_t{column_} * p_.b_pitch + first : b + uint64_t{first} * p_.b_pitch + column_;
    };
    BlockLoads<kTile.rows, kTile.depth, Major::kK, kTile.threads(), kTile.stage_bytes()> rows(
        a + uint64_t{row_} * p_.a_pitch + first, nullptr, p_.a_pitch, {left(p_.m, row_), left(p_.k, first)},
        shared_ + kTile.weight_bytes());
    const BlockExtent extent = kKMajor ? BlockExtent{left(p_.n, column_), left(p_.k, first)}
                                       : BlockExtent{left(p_.k, first), left(p_.n, column_)};
    BlockLoads<kWeightRows, kWeightElements, kBMajor, kTile.threads(), kTile.stage_bytes(), kGated> weights(
        first_weights(p_.b), kGated ? first_weights(p_.b_up) : nullptr, p_.b_pitch, extent, shared_);
    // A group of copies for each block, also where there is none: so those that are still awaited are always as many.
    const auto load = [&](uint32_t block, uint32_t stage) {
      if (block < count) {
        weights.load(stage);
        rows.load(stage);
      }
      ptx::async_copy_commit();
    };
    constexpr uint32_t kAhead = kTile.stages - 1;
#pragma unroll 1
    for (uint32_t block = 0; block < kAhead; ++block) load(block, block);
    if (in_cluster()) announce_barrier();
    if constexpr (kKind != SkinnyEpilogue::kCast) prefetch_terms();
    uint32_t stage = 0, next = kAhead;
    for (uint32_t block = 0; block < count; ++block) {
      profile_.enter(Activity::kAwaitFull, block);
      ptx::async_copy_wait<kAhead - 1>();
      __syncthreads();  // all have waited, and nobody reads the stage that is loaded next
      profile_.enter(Activity::kMultiply, block);
      load(block + kAhead, next);
      multiply_stage(shared_ + stage * kTile.stage_bytes());
      stage = stage + 1 == kTile.stages ? 0 : stage + 1;
      next = next + 1 == kTile.stages ? 0 : next + 1;
    }
    __syncthreads();  // nobody reads the stages, where sums are left next
  }

  // ldmatrix: lane l says where row l % 8 of the 8x8 matrix l / 8 is.
  JAXBW_DEVICE void multiply_stage(uint32_t stage) {
    constexpr uint32_t kSteps = kRowMmas == 1 ? 2 : 1;  // along K, of which one ldmatrix brings the rows
    const uint32_t lane = ptx::lane_index(), in_matrix = lane % 8, low = lane / 8 % 2, high = lane / 16;
#pragma unroll
    for (uint32_t step = 0; step < kTile.warp_depth() / kMmaDepth; step += kSteps) {
      const uint32_t k = warp_depth_index() * kTile.warp_depth() + step * kMmaDepth;
      uint32_t rows[kSteps * kRowMmas / 2 + (kRowMmas == 1)][4];
      if constexpr (kRowMmas == 1) {
        ptx::ldmatrix_x4(rows[0], row_address(stage, in_matrix, k / kChunkElements + lane / 8));
      } else {
#pragma unroll
        for (uint32_t i = 0; i < kRowMmas / 2; ++i) {
          ptx::ldmatrix_x4(rows[i], row_address(stage, i * 16 + high * 8 + in_matrix, k / kChunkElements + low));
        }
      }
#pragma unroll
      for (uint32_t s = 0; s < kSteps; ++s) {
#pragma unroll
        for (uint32_t j = 0; j < kColumnMmas; ++j) {
          const uint32_t column = warp_column() + j * kMmaColumns, depth = k + s * kMmaDepth;
          uint32_t weights[4];
          if constexpr (kKMajor) {
            ptx::ldmatrix_x4(weights,
                             weight_address(stage, column + low * 8 + in_matrix, depth / kChunkElements + high));
          } else {
            ptx::ldmatrix_x4_transposed(
                weights, weight_address(stage, depth + high * 8 + in_matrix, column / kChunkElements + low));
          }
#pragma unroll
          for (uint32_t i = 0; i < kRowMmas; ++i) {
            const uint32_t (&of)[4] = rows[kRowMmas == 1 ? 0 : i / 2];
            const uint32_t pair = kRowMmas == 1 ? s : i % 2;
            if (!operands_.is_f16()) {  // ptxas knows: code for each type would be twice as much PTX
              ptx::mma_m16n8k16<DataType::kBF16>(sums_[j][i], weights, of[2 * pair], of[2 * pair + 1]);
            } else {
              ptx::mma_m16n8k16<DataType::kF16>(sums_[j][i], weights, of[2 * pair], of[2 * pair + 1]);
            }
          }
        }
      }
    }
  }

  static JAXBW_DEVICE uint32_t weight_address(uint32_t stage, uint32_t row, uint32_t chunk) {
    return stage + staged_offset<kWeightElements * 2>(row, chunk);
  }
  static JAXBW_DEVICE uint32_t row_address(uint32_t stage, uint32_t row, uint32_t chunk) {
    return stage + kTile.weight_bytes() + staged_offset<kTile.depth * 2>(row, chunk);
  }

  static JAXBW_DEVICE uint32_t warp_column() {
    return threadIdx.x / ptx::kWarpSize % kTile.column_warps * kTile.warp_columns();
  }
  static JAXBW_DEVICE uint32_t warp_depth_index() { return threadIdx.x / ptx::kWarpSize / kTile.column_warps; }

  // Those of a warp of this CTA, where stages were.
  JAXBW_DEVICE uint32_t sum_address(uint32_t depth_warp, uint32_t row, uint32_t column) const {
    return shared_ + ((depth_warp * kTile.rows + row) * kTile.sum_pitch() + column) * uint32_t{sizeof(float)};
  }
  // Those of a part, that this CTA receives, or a peer, of the columns that are its share; of up behind those of gate.
  JAXBW_DEVICE uint32_t received_address(uint32_t part, uint32_t row, uint32_t column) const {
    const uint32_t pitch = ((kGated ? 2u : 1u) << log2_share()) + SkinnyTile::kPadding;
    return received() + ((part * kTile.rows + row) * pitch + column) * uint32_t{sizeof(float)};
  }

  static JAXBW_DEVICE void add(float (&sums)[kUnit], uint32_t address) {
    float more[kUnit];
    ptx::load_shared(more, address);
#pragma unroll
    for (uint32_t i = 0; i < kUnit; ++i) sums[i] += more[i];
  }
  JAXBW_DEVICE void add_warps(float (&sums)[kUnit], uint32_t row, uint32_t column) const {
#pragma unroll
    for (uint32_t warp = 0; warp < kTile.depth_warps; ++warp) add(sums, sum_address(warp, row, column));
  }
  JAXBW_DEVICE void add_parts(float (&sums)[kUnit], uint32_t row, uint32_t column) const {
    for (uint32_t part = 0; part < 1u << p_.log2_parts; ++part) add(sums, received_address(part, row, column));
  }

  JAXBW_DEVICE void leave_sums() const {
    const uint32_t lane = ptx::lane_index();
#pragma unroll
    for (uint32_t j = 0; j < kColumnMmas; ++j) {
#pragma unroll
      for (uint32_t i = 0; i < kRowMmas; ++i) {
#pragma unroll
        for (uint32_t v = 0; v < 4; ++v) {
          const uint32_t row = i * kMmaRows + lane % 4 * 2 + v % 2;
          const uint32_t column = warp_column() + j * kMmaColumns + v / 2 * 8 + lane / 4;
          ptx::store_shared(sum_address(warp_depth_index(), row, column), sums_[j][i][v]);
        }
      }
    }
    __syncthreads();
  }

  // To the CTAs of the cluster, each of which adds up a share of the columns.
  JAXBW_DEVICE void send_sums() const {
    ptx::cluster_wait();  // all barriers are there
    constexpr uint32_t kBytes = kTile.rows * kTile.columns * sizeof(float);
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(barrier(), kBytes);
#pragma unroll 1
    for (uint32_t unit = threadIdx.x; unit < kTile.rows * kUnits; unit += kTile.threads()) {
      const uint32_t row = unit / kUnits, column = unit % kUnits * kUnit;
      float sums[kUnit] = {};
      add_warps(sums, row, column);
      const uint32_t of_result = kGated ? column % kResultColumns : column, owner = of_result >> log2_share();
      uint32_t in_share = of_result - (owner << log2_share());
      if (kGated && column >= kResultColumns) in_share += 1u << log2_share();
      ptx::store_to_cluster(ptx::map_to_rank(received_address(part_, row, in_share), owner), sums,
                            ptx::map_to_rank(barrier(), owner));
    }
  }

  // Of this CTA's share of the columns, what the parts have; where it has all of K, of the tile, what the warps have.
  template <bool kParts>
  JAXBW_DEVICE void store_results() const {
    const uint32_t log2_columns = kParts ? log2_share() : kResultColumnsLog2;
    const uint32_t log2_units = log2_columns - kUnitLog2;
#pragma unroll 1
    for (uint32_t unit = threadIdx.x; unit < kTile.rows << log2_units; unit += kTile.threads()) {
      const uint32_t row = unit >> log2_units, column = (unit - (row << log2_units)) * kUnit;
      const auto sums_of = [&](float (&sums)[kUnit], uint32_t first) {
        if constexpr (kParts) {
          add_parts(sums, row, first + column);
        } else {
          add_warps(sums, row, first + column);
        }
      };
      float sums[kUnit] = {}, up[kUnit] = {};
      sums_of(sums, 0);
      if constexpr (kGated) sums_of(up, 1u << log2_columns);
      store(row_ + row, column_ + (kParts ? part_ << log2_columns : 0) + column, sums, up);
    }
  }

  JAXBW_DEVICE uint64_t element_index(uint32_t row, uint32_t column) const {
    return (uint64_t{batch_} * p_.m + row) * p_.n + column;
  }

  // Has what is added to the tile come to L2 while it is multiplied.
  JAXBW_DEVICE void prefetch_terms() const {
    const auto prefetch = [](EpilogueOperand operand, uint64_t index) {
      if (operand.data == nullptr) return;
      ptx::prefetch_l2(static_cast<const uint8_t*>(operand.data) + index * size_bytes(operand.type));
    };
    for (uint32_t unit = threadIdx.x; unit < kTile.rows * kResultUnits; unit += kTile.threads()) {
      const uint32_t row = row_ + unit / kResultUnits, column = column_ + unit % kResultUnits * kUnit;
      if (row >= p_.m || column >= p_.n) continue;
      prefetch(p_.epilogue.bias, p_.epilogue.bias_along_m != 0 ? row : column);
      prefetch(p_.epilogue.residual, element_index(row, column));
    }
  }

  // The formula of Epilogue (params.h), without what these kernels are not asked for.
  JAXBW_DEVICE void apply_epilogue(float (&values)[kUnit], const float (&up)[kUnit], uint32_t row, uint32_t column,
                                   uint64_t index) const {
    const Epilogue& e = p_.epilogue;
    const uint32_t count = min(kUnit, p_.n - column);
    float bias[kUnit] = {}, residual[kUnit] = {};
#pragma unroll
    for (uint32_t i = 0; i < kUnit; ++i) {
      if (i >= count) break;
      if (e.bias.data != nullptr) bias[i] = load_element(e.bias, e.bias_along_m != 0 ? row : column + i);
      if (e.residual.data != nullptr) residual[i] = load_element(e.residual, index + i);
    }
    const float alpha = alpha_of(e);
#pragma unroll
    for (uint32_t i = 0; i < kUnit; ++i) values[i] = values[i] * alpha + bias[i];
    activate<kUnit, /*kLong=*/false>(values, e.activation);
#pragma unroll
    for (uint32_t i = 0; i < kUnit; ++i) values[i] = (kGated ? values[i] * (up[i] * alpha) : values[i]) + residual[i];
  }

  JAXBW_DEVICE void store(uint32_t row, uint32_t column, float (&sums)[kUnit], const float (&up)[kUnit]) const {
    if (row >= p_.m || column >= p_.n) return;
    const uint64_t index = element_index(row, column);
    if constexpr (kKind != SkinnyEpilogue::kCast) apply_epilogue(sums, up, row, column, index);
    const bool whole = p_.n % kUnit == 0 && reinterpret_cast<uint64_t>(p_.output.data) % 16 == 0;
    with_type(p_.output.type, [&]<DataType kResult>() {
      if (!whole) {
#pragma unroll
        for (uint32_t i = 0; i < kUnit; ++i) {
          if (column + i < p_.n) store_element<kResult>(p_.output.data, index + i, sums[i]);
        }
      } else if constexpr (kResult == DataType::kF32) {
        ptx::store_global(static_cast<float*>(p_.output.data) + index, sums[0], sums[1], sums[2], sums[3]);
      } else {
        ptx::store_global(static_cast<uint16_t*>(p_.output.data) + index, ptx::pack<kResult>(sums[0], sums[1]),
                          ptx::pack<kResult>(sums[2], sums[3]));
      }
    });
  }

  const OperandBits operands_;
  const SkinnyParams& p_;
  uint32_t shared_;
  const Profile& profile_;
  uint32_t part_;  // of K
  uint32_t row_, column_, batch_;
  float sums_[kColumnMmas][kRowMmas][4] = {};
};

template <uint32_t kRows, uint32_t kColumns, uint32_t kDepth>
JAXBW_DEVICE void skinny_gemm(const SkinnyParams& p, ProfileArgument argument = {}) {
  constexpr SkinnyTile kTile = skinny_tile(kRows, kColumns);
  static_assert(kTile.depth == kDepth, "the table of instances says so");
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Profile profile(argument);
  profile.pair_clocks();
  const uint32_t shared = ptx::shared_address(shared_memory);
  const OperandBits operands;
  const auto of_major = [&]<SkinnyEpilogue kKind>() {
    if (operands.b_major() == Major::kK) return SkinnyGemm<kTile, Major::kK, kKind>(p, shared, profile).run();
    SkinnyGemm<kTile, Major::kMN, kKind>(p, shared, profile).run();
  };
  if (p.kind == SkinnyEpilogue::kCast) {
    of_major.template operator()<SkinnyEpilogue::kCast>();
  } else if (!takes_gate(kTile) || p.kind == SkinnyEpilogue::kFormula) {
    of_major.template operator()<SkinnyEpilogue::kFormula>();
  } else if constexpr (takes_gate(kTile)) {
    of_major.template operator()<SkinnyEpilogue::kGated>();
  }
  profile.finish();
}

}  // namespace jaxbw::sm90
