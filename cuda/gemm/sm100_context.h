// What every role of the sm_100 kernel knows: the barriers, the tile's parts, and the stream of work items.
#pragma once

#include "gemm/kernel_context.h"
#include "gemm/pipeline.h"
#include "gemm/storage.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/clc.h"
#include "ptx/cluster.h"
#include "ptx/tcgen05.h"

namespace jaxbw::sm100 {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * ptx::kWarpSize;

// Barriers of a CTA, and who meets there.
constexpr uint32_t kMeetBarrier = 1;                              // all threads, where a CTA has no peers
constexpr uint32_t kTmemBarrier = 2;                              // the warps that access or allocate Tensor Memory:
constexpr uint32_t kTmemThreads = kThreads - 2 * ptx::kWarpSize;  // all but the load and the schedule warp

static_assert(kTmemColumns == ptx::kTmemColumns);
constexpr uint32_t kResponses = 2;

struct Control {
  uint64_t stage_full[kMaxStages], stage_empty[kMaxStages];
  uint64_t accumulator_full[kMaxAccumulators], accumulator_empty[kMaxAccumulators];
  uint64_t response_full[kResponses], response_empty[kResponses];
  alignas(ptx::kClcResponseBytes) uint8_t response[kResponses][ptx::kClcResponseBytes];
  uint32_t tmem;
  uint64_t sums[kSm100Epilogue.warps];
};
static_assert(sizeof(Control) <= kControlBytes);

using Kind = ptx::UmmaKind;

// log2 of the bytes of an element.
constexpr uint32_t element_log2(Kind kind) { return kind == Kind::k16Bit ? 1 : kind == Kind::kTf32 ? 2 : 0; }

// Steps along K.
struct KBlocks {
  uint32_t first, count;
};

struct Context : KernelContext<kSm100Epilogue> {
  uint32_t element_log2;  // of its bytes: ptxas would not make a shift of a division by a number that only it knows

  JAXBW_DEVICE RingBarriers stages() const {
    return {control(offsetof(Control, stage_full)), control(offsetof(Control, stage_empty))};
  }
  JAXBW_DEVICE RingBarriers accumulators() const {
    return {control(offsetof(Control, accumulator_full)), control(offsetof(Control, accumulator_empty))};
  }
  JAXBW_DEVICE RingBarriers responses() const {
    return {control(offsetof(Control, response_full)), control(offsetof(Control, response_empty))};
  }
  // The barrier of an epilogue warp's sums.
  JAXBW_DEVICE uint32_t sums(uint32_t warp) const {
    return control(offsetof(Control, sums)) + warp * RingBarriers::kBarrierBytes;
  }
  JAXBW_DEVICE uint32_t response(uint32_t slot) const {
    return control(offsetof(Control, response)) + slot * ptx::kClcResponseBytes;
  }

  JAXBW_DEVICE bool leads_group() const { return cluster.pair_leader(rank) == rank; }

  // Rows of a CTA's tile, and of one of its MMAs: a tile is one or two of them.
  JAXBW_DEVICE uint32_t cta_rows() const { return params.block_m / cluster.cta_group; }
  JAXBW_DEVICE uint32_t mma_rows() const { return sm100_mma_rows(cta_rows()); }
  JAXBW_DEVICE uint32_t mma_tiles() const { return sm100_mma_tiles(cta_rows()); }

  // This CTA's parts of a stage, where MN-major operands are whole spans wide. kKMajorOnly: there are none.
  template <bool kKMajorOnly = false>
  JAXBW_DEVICE OperandTile a_tile() const {
    return tile(kKMajorOnly ? Major::kK : params.a_major, cta_rows());
  }
  template <bool kKMajorOnly = false>
  JAXBW_DEVICE OperandTile b_tile() const {
    return tile(kKMajorOnly ? Major::kK : params.b_major, params.b_columns);
  }
  JAXBW_DEVICE OperandTile tile(Major major, uint32_t extent) const {
    if (major == Major::kK) return {major, element_log2, kSwizzleSpan, extent, params.k_spans};
    return {major, element_log2, kSwizzleSpan, block_k(), spans(extent)};
  }

  JAXBW_DEVICE uint32_t element_bytes() const { return 1 << element_log2; }
  // Elements of a swizzle span, and whole spans of so many elements.
  JAXBW_DEVICE uint32_t span() const { return kSwizzleSpan >> element_log2; }
  JAXBW_DEVICE uint32_t spans(uint32_t elements) const { return elements >> (kSwizzleSpanLog2 - element_log2); }

