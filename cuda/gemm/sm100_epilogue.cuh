// Epilogue role of the sm_100 kernel: Tensor Memory -> registers -> results. Four warps of every CTA; each has 32 lanes
// of Tensor Memory, its slice of an accumulator (AccumulatorSlice in storage.h), and handles it a chunk of columns at a
// time. A lane holds one row of a chunk.
#pragma once

#include <type_traits>

#include "gemm/epilogue.h"
#include "gemm/sm100_cluster_sum.cuh"
#include "gemm/sm100_context.h"
#include "gemm/sm100_mx_result.cuh"
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

// values *= the scales of their columns, of which lane l loads that of column l.
template <uint32_t kColumns>
JAXBW_DEVICE void scale_columns(float (&values)[kColumns], const GemmParams& p, const float* b_scales, ChunkOrigin at) {
  const float* const scales = scales_of(b_scales, p.b_batched, p.n, at.batch);
  const uint32_t lane = ptx::lane_index(), column = at.column + (lane < kColumns ? lane : 0);
  const float scale = column < p.n ? scales[column] : 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kColumns; ++i) values[i] *= __shfl_sync(ptx::kFullWarp, scale, i);
}

// Values as they are stored, in 32-bit words of one, two or four elements each.
template <DataType kType, uint32_t kCount, uint32_t kWords>
JAXBW_DEVICE void cast(const GemmParams& p, const float (&values)[kCount], uint32_t (&words)[kWords],
                       uint32_t first_word = 0) {
  constexpr uint32_t kPerWord = 4 / size_bytes(kType);
#pragma unroll
  for (uint32_t i = 0; i < kCount / kPerWord; ++i) {
    if constexpr (kType == DataType::kF32) {
      words[first_word + i] = __float_as_uint(values[i]);
    } else if constexpr (is_8bit(kType)) {
      words[first_word + i] = float8_quad(p, values + 4 * i);
    } else {
      words[first_word + i] = ptx::pack<kType>(values[2 * i], values[2 * i + 1]);
    }
  }
}

// Registers -> staging: a lane's row of a box, kRowBytes from `first_word`.
template <uint32_t kRowBytes, uint32_t kWords>
JAXBW_DEVICE void stage_row(const uint32_t (&words)[kWords], uint32_t buffer, uint32_t first_word = 0) {
#pragma unroll
  for (uint32_t chunk = 0; chunk < kRowBytes / 16; ++chunk) {
    const uint32_t w = first_word + chunk * 4;
    ptx::store_shared(buffer + staged_offset<kRowBytes>(ptx::lane_index(), chunk), words[w], words[w + 1], words[w + 2],
                      words[w + 3]);
  }
}

// Values of a type of kSize bytes as they are stored. Which type it is decides nothing else: so what stores them stands
// in the code once for each size.
template <uint32_t kSize, uint32_t kColumns>
JAXBW_DEVICE void cast_to(const GemmParams& p, DataType type, const float (&values)[kColumns],
                          uint32_t (&words)[kColumns * kSize / 4]) {
  if constexpr (kSize == 1) {
    cast<DataType::kE4M3>(p, values, words);
  } else {
    with_type_of_size<kSize>(type, [&]<DataType kType>() { cast<kType>(p, values, words); });
  }
}

