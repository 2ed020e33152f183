// A warp's way from registers to global memory: it fills one of its staging buffers in shared memory while earlier
// ones drain, by TMA or, where TMA cannot, by coalesced stores.
#pragma once

#include <bit>

#include "gemm/epilogue.h"
#include "ptx/fragments.h"
#include "ptx/global.h"
#include "ptx/tma.h"

namespace jaxbw {

// A staging buffer holds rows of row_bytes, swizzled over row_bytes, as the tensor map of D says, or over 128 of more:
// the 16-byte chunk `chunk` of row `row` lies here. Eight neighbouring rows then occupy different banks. (Rows of 16
// bytes are not.)
constexpr uint32_t staged_offset(uint32_t row_bytes, uint32_t row, uint32_t chunk) {
  const uint32_t swizzled = row_bytes < 128 ? row_bytes : 128;
  return (row * row_bytes + chunk * 16) ^ ((row * swizzled >> 3) & (swizzled - 16));
}
static_assert(staged_offset(128, 9, 0) == 9 * 128 + 1 * 16 && staged_offset(64, 2, 1) == 128 + 0 * 16);
static_assert(staged_offset(384, 3, 9) == 3 * 384 + (9 ^ 3) * 16 && staged_offset(16, 3, 0) == 3 * 16);

// The same of rows whose width is known.
template <uint32_t kRowBytes>
constexpr uint32_t staged_offset(uint32_t row, uint32_t chunk) {
  static_assert(kRowBytes == 16 || kRowBytes == 32 || kRowBytes == 64 || kRowBytes % 128 == 0);
  return staged_offset(kRowBytes, row, chunk);
}

// The address of another 16-byte chunk of a staged row, whose number differs in these bits: one instruction where the
// bits are known. What is staged starts at a multiple of 128 bytes; bits from 8 on are not set in the first one's
// number.
constexpr uint32_t staged_chunk(uint32_t first, uint32_t bits) { return (first ^ bits % 8 * 16) + bits / 8 * 128; }
static_assert(staged_chunk(staged_offset<128>(5, 1), 6) == staged_offset<128>(5, 1 + 6));
static_assert(staged_chunk(staged_offset<64>(6, 1), 2) == staged_offset<64>(6, 1 + 2));
static_assert(staged_chunk(staged_offset<32>(5, 0), 1) == staged_offset<32>(5, 0 + 1));
static_assert(staged_chunk(staged_offset<512>(3, 2), 20) == staged_offset<512>(3, 2 + 20));

// One of the results of a kernel, D or what is saved beside it, whose map and pointer lie in its parameters.
struct StoreTarget {
  const TensorMap* map;
  EpilogueResult result;
};

// Where a box starts in D.
struct StoreOrigin {
  uint32_t row, column, batch;
};

// A staging buffer that TMA does not store: each of its rows is a run of elements that are neighbors in D, in a row of
// D or, `down`, in a column (StorePath::kColumns).
struct StagedRuns {
  uint32_t count, elements;
  uint32_t size_log2;              // bytes of an element
  uint32_t row_bytes, lanes_log2;  // of the buffer; lanes that take a row, 16 bytes each
  bool down;

  // Bytes that are stored at once, at a multiple of them.
  constexpr uint32_t whole_log2() const { return row_bytes < 128 ? 4 : 5; }
  constexpr uint32_t whole() const { return 1 << whole_log2(); }

  // In rows of kRowElements elements of kSize bytes.
  template <uint32_t kSize, uint32_t kRowElements>
  static constexpr StagedRuns of(uint32_t count, uint32_t elements, bool down = false) {
    constexpr uint32_t kRowBytes = kRowElements * kSize;
    return {count, elements, std::bit_width(kSize) - 1, kRowBytes, std::bit_width(std::bit_ceil(kRowBytes / 16)) - 1,
            down};
  }
};

// Bulk groups belong to a thread: it is always the elected one, which is the same each time.
class StoreRing {
 public:
  // `buffers`: shared address of this warp's staging buffers, of `buffer_bytes` each.
  JAXBW_DEVICE StoreRing(const GemmParams& params, uint32_t buffers, uint32_t buffer_bytes)
      : params_(params), buffers_(buffers), buffer_bytes_(buffer_bytes) {}

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

