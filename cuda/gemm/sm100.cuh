// The GEMM kernel of the sm_100 family: persistent with cluster launch control, warp-specialised, tcgen05.mma from
// shared memory into Tensor Memory. kCtaGroup 1: a CTA computes 128 rows alone. kCtaGroup 2: a pair of CTAs computes
// 256 rows; each holds its 128 rows of A and of the accumulator, and half of the columns of B.
//
//   warp 0       load: global -> ring of shared-memory stages (TMA, multicast in the cluster); every CTA
//   warp 1       multiply: stages -> one of two TMEM accumulators (UMMA); the leader CTA of each group
//   warp 2       schedule: asks the hardware for the next work item (CLC); rank 0 of the cluster
//   warp 3       allocates and frees Tensor Memory
//   warps 4-7    epilogue: TMEM -> registers -> staging -> global (TMA store); every CTA
//
// Barriers (counts in cluster_protocol.h), where they live, and who arrives:
//
//   stage full             leader of the group       its load thread, and the bytes of the group's whole stage
//   stage empty            every CTA                 the commit of every group that receives what the CTA loads
//   accumulator full       every CTA                 the commit of its group
//   accumulator empty      leader of the group       the epilogue warps of the group
//   response full          every CTA                 the scheduler of rank 0, and the 16 bytes of the response
//   response empty         rank 0 of the cluster     every reader of the response in the cluster
//
// All tcgen05 instructions are ordered by those waits together with tcgen05_fence_after_sync, and by commits or
// tcgen05_fence_before_sync ahead of the arrivals (PTX 9.7.16.6.4).
#pragma once

#include "gemm/cluster_protocol.h"
#include "gemm/descriptors.h"
#include "gemm/epilogue.h"
#include "gemm/operand_loader.h"
#include "gemm/pipeline.h"
#include "gemm/storage.h"
#include "gemm/store_ring.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/clc.h"
#include "ptx/cluster.h"
#include "ptx/tcgen05.h"

namespace jaxbw::sm100 {

enum Warp : uint32_t { kLoadWarp = 0, kMultiplyWarp = 1, kScheduleWarp = 2, kTmemWarp = 3, kFirstEpilogueWarp = 4 };

constexpr uint32_t kCtaRows = 128;  // of A and of the accumulator: the lanes of Tensor Memory
constexpr uint32_t kAccumulators = 2;
constexpr uint32_t kAccumulatorColumns = ptx::kTmemColumns / kAccumulators;
constexpr uint32_t kResponses = 2;
constexpr uint32_t kEpilogueColumns = kSm100Epilogue.max_columns;
static_assert(kFirstEpilogueWarp % 4 == 0, "epilogue warp w reaches the TMEM lanes 32 (w % 4) ...");

struct Control {
  uint64_t stage_full[kMaxStages], stage_empty[kMaxStages];
  uint64_t accumulator_full[kAccumulators], accumulator_empty[kAccumulators];
  uint64_t response_full[kResponses], response_empty[kResponses];
  alignas(ptx::kClcResponseBytes) uint8_t response[kResponses][ptx::kClcResponseBytes];
  uint32_t tmem;
};
static_assert(sizeof(Control) <= kControlBytes);

// What every role knows.
struct Context {
  const GemmParams& params;
  ClusterShape cluster;
  uint32_t rank;
  StorageLayout layout;
  uint32_t shared;  // address of the dynamic shared memory

  JAXBW_DEVICE uint32_t a(uint32_t stage) const { return shared + stage * layout.stage_bytes(); }
  JAXBW_DEVICE uint32_t b(uint32_t stage) const { return a(stage) + layout.a_stage_bytes; }
  JAXBW_DEVICE uint32_t staging(uint32_t epilogue_warp) const {
    return shared + layout.store_offset(params.stages) + epilogue_warp * (layout.store_bytes / kSm100Epilogue.warps);
  }
  JAXBW_DEVICE uint32_t control(uint32_t member_offset) const {
    return shared + layout.control_offset(params.stages) + member_offset;
  }
  JAXBW_DEVICE RingBarriers stages() const {
    return {control(offsetof(Control, stage_full)), control(offsetof(Control, stage_empty))};
  }
  JAXBW_DEVICE RingBarriers accumulators() const {
    return {control(offsetof(Control, accumulator_full)), control(offsetof(Control, accumulator_empty))};
  }
  JAXBW_DEVICE RingBarriers responses() const {
    return {control(offsetof(Control, response_full)), control(offsetof(Control, response_empty))};
  }
  JAXBW_DEVICE uint32_t response(uint32_t slot) const {
    return control(offsetof(Control, response)) + slot * ptx::kClcResponseBytes;
  }