// Registers -> one of the results, of elements of kSize bytes. `box`: where the warp's chunk starts in D.
template <uint32_t kSize, uint32_t kColumns>
JAXBW_DEVICE void store_chunk(const float (&values)[kColumns], const GemmParams& p, StoreTarget target, StoreOrigin box,
                              uint32_t rows, StoreRing& stores) {
  using Element = std::conditional_t<kSize == 1, uint8_t, std::conditional_t<kSize == 2, uint16_t, uint32_t>>;
  constexpr uint32_t kRowBytes = kColumns * kSize, kPerWord = 4 / kSize;
  const uint32_t lane = ptx::lane_index();
  uint32_t words[kRowBytes / 4];
  cast_to<kSize>(p, target.result.type, values, words);
  if (p.store_path == StorePath::kColumns) {  // neighbouring lanes are neighbours in memory
    const uint32_t row = box.row + lane;
    uint64_t index = element_index(p, row, box.column, box.batch);
    const uint32_t columns = lane < rows && row < p.m && box.column < p.n ? p.n - box.column : 0;
#pragma unroll
    for (uint32_t i = 0; i < kColumns; ++i, index += p.column_stride) {
      if (i >= columns) continue;
      static_cast<Element*>(target.result.data)[index] =
          static_cast<Element>(words[i / kPerWord] >> i % kPerWord * kSize * 8);
    }
  } else if constexpr (kRowBytes >= 16) {  // of 8 bits, narrower ones are columns
    const uint32_t buffer = stores.acquire();
    if (lane < rows) stage_row<kRowBytes>(words, buffer);
    if (p.store_path == StorePath::kTma) {
      stores.store_by_tma(*target.map, box);
    } else {
      stores.copy<kSize, kColumns>(target.result.data, box, rows, kColumns);
    }
  }
}

// How a warp lets go of an accumulator, as soon as it is in registers.
struct AccumulatorRelease {
  uint32_t empty_barrier;  // of the leader

  // In these two steps, with a synchronisation of the warp between them.
  JAXBW_DEVICE void fence() const { ptx::tcgen05_fence_before_sync(); }
  JAXBW_DEVICE void arrive() const {
    if (ptx::elect_one()) ptx::mbarrier_arrive_cluster(empty_barrier);
  }

  JAXBW_DEVICE void operator()() const {
    fence();
    __syncwarp();
    arrive();
  }
};

// Where no CTA of the cluster shares the tile: in place of a ClusterSum.
struct TileAlone {
  static constexpr bool kShared = false;
};

constexpr uint32_t kSavedUp = 1, kSavedResults = 2;  // of GemmParams::saved_output

// What an epilogue warp does with one MMA tile of a work item. `source`: its slice of the accumulator. `box`: where the
// slice starts in D.

