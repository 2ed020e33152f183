// What grouped matmuls (groups.h) do alike in both families: the tiles of D as their table in device memory
// has them, their loads, their stores, and the results of empty groups.
#pragma once

#include "gemm/groups.h"
#include "gemm/operand_loader.h"
#include "gemm/split_k.h"
#include "gemm/store_ring.h"
#include "gemm/tile_scheduler.h"
#include "ptx/global.h"
#include "ptx/programmatic_launch.h"
#include "ptx/tma_ragged.h"

namespace jaxbw {

// What every grouped kernel's argument has.
JAXBW_DEVICE const GroupedParams& grouped_params(const GroupedParams& argument) { return argument; }
JAXBW_DEVICE const GroupedParams& grouped_params(const GatheredParams& argument) { return argument.grouped; }
template <typename Mx>
JAXBW_DEVICE const GroupedMx<Mx>& grouped_params(const GroupedMx<Mx>& argument) {
  return argument;
}

JAXBW_DEVICE GroupRows group_at(const GroupRows* entry) {
  uint32_t words[4];
  ptx::load_global(words, entry);
  return {words[0], words[1], words[2], words[3]};
}

// An item with what its entry of the table has, which comes from memory: it is asked for one item ahead.
struct RequestedItem {
  uint32_t number;
  GroupRows group;
  BandPlace place;
};

// A tile of D: its rows by their group, the first row in D's matrix where the contraction is grouped, the first column.
// Or a part of one along K.
struct GroupedItem {
  GroupRows group;
  uint32_t row, column;
  uint32_t split_tile, part;  // number of the tile among those that are split, or kWhole

  static constexpr uint32_t kWhole = ~0u;
  JAXBW_DEVICE bool is_split() const { return split_tile != kWhole; }

  // Where rows are grouped: kRaggedRows less what is left of the group.
  JAXBW_DEVICE uint32_t ragged() const { return kRaggedRows - group.rows; }
};

// The work items, in the order in which they are handed out. Params: as of grouped_params().
template <typename Params>
class GroupedItems {
 public:
  JAXBW_DEVICE GroupedItems(const Params& params, bool contraction) : params_(params), contraction_(contraction) {
    const GemmParams& p = params.gemm;
    whole_ = count_ = ptx::load_relaxed(&params.counts->entries) * p.order.batch.value;
    if (!contraction) return;
    const uint32_t split = ptx::load_relaxed(&params.counts->split_tiles);
    whole_ -= split;
    count_ = whole_ + split * p.split_k.value;
  }

  JAXBW_DEVICE uint32_t count() const { return count_; }

  // Behind the last item there is none.
  JAXBW_DEVICE RequestedItem request(uint32_t number) const {
    RequestedItem item{number, {}, {}};
    if (number >= count()) return item;
    const uint32_t entry = tile_of(number) / params_.gemm.order.batch;
    item.group = group_at(params_.table + entry);
    if (!contraction_) item.place = {ptx::load_global(params_.places + entry)};
    return item;
  }

  JAXBW_DEVICE GroupedItem item(const RequestedItem& requested) const {
    const GemmParams& p = params_.gemm;
    const uint32_t number = requested.number;
    if (!contraction_) return in_band(requested);
    GroupedItem item{requested.group, 0, 0, GroupedItem::kWhole, 0};
    if (number >= whole_) {
      item.split_tile = (number - whole_) / p.split_k;
      item.part = (number - whole_) % p.split_k;
    }
    const Tile tile = rasterise(tile_of(number), p.order);
    item.row = tile.m * p.block_m;
    item.column = tile.n * p.tile_columns;
    return item;
  }

  // Blocks of K, each of so many elements.
  JAXBW_DEVICE uint32_t blocks(const GroupedItem& item, uint32_t block_k_log2) const {
    const uint32_t all = blocks_of_tile(item, block_k_log2);
    return contraction_ && item.is_split() ? k_part(item).block_count(all) : all;
  }

