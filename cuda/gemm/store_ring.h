// A warp's way from registers to global memory: it fills one of its staging buffers in shared memory while earlier
// ones drain, by TMA or, where TMA cannot, by coalesced stores.
#pragma once

#include "gemm/storage.h"
#include "ptx/fragments.h"
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

  // Stores the buffer last acquired, which all lanes have written: a box of kColumns columns. What of it lies outside
  // the matrix is not stored.
  template <DataType kType, uint32_t kColumns>
  JAXBW_DEVICE void store(StoreTarget target, StoreOrigin origin) {
    if (params_.store_path == StorePath::kTma) {
      store_by_tma(target.map, origin);
    } else {
      __syncwarp();
      copy_rows<kType, kColumns>(target.result.data, origin);
      advance();
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

  // Shared memory must outlive the stores that read it.
  JAXBW_DEVICE void drain() const {
    if (ptx::elect_one()) ptx::bulk_wait_group_read<0>();
  }

 private:
  JAXBW_DEVICE uint32_t buffer() const { return buffers_ + slot_ * buffer_bytes_; }
  JAXBW_DEVICE void advance() { slot_ = slot_ + 1 >= params_.store_buffers ? 0 : slot_ + 1; }

  // Coalesced: a row of the box at a time, four bytes to a lane where rows start at multiples of four, else one
  // element.
  template <DataType kType, uint32_t kColumns>
  JAXBW_DEVICE void copy_rows(void* destination, StoreOrigin origin) const {
    constexpr uint32_t kSize = size_bytes(kType);
    const auto base = reinterpret_cast<uint64_t>(destination) +
                      (origin.batch * params_.batch_stride + origin.row * params_.row_stride + origin.column) * kSize;
    const uint32_t rows = origin.row < params_.m ? min(box_rows_, params_.m - origin.row) : 0;
    const uint32_t columns = origin.column < params_.n ? min(kColumns, params_.n - origin.column) : 0;
    const uint64_t pitch = params_.row_stride * kSize;
    if constexpr (kSize == 4) {
      copy_rows_by<uint32_t, kColumns * kSize>(base, pitch, rows, columns);
    } else if ((base | pitch) % 4 == 0 && columns % 2 == 0) {
      copy_rows_by<uint32_t, kColumns * kSize>(base, pitch, rows, columns / 2);
    } else {
      copy_rows_by<uint16_t, kColumns * kSize>(base, pitch, rows, columns);
    }
  }

  template <typename Unit, uint32_t kRowBytes>
  JAXBW_DEVICE void copy_rows_by(uint64_t base, uint64_t pitch, uint32_t rows, uint32_t units) const {
    constexpr uint32_t kUnits = kRowBytes / sizeof(Unit);
    for (uint32_t row = 0; row < rows; ++row) {
#pragma unroll
      for (uint32_t first = 0; first < kUnits; first += ptx::kWarpSize) {
        const uint32_t unit = first + ptx::lane_index_here();
        const uint32_t byte = unit * sizeof(Unit);
        if (unit < units) {
          const Unit value = ptx::load_shared<Unit>(buffer() + staged_offset<kRowBytes>(row, byte / 16) + byte % 16);
          *reinterpret_cast<Unit*>(base + row * pitch + byte) = value;
        }
      }
    }
  }

  const GemmParams& params_;
  uint32_t buffers_, buffer_bytes_, box_rows_;
  uint32_t slot_ = 0;
};

}  // namespace jaxbw