  // Stores the buffer last acquired, which all lanes have written: a box. What of it lies outside the matrix is not
  // stored.
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

  // The same by threads: `count` runs of elements that are neighbors in a row of D or, `down`, in a column. The buffer
  // has kRowElements of kSize bytes for each, of which `elements` are staged.
  template <uint32_t kSize, uint32_t kRowElements>
  JAXBW_DEVICE void copy(void* destination, StoreOrigin origin, uint32_t count, uint32_t elements,
                         bool down = false) const {
    constexpr StagedRuns kOne = StagedRuns::of<kSize, kRowElements>(1, 1);
    constexpr uint32_t kRows = ptx::kWarpSize >> kOne.lanes_log2, kEndRows = ptx::kWarpSize * kSize / kOne.whole();
    copy_runs < kRows < 4 ? 4
    : kRows < 16          ? 16 / kRows
                          : 1,
        kEndRows<8 ? 8 / kEndRows : 1>(destination, origin, StagedRuns::of<kSize, kRowElements>(count, elements, down));
  }

  // The same by one copy of the code for all types and widths, which takes some percent longer.
  JAXBW_DEVICE void copy_any(void* destination, StoreOrigin origin, StagedRuns staged) const {
    copy_runs<2, 2>(destination, origin, staged);
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

  // Runs may start anywhere, but what L2 takes best is whole sectors of 32 bytes. So of these a lane stores 16 bytes,
  // wherever they lie in the staging buffer; at both ends of a run it stores elements. Narrow runs have few whole
  // sectors, or none: there whole multiples of 16 bytes are enough. Loads of kSteps and kEndSteps rows are under way at
  // a time.
  template <uint32_t kSteps, uint32_t kEndSteps>
  JAXBW_DEVICE void copy_runs(void* destination, StoreOrigin origin, StagedRuns staged) const {
    __syncwarp();
    const bool down = staged.down;
    const uint32_t rows = inside(origin.row, down ? staged.elements : staged.count, params_.m);
    const uint32_t columns = inside(origin.column, down ? staged.count : staged.elements, params_.n);
    staged.count = down ? columns : rows;
    staged.elements = down ? rows : columns;
    if (staged.elements == 0 || staged.count == 0) return;
    const uint64_t pitch = (down ? params_.column_stride : params_.row_stride) << staged.size_log2;
    const uint64_t index = element_index(params_, origin.row, origin.column, origin.batch);
    const uint64_t first = reinterpret_cast<uint64_t>(destination) + (index << staged.size_log2);
    copy_whole<kSteps>(first, pitch, staged);
    if (((first | pitch | staged.elements << staged.size_log2) & (staged.whole() - 1)) != 0) {
      copy_ends<kEndSteps>(first, pitch, staged);
    }
  }

  // A lane has one place in lines of 128 bytes, wherever a run starts: so eight neighbors store within one line, except
  // those that have both ends of the run.
  template <uint32_t kSteps>
  JAXBW_DEVICE void copy_whole(uint64_t first_run, uint64_t pitch, StagedRuns staged) const {
    const uint32_t whole = staged.whole();
    const uint32_t lane = ptx::lane_index_here(), row_mask = (16 << staged.lanes_log2) - 1;  // of bytes
    const uint32_t step = ptx::kWarpSize >> staged.lanes_log2, place = lane * 16 & row_mask, line_mask = row_mask & 127;
    const uint32_t before = place & (whole - 1);  // in its sector
    const uint32_t bytes = staged.elements << staged.size_log2, source = buffer();
    uint32_t row = lane >> staged.lanes_log2;
    uint64_t address = first_run + row * pitch;
#pragma unroll 1
    for (uint32_t first = 0; first < staged.count; first += kSteps * step) {
      uint32_t words[kSteps][8], from[kSteps];  // where in a row
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i) {
        from[i] = (place - (static_cast<uint32_t>(address + i * step * pitch) & line_mask)) & row_mask;
        const uint32_t at = row + i * step, chunk = from[i] / 16;
        ptx::load_shared(reinterpret_cast<uint32_t (&)[4]>(words[i][0]),
                         source + staged_offset(staged.row_bytes, at, chunk));
        ptx::load_shared(reinterpret_cast<uint32_t (&)[4]>(words[i][4]),
                         source + staged_offset(staged.row_bytes, at, min(chunk + 1, staged.row_bytes / 16 - 1)));
      }
#pragma unroll
      for (uint32_t i = 0; i < kSteps; ++i, row += step, address += step * pitch) {
        if (row < staged.count && from[i] >= before && from[i] - before + whole <= bytes) {
          uint32_t taken[4];
          take_bytes(taken, words[i], from[i] % 16);
          ptx::store_global(reinterpret_cast<void*>(address + from[i]), taken[0], taken[1], taken[2], taken[3]);
        }
      }
    }
  }