  // Elements along K in front of those of a part.
  JAXBW_DEVICE uint32_t first(const GroupedItem& item, uint32_t block_k_log2) const {
    if (!contraction_ || !item.is_split()) return 0;
    return k_part(item).first_block(blocks_of_tile(item, block_k_log2)) << block_k_log2;
  }

 private:
  JAXBW_DEVICE KPart k_part(const GroupedItem& item) const { return {item.part, params_.gemm.split_k}; }

  JAXBW_DEVICE uint32_t blocks_of_tile(const GroupedItem& item, uint32_t block_k_log2) const {
    const uint32_t k = contraction_ ? item.group.rows : item.group.matrix == kNoMatrix ? 0 : params_.gemm.k;
    return (k + (1 << block_k_log2) - 1) >> block_k_log2;
  }

  JAXBW_DEVICE uint32_t tile_of(uint32_t number) const {
    return contraction_ && number >= whole_ ? whole_ + (number - whole_) / params_.gemm.split_k : number;
  }

  // Of the tiles of a band, which are walked column by column, this one is perhaps not of the entry that was asked for,
  // but of one that differs from it by the rows up to the group's end.
  JAXBW_DEVICE GroupedItem in_band(const RequestedItem& requested) const {
    const GemmParams& p = params_.gemm;
    const uint32_t entry = requested.number / p.order.batch, first = entry - requested.place.index();
    const uint32_t within = requested.number - first * p.order.along, column = within / requested.place.entries();
    const uint32_t found = first + within - column * requested.place.entries();
    GroupedItem item{requested.group, found * p.block_m, column * p.tile_columns, GroupedItem::kWhole, 0};
    item.group.rows += (entry - found) * p.block_m;
    return item;
  }

  const Params& params_;
  bool contraction_;
  uint32_t whole_, count_;  // whole_: items of these are whole tiles
};

// Stores of tiles whose rows are those of a group: the others of a box are left alone. There `row` of a StoreOrigin is
// that of RaggedBoxOrigin, and `batch` the group's end.
class GroupedStores : public StoreRing {
 public:
  // `rows`: of a warp's box.
  JAXBW_DEVICE GroupedStores(const GemmParams& params, uint32_t buffers, uint32_t rows, bool contraction)
      : StoreRing(params, buffers, rows * kSwizzleSpan),
        rows_(contraction ? params.m : kRaggedRows),
        contraction_(contraction),
        adds_(contraction && params.epilogue.c.data != nullptr) {}

  // In place of StoreRing's.
  JAXBW_DEVICE void store_by_tma(const TensorMap& map, StoreOrigin origin) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) {
      if (origin.column < params_.n && origin.row < rows_) {
        if (adds_) {
          ptx::tma_add(map, {origin.column, origin.row, origin.batch}, buffer());
        } else if (contraction_) {
          ptx::tma_store(map, {origin.column, origin.row, origin.batch}, buffer());
        } else {
          ptx::tma_store_ragged(map, {origin.column, origin.row, kRaggedRows, origin.batch}, buffer());
        }
      }
      ptx::bulk_commit_group();
    }
    advance();
  }

 private:
  uint32_t rows_;
  bool contraction_, adds_;
};

// The row of the bias that a group has: one for each matrix of B.
JAXBW_DEVICE EpilogueOperand bias_of(const GemmParams& p, uint32_t matrix) {
  EpilogueOperand bias = p.epilogue.bias;
  const uint64_t first = uint64_t{matrix} * p.n * size_bytes(bias.type);
  if (bias.data != nullptr) bias.data = static_cast<const uint8_t*>(bias.data) + first;
  return bias;
}

// The scales of the rows of A of an item's group, and of the columns of its matrix.
JAXBW_DEVICE ScaleArrays scales_of_group(const GemmParams& p, const GroupedItem& item) {
  const Epilogue& e = p.epilogue;
  const GroupRows& group = item.group;
  const uint64_t of_matrix = uint64_t{group.matrix} * p.n;
  return {e.a_scales == nullptr ? nullptr : e.a_scales + (group.a_end - group.rows), group.rows,
          e.b_scales == nullptr ? nullptr : e.b_scales + of_matrix, e.b_up_scales + of_matrix};
}

