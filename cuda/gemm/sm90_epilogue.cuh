// The epilogue of the Hopper kernel: a warp's 16 rows of accumulators, in the registers where wgmma leaves them, become
// results, 64 columns at a time. The layout of accumulators is drawn in ptx/wgmma.h.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/split_k.h"
#include "gemm/store_ring.h"

namespace jaxbw::sm90 {

constexpr uint32_t kFragmentColumns = 8;  // that four accumulators of each lane cover, two in each of two rows
constexpr uint32_t kChunkColumns = kSm90Epilogue.max_columns;
constexpr uint32_t kChunk = kChunkColumns / kFragmentColumns * 4;  // registers

// Registers first ... first + kChunk - 1. Registers have no run-time index, hence a copy for each possible `first`; the
// epilogue's code then stands once, not once for each chunk.
template <uint32_t kCount>
JAXBW_DEVICE void copy_chunk(float (&chunk)[kChunk], const float (&accumulators)[kCount], uint32_t first) {
#pragma unroll
  for (uint32_t i = 0; i < kChunk; ++i) chunk[i] = accumulators[i];
#pragma unroll
  for (uint32_t from = kChunk; from < kCount; from += kChunk) {
    if (first == from) {
#pragma unroll
      for (uint32_t i = 0; i < kChunk; ++i) chunk[i] = accumulators[from + i];
    }
  }
}

// Calls function(value, row, column) for a chunk's values, those outside the matrix left out.
template <typename Function>
JAXBW_DEVICE void for_each_inside(float (&values)[kChunk], const GemmParams& p, StoreOrigin box,
                                  const Function& function) {
  const uint32_t lane = ptx::lane_index_here();
#pragma unroll
  for (uint32_t i = 0; i < kChunk; ++i) {
    const uint32_t row = box.row + lane / 4 + i % 4 / 2 * 8;
    const uint32_t column = box.column + i / 4 * kFragmentColumns + lane % 4 * 2 + i % 2;
    if (row < p.m && column < p.n) function(values[i], row, column);
  }
}

// Accumulators kFirst ... of one box of D -> staging, cast.
template <DataType kType, uint32_t kFirst, uint32_t kCount>
JAXBW_DEVICE void stage_box(const float (&accumulators)[kCount], uint32_t buffer) {
  constexpr uint32_t kColumns = sm90_store_box(kType).columns;
  constexpr uint32_t kRowBytes = kColumns * size_bytes(kType);
  const uint32_t lane = ptx::lane_index_here();
#pragma unroll
  for (uint32_t i = 0; i < kColumns / kFragmentColumns; i += 2) {
    const float* v = accumulators + kFirst + i * 4;
    if constexpr (kType == DataType::kF32) {
      // Eight columns are two chunks of 16 bytes; a lane has 8 bytes of one of them, in each of two rows.
      const uint32_t part = lane % 2 * 8;
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const uint32_t chunk = (i + j) * 2 + lane % 4 / 2;
        const uint32_t upper = buffer + staged_offset<kRowBytes>(lane / 4, chunk) + part;
        const uint32_t lower = buffer + staged_offset<kRowBytes>(lane / 4 + 8, chunk) + part;
        ptx::store_shared(upper, v[4 * j], v[4 * j + 1]);
        ptx::store_shared(lower, v[4 * j + 2], v[4 * j + 3]);
      }
    } else {
      // Eight columns are one chunk. Matrices: rows 0-7 and 8-15 of chunk i, then of chunk i + 1.
      ptx::stmatrix_x4(buffer + staged_offset<kRowBytes>(lane % 16, i + lane / 16), ptx::pack<kType>(v[0], v[1]),
                       ptx::pack<kType>(v[2], v[3]), ptx::pack<kType>(v[4], v[5]), ptx::pack<kType>(v[6], v[7]));
    }
  }
}

// Calls function.operator()<kFirst>() for the first register of every box.
template <DataType kType, uint32_t kCount, uint32_t kFirst = 0, typename Function>
JAXBW_DEVICE void for_each_box(const Function& function) {
  if constexpr (kFirst < kCount) {
    function.template operator()<kFirst>();
    for_each_box<kType, kCount, kFirst + sm90_store_box(kType).columns / kFragmentColumns * 4>(function);
  }
}

