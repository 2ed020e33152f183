// What every role of the Hopper kernel knows: the instance, its threads and their registers, the barriers, and its
// place in the grid.
#pragma once

#include <type_traits>

#include "gemm/cluster_sum.h"
#include "gemm/kernel_context.h"
#include "gemm/pipeline.h"
#include "gemm/storage.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/cluster.h"

namespace jaxbw::sm90 {

// What a launch may ask of an instance. A kernel that can do less has less to decide and a tenth of the code, much of
// which is jumped to before it is cached: measured on an H200, 0.2 to 0.5 us of a launch.
enum class Scope : uint32_t {
  kAny,
  kCast,         // a cast of the sums; tiles may be in parts of K, and stored any way
  kFused,        // EpiloguePath::kElementwise of whole tiles that TMA stores
  kElementwise,  // the same without a residual, and nothing saved
  kPlain         // a cast of whole tiles that TMA stores
};

// What is fixed where CUDA C++ is compiled to PTX. The rest is in GemmParams, but for OperandsOfKernel.
struct Config {
  bool of_16bit, of_8bit, of_tf32;   // operands of instances: a number says which this one has (OperandsOfKernel)
  uint32_t warpgroup_rows, block_n;  // what a warpgroup has of a tile
  bool promoted;          // of 8 bits: a block of K is summed by itself, and added to the accumulators in float32
  bool gathered = false;  // a grouped matmul's: indices choose the rows of A (sm90_gathered.cuh)
  Scope scope = Scope::kAny;

  // Whether tiles are known to be whole, and stored by TMA; and the epilogue to be a cast, or elementwise.
  constexpr bool whole() const { return scope != Scope::kAny && scope != Scope::kCast; }
  constexpr bool casts() const { return scope == Scope::kCast || scope == Scope::kPlain; }
  constexpr bool elementwise() const { return whole() && !casts(); }
  // Whether there may be a residual that comes by TMA, or results to save.
  constexpr bool fuses_all() const { return scope == Scope::kAny || scope == Scope::kFused; }

  constexpr uint32_t wgmmas() const { return warpgroup_rows / kWgmmaRows; }  // of a warpgroup, one below the other
  constexpr uint32_t accumulators() const { return wgmmas() * block_n / 2; }
  // Of the warpgroups, where they share a tile.
  constexpr bool side_by_side() const { return sm90_side_by_side(kSm90ConsumerWarpgroups * warpgroup_rows * block_n); }
  // Of a CTA's tile.
  constexpr uint32_t tile_columns(const GemmParams& p) const { return side_by_side() ? p.block_n : block_n; }

  // Sets of accumulators that the steps of K take in turn: a narrow wgmma ends sooner than one behind it on the same
  // accumulators may begin. Measured on an H200: 4 % of the time of 64 x 64 tiles, nothing from 96 columns on.
  constexpr uint32_t accumulator_sets() const { return wgmmas() == 1 && block_n <= 64 ? 2 : 1; }
};

// What a kernel is launched with.
template <Config kConfig>
using LaunchParams = std::conditional_t<kConfig.promoted, PromotedParams, GemmParams>;

constexpr uint32_t kConsumerWarpgroups = kSm90ConsumerWarpgroups;
constexpr uint32_t kWarpgroupWarps = kSm90WarpgroupWarps;
constexpr uint32_t kLoadWarp = 0, kInitWarp = 1, kRequestWarp = 2, kPrefetchWarp = 3;
constexpr uint32_t kThreads = (1 + kConsumerWarpgroups) * kWarpgroupWarps * ptx::kWarpSize;
// Named barriers; 0 is __syncthreads'. Of those of turns and of warpgroups there is one for each warpgroup. Another one
// is kSumBarrier (cluster_sum.h).
constexpr uint32_t kStartBarrier = 1, kFirstTurnBarrier = 2,
                   kFirstWarpgroupBarrier = kFirstTurnBarrier + kConsumerWarpgroups;
static_assert(kFirstWarpgroupBarrier + kConsumerWarpgroups == kSumBarrier);

// A CTA is launched with the registers that ptxas gives all its threads alike: 168 at most, as 384 threads share 65536.
// What the load warps return of them, the multiplying ones may take; asking for more would wait for ever.
constexpr uint32_t kLaunchRegisters = 168;
constexpr uint32_t kLoadRegisters = 40;
constexpr uint32_t kConsumerRegisters = 232;
static_assert(kLoadRegisters + kConsumerWarpgroups * kConsumerRegisters <=
              (1 + kConsumerWarpgroups) * kLaunchRegisters);

struct Control {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
  uint64_t sums[kSm90Epilogue.warps];
};
static_assert(sizeof(Control) <= kControlBytes);

// What every role knows.
struct Context : KernelContext<kSm90Epilogue> {
  uint32_t element_log2;  // of its bytes, as in sm100_context.h
  bool whole;             // Config::whole(), a constant

  JAXBW_DEVICE RingBarriers ring() const {
    return {control(offsetof(Control, full)), control(offsetof(Control, empty))};
  }
  JAXBW_DEVICE uint32_t sum_barriers() const { return control(offsetof(Control, sums)); }

  // The number of this cluster in the grid, and how many there are. (The special registers that say so are read from
  // lines of the constant cache that nobody else needs.)
  JAXBW_DEVICE uint32_t cluster_index() const { return blockIdx.x / cluster.ctas; }
  JAXBW_DEVICE uint32_t cluster_count() const { return gridDim.x / cluster.ctas; }

  // log2 of the elements of a block of K, which is one swizzle span deep.
  JAXBW_DEVICE uint32_t block_k_log2() const { return kSwizzleSpanLog2 - element_log2; }
  JAXBW_DEVICE uint32_t k_blocks() const { return (params.k + (1 << block_k_log2()) - 1) >> block_k_log2(); }
  JAXBW_DEVICE WorkItem work_item(uint32_t item) const {
    return whole ? WorkItem{rasterise(item, params.order), 0, 1, 0} : jaxbw::work_item(params, item);
  }
  JAXBW_DEVICE KPart k_part(uint32_t item) const {
    return whole ? KPart{0, divisor(1)} : jaxbw::k_part(params, item, cluster.k, cluster.part(rank));
  }

  // Stages that a work item takes: its blocks of K and behind them what is loaded of the residual.
  JAXBW_DEVICE uint32_t stages_of(uint32_t item) const {
    return k_part(item).block_count(k_blocks()) + params.residual_stages;
  }

  // Whether peers arrive on this CTA's barriers of the ring. (Sums are sent behind a cluster barrier, and waited for.)
  JAXBW_DEVICE bool has_peers() const { return cluster.tiles.value > 1; }

  // The same for a CTA without others in its cluster, of which the compiler then knows that.
  JAXBW_DEVICE Context alone() const {
    Context context = *this;
    context.cluster = cluster_shape(1, 1, 1);
    context.rank = 0;
    return context;
  }

  // Until all barriers are initialised. Every role has done by then what it could without them: from here to the first
  // load nobody multiplies. (Warps come here from different places, so the barrier has a number and a count.)
  JAXBW_DEVICE void await_barriers() const {
    profile.enter(Activity::kAwaitBarriers);
    if (has_peers()) {
      ptx::cluster_sync();
    } else {
      ptx::named_barrier_sync(kStartBarrier, kThreads);
    }
  }
};

}  // namespace jaxbw::sm90
