// The formula of Epilogue (params.h) on blocks of sums that a warp of the Hopper kernel has left in shared memory. From
// there each lane takes elements that are neighbours in D: so whatever is shaped as D is read and written in whole
// sectors, and 16 bytes at a time where its rows allow it.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/store_ring.h"
#include "ptx/global.h"

namespace jaxbw::sm90 {

constexpr uint32_t kBlockRows = kSm90Epilogue.rows_per_warp;
constexpr uint32_t kBlockColumns = kSm90Chunk;
constexpr uint32_t kFragmentColumns = 8;  // that four accumulators of each lane cover, two in each of two rows
constexpr uint32_t registers_of(uint32_t columns) { return columns / kFragmentColumns * 4; }
constexpr uint32_t kChunk = registers_of(kBlockColumns);
constexpr uint32_t kVector = 8;  // elements that a lane handles at a time: 16 bytes, or 32

// Two blocks of floats, swizzled as staging buffers are; `up` for gated matmuls.
struct SumBlocks {
  uint32_t first;  // shared address of the first

  JAXBW_DEVICE uint32_t at(uint32_t half) const { return first + half * (kBlockRows * kSwizzleSpan); }
  JAXBW_DEVICE uint32_t z() const { return at(0); }
  JAXBW_DEVICE uint32_t up() const { return at(1); }
};

// Where a lane's first fragment of eight columns of sums lies in a block. A lane has two of each of two rows: eight
// bytes of one of the two chunks of 16 bytes. (The layout is drawn in ptx/wgmma.h.)
template <uint32_t kRowBytes = kSwizzleSpan>
JAXBW_DEVICE uint32_t first_fragment(uint32_t block) {
  const uint32_t lane = ptx::lane_index_here();
  return block + staged_offset<kRowBytes>(lane / 4, lane % 4 / 2) + lane % 2 * 8;
}

// A fragment into the block, `number` fragments to the right of the first.
JAXBW_DEVICE void stage_fragment(const float* v, uint32_t first, uint32_t number) {
  const uint32_t address = staged_chunk(first, 2 * number);
  ptx::store_shared(address, v[0], v[1]);
  ptx::store_shared(address + kSwizzleRows * kSwizzleSpan, v[2], v[3]);
}

// Where a lane's row of the first two fragments of a 16-bit box lies, as stmatrix_x4 and ldmatrix_x4 want it: rows 0-7
// and 8-15 of chunk 0, then of chunk 1.
template <uint32_t kRowBytes>
JAXBW_DEVICE uint32_t staged_fragments(uint32_t buffer) {
  const uint32_t lane = ptx::lane_index_here();
  return buffer + staged_offset<kRowBytes>(lane % 16, lane / 16);
}

// Whether neighbours in D are below each other, not beside each other.
JAXBW_DEVICE bool runs_down(const GemmParams& p) { return p.store_path == StorePath::kColumns; }

// Whether the contiguous runs of every array that is shaped as D, the bias, and scales, are vectors at multiples of 16
// bytes.
JAXBW_DEVICE bool runs_hold_vectors(const GemmParams& p) {
  const Epilogue& e = p.epilogue;
  const void* const arrays[] = {
      p.output.data, p.saved_output[0].data, p.saved_output[1].data, e.c.data, e.residual.data, e.bias.data, e.a_scales,
      e.b_scales,    e.b_up_scales};
  uint64_t bits = 0;
  for (const void* data : arrays) bits |= reinterpret_cast<uint64_t>(data);
  return (runs_down(p) ? p.m : p.n) % kVector == 0 && bits % 16 == 0;
}

// kWidth sums, beside or below each other.
template <uint32_t kWidth>
JAXBW_DEVICE void load_sums(float (&values)[kWidth], uint32_t block, uint32_t row, uint32_t column, bool down) {
  constexpr uint32_t kRowBytes = kBlockColumns * sizeof(float), kChunk = 16 / sizeof(float);
  if (kWidth == 1 || down) {
#pragma unroll
    for (uint32_t i = 0; i < kWidth; ++i) {
      const uint32_t chunk = staged_offset<kRowBytes>(row + i, column / kChunk);
      values[i] = __uint_as_float(ptx::load_shared(block + chunk + column % kChunk * sizeof(float)));
    }
  } else if constexpr (kWidth > 1) {
#pragma unroll
    for (uint32_t i = 0; i < kWidth; i += kChunk) {
      ptx::load_shared(reinterpret_cast<float (&)[kChunk]>(values[i]),
                       block + staged_offset<kRowBytes>(row, (column + i) / kChunk));
    }
  }
}

// kWidth elements from `index` of an array, widened.
template <uint32_t kWidth>
JAXBW_DEVICE void load_elements(float (&values)[kWidth], EpilogueOperand operand, uint64_t index) {
  if constexpr (kWidth == 1) {
    values[0] = load_element(operand, index);
  } else {
    with_type(operand.type, [&]<DataType kType>() {
      constexpr uint32_t kPerWord = 4 / size_bytes(kType);
      const auto* data = static_cast<const uint32_t*>(operand.data) + index / kPerWord;
#pragma unroll
      for (uint32_t i = 0; i < kWidth; i += 4 * kPerWord) {
        uint32_t words[4];
        ptx::load_global(words, data + i / kPerWord);
#pragma unroll
        for (uint32_t j = 0; j < 4 * kPerWord; ++j) {
          if constexpr (kType == DataType::kF32) {
            values[i + j] = __uint_as_float(words[j]);
          } else {
            values[i + j] = ptx::widen<kType>(static_cast<uint16_t>(words[j / 2] >> j % 2 * 16));
          }
        }
      }
    });
  }
}

template <uint32_t kWidth>
JAXBW_DEVICE void store_elements(const float (&values)[kWidth], EpilogueResult result, uint64_t index) {
  with_type(result.type, [&]<DataType kType>() {
    if constexpr (kWidth == 1) {
      store_element<kType>(result.data, index, values[0]);
    } else if constexpr (kType == DataType::kF32) {
      auto* data = static_cast<float*>(result.data) + index;
      ptx::store_global(data, values[0], values[1], values[2], values[3]);
      ptx::store_global(data + 4, values[4], values[5], values[6], values[7]);
    } else {
      ptx::store_global(static_cast<uint16_t*>(result.data) + index, ptx::pack<kType>(values[0], values[1]),
                        ptx::pack<kType>(values[2], values[3]), ptx::pack<kType>(values[4], values[5]),
                        ptx::pack<kType>(values[6], values[7]));
    }
  });
}

// Of D.
template <uint32_t kWidth>
JAXBW_DEVICE void store_results(const float (&values)[kWidth], const GemmParams& p, uint64_t index) {
  if (!is_8bit(p.output.type)) return store_elements(values, p.output, index);
  if constexpr (kWidth == 1) {
    static_cast<uint8_t*>(p.output.data)[index] = static_cast<uint8_t>(float8_pair(p, values[0], 0.0f));
  } else {
    ptx::store_global(static_cast<uint8_t*>(p.output.data) + index, float8_quad(p, values), float8_quad(p, values + 4));
  }
}

// Has what the formula adds to a warp's rows of a tile come to L2 while the tile is multiplied: read when it is wanted,
// block by block, each would wait for memory. Only where neighbours in D are beside each other: else few rows are left.
template <uint32_t kBlockN>
JAXBW_DEVICE void prefetch_terms(const GemmParams& p, StoreOrigin tile, uint32_t row, uint32_t m64s) {
  constexpr uint32_t kLine = 128;  // bytes
  if (runs_down(p)) return;
  const auto prefetch = [&](EpilogueOperand operand) {
    if (operand.data == nullptr) return;
    const uint32_t bytes = size_bytes(operand.type), end = min(tile.column + min(kBlockN, p.tile_columns), p.n);
    const uint32_t below = ptx::lane_index_here();
    const uint32_t i = tile.row + row + below / kBlockRows * kWgmmaRows + below % kBlockRows;
    if (below >= m64s * kBlockRows || i >= p.m) return;
#pragma unroll 1
    for (uint32_t j = tile.column; j < end; j += kLine / bytes) {
      ptx::prefetch_l2(static_cast<const uint8_t*>(operand.data) + element_index(p, i, j, tile.batch) * bytes);
    }
  };
  prefetch(p.epilogue.c);
  prefetch(p.epilogue.residual);
}

// Multiplies sums by the scales of their rows and columns, of which one differs from neighbour to neighbour.
template <uint32_t kWidth>
JAXBW_DEVICE void scale_sums(float (&sums)[kWidth], const GemmParams& p, const float* b_scales, uint32_t row,
                             uint32_t column, uint32_t batch, bool down) {
  const float* const of_rows = scales_of(p.epilogue.a_scales, p.a_batched, p.m, batch);
  const float* const of_columns = scales_of(b_scales, p.b_batched, p.n, batch);
  const float *const along = down ? of_rows : of_columns, *const across = down ? of_columns : of_rows;
  if (along != nullptr) {
    float scales[kWidth];
    load_elements(scales, {along, DataType::kF32}, down ? row : column);
#pragma unroll
    for (uint32_t k = 0; k < kWidth; ++k) sums[k] *= scales[k];
  }
  if (across != nullptr) {
    const float of_run = across[down ? column : row];
    apply<kWidth>(sums, [&](float sum) { return sum * of_run; });
  }
}

// Sums -> results, kWidth at a time: with kVector if runs_hold_vectors.
template <uint32_t kWidth, uint32_t kThreads>
JAXBW_DEVICE void finish_units(const GemmParams& p, SumBlocks blocks, StoreOrigin box, uint32_t thread,
                               OutputScale& out_scale) {
  const Epilogue& e = p.epilogue;
  const float alpha = alpha_of(e), beta = factor(e.beta, e.beta_data);
  const bool down = runs_down(p);
  const uint32_t units = (down ? kBlockRows : kBlockColumns) / kWidth;
#pragma unroll 1
  for (uint32_t unit = thread; unit < kBlockRows * kBlockColumns / kWidth; unit += kThreads) {
    const uint32_t run = unit / units, at = unit % units * kWidth;
    const uint32_t i = down ? at : run, j = down ? run : at;
    const uint32_t row = box.row + i, column = box.column + j;
    if (row >= p.m || column >= p.n) continue;
    const uint64_t index = element_index(p, row, column, box.batch);
    const auto add = [](float (&values)[kWidth], const float (&terms)[kWidth], float scale) {
#pragma unroll
      for (uint32_t k = 0; k < kWidth; ++k) values[k] += scale * terms[k];
    };
    // Under way while the rest is worked out.
    float c[kWidth] = {}, bias[kWidth] = {}, residual[kWidth] = {};
    const bool bias_along_run = e.bias.data != nullptr && (e.bias_along_m != 0) == down;
    if (e.c.data != nullptr) load_elements(c, e.c, index);
    if (bias_along_run) load_elements(bias, e.bias, down ? row : column);
    if (e.residual.data != nullptr) load_elements(residual, e.residual, index);

    float z[kWidth], up[kWidth] = {};
    load_sums(z, blocks.z(), i, j, down);
    scale_sums(z, p, e.b_scales, row, column, box.batch, down);
    apply<kWidth>(z, [&](float value) { return value * alpha; });
    if (e.gated) {
      load_sums(up, blocks.up(), i, j, down);
      scale_sums(up, p, e.b_up_scales, row, column, box.batch, down);
      apply<kWidth>(up, [&](float value) { return value * alpha; });
    }
    if (e.c.data != nullptr) add(z, c, beta);
    if (bias_along_run) {
      add(z, bias, 1.0f);
    } else if (e.bias.data != nullptr) {
      const float of_run = load_element(e.bias, down ? column : row);
      apply<kWidth>(z, [&](float value) { return value + of_run; });
    }
    if (p.saved_output[0].data != nullptr) store_elements(z, p.saved_output[0], index);
    if (p.saved_output[1].data != nullptr) store_elements(up, p.saved_output[1], index);
    activate<kWidth>(z, e.activation);
    if (e.gated) {
#pragma unroll
      for (uint32_t k = 0; k < kWidth; ++k) z[k] *= up[k];
    }
    if (e.residual.data != nullptr) add(z, residual, 1.0f);
    if (out_scale.wanted()) out_scale.apply(z);
    store_results(z, p, index);
  }
}

// Sums -> results, by kThreads threads of which this is number `thread`. `box`: where the block starts in D.
template <uint32_t kThreads>
JAXBW_DEVICE void finish_block(const GemmParams& p, SumBlocks blocks, StoreOrigin box, uint32_t thread,
                               OutputScale& out_scale) {
  if (runs_hold_vectors(p)) {
    finish_units<kVector, kThreads>(p, blocks, box, thread, out_scale);
  } else {
    finish_units<1, kThreads>(p, blocks, box, thread, out_scale);
  }
}

}  // namespace jaxbw::sm90