  // 16 bytes of 32.
  static JAXBW_DEVICE void take_bytes(uint32_t (&words)[4], const uint32_t (&of)[8], uint32_t from) {
    uint32_t by_8[6], by_4[5];
#pragma unroll
    for (uint32_t i = 0; i < 6; ++i) by_8[i] = from & 8 ? of[i + 2] : of[i];
#pragma unroll
    for (uint32_t i = 0; i < 5; ++i) by_4[i] = from & 4 ? by_8[i + 1] : by_8[i];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) words[i] = __funnelshift_r(by_4[i], by_4[i + 1], from % 4 * 8);
  }

  // The elements of a run in front of what copy_whole stores, and behind it. As many lanes take a run as a sector has
  // elements.
  template <uint32_t kSteps>
  JAXBW_DEVICE void copy_ends(uint64_t first_run, uint64_t pitch, StagedRuns staged) const {
    const uint32_t lanes_log2 = staged.whole_log2() - staged.size_log2;
    const uint32_t lane = ptx::lane_index_here(), size_log2 = staged.size_log2, source = buffer();
    const uint32_t lanes = 1 << lanes_log2, step = ptx::kWarpSize >> lanes_log2, last = staged.elements - 1;
    // Of runs of whole sectors, the two ends are one sector together, or nothing.
    const uint32_t end = (staged.elements & (lanes - 1)) == 0 ? lanes : 2 * lanes;
    for (uint32_t number = lane & (lanes - 1); number < end; number += lanes) {
      uint32_t row = lane >> lanes_log2;
      uint64_t address = first_run + row * pitch;
#pragma unroll 1
      for (uint32_t first = 0; first < staged.count; first += kSteps * step) {
        uint32_t value[kSteps], element[kSteps];
#pragma unroll
        for (uint32_t i = 0; i < kSteps; ++i) {
          const uint32_t to_sector = (0 - static_cast<uint32_t>(address + i * step * pitch)) >> size_log2;
          const uint32_t ahead = min(to_sector & (lanes - 1), staged.elements);
          const uint32_t inside = (staged.elements - ahead) & (0 - lanes);
          element[i] = number < ahead ? number : number + inside;
          const uint32_t at = min(element[i], last) << size_log2;
          const uint32_t word =
              ptx::load_shared<uint32_t>(source + staged_offset(staged.row_bytes, row + i * step, at / 16) + (at & 12));
          value[i] = word >> at % 4 * 8;
        }
#pragma unroll
        for (uint32_t i = 0; i < kSteps; ++i, row += step, address += step * pitch) {
          if (row < staged.count && element[i] <= last) {
            store_element(address + (element[i] << size_log2), value[i], size_log2);
          }
        }
      }
    }
  }

  static JAXBW_DEVICE void store_element(uint64_t address, uint32_t value, uint32_t size_log2) {
    if (size_log2 == 2) return ptx::store_global(address, value);
    if (size_log2 == 1) return ptx::store_global(address, static_cast<uint16_t>(value));
    ptx::store_global(address, static_cast<uint8_t>(value));
  }

  uint32_t buffers_, buffer_bytes_;
  uint32_t slot_ = 0;
};

}  // namespace jaxbw