  JAXBW_DEVICE bool leads_group() const { return cluster.pair_leader(rank) == rank; }

  // First row and column of this CTA's rows of the MMA tile, and the batch index.
  JAXBW_DEVICE Tile origin(uint32_t item) const {
    const Tile tile = rasterise(item, params.cluster_tiles_m, params.cluster_tiles_n, params.swizzle);
    return {(tile.m * cluster.m + cluster.row(rank)) * kCtaRows,
            (tile.n * cluster.n + cluster.column(rank)) * params.block_n, tile.batch};
  }
};

// The work items of a cluster as one thread of one role reads them: first the one the cluster was launched for, then
// those that the scheduler has got.
class WorkItems {
 public:
  static constexpr uint32_t kNone = ptx::kClcRefused;

  JAXBW_DEVICE explicit WorkItems(const Context& context)
      : context_(context),
        rank0_response_empty_(ptx::map_to_rank(context.responses().first_empty, 0)),
        at_(RingPosition::consumer(kResponses)) {}

  JAXBW_DEVICE uint32_t first() const { return blockIdx.x / context_.cluster.size(); }

  JAXBW_DEVICE uint32_t next() {
    // The hardware signals a response at cluster scope (the example of PTX 9.7.13.17 waits likewise).
    ptx::mbarrier_wait_cluster(context_.responses().full(at_.slot()), at_.parity());
    const uint32_t first_cta = ptx::clc_read_response(context_.response(at_.slot()));
    ptx::clc_release_slot();
    ptx::mbarrier_arrive_cluster(rank0_response_empty_ + at_.slot() * RingBarriers::kBarrierBytes);
    at_.advance();
    return first_cta == ptx::kClcRefused ? kNone : first_cta / context_.cluster.size();
  }

 private:
  const Context& context_;
  uint32_t rank0_response_empty_;
  RingPosition at_;
};

// Schedule role: one warp of rank 0. Keeps asking, up to kResponses items ahead of the slowest reader, until the
// hardware has no cluster left to cancel.
JAXBW_DEVICE void schedule(const Context& context) {
  const RingBarriers responses = context.responses();
  const uint32_t lane = ptx::lane_index();
  RingPosition at = RingPosition::producer(kResponses);
  WorkItems items(context);
  for (uint32_t item = 0; item != WorkItems::kNone; at.advance()) {
    responses.wait_empty(at);
    if (lane < context.cluster.size()) {
      ptx::mbarrier_arrive_expect_tx_cluster(ptx::map_to_rank(responses.full(at.slot()), lane), ptx::kClcResponseBytes);
    }
    __syncwarp();
    if (lane == 0) {
      ptx::clc_acquire_slot();
      ptx::clc_try_cancel(context.response(at.slot()), responses.full(at.slot()));
      item = items.next();
    }
    item = __shfl_sync(ptx::kFullWarp, item, 0);
  }
}

// Load role: one thread of every CTA.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void load_tiles(const Context& context) {
  const GemmParams& params = context.params;
  const ClusterShape cluster = context.cluster;
  const uint32_t rank = context.rank;
  const uint32_t b_extent = params.block_n / kCtaGroup;
  const uint32_t b_offset = rank % kCtaGroup * b_extent;  // this CTA's columns of the pair's B tile
  const OperandLoader<kCtaGroup> a(params.a, params.a_major, kCtaRows, cluster.a_peers(), cluster.a_peer(rank),
                                   cluster.a_mask(rank));
  const OperandLoader<kCtaGroup> b(params.b, params.b_major, b_extent, cluster.b_peers(), cluster.b_peer(rank),
                                   cluster.b_mask(rank));
  const RingBarriers stages = context.stages();
  RingPosition at = RingPosition::producer(params.stages);
  WorkItems items(context);
  for (uint32_t item = items.first(); item != WorkItems::kNone; item = items.next()) {
    const Tile origin = context.origin(item);
    for (uint32_t k = 0; k < params.k; k += kBlockK, at.advance()) {
      const uint32_t full = stages.full(at.slot());
      stages.wait_empty(at);
      if (context.leads_group()) ptx::mbarrier_arrive_expect_tx(full, kCtaGroup * context.layout.stage_bytes());
      a.load(context.a(at.slot()), origin.m, k, origin.batch * params.a_batched, full);
      b.load(context.b(at.slot()), origin.n + b_offset, k, origin.batch * params.b_batched, full);
    }
  }
}

