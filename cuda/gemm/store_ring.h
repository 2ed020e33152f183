// A warp's way from registers to global memory: it fills one of its staging buffers in shared memory while earlier
// ones drain, by TMA or, where TMA cannot, by coalesced stores.
#pragma once

#include "gemm/epilogue.h"
#include "ptx/fragments.h"
#include "ptx/global.h"
#include "ptx/tma.h"

namespace jaxbw {

// A staging buffer holds rows of kRowBytes, swizzled over kRowBytes, as the tensor map of D says: the 16-byte chunk
// `chunk` of row `row` lies here. Eight neighbouring rows then occupy different banks. (Rows of 16 bytes are not.)
template <uint32_t kRowBytes>
constexpr uint32_t staged_offset(uint32_t row, uint32_t chunk) {
  static_assert(kRowBytes == 16 || kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128);
  const uint32_t offset = row * kRowBytes + chunk * 16;
  return offset ^ ((offset >> 3) & (kRowBytes - 16));
}
static_assert(staged_offset<128>(9, 0) == 9 * 128 + 1 * 16 && staged_offset<64>(2, 1) == 128 + 0 * 16);

// One of the results of a kernel: D or what is saved beside it.
struct StoreTarget {
  const TensorMap& map;
  const EpilogueResult& result;
};

// Where a box starts in D.
struct StoreOrigin {
  uint32_t row, column, batch;
};

// Bulk groups belong to a thread: it is always the elected one, which is the same each time.
class StoreRing {
 public:
  // `buffers`: shared address of this warp's staging buffers, of `buffer_bytes` each. `box_rows`: rows of a box.
  JAXBW_DEVICE StoreRing(const GemmParams& params, uint32_t buffers, uint32_t buffer_bytes, uint32_t box_rows)
      : params_(params), buffers_(buffers), buffer_bytes_(buffer_bytes), box_rows_(box_rows) {}

  // A buffer that no TMA store reads any more.
  JAXBW_DEVICE uint32_t acquire() {
    if (ptx::elect_one()) {
      if (params_.store_buffers == 1) {
        ptx::bulk_wait_group_read<0>();
      } else {
        ptx::bulk_wait_group_read<kMaxStoreBuffers - 1>();
      }
    }
    __syncwarp();
    return buffer();
  }

  // The same, where no store goes by TMA.
  JAXBW_DEVICE uint32_t acquire_for_rows() const {
    __syncwarp();
    return buffer();
  }

  // Stores the buffer last acquired, which all lanes have written: a box of kColumns columns. What of it lies outside
  // the matrix is not stored.
  template <DataType kType, uint32_t kColumns>
  JAXBW_DEVICE void store(StoreTarget target, StoreOrigin origin) {
    if (params_.store_path == StorePath::kTma) {
      store_by_tma(target.map, origin);
    } else {
      store_rows<kType, kColumns>(target.result.data, origin);
    }
  }