// Between two chunks, by a warp that clears beside multiplications: 132 SMs that write as fast as they can take all of
// the memory's bandwidth, and then whoever multiplies waits for operands.
constexpr uint32_t kClearPause = 500;  // nanoseconds

// Has what empty groups of a contraction have for results, zeros: their tiles are nobody's work. A chunk at a time is
// taken by whoever is there, an otherwise idle warp all the while, at a pace, and those that have no tile left, without
// `pause`. (A C is their result as it is.)
template <typename Params>
JAXBW_DEVICE void clear_empty_groups(const Params& params, uint32_t pause) {
  constexpr uint32_t kVectorBytes = 16, kChunkVectors = 1024;
  const GemmParams& p = params.gemm;
  const uint32_t empty = ptx::load_relaxed(&params.counts->empty);
  if (empty == 0 || p.epilogue.c.data != nullptr) return;
  const GroupRows* const entries = params.table + ptx::load_relaxed(&params.counts->entries);
  const uint64_t vectors = uint64_t{p.m} * p.n * size_bytes(p.output.type) / kVectorBytes;
  const auto chunks = static_cast<uint32_t>((vectors + kChunkVectors - 1) / kChunkVectors);  // of a matrix
#pragma unroll 1
  while (true) {
    uint32_t taken = 0;
    if (ptx::lane_index() == 0) taken = ptx::fetch_add_relaxed(&params.counts->cleared, 1);
    taken = ptx::uniform(taken);
    if (taken >= empty * chunks) return;
    const uint32_t entry = taken / chunks;
    const uint64_t first = uint64_t{taken - entry * chunks} * kChunkVectors;
    const uint64_t end = min(first + kChunkVectors, vectors);
    auto* const matrix =
        static_cast<uint8_t*>(p.output.data) + group_at(entries + entry).matrix * vectors * kVectorBytes;
#pragma unroll 4
    for (uint64_t i = first + ptx::lane_index(); i < end; i += ptx::kWarpSize) {
      ptx::store_global(matrix + i * kVectorBytes, 0, 0, 0, 0);
    }
    if (pause != 0) ptx::sleep(pause);
  }
}

// B's matrix of a tile's group, and up's of a gated matmul, or where CTAs are pairs, one of them.
struct GroupedWeights {
  OperandLoader<> b, b_up;
  bool both;

  JAXBW_DEVICE void start_at(const GroupedItem& item) {
    b.start_at(item.column, 0, item.group.matrix);
    b_up.start_at(item.column, 0, item.group.matrix);
  }

  template <bool kMulticast, bool kPair = false>
  JAXBW_DEVICE void load(uint32_t to_b, uint32_t full) const {
    b.load<kMulticast, false, kPair>(to_b, full);
    if (both) b_up.load<kMulticast, false, kPair>(to_b, full);
  }

  JAXBW_DEVICE void advance() {
    b.advance();
    b_up.advance();
  }
};

// What the load role brings, as Loaders.
struct GroupedLoaders {
  OperandLoader<> a;
  GroupedWeights weights;
  bool contraction;

  // `first`: element along K, where the contraction is grouped.
  JAXBW_DEVICE void start_at(const GroupedItem& item, uint32_t first) {
    const uint32_t ragged = item.ragged() + first;
    if (contraction) {
      a.start_at(item.row, ragged, item.group.a_end);
      weights.b.start_at(item.column, ragged, item.group.other_end);
    } else {
      a.start_at(ragged, 0, item.group.a_end);
      weights.start_at(item);
    }
  }

  template <bool kMulticastA, bool kMulticastB, bool kPair = false>
  JAXBW_DEVICE void load(uint32_t to_a, uint32_t to_b, uint32_t full) const {
    a.load<kMulticastA, true, kPair>(to_a, full);
    if (contraction) {
      weights.b.load<kMulticastB, true, kPair>(to_b, full);
    } else {
      weights.load<kMulticastB, kPair>(to_b, full);
    }
  }

  JAXBW_DEVICE void advance() {
    a.advance();
    weights.advance();
  }
};

}  // namespace jaxbw
