// Micro-benchmarks of what the model's machine tables hold: one small kernel for each. run.py launches them, and says
// what is computed from what they write.
//
// Times of one SM are cycles (clock64), those that compare SMs are nanoseconds (globaltimer). Every kernel has the same
// arguments: `loops` repetitions are timed, after one that is not. A box is 64 elements of 16 bits by `rows`.
#include "gemm/descriptors.h"
#include "gemm/storage.h"
#include "ptx/cluster.h"
#include "ptx/mbarrier.h"
#include "ptx/tma.h"
#include "ptx/wgmma.h"

using namespace jaxbw;

namespace {

constexpr uint32_t kMaxDepth = 16;
constexpr uint32_t kParameterLines = 8, kLineWords = 16;  // of the constant cache: 64 bytes each
constexpr uint32_t kBarrierSpace = 1024;  // ahead of the boxes, which start at multiples of the swizzle's atom

struct Arguments {
  TensorMap map;
  uint64_t* out;
  uint32_t loops;
  uint32_t rows;       // of a box
  uint32_t depth;      // boxes, or groups, in flight
  uint32_t positions;  // boxes of the array that are read: few stay in L2, many do not
  alignas(64) uint32_t lines[kParameterLines * kLineWords];  // zeros, for launch_parameters alone
};

JAXBW_DEVICE uint64_t cycles() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}

JAXBW_DEVICE uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

JAXBW_DEVICE uint32_t sm_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
  return index;
}

extern __shared__ __align__(1024) uint8_t shared_memory[];

JAXBW_DEVICE uint32_t barrier_at(uint32_t index) { return ptx::shared_address(shared_memory) + 8 * index; }
JAXBW_DEVICE uint32_t box_at(uint32_t index, uint32_t bytes) {
  return ptx::shared_address(shared_memory) + kBarrierSpace + index * bytes;
}

JAXBW_DEVICE void init_barriers(uint32_t arrivals) {
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kMaxDepth; ++i) ptx::mbarrier_init(barrier_at(i), arrivals);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();
}

constexpr uint32_t box_bytes(uint32_t rows) { return rows * kSwizzleSpan; }

JAXBW_DEVICE ptx::BoxOrigin position(const Arguments& a, uint32_t number) {
  return {0, number % a.positions * a.rows, 0};
}

// Accumulators that the compiler must not forget.
template <uint32_t kCount>
JAXBW_DEVICE void keep(const float (&d)[kCount], uint64_t* out) {
  float sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) sum += d[i];
  if (sum == 1.25f) out[0] = 0;
}

