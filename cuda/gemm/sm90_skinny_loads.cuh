// How operands of few rows come to shared memory: by cp.async, 16 bytes of a thread at a time (sm90_skinny.cuh).
#pragma once

#include "gemm/store_ring.h"
#include "params.h"
#include "ptx/async_copy.h"

namespace jaxbw::sm90 {

constexpr uint32_t kChunkElements = ptx::kAsyncCopyBytes / 2;

// How much of an operand there is from where a block begins: rows in memory, and elements in each.
struct BlockExtent {
  int32_t rows, elements;
};

// Blocks of an operand, [kRows, kElements] as they lie in memory, one behind the other along K, which kThreads bring
// into stages of kStageBytes. What lies outside of the operand becomes zeros. With kHalves half of a block's columns of
// D are this operand's, and behind them come as many of a second one like it.
template <uint32_t kRows, uint32_t kElements, Major kMajor, uint32_t kThreads, uint32_t kStageBytes,
          bool kHalves = false>
class BlockLoads {
 public:
  // `second`: where the operand of the second half begins.
  JAXBW_DEVICE BlockLoads(const uint16_t* first, const uint16_t* second, uint32_t pitch, BlockExtent extent,
                          uint32_t shared)
      : extent_(extent),
        step_(uint64_t{kStep} * pitch),
        next_(kMajor == Major::kK ? kElements : uint64_t{kRows} * pitch) {
    const uint32_t thread = threadIdx.x;
    row_ = thread / kRowChunks;
    uint32_t chunk = thread % kRowChunks;
    destination_ = shared + staged_offset<kRowBytes>(row_, chunk);
    if (kHalves && kMajor == Major::kMN && chunk >= kRowChunks / 2) {
      first = second;
      chunk -= kRowChunks / 2;
    }
    const uint64_t offset = uint64_t{row_} * pitch + chunk * kChunkElements;
    source_ = first + offset;
    if constexpr (kRowHalves) second_ = second + offset;
    extent_.elements -= static_cast<int32_t>(chunk * kChunkElements);
  }

  // The next block.
  JAXBW_DEVICE void load(uint32_t stage) {
    const uint32_t bytes = static_cast<uint32_t>(max(0, min(extent_.elements, int32_t{kChunkElements}))) * 2;
    const uint32_t destination = destination_ + stage * kStageBytes;
#pragma unroll
    for (uint32_t i = 0; i < (kRows + kStep - 1) / kStep; ++i) {
      const bool in_second = kRowHalves && i >= kHalfSteps;
      const uint32_t step = in_second ? i - kHalfSteps : i, row = row_ + step * kStep;
      if (kRows % kStep != 0 && row >= kRows) break;
      ptx::async_copy(destination + i * kStep * kRowBytes, (in_second ? second_ : source_) + step * step_,
                      static_cast<int32_t>(row) < extent_.rows ? bytes : 0);
    }
    source_ += next_;
    if constexpr (kRowHalves) second_ += next_;
    (kMajor == Major::kK ? extent_.elements : extent_.rows) -= kMajor == Major::kK ? kElements : kRows;
  }

 private:
  static constexpr uint32_t kRowBytes = kElements * 2, kRowChunks = kElements / kChunkElements;
  static constexpr uint32_t kStep = kThreads / kRowChunks;  // rows that are loaded at once
  static_assert(kThreads % kRowChunks == 0 && kStep % kSwizzleRows == 0, "a thread's rows are swizzled alike");
  static constexpr bool kRowHalves = kHalves && kMajor == Major::kK;
  static constexpr uint32_t kHalfSteps = kRows / 2 / kStep;
  static_assert(!kRowHalves || kRows / 2 % kStep == 0, "a thread loads as much of each half");

  const uint16_t *source_, *second_;
  uint32_t row_, destination_;
  BlockExtent extent_;
  uint64_t step_, next_;
};

}  // namespace jaxbw::sm90
