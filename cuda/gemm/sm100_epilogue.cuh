// Epilogue role of the sm_100 kernel: Tensor Memory -> registers -> results. Four warps of every CTA; each has 32 lanes
// of Tensor Memory, its slice of an accumulator (AccumulatorSlice in storage.h), and handles it a chunk of columns at a
// time. A lane holds one row of a chunk.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/sm100_context.h"
#include "gemm/split_k.h"
#include "gemm/store_ring.h"

namespace jaxbw::sm100 {

// A lane's values of a chunk: one row of D, kColumns columns from `column`.
struct ChunkOrigin {
  uint32_t row, column, batch;
};

// values += scale * operand, for something shaped as D. Rows of a chunk are read 16 bytes at a time where they are
// aligned.
template <uint32_t kColumns>
JAXBW_DEVICE void add_operand(float (&values)[kColumns], const GemmParams& p, EpilogueOperand operand, float scale,
                              ChunkOrigin at) {
  if (at.row >= p.m) return;
  const uint32_t size = size_bytes(operand.type);
  const uint64_t first = element_index(p, at.row, at.column, at.batch);
  const uint64_t address = reinterpret_cast<uint64_t>(operand.data) + first * size;
  const bool aligned = p.column_stride == 1 && at.column + kColumns <= p.n && address % 16 == 0;
  uint32_t words[4];
  if (aligned && size == 4) {
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      if (i % 4 == 0) ptx::load_global(words, reinterpret_cast<const void*>(address + 4 * i));
      values[i] += scale * __uint_as_float(words[i % 4]);
    }
  } else if (aligned) {
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) {
      if (i % 8 == 0) ptx::load_global(words, reinterpret_cast<const void*>(address + 2 * i));
      values[i] += scale * widen(operand.type, i % 2 ? words[i % 8 / 2] >> 16 : words[i % 8 / 2] & 0xffff);
    }
  } else {
    const uint32_t columns = at.column < p.n ? p.n - at.column : 0;
    uint64_t index = first;
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i, index += p.column_stride) {
      if (i < columns) values[i] += scale * load_element(operand, index);
    }
  }
}

// One bias for a lane's row, or lane l loads the bias of column l and every lane needs all of them.
template <uint32_t kColumns>
JAXBW_DEVICE void add_bias(float (&values)[kColumns], const GemmParams& p, ChunkOrigin at) {
  const uint32_t lane = ptx::lane_index();
  const float bias = load_bias(p, at.row, at.column + (lane < kColumns ? lane : 0));
  const bool along_m = p.epilogue.bias_along_m != 0;
#pragma unroll
  for (uint32_t i = 0; i < kColumns; ++i) {
    const float of_column = __shfl_sync(ptx::kFullWarp, bias, i);
    values[i] += along_m ? bias : of_column;
  }
}

// Registers -> staging: a lane's row of the box.
template <DataType kType, uint32_t kColumns>
JAXBW_DEVICE void stage_row(const float (&values)[kColumns], uint32_t buffer) {
  constexpr uint32_t kRowBytes = kColumns * size_bytes(kType);
  constexpr uint32_t kChunkElements = 16 / size_bytes(kType);
#pragma unroll
  for (uint32_t chunk = 0; chunk < kRowBytes / 16; ++chunk) {
    const float* v = values + chunk * kChunkElements;
    const uint32_t address = buffer + staged_offset<kRowBytes>(ptx::lane_index(), chunk);
    if constexpr (kType == DataType::kF32) {
      ptx::store_shared(address, __float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                        __float_as_uint(v[3]));
    } else {
      ptx::store_shared(address, ptx::pack<kType>(v[0], v[1]), ptx::pack<kType>(v[2], v[3]),
                        ptx::pack<kType>(v[4], v[5]), ptx::pack<kType>(v[6], v[7]));
    }
  }
}

// Registers -> one of the results. `box`: where the warp's chunk starts in D.
template <DataType kType, uint32_t kColumns>
JAXBW_DEVICE void store_chunk(const float (&values)[kColumns], const GemmParams& p, StoreTarget target, StoreOrigin box,
                              uint32_t rows, StoreRing& stores) {
  const uint32_t lane = ptx::lane_index();
  if (p.store_path == StorePath::kColumns) {  // neighbouring lanes are neighbours in memory
    const uint32_t row = box.row + lane;
    uint64_t index = element_index(p, row, box.column, box.batch);
    const uint32_t columns = lane < rows && row < p.m && box.column < p.n ? p.n - box.column : 0;
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i, index += p.column_stride) {
      if (i < columns) store_element<kType>(target.result.data, index, values[i]);
    }
    return;
  }
  const uint32_t buffer = stores.acquire();
  if (lane < rows) stage_row<kType>(values, buffer);
  stores.store<kType, kColumns>(target, box);
}