// The whole formula, kColumns at a time. Where CTAs of the cluster share the tile, of the slices that the warp owns.
template <uint32_t kColumns, typename Result, typename Sums = TileAlone>
JAXBW_DEVICE void finish_slice(const GemmParams& p, uint32_t source, const AccumulatorSlice& slice, StoreOrigin box,
                               const SplitSum& split, StoreRing& stores, AccumulatorRelease release,
                               [[maybe_unused]] Result mx, const Sums& cluster = {}) {
  const Epilogue& e = p.epilogue;
  const float beta = factor(e.beta, e.beta_data);
  float alpha = alpha_of(e);
  const bool gated = kColumns % 16 == 0 && e.gated != 0;  // of each half it has a multiple of 16 columns
  const bool holds_row = ptx::lane_index() < slice.rows;
  const uint32_t columns = gated ? slice.columns / 2 : slice.columns;
  const auto read = [&](float (&values)[kColumns], uint32_t column) {
    ptx::tmem_load(values, source + column);
    ptx::tmem_wait_load(values);
    if (!holds_row) apply<kColumns>(values, [](float) { return 0.0f; });  // nobody has written what this lane holds
  };
  if (split.split()) {
    for (uint32_t column = 0; column < slice.columns; column += kColumns) {
      float values[kColumns];
      read(values, column);
      split.leave(values, column);
    }
    release.fence();  // last() synchronises the warp
    if (!split.last()) return release.arrive();
  }
  uint32_t first = 0, step = kColumns;
  if constexpr (Sums::kShared) {
    for (uint32_t column = 0; column < columns; column += kColumns) {
      float values[kColumns];
      read(values, column);
      cluster.lay_down(values, column / kColumns);
    }
    release();
    cluster.exchange();
    first = cluster.first() * kColumns;
    step = cluster.step() * kColumns;
    box.column += first;
  }
  const uint32_t row = holds_row ? box.row + ptx::lane_index() : p.m;
  OutputScale out_scale(p);
  if (e.a_scales != nullptr && row < p.m) alpha *= scales_of(e.a_scales, p.a_batched, p.m, box.batch)[row];
  for (uint32_t column = first; column < columns; column += step, box.column += step) {
    float z[kColumns], up[kColumns];
    if constexpr (Sums::kShared) {
      cluster.gather(z, column / kColumns);
    } else {
      read(z, column);
    }
    if (gated) read(up, column + columns);
    if (!Sums::kShared && column + kColumns == columns) release();
    if (split.split()) {
      split.gather(z, column);
      if (gated) split.gather(up, column + columns);
    }

    const ChunkOrigin at{row, box.column, box.batch};
    const auto scale = [&](float value) { return value * alpha; };
    apply<kColumns>(z, scale);
    if (gated) apply<kColumns>(up, scale);
    if (e.b_scales != nullptr) {
      scale_columns(z, p, e.b_scales, at);
      if (gated) scale_columns(up, p, e.b_up_scales, at);
    }
    if (e.c.data != nullptr) add_operand(z, p, e.c, beta, at);
    if (e.bias.data != nullptr) add_bias(z, p, at);

    // What is saved, then D: by one copy of the code that stores, which is most of a kernel.
#pragma unroll 1
    for (uint32_t result = 0; result <= kSavedResults; ++result) {
      const bool is_output = result == kSavedResults, is_up = result == kSavedUp;
      if (!is_output && (p.saved_output[result].data == nullptr || (is_up && !gated))) continue;
      if (is_output) {
        activate<kColumns>(z, e.activation);
        if (gated) {
#pragma unroll
          for (uint32_t i = 0; i < kColumns; ++i) z[i] *= up[i];
        }
        if (e.residual.data != nullptr) add_operand(z, p, e.residual, 1.0f, at);
        const auto inside = [&] { return row < p.m && box.column < p.n ? p.n - box.column : 0; };
        if (out_scale.wanted()) out_scale.apply(z, inside());
        if constexpr (Result::kOfMx && kColumns == kMxBlock) {
          if (mx.wanted()) mx.apply(z, p, box.batch, row, box.column, inside());
        }
      }
      float values[kColumns];
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) values[i] = gated && is_up ? up[i] : z[i];
      const StoreTarget target =
          is_output ? StoreTarget{&p.d, p.output} : StoreTarget{&p.saved[result], p.saved_output[result]};
      with_size(target.result.type,
                [&]<uint32_t kSize>() { store_chunk<kSize>(values, p, target, box, slice.rows, stores); });
    }
  }
  out_scale.leave_maximum(box.batch);
}

// Whether the formula is a factor, a bias and an activation of short code, which TMA stores.
JAXBW_DEVICE bool is_short(const GemmParams& p) {
  const Epilogue& e = p.epilogue;
  return p.store_path == StorePath::kTma && !is_8bit(p.output.type) && e.c.data == nullptr &&
         e.residual.data == nullptr && p.saved_output[0].data == nullptr && e.gated == 0 &&
         e.activation != Activation::kGeluExact && e.a_scales == nullptr && e.b_scales == nullptr;
}

// Columns of an accumulator that the next tile's MMAs wait for, at its start or its end (mx_accumulator_step()). They
// are what is read first.
struct HeldColumns {
  uint32_t count;  // 0: the next tile has another accumulator
  bool at_end;
};

// The order in which a slice of so many columns is read.
template <uint32_t kColumns>
struct ReadingOrder {
  uint32_t first, step;

  JAXBW_DEVICE ReadingOrder(uint32_t columns, HeldColumns held)
      : first(held.at_end ? columns - kColumns : 0), step(held.at_end ? 0 - kColumns : kColumns) {}
};

