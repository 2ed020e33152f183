// A warp's way from registers to global memory: it fills one of its staging buffers in shared memory while earlier
// ones drain, by TMA or, where TMA cannot, by coalesced stores.
#pragma once

#include <bit>
#include <type_traits>

#include "gemm/epilogue.h"
#include "ptx/fragments.h"
#include "ptx/global.h"
#include "ptx/tma.h"

namespace jaxbw {

// A staging buffer holds rows of kRowBytes, swizzled over kRowBytes, as the tensor map of D says, or over 128 of more:
// the 16-byte chunk `chunk` of row `row` lies here. Eight neighbouring rows then occupy different banks. (Rows of 16
// bytes are not.)
template <uint32_t kRowBytes>
constexpr uint32_t staged_offset(uint32_t row, uint32_t chunk) {
  if constexpr (kRowBytes > 128) {
    static_assert(kRowBytes % 128 == 0);
    return row * kRowBytes + (chunk ^ row % 8) * 16;
  } else {
    static_assert(kRowBytes == 16 || kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128);
    const uint32_t offset = row * kRowBytes + chunk * 16;
    return offset ^ ((offset >> 3) & (kRowBytes - 16));
  }
}
static_assert(staged_offset<128>(9, 0) == 9 * 128 + 1 * 16 && staged_offset<64>(2, 1) == 128 + 0 * 16);

template <uint32_t kSize>
using UnsignedOfSize = std::conditional_t<kSize == 1, uint8_t, std::conditional_t<kSize == 2, uint16_t, uint32_t>>;

// One of the results of a kernel, D or what is saved beside it, whose map and pointer lie in its parameters.
struct StoreTarget {
  const TensorMap* map;
  EpilogueResult result;
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
    if (ptx::elect_one()) ptx::bulk_wait_group_read<kStoreBuffers - 1>();
    __syncwarp();
    return buffer();
  }

  // The same, where the whole warp waits: the other lanes have no groups, and an election takes instructions.
  JAXBW_DEVICE uint32_t acquire_by_warp() const {
    ptx::bulk_wait_group_read<kStoreBuffers - 1>();
    __syncwarp();
    return buffer();
  }

  // The same, behind drain() and no store since.
  JAXBW_DEVICE uint32_t acquire_drained() const {
    __syncwarp();
    return buffer();
  }

  // Stores the buffer last acquired, which all lanes have written: a box of kColumns columns of elements of kSize
  // bytes. What of it lies outside the matrix is not stored.
  template <uint32_t kSize, uint32_t kColumns>
  JAXBW_DEVICE void store(StoreTarget target, StoreOrigin origin) {
    if (params_.store_path == StorePath::kTma) {
      store_by_tma(*target.map, origin);
    } else {
      store_rows<kSize, kColumns>(target.result.data, origin, box_rows_, kColumns);
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

  // The same without a jump: TMA stores nothing of a box outside the matrix, an election around a single instruction
  // costs none, and groups of lanes that store nothing are empty.
  JAXBW_DEVICE void store_box(const TensorMap& map, StoreOrigin origin) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect_one()) ptx::tma_store(map, {origin.column, origin.row, origin.batch}, buffer());
    ptx::bulk_commit_group();
    advance();
  }

  // The same, where it is known to be kRows: `rows` of kColumns columns are staged, and belong to D up to `columns`.
  template <uint32_t kSize, uint32_t kColumns>
  JAXBW_DEVICE void store_rows(void* destination, StoreOrigin origin, uint32_t rows, uint32_t columns) const {
    __syncwarp();
    copy<kSize, kColumns * kSize>(destination, origin, params_.row_stride, inside(origin.row, rows, params_.m),
                                  inside(origin.column, columns, params_.n));
  }

  // The buffer last acquired where D's neighbours are below each other (kColumns): it holds kColumns columns of kRows
  // rows each, one behind the other.
  template <uint32_t kSize, uint32_t kRows, uint32_t kColumns>
  JAXBW_DEVICE void store_columns(void* destination, StoreOrigin origin) const {
    __syncwarp();
    copy<kSize, kRows * kSize>(destination, origin, params_.column_stride, inside(origin.column, kColumns, params_.n),
                               inside(origin.row, kRows, params_.m));
  }

  // All buffers, where no store goes by TMA: the address of the first, which is then in turn.
  JAXBW_DEVICE uint32_t acquire_all() {
    __syncwarp();
    slot_ = 0;
    return buffers_;
  }

  // Shared memory must outlive the stores that read it.
  JAXBW_DEVICE void drain() const {
    if (ptx::elect_one()) ptx::bulk_wait_group_read<0>();
  }

 protected:
  JAXBW_DEVICE uint32_t buffer() const { return buffers_ + slot_ * buffer_bytes_; }
  JAXBW_DEVICE void advance() { slot_ = (slot_ + 1) % kStoreBuffers; }

  const GemmParams& params_;

 private:
  // Of so many indices from `first` on, those that the matrix has.
  static JAXBW_DEVICE uint32_t inside(uint32_t first, uint32_t count, uint32_t extent) {
    return first < extent ? min(count, extent - first) : 0;
  }

