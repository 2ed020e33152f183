// Rung 3: operands lie in the 128-byte swizzle. All else is as in rung 2 (tensor_cores.cu).
//
// TMA writes whole rows of 128 bytes, 64 elements of K: one box for each operand of a stage, where there were eight.
// The tensor core reads 8 rows at a time; if they lay as they come, the first 16 bytes of each would be in the same
// four banks. So TMA puts the 16-byte chunk c of row r at place c xor (r mod 8):
//
//   row 0   0 1 2 3 4 5 6 7
//   row 1   1 0 3 2 5 4 7 6
//   row 2   2 3 0 1 6 7 4 5
//    ...
//
// An instruction takes 16 elements of K, 32 bytes of each row. The next one's descriptor starts 32 bytes further, as if
// nothing were swizzled: the hardware adds first and permutes the bits of the address afterwards. For that, a tile
// starts at a multiple of 1024 bytes, 8 rows.
#include "ptx/fragments.h"
#include "ptx/global.h"
#include "ptx/mbarrier.h"
#include "ptx/tcgen05.h"
#include "ptx/tma.h"

using namespace jaxbw;

constexpr uint32_t kRows = 128, kColumns = 256, kDepth = 64;  // of a stage: M, N, K
constexpr uint32_t kRowBytes = kDepth * 2;                    // 128: the span of the swizzle
constexpr uint32_t kABytes = kRows * kRowBytes, kBBytes = kColumns * kRowBytes;
constexpr uint32_t kControl = kABytes + kBBytes;  // where barriers lie, behind the data
constexpr uint32_t kMmaK = 16;                    // elements of K in one instruction

// Where an operand lies (PTX 9.7.16.4.1), in units of 16 bytes: its start, and from 8 rows to the next 8. (The distance
// along K has no meaning here: an instruction stays within a row.) Bit 46 is fixed; bits 61-63 are 2, the 128-byte
// swizzle.
JAXBW_DEVICE uint64_t descriptor(uint32_t address) {
  return uint64_t{address >> 4} | uint64_t{1} << 16 | uint64_t{8 * kRowBytes >> 4} << 32 | uint64_t{1} << 46 |
         uint64_t{2} << 61;
}

// What is multiplied (PTX 9.7.16.4.2): bfloat16 (1) for A and B, K-major both, float32 (1) for D; N / 8 and M / 16.
constexpr uint32_t kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | kColumns / 8 << 17 | kRows / 16 << 24;

extern "C" __global__ void __launch_bounds__(128)
    swizzle(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, uint16_t* d, uint32_t m,
            uint32_t n, uint32_t k) {
  extern __shared__ __align__(1024) uint8_t stage[];
  const uint32_t a_stage = ptx::shared_address(stage), b_stage = a_stage + kABytes;
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

  // Warp w reaches lanes 32 w to 32 w + 31 of Tensor Memory; a thread has one row of D. Its neighbours in the warp
  // store to other rows, so that each store of a warp touches 32 places: see rung 4.
  constexpr uint32_t kChunk = 32;
  const uint32_t row = first_row + threadIdx.x;
  for (uint32_t chunk = 0; chunk < kColumns; chunk += kChunk) {
    float values[kChunk];
    ptx::tmem_load(values, tmem + (warp * ptx::kWarpSize << 16) + chunk);
    ptx::tmem_wait_load(values);
    uint32_t words[kChunk / 2];
    for (uint32_t i = 0; i < kChunk / 2; ++i) {
      words[i] = ptx::pack<DataType::kBF16>(values[2 * i], values[2 * i + 1]);
    }
    for (uint32_t i = 0; i < kChunk / 2; i += 4) {
      const uint32_t column = first_column + chunk + 2 * i;  // n is a multiple of 8
      if (row >= m || column >= n) continue;
      ptx::store_global(d + uint64_t{row} * n + column, words[i], words[i + 1], words[i + 2], words[i + 3]);
    }
  }
  ptx::tcgen05_fence_before_sync();
  __syncthreads();
  ptx::tcgen05_fence_after_sync();
  if (warp == 1) ptx::tmem_free<1, kColumns>(tmem);
}