// Multiply role: one thread of the leader CTA of each group.
template <uint32_t kCtaGroup>
JAXBW_DEVICE void multiply_tiles(const Context& context, uint32_t tmem) {
  const GemmParams& params = context.params;
  const uint32_t instruction =
      umma_instruction(params.input, params.a_major, params.b_major, kCtaRows * kCtaGroup, params.block_n);
  const uint64_t a_step = descriptor_step(params.a_major);
  const uint64_t b_step = descriptor_step(params.b_major);
  const auto sources = static_cast<uint16_t>(context.cluster.source_mask(context.rank));
  const auto group = static_cast<uint16_t>(context.cluster.group_mask(context.rank));
  const RingBarriers stages = context.stages();
  const RingBarriers accumulators = context.accumulators();
  RingPosition stage = RingPosition::consumer(params.stages);
  RingPosition accumulator = RingPosition::producer(kAccumulators);
  WorkItems items(context);
  for (uint32_t item = items.first(); item != WorkItems::kNone; item = items.next(), accumulator.advance()) {
    accumulators.wait_empty(accumulator);
    const uint32_t d = tmem + accumulator.slot() * kAccumulatorColumns;
    for (uint32_t k = 0; k < params.k; k += kBlockK, stage.advance()) {
      stages.wait_full(stage);
      ptx::tcgen05_fence_after_sync();
      const uint64_t a = umma_descriptor(context.a(stage.slot()), params.a_major);
      const uint64_t b = umma_descriptor(context.b(stage.slot()), params.b_major);
#pragma unroll
      for (uint32_t step = 0; step < kBlockK / kMmaK; ++step) {
        ptx::umma<kCtaGroup>(d, a + step * a_step, b + step * b_step, instruction, k > 0 || step > 0);
      }
      ptx::umma_commit<kCtaGroup>(stages.empty(stage.slot()), sources);
    }
    ptx::umma_commit<kCtaGroup>(accumulators.full(accumulator.slot()), group);
  }
}

// Registers -> staging: one row of 32 columns for each lane.
template <DataType kOutput>
JAXBW_DEVICE void stage_row(const float (&values)[kEpilogueColumns], uint32_t buffer) {
  constexpr uint32_t kRowBytes = kSm100Epilogue.store_row_bytes(kOutput);
  constexpr uint32_t kChunkElements = 16 / size_bytes(kOutput);
#pragma unroll
  for (uint32_t chunk = 0; chunk < kRowBytes / 16; ++chunk) {
    const float* v = values + chunk * kChunkElements;
    const uint32_t address = buffer + staged_offset<kRowBytes>(ptx::lane_index(), chunk);
    if constexpr (kOutput == DataType::kF32) {
      ptx::store_shared(address, __float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                        __float_as_uint(v[3]));
    } else {
      ptx::store_shared(address, ptx::pack<kOutput>(v[0], v[1]), ptx::pack<kOutput>(v[2], v[3]),
                        ptx::pack<kOutput>(v[4], v[5]), ptx::pack<kOutput>(v[6], v[7]));
    }
  }
}

// Lane l loads the bias of column l; each lane needs that of all 32 columns.
JAXBW_DEVICE void add_bias(float (&values)[kEpilogueColumns], const GemmParams& params, uint32_t column) {
  float bias = 0.0f;
  with_type(params.epilogue.bias_type, [&]<DataType kBias>() {
    bias = load_bias<kBias>(params.epilogue.bias, column + ptx::lane_index(), params.n);
  });
#pragma unroll
  for (uint32_t i = 0; i < kEpilogueColumns; ++i) values[i] += __shfl_sync(ptx::kFullWarp, bias, i);
}