  // "Rows" are what is contiguous in D: `rows` of them, `stride` elements apart, of `columns` elements. They may start
  // anywhere, but what L2 takes best is whole sectors of 32 bytes. So of these a lane stores 16 bytes, wherever they
  // lie in the staging buffer; at both ends of a row it stores elements. Narrow rows have few whole sectors, or none:
  // there whole multiples of 16 bytes are enough.
  template <uint32_t kSize, uint32_t kRowBytes>
  JAXBW_DEVICE void copy(void* destination, StoreOrigin origin, uint64_t stride, uint32_t rows,
                         uint32_t columns) const {
    constexpr uint32_t kWhole = kRowBytes < 128 ? 16 : 32;
    if (columns == 0) return;
    const uint64_t pitch = stride * kSize;
    const uint64_t first = reinterpret_cast<uint64_t>(destination) +
                           element_index(params_, origin.row, origin.column, origin.batch) * kSize;
    copy_whole<kSize, kRowBytes, kWhole>(first, pitch, rows, columns * kSize);
    if ((first | pitch | columns * kSize) % kWhole != 0) {
      copy_ends<kSize, kRowBytes, kWhole>(first, pitch, rows, columns);
    }
  }

  // A lane has one place in lines of 128 bytes, wherever a row starts: so eight neighbours store within one line,
  // except those that have both ends of the row.
  template <uint32_t kSize, uint32_t kRowBytes, uint32_t kWhole>
  JAXBW_DEVICE void copy_whole(uint64_t first_row, uint64_t pitch, uint32_t rows, uint32_t bytes) const {
    constexpr uint32_t kLanes = std::bit_ceil(kRowBytes / 16), kRows = ptx::kWarpSize / kLanes;  // of one step
    constexpr uint32_t kSteps = kRows < 4 ? 4 : kRows < 16 ? 16 / kRows : 1;  // whose loads are under way at a time
    constexpr uint32_t kLine = kLanes * 16 < 128 ? kLanes * 16 : 128;
    const uint32_t lane = ptx::lane_index_here(), place = lane % kLanes * 16, source = buffer();
    uint64_t address = first_row + lane / kLanes * pitch;
    for (uint32_t row = lane / kLanes, first = 0; first < rows; first += kSteps * kRows) {
      uint32_t staged[kSteps][8], from[kSteps];  // where in a row
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i) {
        from[i] = (place - static_cast<uint32_t>(address + i * kRows * pitch) % kLine) % (kLanes * 16);
        const uint32_t chunk = from[i] / 16;
        ptx::load_shared(reinterpret_cast<uint32_t (&)[4]>(staged[i][0]),
                         source + staged_offset<kRowBytes>(row + i * kRows, chunk));
        ptx::load_shared(reinterpret_cast<uint32_t (&)[4]>(staged[i][4]),
                         source + staged_offset<kRowBytes>(row + i * kRows, min(chunk + 1, kRowBytes / 16 - 1)));
      }
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i, row += kRows, address += kRows * pitch) {
        const uint32_t before = place % kWhole;  // in its sector
        if (row < rows && from[i] >= before && from[i] - before + kWhole <= bytes) {
          uint32_t words[4];
          take_bytes<kSize>(words, staged[i], from[i] % 16);
          ptx::store_global(reinterpret_cast<void*>(address + from[i]), words[0], words[1], words[2], words[3]);
        }
      }
    }
  }

  // 16 bytes of 32, from a multiple of kSize on.
  template <uint32_t kSize>
  static JAXBW_DEVICE void take_bytes(uint32_t (&words)[4], const uint32_t (&of)[8], uint32_t from) {
    uint32_t by_8[6], by_4[5];
#pragma unroll
    for (uint32_t i = 0; i < 6; ++i) by_8[i] = from & 8 ? of[i + 2] : of[i];
#pragma unroll
    for (uint32_t i = 0; i < 5; ++i) by_4[i] = from & 4 ? by_8[i + 1] : by_8[i];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      words[i] = kSize == 4 ? by_4[i] : __funnelshift_r(by_4[i], by_4[i + 1], from % 4 * 8);
    }
  }

  // The elements of a row in front of what copy_whole stores, and behind it.
  template <uint32_t kSize, uint32_t kRowBytes, uint32_t kWhole>
  JAXBW_DEVICE void copy_ends(uint64_t first_row, uint64_t pitch, uint32_t rows, uint32_t columns) const {
    using Element = UnsignedOfSize<kSize>;
    constexpr uint32_t kLanes = kWhole / kSize, kRows = ptx::kWarpSize / kLanes;  // of one step
    constexpr uint32_t kSteps = 8 / kRows;
    const uint32_t lane = ptx::lane_index_here(), source = buffer();
    // Of rows of whole sectors, the two ends are one sector together, or nothing.
    for (uint32_t number = lane % kLanes; number < (columns % kLanes == 0 ? 1 : 2) * kLanes; number += kLanes) {
      uint64_t address = first_row + lane / kLanes * pitch;
      for (uint32_t row = lane / kLanes, first = 0; first < rows; first += kSteps * kRows) {
        Element staged[kSteps];
        uint32_t column[kSteps];
#pragma unroll
        for (uint32_t i = 0; i < kSteps; ++i) {
          const uint32_t ahead =
              min((0 - static_cast<uint32_t>(address + i * kRows * pitch)) / kSize % kLanes, columns);
          const uint32_t whole = (columns - ahead) / kLanes * kLanes;
          column[i] = number < ahead ? number : number + whole;
          const uint32_t at = min(column[i], columns - 1) * kSize;
          staged[i] = ptx::load_shared<Element>(source + staged_offset<kRowBytes>(row + i * kRows, at / 16) + at % 16);
        }
#pragma unroll
        for (uint32_t i = 0; i < kSteps; ++i, row += kRows, address += kRows * pitch) {
          if (row < rows && column[i] < columns) ptx::store_global(address + column[i] * kSize, staged[i]);
        }
      }
    }
  }

  uint32_t buffers_, buffer_bytes_, box_rows_;
  uint32_t slot_ = 0;
};

}  // namespace jaxbw
