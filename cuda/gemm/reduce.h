// How the kernel that adds up parts of K divides its work: shared by the kernel and the host, which chooses the grid.
#pragma once

#include <cstdint>

namespace jaxbw {

// Parts of a tile from which on the warps that are still there share its sums, where no launch behind adds them up
// (gemm/split_k.h).
constexpr uint32_t kMinSharedParts = 5;

// A warpgroup adds up a chunk of a tile (cluster_slices() counts them), eight columns to a warp. A block fills an
// SM with its registers: so the blocks that start early, where the matmul has left an SM free, do not take more than
// their share. Warpgroups of different blocks have neighbouring chunks.
constexpr uint32_t kReduceWarpgroupThreads = 128;
constexpr uint32_t kReduceWarpgroups = 4;
constexpr uint32_t kReduceThreads = kReduceWarpgroups * kReduceWarpgroupThreads;
constexpr uint32_t kReduceInFlight = 16;  // parts that a thread has under way: 16 bytes of each

}  // namespace jaxbw