// What an epilogue warp does with one MMA tile of a work item: `source` is its slice of the accumulator, `tile` where
// the MMA tile's part of this CTA starts in D. `release` lets go of the accumulator, once it is in registers.
template <uint32_t kColumns, typename Release>
JAXBW_DEVICE void store_slice(const GemmParams& p, uint32_t source, const AccumulatorSlice& slice, const Tile& tile,
                              const SplitSum& split, StoreRing& stores, const Release& release) {
  const bool gated = p.epilogue.gated != 0;
  const uint32_t columns = gated ? slice.columns / 2 : slice.columns;
  if (split.split()) {
    for (uint32_t column = 0; column < slice.columns; column += kColumns) {
      float values[kColumns];
      ptx::tmem_load(values, source + column);
      ptx::tmem_wait_load(values);
      split.leave(values, column);
    }
    if (!split.last()) {
      release();
      return;
    }
  }
  for (uint32_t column = 0; column < columns; column += kColumns) {
    float z[kColumns], up[kColumns];
    const auto read = [&](float (&values)[kColumns], uint32_t from) {
      ptx::tmem_load(values, source + from);
      ptx::tmem_wait_load(values);
    };
    read(z, column);
    if (gated) read(up, column + columns);
    if (column + kColumns == columns) release();
    if (split.split()) {
      split.gather(z, column);
      if (gated) split.gather(up, column + columns);
    }

    const StoreOrigin box{tile.m + slice.first_row, tile.n + slice.first_column + column, tile.batch};
    const ChunkOrigin at{box.row + ptx::lane_index(), box.column, box.batch};
    const Epilogue& e = p.epilogue;
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i) z[i] *= e.alpha;
    if (e.c.data != nullptr) add_operand(z, p, e.c, e.beta, at);
    if (e.bias.data != nullptr) add_bias(z, p, at);
    if (gated) {
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) up[i] *= e.alpha;
    }
    with_type(p.output.type, [&]<DataType kOutput>() {
      if (p.saved_output[0].data != nullptr) {
        store_chunk<kOutput>(z, p, {p.saved[0], p.saved_output[0]}, box, slice.rows, stores);
      }
      if (p.saved_output[1].data != nullptr) {
        store_chunk<kOutput>(up, p, {p.saved[1], p.saved_output[1]}, box, slice.rows, stores);
      }
    });
    activate<kColumns>(z, e.activation);
    if (gated) {
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) z[i] *= up[i];
    }
    if (e.residual.data != nullptr) add_operand(z, p, e.residual, 1.0f, at);
    with_type(p.output.type,
              [&]<DataType kOutput>() { store_chunk<kOutput>(z, p, {p.d, p.output}, box, slice.rows, stores); });
  }
}

// Epilogue role: `warp` 0 to 3 of every CTA.
JAXBW_DEVICE void store_tiles(const Context& context, uint32_t tmem, uint32_t warp) {
  const GemmParams& p = context.params;
  const uint32_t lane = ptx::lane_index();
  const uint32_t mma_rows = context.mma_rows(), mma_tiles = context.mma_tiles();
  const AccumulatorSlice slice = sm100_slice(warp, mma_rows, p.block_n, context.cluster.cta_group);
  const uint32_t chunk = sm100_chunk(p.epilogue.gated ? slice.columns / 2 : slice.columns);
  const RingBarriers accumulators = context.accumulators();
  const uint32_t leader_empty = ptx::map_to_rank(accumulators.first_empty, context.cluster.pair_leader(context.rank));
  RingPosition accumulator = RingPosition::consumer(p.accumulators);
  StoreRing stores(p, context.staging(warp), kSm100Epilogue.rows_per_warp * kSwizzleSpan, slice.rows);
  WorkItems items(context);
  for (uint32_t number = items.first(); number != WorkItems::kNone;) {
    const WorkItem item = work_item(p, number);
    Tile tile = context.origin(item.tile);
    for (uint32_t mma = 0; mma < mma_tiles; ++mma, tile.m += mma_rows, accumulator.advance()) {
      const uint32_t slot = accumulator.slot();
      const uint32_t source = tmem + (warp * ptx::kWarpSize << 16) + slot * kAccumulatorColumns;
      const uint32_t cta = item.split_tile * context.cluster.size() + context.rank;
      const SplitSum split(p, item, (cta * mma_tiles + mma) * kSm100Epilogue.warps + warp,
                           partial_floats(p.block_n, kSm100Epilogue));
      const auto release = [&] {
        ptx::tcgen05_fence_before_sync();
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive_cluster(leader_empty + slot * RingBarriers::kBarrierBytes);
      };
      accumulators.wait_full(accumulator);
      ptx::tcgen05_fence_after_sync();
      if (chunk == 32) {
        store_slice<32>(p, source, slice, tile, split, stores, release);
      } else if (chunk == 16) {
        store_slice<16>(p, source, slice, tile, split, stores, release);
      } else {
        store_slice<8>(p, source, slice, tile, split, stores, release);
      }
    }
    if (lane == 0) number = items.next();
    number = __shfl_sync(ptx::kFullWarp, number, 0);
  }
  stores.drain();
}

}  // namespace jaxbw::sm100