// Such a formula, kColumns at a time, the next of which are loaded meanwhile. kHeld: some columns are held.
template <uint32_t kColumns, bool kHeld>
JAXBW_DEVICE void short_slice(const GemmParams& p, uint32_t source, const AccumulatorSlice& slice, StoreOrigin box,
                              StoreRing& stores, AccumulatorRelease release, HeldColumns held) {
  const Epilogue& e = p.epilogue;
  const float alpha = alpha_of(e);
  const uint32_t lane = ptx::lane_index();
  const bool along_columns = e.bias.data != nullptr && e.bias_along_m == 0;
  const uint32_t end = box.row < p.m ? min(box.column + slice.columns, p.n) : 0;
  if (box.column >= end) return release();
  const ReadingOrder<kColumns> order(slice.columns, kHeld ? held : HeldColumns{});
  source += order.first;
  box.column += order.first;
  float sums[kColumns], z[kColumns];
  const auto store = [&] {
    activate<kColumns, false>(z, e.activation);
    with_type(p.output.type, [&]<DataType kType>() {
      constexpr uint32_t kRowBytes = kColumns * size_bytes(kType);
      uint32_t words[kRowBytes / 4];
      cast<kType>(p, z, words);
      stage_row<kRowBytes>(words, stores.acquire_by_warp());
    });
    stores.store_box(p.d, box);
  };
  ptx::tmem_load(sums, source);
#pragma unroll 1
  for (uint32_t read = kColumns;; read += kColumns, box.column += order.step) {
    const float bias = e.bias.data != nullptr ? load_bias(p, box.row + lane, box.column + lane) : 0.0f;
    ptx::tmem_wait_load(sums);
    if (kHeld && read == held.count) release();
    if (along_columns) {
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) z[i] = fmaf(sums[i], alpha, ptx::of_lane(bias, i));
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kColumns; ++i) z[i] = fmaf(sums[i], alpha, bias);
    }
    if (kHeld ? read == slice.columns : box.column + kColumns >= end) break;
    ptx::tmem_load(sums, source += order.step);
    store();
  }
  if (!kHeld) release();
  store();
}

// Where the formula is a cast and TMA stores it: a swizzle span at a time, of which one half is loaded while the other
// is cast and staged. Spans that D does not have are left out.
template <DataType kType, bool kHeld>
JAXBW_DEVICE void cast_slice(const GemmParams& p, uint32_t source, const AccumulatorSlice& slice, StoreOrigin box,
                             StoreRing& stores, AccumulatorRelease release, HeldColumns held) {
  constexpr uint32_t kColumns = kSwizzleSpan / size_bytes(kType), kHalf = kColumns / 2;
  const uint32_t end = box.row < p.m ? min(box.column + slice.columns, p.n) : 0;
  if (box.column >= end) return release();
  const ReadingOrder<kColumns> order(slice.columns, kHeld ? held : HeldColumns{});
  source += order.first;
  box.column += order.first;
  float low[kHalf], high[kHalf];
  uint32_t words[kSwizzleSpan / 4];
  const auto store = [&] {
    cast<kType>(p, high, words, kSwizzleSpan / 8);
    stage_row<kSwizzleSpan>(words, stores.acquire_by_warp());
    stores.store_box(p.d, box);
  };
  ptx::tmem_load(low, source);
#pragma unroll 1
  for (uint32_t read = kColumns;; read += kColumns, box.column += order.step) {
    ptx::tmem_wait_load(low);
    ptx::tmem_load(high, source + kHalf);
    cast<kType>(p, low, words);
    ptx::tmem_wait_load(high);
    if (kHeld && read == held.count) release();
    if (kHeld ? read == slice.columns : box.column + kColumns >= end) break;
    ptx::tmem_load(low, source += order.step);
    store();
  }
  if (!kHeld) release();
  store();
}