// Cycles of `depth` groups of wgmmas of N columns, as many as a stage of the kernels has, from the first issue until
// all are complete; out[0]: the least of the loops. One group is in flight while the next is issued.
template <uint32_t kN>
JAXBW_DEVICE void wgmma_groups(const Arguments& a) {
  using Instruction = ptx::Wgmma<DataType::kBF16, DataType::kBF16, kN>;
  const OperandTile a_tile = operand_tile(Major::kK, DataType::kBF16, 64, 1);
  const OperandTile b_tile = operand_tile(Major::kK, DataType::kBF16, kN, 1);
  for (uint32_t i = threadIdx.x; i < (64 + kN) * kSwizzleSpan / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(shared_memory + kBarrierSpace)[i] = 0;
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t first = wgmma_descriptor(box_at(0, 0), a_tile);
  const uint64_t second = wgmma_descriptor(box_at(0, 0) + a_tile.bytes(), b_tile);
  float d[Instruction::kRegisters] = {};
  uint64_t least = ~uint64_t{0};
  for (uint32_t loop = 0; loop <= a.loops; ++loop) {
    __syncthreads();
    const uint64_t begin = cycles();
#pragma unroll 1
    for (uint32_t i = 0; i < a.depth; ++i) {
      ptx::wgmma_fence();
#pragma unroll
      for (uint32_t step = 0; step < kMmasPerSpan; ++step) {
        Instruction::template issue<Major::kK, Major::kK>(d, first, second, 1);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>();
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_registers(d);
    const uint64_t took = cycles() - begin;
    if (loop > 0 && took < least) least = took;
  }
  keep(d, a.out);
  if (threadIdx.x == 0) a.out[blockIdx.x] = least;
}

}  // namespace

// out[i]: cycles from the issue of box i's load until its bytes are visible.
extern "C" __global__ void tma_latency(const __grid_constant__ Arguments a) {
  init_barriers(1);
  if (threadIdx.x != 0) return;
  for (uint32_t i = 0; i <= a.loops; ++i) {
    const uint64_t begin = cycles();
    ptx::mbarrier_arrive_expect_tx(barrier_at(0), box_bytes(a.rows));
    ptx::tma_load(box_at(0, 0), a.map, position(a, i), barrier_at(0));
    ptx::mbarrier_wait(barrier_at(0), i & 1);
    if (i > 0) a.out[i - 1] = cycles() - begin;
  }
}

// Every CTA keeps `depth` boxes in flight; the host times the launch. out[cta]: the CTA's nanoseconds.
extern "C" __global__ void tma_rate(const __grid_constant__ Arguments a) {
  init_barriers(1);
  if (threadIdx.x != 0) return;
  const uint32_t bytes = box_bytes(a.rows);
  const uint64_t begin = nanoseconds();
  for (uint32_t i = 0; i < a.loops + a.depth; ++i) {
    const uint32_t slot = i % a.depth;
    if (i >= a.depth) ptx::mbarrier_wait(barrier_at(slot), (i / a.depth - 1) & 1);
    if (i < a.loops) {
      ptx::mbarrier_arrive_expect_tx(barrier_at(slot), bytes);
      ptx::tma_load(box_at(slot, bytes), a.map, position(a, i * gridDim.x + blockIdx.x), barrier_at(slot));
    }
  }
  a.out[blockIdx.x] = nanoseconds() - begin;
}

// As tma_rate, in clusters: each CTA loads its part of every box, and multicasts it to all of them. A barrier of each
// CTA's slot says when all of the cluster have read it. `rows`: of a part.
extern "C" __global__ void tma_multicast(const __grid_constant__ Arguments a) {
  constexpr uint32_t kFirstEmpty = kMaxDepth;
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kMaxDepth; ++i) ptx::mbarrier_init(barrier_at(kFirstEmpty + i), size);
  }
  init_barriers(1);
  const uint32_t rank = ptx::cluster_rank(), part = box_bytes(a.rows), bytes = part * size;
  const auto everyone = static_cast<uint16_t>((1u << size) - 1);
  const uint64_t begin = nanoseconds();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < a.loops + a.depth; ++i) {
      const uint32_t slot = i % a.depth, empty = barrier_at(kFirstEmpty + slot);
      if (i >= a.depth) {
        ptx::mbarrier_wait(barrier_at(slot), (i / a.depth - 1) & 1);
        for (uint32_t to = 0; to < size; ++to) ptx::mbarrier_arrive_cluster(ptx::map_to_rank(empty, to));
      }
      if (i < a.loops) {
        if (i >= a.depth) ptx::mbarrier_wait_relaxed(empty, (i / a.depth - 1) & 1);
        ptx::mbarrier_arrive_expect_tx(barrier_at(slot), bytes);
        const uint32_t number = (i * ptx::cluster_count() + ptx::cluster_index()) * size + rank;
        ptx::tma_load_multicast(box_at(slot, bytes) + rank * part, a.map, position(a, number), barrier_at(slot),
                                everyone);
      }
    }
    a.out[blockIdx.x] = nanoseconds() - begin;
  }
  __syncwarp();
  ptx::cluster_sync();  // nobody leaves while a peer still arrives here
}

// out[0]: cycles of `loops` round trips between two warps of a CTA, an mbarrier each way; out[1] likewise between the
// first warps of two CTAs of a cluster, by remote arrivals. Clusters of two.
extern "C" __global__ void mbarrier_latency(const __grid_constant__ Arguments a) {
  init_barriers(1);
  const uint32_t warp = ptx::warp_index(), rank = ptx::cluster_rank();
  if (rank == 0 && threadIdx.x % 32 == 0 && warp < 2) {
    const uint32_t mine = barrier_at(warp), other = barrier_at(1 - warp);
    const uint64_t begin = cycles();
    for (uint32_t i = 0; i < a.loops; ++i) {
      if (warp == 1) ptx::mbarrier_wait(mine, i & 1);
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(other) : "memory");
      if (warp == 0) ptx::mbarrier_wait(mine, i & 1);
    }
    if (warp == 0) a.out[0] = cycles() - begin;
  }
  __syncwarp();
  ptx::cluster_sync();
  if (threadIdx.x == 0) {
    const uint32_t mine = barrier_at(2), other = ptx::map_to_rank(mine, 1 - rank);
    const uint64_t begin = cycles();
    for (uint32_t i = 0; i < a.loops; ++i) {
      if (rank == 1) ptx::mbarrier_wait_relaxed(mine, i & 1);
      ptx::mbarrier_arrive_cluster(other);
      if (rank == 0) ptx::mbarrier_wait_relaxed(mine, i & 1);
    }
    if (rank == 0) a.out[1] = cycles() - begin;
  }
  __syncwarp();
  ptx::cluster_sync();
}