  // Steps of the main loop over all of K; each fills one stage, and is this many elements deep.
  JAXBW_DEVICE uint32_t block_k() const { return params.k_spans * span(); }
  JAXBW_DEVICE uint32_t k_blocks() const {
    const uint32_t of_k = spans(params.k + span() - 1);
    return params.k_spans == 1 ? of_k : (of_k + params.k_spans - 1) / params.k_spans;  // a division is slow
  }

  // Of these, a work item's, or where CTAs of the cluster divide it, this CTA's.
  JAXBW_DEVICE KBlocks k_blocks_of(uint32_t item, uint32_t k_blocks) const {
    const bool divided = cluster.cta_group == 1 && cluster.k.value > 1;
    if (item < params.whole_tiles && !divided) return {0, k_blocks};
    const KPart part = divided ? KPart{cluster.part(rank), cluster.k} : k_part(params, item, divisor(1), 0);
    return {part.first_block(k_blocks), part.block_count(k_blocks)};
  }

  // Number of this CTA's cluster in the grid, and how many there are.
  JAXBW_DEVICE uint32_t cluster_index() const { return blockIdx.x / cluster.ctas; }
  JAXBW_DEVICE uint32_t cluster_count() const { return gridDim.x / cluster.ctas; }

  // The same context of operands of one kind, which the compiler then knows.
  JAXBW_DEVICE Context of_kind(Kind kind) const {
    Context context = *this;
    context.element_log2 = jaxbw::sm100::element_log2(kind);
    return context;
  }

  // The same context where a cluster is one group, which the compiler then knows.
  template <uint32_t kCtaGroup>
  JAXBW_DEVICE Context alone() const {
    Context context = *this;
    context.cluster = cluster_shape(kCtaGroup, 1, kCtaGroup);
    context.rank = kCtaGroup == 1 ? 0 : rank;
    return context;
  }

  // All threads of the cluster.
  JAXBW_DEVICE void meet() const {
    if (cluster.cta_group != 1 || cluster.size() != 1) {
      ptx::cluster_sync();
    } else {
      ptx::named_barrier_sync(kMeetBarrier, kThreads);
    }
  }

  // Until all barriers are initialised. (Warps come here from different places.)
  JAXBW_DEVICE void await_barriers() const {
    profile.enter(Activity::kAwaitBarriers);
    meet();
  }

  // First row and column of this CTA's part of a tile of D, and the batch index.
  JAXBW_DEVICE Tile origin(const Tile& tile) const {
    return {(tile.m * cluster.m.value + cluster.row(rank)) * cta_rows(),
            (tile.n * cluster.n.value + cluster.column(rank)) * params.tile_columns, tile.batch};
  }
};

// The work items of a cluster as one warp of one role reads them: first the one the cluster was launched for, then
// those that the scheduler has got from the hardware, or that stand at a fixed distance.
class WorkItems {
 public:
  static constexpr uint32_t kNone = ptx::kClcRefused;

  JAXBW_DEVICE explicit WorkItems(const Context& context)
      : context_(context),
        item_(context.cluster_index()),
        rank0_response_empty_(ptx::map_to_rank(context.responses().first_empty, 0)),
        at_(RingPosition::consumer(kResponses)) {}

  JAXBW_DEVICE uint32_t first() const { return item_; }

  // By the whole warp.
  JAXBW_DEVICE uint32_t next() {
    if (context_.params.scheduler == Scheduler::kStatic) {
      item_ += context_.cluster_count();
      return item_ < context_.params.work_items ? item_ : kNone;
    }
    context_.profile.enter(Activity::kAwaitResponse);
    // The hardware signals a response at cluster scope (the example of PTX 9.7.13.17 waits likewise).
    ptx::mbarrier_wait_cluster(context_.responses().full(at_.slot()), at_.parity());
    const uint32_t first_cta = ptx::clc_read_response(context_.response(at_.slot()));
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::release_slot();  // of all lanes' reads: behind the barrier, since the arrival is relaxed
      ptx::mbarrier_arrive_cluster(rank0_response_empty_ + at_.slot() * RingBarriers::kBarrierBytes);
    }
    at_.advance();
    return ptx::uniform(first_cta == ptx::kClcRefused ? kNone : first_cta / context_.cluster.tiles);
  }

 private:
  const Context& context_;
  uint32_t item_;
  uint32_t rank0_response_empty_;
  RingPosition at_;
};

}  // namespace jaxbw::sm100