// ... to 16 bits, by TMA, and all of Tensor Memory is in use: the slice is drained before it is stored, so that the
// next tile's MMAs can start. What the staging buffers hold goes there at once, the rest waits in registers.
template <DataType kType>
JAXBW_DEVICE void drain_slice(const GemmParams& p, uint32_t source, StoreOrigin box, StoreRing& stores,
                              AccumulatorRelease release) {
  constexpr uint32_t kColumns = kSwizzleSpan / size_bytes(kType), kWords = kSwizzleSpan / 4;
  constexpr uint32_t kBoxes = kAccumulatorColumns / kColumns;
  const auto drain = [&](uint32_t i, auto& words, uint32_t first_word) {
    float values[kColumns];
    ptx::tmem_load(values, source + i * kColumns);
    ptx::tmem_wait_load(values);
    cast<kType>(p, values, words, first_word);
  };
  const auto store = [&](uint32_t i, const auto& words, uint32_t first_word) {
    stage_row<kSwizzleSpan>(words, stores.acquire_by_warp(), first_word);
    stores.store_box(p.d, {box.row, box.column + i * kColumns, box.batch});
  };
#pragma unroll
  for (uint32_t i = 0; i < kStoreBuffers; ++i) {
    uint32_t words[kWords];
    drain(i, words, 0);
    store(i, words, 0);
  }
  uint32_t words[(kBoxes - kStoreBuffers) * kWords];
#pragma unroll
  for (uint32_t i = kStoreBuffers; i < kBoxes; ++i) drain(i, words, (i - kStoreBuffers) * kWords);
  release();
#pragma unroll
  for (uint32_t i = kStoreBuffers; i < kBoxes; ++i) store(i, words, (i - kStoreBuffers) * kWords);
}

// Chooses among these. The slice of a CTA of a pair is a multiple of 16 columns wide.
template <uint32_t kCtaGroup, typename Result>
JAXBW_DEVICE void store_slice(const GemmParams& p, uint32_t source, const AccumulatorSlice& slice, uint32_t chunk,
                              StoreOrigin box, bool drain, HeldColumns held, const SplitSum& split, StoreRing& stores,
                              AccumulatorRelease release, Result mx) {
  const bool held_first = Result::kOfMx && held.count != 0;
  if (p.epilogue.path == EpiloguePath::kCast && p.store_path == StorePath::kTma) {
    drain = drain && slice.columns == kAccumulatorColumns;
    if (p.output.type == DataType::kF32) {
      if (slice.columns % 32 == 0 && !held_first) {
        return cast_slice<DataType::kF32, false>(p, source, slice, box, stores, release, held);
      }
    } else if (slice.columns % 64 == 0) {
      const auto cast_to = [&]<DataType kType>() {
        if (drain) return drain_slice<kType>(p, source, box, stores, release);
        if (held_first) return cast_slice<kType, true>(p, source, slice, box, stores, release, held);
        cast_slice<kType, false>(p, source, slice, box, stores, release, held);
      };
      if (p.output.type == DataType::kBF16) return cast_to.template operator()<DataType::kBF16>();
      return cast_to.template operator()<DataType::kF16>();
    }
  }
  if (chunk == 32 && is_short(p) && !split.split()) {
    if (held_first) return short_slice<32, true>(p, source, slice, box, stores, release, held);
    return short_slice<32, false>(p, source, slice, box, stores, release, held);
  }
  if (chunk == 32) return finish_slice<32>(p, source, slice, box, split, stores, release, mx);
  if (kCtaGroup == 2 || chunk == 16) return finish_slice<16>(p, source, slice, box, split, stores, release, mx);
  finish_slice<8>(p, source, slice, box, split, stores, release, mx);
}

// The epilogue role's one work item, where CTAs of the cluster share its tile.
JAXBW_DEVICE void store_shared_tile(const Context& context, uint32_t tmem, uint32_t warp) {
  const GemmParams& p = context.params;
  const AccumulatorSlice slice = sm100_slice(warp, context.mma_rows(), p.block_n, 1);
  const ClusterSum cluster(context, warp, slice.rows);
  cluster.announce();
  const RingBarriers accumulators = context.accumulators();
  const WorkItem item = work_item(p, context.cluster_index());
  const Tile tile = context.origin(item.tile);
  StoreRing stores(p, context.staging(warp), kSm100Epilogue.rows_per_warp * kSwizzleSpan);
  context.profile.enter(Activity::kAwaitAccumulator);
  accumulators.wait_full(RingPosition::consumer(p.accumulators));
  context.profile.enter(Activity::kEpilogue);
  ptx::tcgen05_fence_after_sync();
  finish_slice<kSumColumns>(
      p, tmem + (warp * ptx::kWarpSize << 16), slice,
      {tile.m + slice.first_row, tile.n + slice.first_column, tile.batch}, SplitSum(p, item, 0, 0), stores,
      AccumulatorRelease{ptx::map_to_rank(accumulators.first_empty, context.rank)}, NoMxResult{}, cluster);
}

