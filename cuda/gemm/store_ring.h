// A warp's way from registers to global memory: it fills one of its staging buffers in shared memory while TMA stores
// drain the others.
#pragma once

#include "gemm/storage.h"
#include "ptx/tma.h"

namespace jaxbw {

// A staging buffer holds rows of kRowBytes, swizzled over kRowBytes (128 or 64), as the tensor map of D says: the
// 16-byte chunk `chunk` of row `row` lies here. Eight neighbouring rows then occupy different banks.
template <uint32_t kRowBytes>
constexpr uint32_t staged_offset(uint32_t row, uint32_t chunk) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  const uint32_t offset = row * kRowBytes + chunk * 16;
  return offset ^ ((offset >> 3) & (kRowBytes - 16));
}
static_assert(staged_offset<128>(9, 0) == 9 * 128 + 1 * 16 && staged_offset<64>(2, 1) == 128 + 0 * 16);

// A box of D that reaches past the matrix is clipped by the TMA unit; one that lies outside is not stored at all.
class StoreRing {
 public:
  // `buffers`: shared address of kStoreBuffers buffers of this warp, `buffer_bytes` each.
  JAXBW_DEVICE StoreRing(const GemmParams& params, uint32_t buffers, uint32_t buffer_bytes)
      : params_(params), buffers_(buffers), buffer_bytes_(buffer_bytes), leader_(ptx::lane_index() == 0) {}

  // A buffer that no TMA store reads any more.
  JAXBW_DEVICE uint32_t acquire() {
    if (leader_) ptx::bulk_wait_group_read<kStoreBuffers - 1>();
    __syncwarp();
    return buffers_ + slot_ * buffer_bytes_;
  }

  // Stores the buffer last acquired, which all lanes have written.
  JAXBW_DEVICE void store(ptx::BoxOrigin box) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (leader_) {
      if (box.x < params_.n && box.y < params_.m) ptx::tma_store(params_.d, box, buffers_ + slot_ * buffer_bytes_);
      ptx::bulk_commit_group();
    }
    slot_ = slot_ + 1 == kStoreBuffers ? 0 : slot_ + 1;
  }

  // Shared memory must outlive the stores that read it.
  JAXBW_DEVICE void drain() const {
    if (leader_) ptx::bulk_wait_group_read<0>();
  }

 private:
  const GemmParams& params_;
  uint32_t buffers_, buffer_bytes_;
  uint32_t slot_ = 0;
  bool leader_;
};

}  // namespace jaxbw
