// Rung 2: tensor cores. A CTA computes a tile of 128 x 256 elements of D[m, n] = A[m, k] B[n, k]^T, in bfloat16.
//
//   TMA           global memory -> shared memory, one stage: 64 elements of K of the tile's rows and columns
//   tcgen05.mma   shared memory -> Tensor Memory, where the accumulator lies: 128 lanes (rows) x 256 columns
//   the epilogue  Tensor Memory -> registers -> global memory
//
// One thread starts the loads, waits, starts the MMAs, waits: nothing overlaps yet. A tile is read once for 128 x 256
// elements, so for each multiply-add that is 85 times less than on CUDA cores.
//
// Operands lie in shared memory without a swizzle, in core matrices: 8 rows of 16 bytes, 128 bytes together. TMA writes
// a column of core matrices for each box of 16 bytes (8 elements of K) by all rows.
//
//               k 0..7         k 8..15              k 56..63
//   rows 0-7  [ 128 bytes ]  [ 128 bytes ]   ...  [ 128 bytes ]
//   rows 8-15 [ 128 bytes ]  [ 128 bytes ]   ...  [ 128 bytes ]
//     ...        box 0          box 1                box 7
//
// The eight rows that a box writes are 16 bytes each, which is few for a copy: rung 3 has 128.
#include "ptx/fragments.h"
#include "ptx/global.h"
#include "ptx/mbarrier.h"
#include "ptx/tcgen05.h"
#include "ptx/tma.h"

using namespace jaxbw;

constexpr uint32_t kRows = 128, kColumns = 256, kDepth = 64;   // of a stage: M, N, K
constexpr uint32_t kCoreRow = 16, kCoreMatrix = 8 * kCoreRow;  // bytes
constexpr uint32_t kBoxes = kDepth * 2 / kCoreRow;             // of an operand, each 8 elements of K
constexpr uint32_t kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2;
constexpr uint32_t kControl = kABytes + kBBytes;  // where barriers lie, behind the data
constexpr uint32_t kMmaK = 16;                    // elements of K in one instruction

// Where an operand of `rows` lies (PTX 9.7.16.4.1), in units of 16 bytes: its start; from one core matrix to the next
// along K; from 8 rows to the next 8. Bit 46 is fixed, and bits 61-63 are 0: no swizzle.
JAXBW_DEVICE uint64_t descriptor(uint32_t address, uint32_t rows) {
  return uint64_t{address >> 4} | uint64_t{rows * kCoreRow >> 4} << 16 | uint64_t{kCoreMatrix >> 4} << 32 |
         uint64_t{1} << 46;
}

// What is multiplied (PTX 9.7.16.4.2): bfloat16 (1) for A and B, K-major both, float32 (1) for D; N / 8 and M / 16.
constexpr uint32_t kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | kColumns / 8 << 17 | kRows / 16 << 24;

extern "C" __global__ void __launch_bounds__(128)
    tensor_cores(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, uint16_t* d, uint32_t m,
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
      for (uint32_t box = 0; box < kBoxes; ++box) {
        const uint32_t at = block * kDepth + box * kCoreRow / 2;
        ptx::tma_load(a_stage + box * kRows * kCoreRow, a, {at, first_row, 0}, full);
        ptx::tma_load(b_stage + box * kColumns * kCoreRow, b, {at, first_column, 0}, full);
      }
      ptx::mbarrier_wait(full, block % 2);
      ptx::tcgen05_fence_after_sync();
      for (uint32_t step = 0; step < kDepth / kMmaK; ++step) {  // two boxes each
        ptx::umma<1, ptx::UmmaKind::k16Bit>(tmem, descriptor(a_stage + step * 2 * kRows * kCoreRow, kRows),
                                            descriptor(b_stage + step * 2 * kColumns * kCoreRow, kColumns),
                                            kInstruction, block > 0 || step > 0);
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