// Epilogue role: `warp` 0 to 3 of every CTA. Result: MxResult of an MX format, whose tiles are as check_mx() of the
// host has them, one MMA tile of all lanes, in whole chunks and spans of columns; the compiler leaves out what others
// take. Else NoMxResult.
template <uint32_t kCtaGroup, typename Result>
JAXBW_DEVICE void store_tiles(const Context& context, uint32_t tmem, uint32_t warp, Result mx) {
  constexpr bool kMx = Result::kOfMx;
  const GemmParams& p = context.params;
  if (kCtaGroup == 1 && !kMx && context.cluster.k.value > 1) return store_shared_tile(context, tmem, warp);
  const uint32_t mma_rows = kMx ? kTmemLanes : context.mma_rows(), mma_tiles = kMx ? 1 : context.mma_tiles();
  const AccumulatorSlice slice = sm100_slice(warp, mma_rows, p.block_n, kCtaGroup);
  if (kMx) __builtin_assume(slice.columns % kMxColumnStep == 0);
  const uint32_t chunk = kMx ? kMxChunk : sm100_chunk(p.epilogue.gated ? slice.columns / 2 : slice.columns);
  const RingBarriers accumulators = context.accumulators();
  const uint32_t leader_empty = ptx::map_to_rank(accumulators.first_empty, context.cluster.pair_leader(context.rank));
  RingPosition accumulator = RingPosition::consumer(p.accumulators);
  StoreRing stores(p, context.staging(warp), kSm100Epilogue.rows_per_warp * kSwizzleSpan);
  WorkItems items(context);
  for (uint32_t number = items.first(); number != WorkItems::kNone; number = items.next()) {
    context.profile.enter(Activity::kNextItem, number);
    const WorkItem item = work_item(p, number);
    const Tile tile = context.origin(item.tile);
    StoreOrigin box{tile.m + slice.first_row, tile.n + slice.first_column, tile.batch};
    for (uint32_t mma = 0; mma < mma_tiles; ++mma, box.row += mma_rows, accumulator.advance()) {
      const uint32_t slot = accumulator.slot();
      const uint32_t lanes = tmem + (warp * ptx::kWarpSize << 16);
      uint32_t source = lanes + slot * kAccumulatorColumns;
      HeldColumns held{};
      if constexpr (kMx) {
        source = lanes + accumulator.turn(0) * mx.accumulator_step();
        held = {p.accumulators > 1 ? 0 : p.block_n - mx.accumulator_step(), source == lanes};
      }
      const uint32_t cta = item.split_tile * context.cluster.size() + context.rank;
      const SplitSum split(p, item, (cta * mma_tiles + mma) * kSm100Epilogue.warps + warp,
                           partial_floats(p.block_n, kSm100Epilogue));
      const AccumulatorRelease release{leader_empty + slot * RingBarriers::kBarrierBytes};
      context.profile.enter(Activity::kAwaitAccumulator, slot);
      accumulators.wait_full(accumulator);
      context.profile.enter(Activity::kEpilogue, slot);
      ptx::tcgen05_fence_after_sync();
      store_slice<kCtaGroup>(p, source, slice, chunk, box, mma_tiles > 1, held, split, stores, release, mx);
    }
  }
  if (kMx) ptx::tcgen05_fence_before_sync();  // Tensor Memory is freed behind reads that no release follows
}

}  // namespace jaxbw::sm100
