// Rung 4: results leave by TMA. All else is as in rung 3 (swizzle.cu).
//
// A thread has a row of the accumulator. Storing it at once, as rung 3 does, each store of a warp touches 32 rows of D,
// 16 bytes of each. Here a warp puts 32 rows x 64 columns into a staging buffer in shared memory, swizzled so that 8
// rows use all banks, and TMA stores it in whole rows of 128 bytes, asynchronously. What lies outside of D it leaves
// out.
//
// There is one staging buffer for each warp, so a warp waits for its store before it goes on: the shipping kernel, with
// which the ladder goes on from here, has two, fills one while the other drains, and gives each job to a warp of its
// own.
#include "ptx/fragments.h"
#include "ptx/mbarrier.h"
#include "ptx/tcgen05.h"
#include "ptx/tma.h"

using namespace jaxbw;

constexpr uint32_t kRows = 128, kColumns = 256, kDepth = 64;  // of a stage: M, N, K
constexpr uint32_t kRowBytes = kDepth * 2;                    // 128: the span of the swizzle
constexpr uint32_t kABytes = kRows * kRowBytes, kBBytes = kColumns * kRowBytes;
constexpr uint32_t kStagingBytes = ptx::kWarpSize * kRowBytes;        // of a warp: its 32 rows, 64 columns
constexpr uint32_t kControl = kABytes + kBBytes + 4 * kStagingBytes;  // where barriers lie, behind the data
constexpr uint32_t kMmaK = 16;                                        // elements of K in one instruction

// Where an operand lies (PTX 9.7.16.4.1), in units of 16 bytes: its start, and from 8 rows to the next 8. (The distance
// along K has no meaning here: an instruction stays within a row.) Bit 46 is fixed; bits 61-63 are 2, the 128-byte
// swizzle.
JAXBW_DEVICE uint64_t descriptor(uint32_t address) {
  return uint64_t{address >> 4} | uint64_t{1} << 16 | uint64_t{8 * kRowBytes >> 4} << 32 | uint64_t{1} << 46 |
         uint64_t{2} << 61;
}

// What is multiplied (PTX 9.7.16.4.2): bfloat16 (1) for A and B, K-major both, float32 (1) for D; N / 8 and M / 16.
constexpr uint32_t kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | kColumns / 8 << 17 | kRows / 16 << 24;

// Two neighbours of a row, as they are stored.
JAXBW_DEVICE uint32_t pair(const float (&values)[64], uint32_t i) {
  return ptx::pack<DataType::kBF16>(values[i], values[i + 1]);
}

extern "C" __global__ void __launch_bounds__(128)
    tma_store(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
              const __grid_constant__ TensorMap d, uint32_t m, uint32_t n, uint32_t k) {
  extern __shared__ __align__(1024) uint8_t stage[];
  const uint32_t a_stage = ptx::shared_address(stage), b_stage = a_stage + kABytes;
  const uint32_t staging = b_stage + kBBytes + ptx::warp_index() * kStagingBytes;
  const uint32_t full = a_stage + kControl;  // a barrier, whose phases are stages: the bytes have come
  const uint32_t empty = full + 8;           // likewise: the MMAs have read the stage
  const uint32_t done = full + 16;           // the accumulator is complete
  const uint32_t tmem_slot = full + 24;
  const uint32_t warp = ptx::warp_index();
  const uint32_t first_row = blockIdx.y * kRows, first_column = blockIdx.x * kColumns;

  if (warp == 0 && ptx::elect_one()) {
    for (uint32_t barrier : {full, empty, done}) ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  if (warp == 1) {
    ptx::tmem_allocate<1, kColumns>(tmem_slot);
    ptx::tmem_relinquish_allocation<1>();
  }
  __syncthreads();
  const uint32_t tmem = ptx::load_shared(tmem_slot);

  if (warp == 0 && ptx::elect_one()) {
    for (uint32_t block = 0; block * kDepth < k; ++block) {
      ptx::mbarrier_arrive_expect_tx(full, kABytes + kBBytes);
      ptx::tma_load(a_stage, a, {block * kDepth, first_row, 0}, full);
      ptx::tma_load(b_stage, b, {block * kDepth, first_column, 0}, full);
      ptx::mbarrier_wait(full, block % 2);
      ptx::tcgen05_fence_after_sync();
      for (uint32_t step = 0; step < kDepth / kMmaK; ++step) {
        ptx::umma<1, ptx::UmmaKind::k16Bit>(tmem, descriptor(a_stage + step * kMmaK * 2),
                                            descriptor(b_stage + step * kMmaK * 2), kInstruction,
                                            block > 0 || step > 0);
      }
      ptx::umma_commit<1>(empty, 1);
      ptx::mbarrier_wait_relaxed(empty, block % 2);
    }
    ptx::umma_commit<1>(done, 1);
  }
  __syncwarp();
  ptx::mbarrier_wait(done, 0);
  ptx::tcgen05_fence_after_sync();

  // Warp w reaches lanes 32 w to 32 w + 31 of Tensor Memory; a thread has one row of D, 64 columns at a time.
  constexpr uint32_t kChunk = kRowBytes / 2;
  const uint32_t lane = ptx::lane_index(), row = first_row + warp * ptx::kWarpSize;
  for (uint32_t chunk = 0; chunk < kColumns; chunk += kChunk) {
    float values[kChunk];
    ptx::tmem_load(values, tmem + (warp * ptx::kWarpSize << 16) + chunk);
    ptx::tmem_wait_load(values);
    if (ptx::elect_one()) ptx::bulk_wait_group_read<0>();  // the store before has read the only buffer
    __syncwarp();
    for (uint32_t i = 0; i < kChunk; i += 8) {
      const uint32_t place = i / 8 ^ lane % 8;  // the 128-byte swizzle, as the tensor map of D says
      ptx::store_shared(staging + lane * kRowBytes + place * 16, pair(values, i), pair(values, i + 2),
                        pair(values, i + 4), pair(values, i + 6));
    }
    ptx::fence_proxy_async();  // TMA reads what ordinary stores have written
    __syncwarp();
    if (ptx::elect_one()) {
      const uint32_t column = first_column + chunk;
      if (row < m && column < n) ptx::tma_store(d, {column, row, 0}, staging);
      ptx::bulk_commit_group();
    }
  }
  if (ptx::elect_one()) ptx::bulk_wait_group_read<0>();  // shared memory outlives what reads it
  ptx::tcgen05_fence_before_sync();
  __syncthreads();
  ptx::tcgen05_fence_after_sync();
  if (warp == 1) ptx::tmem_free<1, kColumns>(tmem);
}