// Epilogue role: four warps of every CTA, 32 rows each.
JAXBW_DEVICE void store_tiles(const Context& context, uint32_t tmem, uint32_t warp) {
  const GemmParams& params = context.params;
  const uint32_t lane = ptx::lane_index();
  const uint32_t first_row = warp * kSm100Epilogue.rows_per_warp;
  const RingBarriers accumulators = context.accumulators();
  const uint32_t leader_empty = ptx::map_to_rank(accumulators.first_empty, context.cluster.pair_leader(context.rank));
  RingPosition accumulator = RingPosition::consumer(kAccumulators);
  StoreRing stores(params, context.staging(warp), kSm100Epilogue.rows_per_warp * kSwizzleSpan);
  WorkItems items(context);
  for (uint32_t item = items.first(); item != WorkItems::kNone; accumulator.advance()) {
    const Tile origin = context.origin(item);
    const uint32_t source = tmem + (first_row << 16) + accumulator.slot() * kAccumulatorColumns;
    accumulators.wait_full(accumulator);
    ptx::tcgen05_fence_after_sync();
    for (uint32_t column = 0; column < params.block_n; column += kEpilogueColumns) {
      uint32_t loaded[kEpilogueColumns];
      ptx::tmem_load_32_columns(loaded, source + column);
      ptx::tmem_wait_load(loaded);
      if (column + kEpilogueColumns == params.block_n) {  // the accumulator is free as soon as it is in registers
        ptx::tcgen05_fence_before_sync();
        __syncwarp();
        if (lane == 0) {
          ptx::mbarrier_arrive_cluster(leader_empty + accumulator.slot() * RingBarriers::kBarrierBytes);
        }
      }
      float values[kEpilogueColumns];
#pragma unroll
      for (uint32_t i = 0; i < kEpilogueColumns; ++i) values[i] = __uint_as_float(loaded[i]);
      if (params.epilogue.bias != nullptr) add_bias(values, params, origin.n + column);
      activate(values, params.epilogue.activation);

      const uint32_t buffer = stores.acquire();
      with_type(params.epilogue.output, [&]<DataType kOutput>() { stage_row<kOutput>(values, buffer); });
      stores.store({origin.n + column, origin.m + first_row, origin.batch});
    }
    if (lane == 0) item = items.next();
    item = __shfl_sync(ptx::kFullWarp, item, 0);
  }
  stores.drain();
}

template <uint32_t kCtaGroup>
JAXBW_DEVICE void init_barriers(const Context& context) {
  const ClusterShape cluster = context.cluster;
  context.stages().init(context.params.stages, kStageFullArrivals, stage_empty_arrivals(cluster, 1));
  context.accumulators().init(kAccumulators, kAccumulatorFullArrivals,
                              accumulator_empty_arrivals(cluster, kSm100Epilogue.warps));
  context.responses().init(kResponses, kClcFullArrivals, clc_empty_arrivals(cluster, kSm100Epilogue.warps));
  ptx::fence_mbarrier_init();
}

template <uint32_t kCtaGroup>
JAXBW_DEVICE void gemm(const GemmParams& params) {
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Context context{params,
                        {params.cluster_m, params.cluster_n, kCtaGroup},
                        ptx::cluster_rank(),
                        storage_layout(kCtaRows * kCtaGroup, params.block_n, kCtaGroup, kSm100Epilogue),
                        ptx::shared_address(shared_memory)};
  const uint32_t warp = ptx::warp_index();
  const uint32_t tmem_slot = context.control(offsetof(Control, tmem));

  if (warp == kLoadWarp && ptx::elect_one()) {
    ptx::prefetch_tensor_map(params.a);
    ptx::prefetch_tensor_map(params.b);
    ptx::prefetch_tensor_map(params.d);
    init_barriers<kCtaGroup>(context);
  }
  __syncwarp();
  ptx::cluster_sync();  // barriers are ready; and for the pair's allocation both CTAs must be running
  if (warp == kTmemWarp) {
    ptx::tmem_allocate<kCtaGroup, ptx::kTmemColumns>(tmem_slot);  // of both CTAs of a pair together
    ptx::tmem_relinquish_allocation<kCtaGroup>();
  }
  __syncthreads();
  const uint32_t tmem = ptx::load_shared(tmem_slot);

  if (warp == kLoadWarp) {
    if (ptx::elect_one()) load_tiles<kCtaGroup>(context);
  } else if (warp == kMultiplyWarp) {
    if (context.leads_group() && ptx::elect_one()) multiply_tiles<kCtaGroup>(context, tmem);
  } else if (warp == kScheduleWarp) {
    if (context.rank == 0) schedule(context);
  } else if (warp >= kFirstEpilogueWarp) {
    store_tiles(context, tmem, warp - kFirstEpilogueWarp);
  }
  __syncwarp();

  ptx::cluster_sync();  // no CTA leaves, and no TMEM is freed, while a peer may still need it
  ptx::tcgen05_fence_after_sync();
  if (warp == kTmemWarp) ptx::tmem_free<kCtaGroup, ptx::kTmemColumns>(tmem);
}

}  // namespace jaxbw::sm100
