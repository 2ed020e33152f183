// How sm_100 cuts the sums of a tile that CTAs of one cluster share along K (sm100_cluster_sum.cuh). For kernel and
// host.
#pragma once

#include <cstdint>

#include "gemm/storage.h"

namespace jaxbw {

constexpr uint32_t kSumColumns = 8;  // of a slice, which has the rows of an epilogue warp

constexpr uint32_t sum_slice_bytes(uint32_t rows) { return rows * kSumColumns * uint32_t{sizeof(float)}; }

// Of an epilogue warp: slices that it has, and bytes in which it receives those that it owns, of every part.
constexpr uint32_t sum_slices(uint32_t block_n) { return block_n / kSumColumns; }
constexpr uint32_t received_bytes(uint32_t rows, uint32_t block_n, uint32_t parts) {
  return (sum_slices(block_n) + parts - 1) / parts * parts * sum_slice_bytes(rows);
}

// They fit into the warp's staging buffers, which only results that TMA or rows store would use.
constexpr bool sums_fit(uint32_t rows, uint32_t block_n, uint32_t parts) {
  return received_bytes(rows, block_n, parts) <= kSm100Epilogue.rows_per_warp * kSwizzleSpan * kStoreBuffers;
}
static_assert(sums_fit(16, 8, 16) && sums_fit(32, 64, 8) && !sums_fit(32, 8, 9));

}  // namespace jaxbw