  // The same, where the store path is known to be kTma.
  JAXBW_DEVICE void store_by_tma(const TensorMap& map, StoreOrigin origin) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) {
      if (origin.column < params_.n && origin.row < params_.m) {
        ptx::tma_store(map, {origin.column, origin.row, origin.batch}, buffer());
      }
      ptx::bulk_commit_group();
    }
    advance();
  }

  // The same, where it is known to be kRows.
  template <DataType kType, uint32_t kColumns>
  JAXBW_DEVICE void store_rows(void* destination, StoreOrigin origin) {
    __syncwarp();
    copy<size_bytes(kType), kColumns * size_bytes(kType)>(destination, origin, params_.row_stride,
                                                          inside(origin.row, box_rows_, params_.m),
                                                          inside(origin.column, kColumns, params_.n));
    advance();
  }

  // The buffer last acquired where D's neighbours are below each other (kColumns): it holds kColumns columns of kRows
  // rows each, one behind the other.
  template <DataType kType, uint32_t kRows, uint32_t kColumns>
  JAXBW_DEVICE void store_columns(void* destination, StoreOrigin origin) {
    __syncwarp();
    copy<size_bytes(kType), kRows * size_bytes(kType)>(destination, origin, params_.column_stride,
                                                       inside(origin.column, kColumns, params_.n),
                                                       inside(origin.row, kRows, params_.m));
    advance();
  }

  // All buffers, where no store goes by TMA: the address of the first.
  JAXBW_DEVICE uint32_t acquire_all() const {
    __syncwarp();
    return buffers_;
  }

  // Shared memory must outlive the stores that read it.
  JAXBW_DEVICE void drain() const {
    if (ptx::elect_one()) ptx::bulk_wait_group_read<0>();
  }

 private:
  JAXBW_DEVICE uint32_t buffer() const { return buffers_ + slot_ * buffer_bytes_; }
  JAXBW_DEVICE void advance() { slot_ = slot_ + 1 >= params_.store_buffers ? 0 : slot_ + 1; }

  // Of so many indices from `first` on, those that the matrix has.
  static JAXBW_DEVICE uint32_t inside(uint32_t first, uint32_t count, uint32_t extent) {
    return first < extent ? min(count, extent - first) : 0;
  }

  // Coalesced: neighbouring lanes store neighbouring parts of a row of the box, or of several narrow ones. "Rows" are
  // what is contiguous in D: `rows` of them, `stride` elements apart, of `columns` elements.
  template <uint32_t kSize, uint32_t kRowBytes>
  JAXBW_DEVICE void copy(void* destination, StoreOrigin origin, uint64_t stride, uint32_t rows,
                         uint32_t columns) const {
    if (columns == 0) return;
    const uint64_t pitch = stride * kSize;
    const uint64_t first = reinterpret_cast<uint64_t>(destination) +
                           element_index(params_, origin.row, origin.column, origin.batch) * kSize;
    if ((first | pitch) % 16 == 0) {
      copy_vectors<kRowBytes>(first, pitch, rows, columns * kSize / 16);
    } else {
      copy_words<kSize, kRowBytes>(first, pitch, rows, columns);
    }
  }

  // Sixteen bytes to a lane.
  template <uint32_t kRowBytes>
  JAXBW_DEVICE void copy_vectors(uint64_t first_row, uint64_t pitch, uint32_t rows, uint32_t vectors) const {
    constexpr uint32_t kVectors = kRowBytes / 16, kRows = ptx::kWarpSize / kVectors;  // of one step
    constexpr uint32_t kSteps = 4;  // whose loads are under way at a time
    const uint32_t lane = ptx::lane_index_here(), vector = lane % kVectors;
    uint64_t address = first_row + lane / kVectors * pitch + vector * 16;
    for (uint32_t row = lane / kVectors, first = 0; first < rows; first += kSteps * kRows) {
      float staged[kSteps][4];
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i) {
        ptx::load_shared(staged[i], buffer() + staged_offset<kRowBytes>(row + i * kRows, vector));
      }
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i, row += kRows, address += kRows * pitch) {
        if (row < rows && vector < vectors) {
          ptx::store_global(reinterpret_cast<float*>(address), staged[i][0], staged[i][1], staged[i][2], staged[i][3]);
        }
      }
    }
  }

  // Four bytes to a lane. Where a row of 16-bit elements starts in the middle of a word, a word is halves of two that
  // were staged, and the first lane stores the two ends of the row.
  template <uint32_t kSize, uint32_t kRowBytes>
  JAXBW_DEVICE void copy_words(uint64_t first_row, uint64_t pitch, uint32_t rows, uint32_t columns) const {
    constexpr uint32_t kWords = kRowBytes / 4, kRows = ptx::kWarpSize / kWords;  // of one step
    constexpr uint32_t kSteps = 8;
    const uint32_t lane = ptx::lane_index_here(), word = lane % kWords;
    const uint32_t word_before = lane - word + (word + kWords - 1) % kWords;  // the lane that has it
    uint64_t address = first_row + lane / kWords * pitch;
    for (uint32_t row = lane / kWords, first = 0; first < rows; first += kSteps * kRows) {
      uint32_t staged[kSteps];
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i) {
        const uint32_t offset = staged_offset<kRowBytes>(row + i * kRows, word / 4) + word % 4 * 4;
        staged[i] = ptx::load_shared(buffer() + offset);
      }
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i, row += kRows, address += kRows * pitch) {
        if constexpr (kSize == 4) {
          if (row < rows && word < columns) *reinterpret_cast<uint32_t*>(address + word * 4) = staged[i];
        } else {
          const uint32_t before = __shfl_sync(ptx::kFullWarp, staged[i], word_before);
          if (row < rows) store_word(address, staged[i], before, word, kRowBytes / kSize, columns);
        }
      }
    }
  }

  // Elements 2 word and 2 word + 1 of a row of `columns`, or where it starts in the middle of a word, 2 word - 1 and
  // 2 word; that before the first is the last of the box.
  static JAXBW_DEVICE void store_word(uint64_t row, uint32_t staged, uint32_t before, uint32_t word, uint32_t width,
                                      uint32_t columns) {
    const uint32_t shift = row / 2 % 2, low = 2 * word - shift;
    const uint32_t value = __funnelshift_l(before, staged, shift * 16);
    auto* const elements = reinterpret_cast<uint16_t*>(row);
    if (low < columns - 1) {
      *reinterpret_cast<uint32_t*>(elements + low) = value;
    } else {
      if (low % width == columns - 1) elements[columns - 1] = static_cast<uint16_t>(value);
      if (low + 1 == 0) elements[0] = static_cast<uint16_t>(value >> 16);
    }
  }

  const GemmParams& params_;
  uint32_t buffers_, buffer_bytes_, box_rows_;
  uint32_t slot_ = 0;
};

}  // namespace jaxbw