// A chunk -> one of the results, staged or straight.
template <DataType kType>
JAXBW_DEVICE void store_chunk(float (&values)[kChunk], const GemmParams& p, StoreTarget target, StoreOrigin box,
                              StoreRing& stores) {
  if (p.store_path == StorePath::kColumns) {
    for_each_inside(values, p, box, [&](float value, uint32_t row, uint32_t column) {
      store_element<kType>(target.result.data, element_index(p, row, column, box.batch), value);
    });
    return;
  }
  constexpr uint32_t kColumns = sm90_store_box(kType).columns;
  for_each_box<kType, kChunk>([&]<uint32_t kFirst>() {
    stage_box<kType, kFirst>(values, stores.acquire());
    stores.store<kType, kColumns>(target, box);
    box.column += kColumns;
  });
}

// What a multiplying warp does with its accumulators of a work item; `box`: where its 16 rows of the tile start in D.

// The whole formula of Epilogue, a chunk at a time. Of a gated product the first half of the registers is gate, the
// second up.
template <uint32_t kCount>
JAXBW_DEVICE void apply_epilogue(float (&accumulators)[kCount], const GemmParams& p, const SplitSum& split,
                                 StoreOrigin box, StoreRing& stores) {
  const Epilogue& e = p.epilogue;
  const bool gated = e.gated != 0;
  if (split.split()) {
    split.leave(accumulators, 0);
    if (!split.last()) return;
  }
  const uint32_t results = gated ? kCount / 2 : kCount;
#pragma unroll 1
  for (uint32_t first = 0; first < results; first += kChunk, box.column += kChunkColumns) {
    float z[kChunk], up[kChunk];
    const auto read = [&](float (&values)[kChunk], uint32_t from) {
      if (split.split()) {
        split.gather(values, from);
      } else {
        copy_chunk(values, accumulators, from);
      }
    };
    const auto add = [&](EpilogueOperand operand, float scale) {
      for_each_inside(z, p, box, [&](float& value, uint32_t row, uint32_t column) {
        value += scale * load_element(operand, element_index(p, row, column, box.batch));
      });
    };
    read(z, first);
    apply<kChunk>(z, [&](float value) { return value * e.alpha; });
    if (gated) {
      read(up, first + results);
      apply<kChunk>(up, [&](float value) { return value * e.alpha; });
    }
    if (e.c.data != nullptr) add(e.c, e.beta);
    if (e.bias.data != nullptr) {
      for_each_inside(z, p, box,
                      [&](float& value, uint32_t row, uint32_t column) { value += load_bias(p, row, column); });
    }

    with_type(p.output.type, [&]<DataType kType>() {
      if (p.saved_output[0].data != nullptr) store_chunk<kType>(z, p, {p.saved[0], p.saved_output[0]}, box, stores);
      if (p.saved_output[1].data != nullptr) store_chunk<kType>(up, p, {p.saved[1], p.saved_output[1]}, box, stores);
    });
    activate<kChunk>(z, e.activation);
    if (gated) {
#pragma unroll
      for (uint32_t i = 0; i < kChunk; ++i) z[i] *= up[i];
    }
    if (e.residual.data != nullptr) add(e.residual, 1.0f);
    with_type(p.output.type, [&]<DataType kType>() { store_chunk<kType>(z, p, {p.d, p.output}, box, stores); });
  }
}

// Where the formula is a cast, and D is stored by TMA: straight from the accumulators.
template <DataType kType, uint32_t kCount>
JAXBW_DEVICE void cast_tile(const float (&accumulators)[kCount], const GemmParams& p, StoreOrigin box,
                            StoreRing& stores) {
  for_each_box<kType, kCount>([&]<uint32_t kFirst>() {
    stage_box<kType, kFirst>(accumulators, stores.acquire());
    stores.store_by_tma(p.d, box);
    box.column += sm90_store_box(kType).columns;
  });
}

template <uint32_t kCount>
JAXBW_DEVICE void finish_tile(float (&accumulators)[kCount], const GemmParams& p, const SplitSum& split,
                              StoreOrigin box, StoreRing& stores) {
  if (p.epilogue.identity && p.store_path == StorePath::kTma) {
    with_type(p.output.type, [&]<DataType kType>() { cast_tile<kType>(accumulators, p, box, stores); });
  } else {
    apply_epilogue(accumulators, p, split, box, stores);
  }
}

}  // namespace jaxbw::sm90
