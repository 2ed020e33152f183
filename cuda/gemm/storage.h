// How a GEMM kernel lays out its dynamic shared memory: the ring of operand stages, the epilogue's
// staging buffers and the barriers. Shared by kernels and host, which asks how many stages fit.
#pragma once

#include <cstdint>

#include "params.h"

namespace jaxbw {

constexpr uint32_t kBlockK = 64;         // one 128-byte swizzle span of 16-bit elements
constexpr uint32_t kSwizzleSpan = 128;   // bytes; also the width of an epilogue staging buffer
constexpr uint32_t kSwizzleAtom = 1024;  // 8 rows of a span: the alignment of every swizzled tile
constexpr uint32_t kMaxStages = 12;
constexpr uint32_t kStoreBuffers = 2;          // TMA stores in flight per epilogue warp
constexpr uint32_t kMaxSharedMemory = 232448;  // per block on sm_90 and sm_100, opt-in (227 KB)

// Epilogue warps of a CTA, the rows of the accumulator that each of them owns, and the columns that it stores at a
// time.
struct EpilogueShape {
  uint32_t warps, rows_per_warp, max_columns;

  // One TMA store, and one box of the tensor map of D: rows_per_warp rows of this many columns. Its staging buffer is
  // swizzled over its row of 128 or 64 bytes.
  constexpr uint32_t store_columns(DataType output) const {
    const uint32_t span = kSwizzleSpan / size_bytes(output);
    return span < max_columns ? span : max_columns;
  }
  constexpr uint32_t store_row_bytes(DataType output) const { return store_columns(output) * size_bytes(output); }
};
constexpr EpilogueShape kSm90Epilogue{8, 16, 64};   // two consumer warpgroups of m64; a swizzle span
constexpr EpilogueShape kSm100Epilogue{4, 32, 32};  // one warp for each 32 lanes of TMEM; one tcgen05.ld

// Barriers, CLC responses and the TMEM pointer: a fixed block, whatever the number of stages.
constexpr uint32_t kControlBytes = 1024;

struct StorageLayout {
  uint32_t a_stage_bytes, b_stage_bytes;  // one CTA's part of a stage
  uint32_t store_bytes;                   // epilogue staging

  constexpr uint32_t stage_bytes() const { return a_stage_bytes + b_stage_bytes; }
  constexpr uint32_t store_offset(uint32_t stages) const { return stages * stage_bytes(); }
  constexpr uint32_t control_offset(uint32_t stages) const { return store_offset(stages) + store_bytes; }
  constexpr uint32_t total_bytes(uint32_t stages) const { return control_offset(stages) + kControlBytes; }
  constexpr uint32_t max_stages() const {
    const uint32_t fit = (kMaxSharedMemory - store_bytes - kControlBytes) / stage_bytes();
    return fit < kMaxStages ? fit : kMaxStages;
  }
};

// An MMA tile of block_m x block_n, shared by cta_group CTAs: each holds its part of the rows of A
// and of the columns of B.
constexpr StorageLayout storage_layout(uint32_t block_m, uint32_t block_n, uint32_t cta_group, EpilogueShape epilogue) {
  return {.a_stage_bytes = block_m / cta_group * kSwizzleSpan,
          .b_stage_bytes = block_n / cta_group * kSwizzleSpan,
          .store_bytes = epilogue.warps * epilogue.rows_per_warp * kSwizzleSpan * kStoreBuffers};
}

static_assert(storage_layout(128, 256, 1, kSm90Epilogue).max_stages() == 4);
static_assert(storage_layout(256, 256, 2, kSm100Epilogue).max_stages() == 6);

}  // namespace jaxbw