// out[cluster]: cycles of `loops` cluster barriers.
extern "C" __global__ void cluster_barrier(const __grid_constant__ Arguments a) {
  ptx::cluster_sync();
  const uint64_t begin = cycles();
  for (uint32_t i = 0; i < a.loops; ++i) ptx::cluster_sync();
  const uint64_t took = cycles() - begin;
  if (threadIdx.x == 0 && ptx::cluster_rank() == 0) a.out[ptx::cluster_index()] = took;
}

// out[2 i], out[2 i + 1]: cycles from the issue of a box's store until shared memory is read, and until it is complete.
extern "C" __global__ void tma_store_latency(const __grid_constant__ Arguments a) {
  for (uint32_t i = threadIdx.x; i < box_bytes(a.rows) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(shared_memory + kBarrierSpace)[i] = i;
  }
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t i = 0; i <= a.loops; ++i) {
    const uint64_t begin = cycles();
    ptx::tma_store(a.map, position(a, i), box_at(0, 0));
    ptx::bulk_commit_group();
    ptx::bulk_wait_group_read<0>();
    const uint64_t read = cycles() - begin;
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    if (i > 0) {
      a.out[2 * i - 2] = read;
      a.out[2 * i - 1] = cycles() - begin;
    }
  }
}

extern "C" __global__ void wgmma_32(const __grid_constant__ Arguments a) { wgmma_groups<32>(a); }
extern "C" __global__ void wgmma_64(const __grid_constant__ Arguments a) { wgmma_groups<64>(a); }
extern "C" __global__ void wgmma_128(const __grid_constant__ Arguments a) { wgmma_groups<128>(a); }
extern "C" __global__ void wgmma_256(const __grid_constant__ Arguments a) { wgmma_groups<256>(a); }

// out[3 cta ...]: SM, and nanoseconds of begin and end, of a CTA that has an SM for itself (by its shared memory) for
// some microseconds: the host computes what lies between two on one SM.
extern "C" __global__ void relaunch(const __grid_constant__ Arguments a) {
  const uint64_t begin = nanoseconds();
  ptx::cluster_sync();
  if (threadIdx.x != 0) return;
  for (uint32_t i = 0; i < a.loops; ++i) __nanosleep(1000);
  a.out[3 * blockIdx.x] = sm_index();
  a.out[3 * blockIdx.x + 1] = begin;
  a.out[3 * blockIdx.x + 2] = nanoseconds();
}

// out[0]: cycles until a word of each line of the launch parameters is there, which nobody of this launch has read yet.
// kTogether: by loads that are under way together, which takes an index that the compiler does not know (threadIdx.z is
// zero); else one after the other, each waited for.
template <bool kTogether>
JAXBW_DEVICE void launch_parameters(const Arguments& a) {
  const uint32_t* const words = kTogether ? a.lines + threadIdx.z : a.lines;
  const uint64_t begin = cycles();
  uint32_t bits = 0;
#pragma unroll
  for (uint32_t line = 0; line < kParameterLines; ++line) {
    bits |= words[line * kLineWords];
    if (!kTogether && bits != 0) __trap();
  }
  if (bits != 0) __trap();
  const uint64_t end = cycles();
  if (threadIdx.x == 0) a.out[0] = end - begin;
}
extern "C" __global__ void parameters_in_turn(const __grid_constant__ Arguments a) { launch_parameters<false>(a); }
extern "C" __global__ void parameters_together(const __grid_constant__ Arguments a) { launch_parameters<true>(a); }

// The host times rows of launches.
extern "C" __global__ void nothing(const __grid_constant__ Arguments a) {
  if (a.loops == ~0u) a.out[0] = 0;
}
