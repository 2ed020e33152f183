// The GEMM kernel of Hopper: persistent, warp-specialised, wgmma on operands that TMA brings.
//
//   warpgroup 0       load: global -> ring of shared-memory stages (TMA, multicast in the cluster)
//   warpgroups 1, 2   multiply: stages -> register accumulators (wgmma), 64 rows of the tile each;
//                     then epilogue: registers -> staging -> global (stmatrix, TMA store)
//
// Barriers (one full and one empty for each stage, in every CTA):
//   full    1 arrival, by this CTA's load thread, and the bytes of a whole stage, from all CTAs that multicast to it
//   empty   one arrival of each multiplying warp of every CTA that receives what this CTA loads
//
// Work is dealt out statically: cluster c of C computes items c, c + C, c + 2C, ...
#pragma once

#include "gemm/cluster_protocol.h"
#include "gemm/descriptors.h"
#include "gemm/operand_loader.h"
#include "gemm/pipeline.h"
#include "gemm/sm90_epilogue.cuh"
#include "gemm/storage.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/cluster.h"
#include "ptx/programmatic_launch.h"
#include "ptx/wgmma.h"

namespace jaxbw::sm90 {

// What the instruction fixes at compile time; the rest is in GemmParams.
struct Config {
  DataType input;
  Major a_major, b_major;
  uint32_t block_n;
};

constexpr uint32_t kWarpgroup = 128;
constexpr uint32_t kConsumers = 2;
constexpr uint32_t kConsumerRows = 64;  // of one wgmma
constexpr uint32_t kBlockM = kConsumers * kConsumerRows;
constexpr uint32_t kConsumerWarps = kSm90Epilogue.warps;
constexpr uint32_t kBlockK = span_elements(DataType::kF16);  // a stage is one swizzle span deep

// A CTA is launched with the registers that ptxas gives all its threads alike: 168 at most, as 384 threads share 65536.
// What the load warps return of them, the multiplying ones may take; asking for more would wait for ever.
constexpr uint32_t kLaunchRegisters = 168;
constexpr uint32_t kLoadRegisters = 40;
constexpr uint32_t kConsumerRegisters = 232;
static_assert(kLoadRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * kLaunchRegisters);

struct Control {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
};
static_assert(sizeof(Control) <= kControlBytes);

// What every role knows.
template <Config kConfig>
struct Context {
  const GemmParams& params;
  ClusterShape cluster;
  uint32_t rank;
  uint32_t shared;  // address of the dynamic shared memory

  static constexpr StorageLayout layout() { return storage_layout(kBlockM, kConfig.block_n, 1, 1, kSm90Epilogue); }

  JAXBW_DEVICE uint32_t a(uint32_t stage) const { return shared + stage * layout().stage_bytes(); }
  JAXBW_DEVICE uint32_t b(uint32_t stage) const { return a(stage) + layout().a_stage_bytes; }
  JAXBW_DEVICE uint32_t staging(uint32_t warp) const {
    return shared + layout().store_offset(params.stages) + warp * (layout().store_bytes / kConsumerWarps);
  }
  JAXBW_DEVICE RingBarriers ring() const {
    const uint32_t control = shared + layout().control_offset(params.stages);
    return {control + uint32_t{offsetof(Control, full)}, control + uint32_t{offsetof(Control, empty)}};
  }
  JAXBW_DEVICE uint32_t k_blocks() const { return (params.k + kBlockK - 1) / kBlockK; }

  // First row and column of this CTA's tile of D, and the batch index.
  JAXBW_DEVICE Tile origin(const Tile& tile) const {
    return {(tile.m * cluster.m + cluster.row(rank)) * kBlockM,
            (tile.n * cluster.n + cluster.column(rank)) * params.tile_columns, tile.batch};
  }

  // The work items of this cluster: first, and how far apart they are.
  JAXBW_DEVICE uint32_t first_item() const { return blockIdx.x / cluster.size(); }
  JAXBW_DEVICE uint32_t item_step() const { return gridDim.x / cluster.size(); }
};

// How an operand's part of a stage lies in shared memory.
constexpr OperandTile stage_tile(Major major, uint32_t extent) {
  return operand_tile(major, DataType::kF16, extent, 1, true);
}

// Load role: one warp. A gated product's tile of B is half gate, half up, side by side.
template <Config kConfig>
JAXBW_DEVICE void load_tiles(const Context<kConfig>& context) {
  const GemmParams& p = context.params;
  const ClusterShape cluster = context.cluster;
  const uint32_t rank = context.rank;
  const bool gated = p.epilogue.gated != 0;
  const uint32_t b_extent = gated ? kConfig.block_n / 2 : kConfig.block_n;
  const OperandTile b_tile = stage_tile(kConfig.b_major, kConfig.block_n);
  const LoadShare b_share{cluster.b_peers(), cluster.b_peer(rank), cluster.b_mask(rank)};
  OperandLoader<1> a(p.a, stage_tile(kConfig.a_major, kBlockM), kConfig.input, 0, kBlockM,
                     {cluster.a_peers(), cluster.a_peer(rank), cluster.a_mask(rank)});
  OperandLoader<1> b(p.b, b_tile, kConfig.input, 0, b_extent, b_share);
  OperandLoader<1> b_up(p.b_up, b_tile, kConfig.input, b_extent, b_extent, b_share);
  const uint32_t k_blocks = context.k_blocks();
  const RingBarriers ring = context.ring();
  RingPosition at = RingPosition::producer(p.stages);
  bool first = true;
  for (uint32_t number = context.first_item(); number < p.work_items; number += context.item_step()) {
    const WorkItem item = work_item(p, number);
    const Tile origin = context.origin(item.tile);
    const uint32_t first_block = item.first_block(k_blocks);
    a.start_at(origin.m, first_block * kBlockK, origin.batch * p.a_batched);
    b.start_at(origin.n, first_block * kBlockK, origin.batch * p.b_batched);
    b_up.start_at(origin.n, first_block * kBlockK, origin.batch * p.b_batched);
    if (first) {
      if (p.b_is_ready && ptx::elect_one()) b.prefetch(min(p.stages, k_blocks));
      __syncwarp();
      ptx::wait_for_upstream();
      first = false;
    }
    for (uint32_t left = item.end_block(k_blocks) - first_block; left > 0; --left, at.advance()) {
      const uint32_t full = ring.full(at.slot());
      ring.wait_empty(at);
      if (ptx::elect_one()) {
        ptx::mbarrier_arrive_expect_tx(full, context.layout().stage_bytes());
        a.load(context.a(at.slot()), full);
        b.load(context.b(at.slot()), full);
        if (gated) b_up.load(context.b(at.slot()), full);
      }
      __syncwarp();
      a.advance();
      b.advance();
      b_up.advance();
    }
  }
}

// A multiplying warp's place in the ring, and how it lets go of a stage: it tells every CTA that loads for this one.
// Lane i tells CTA i; whether and where is found once, since this stands in the main loop.
class StageReader {
 public:
  JAXBW_DEVICE StageReader(RingBarriers ring, uint32_t stages, ClusterShape cluster, uint32_t rank)
      : ring_(ring), at_(RingPosition::consumer(stages)) {
    const uint32_t lane = ptx::lane_index();
    tells_ = cluster.source_mask(rank) >> lane & 1;
    if (tells_) peer_first_empty_ = ptx::map_to_rank(ring.first_empty, lane);
  }

  // The slot of the next stage, once it is full.
  JAXBW_DEVICE uint32_t acquire() {
    ring_.wait_full(at_);
    const uint32_t slot = at_.slot();
    at_.advance();
    return slot;
  }

  JAXBW_DEVICE void release(uint32_t slot) const {
    if (tells_) ptx::mbarrier_arrive_cluster(peer_first_empty_ + slot * RingBarriers::kBarrierBytes);
  }

 private:
  RingBarriers ring_;
  RingPosition at_;
  bool tells_;
  uint32_t peer_first_empty_ = 0;
};

// Multiply role's main loop: accumulators = A[64 rows] * B over `blocks` stages. One group of wgmmas stays in flight
// while the next stage is awaited, so the tensor core does not run dry.
template <Config kConfig>
JAXBW_DEVICE void multiply(float (&accumulators)[kConfig.block_n / 2], const Context<kConfig>& context, uint32_t blocks,
                           uint32_t consumer, StageReader& reader) {
  using Wgmma = ptx::Wgmma<kConfig.input, kConfig.block_n>;
  constexpr OperandTile kA = stage_tile(kConfig.a_major, kBlockM), kB = stage_tile(kConfig.b_major, kConfig.block_n);
  constexpr DescriptorSteps kASteps = descriptor_steps(kA), kBSteps = descriptor_steps(kB);
  const uint64_t consumer_step = consumer * descriptor_mma_tile_step(kA, kConsumerRows);
  uint32_t previous = 0;
  for (uint32_t block = 0; block < blocks; ++block) {
    const uint32_t slot = reader.acquire();
    const uint64_t a = wgmma_descriptor(context.a(slot), kA) + consumer_step;
    const uint64_t b = wgmma_descriptor(context.b(slot), kB);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t step = 0; step < kMmasPerSpan; ++step) {
      Wgmma::template issue<kConfig.a_major, kConfig.b_major>(accumulators, a + step * kASteps.mma,
                                                              b + step * kBSteps.mma, block > 0 || step > 0);
    }
    ptx::wgmma_commit_group();
    if (block > 0) {
      ptx::wgmma_wait_group<1>();
      reader.release(previous);
    }
    previous = slot;
  }
  ptx::wgmma_wait_group<0>();
  reader.release(previous);
}

// Multiply role: two warpgroups, `consumer` 0 and 1.
template <Config kConfig>
JAXBW_DEVICE void multiply_tiles(const Context<kConfig>& context, uint32_t warp) {
  const GemmParams& p = context.params;
  const uint32_t consumer = warp / (kConsumerWarps / kConsumers);
  StageReader reader(context.ring(), p.stages, context.cluster, context.rank);
  StoreRing stores(p, context.staging(warp), kSm90Epilogue.rows_per_warp * kSwizzleSpan, kSm90Epilogue.rows_per_warp);
  for (uint32_t number = context.first_item(); number < p.work_items; number += context.item_step()) {
    const WorkItem item = work_item(p, number);
    float accumulators[kConfig.block_n / 2];
    multiply(accumulators, context, item.end_block(context.k_blocks()) - item.first_block(context.k_blocks()), consumer,
             reader);

    const uint32_t cta = item.split_tile * context.cluster.size() + context.rank;
    const SplitSum split(p, item, cta * kConsumerWarps + warp, partial_floats(kConfig.block_n, kSm90Epilogue));
    const Tile origin = context.origin(item.tile);
    finish_tile(accumulators, p, split, {origin.m + warp * kSm90Epilogue.rows_per_warp, origin.n, origin.batch},
                stores);
  }
  stores.drain();
}

template <Config kConfig>
JAXBW_DEVICE void gemm(const GemmParams& params) {
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const Context<kConfig> context{
      params, {params.cluster_m, params.cluster_n, 1}, ptx::cluster_rank(), ptx::shared_address(shared_memory)};
  const uint32_t warp = ptx::warp_index();

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.a);
    ptx::prefetch_tensor_map(params.b);
    if (params.store_path == StorePath::kTma) ptx::prefetch_tensor_map(params.d);
    context.ring().init(params.stages, kStageFullArrivals, stage_empty_arrivals(context.cluster, kConsumerWarps));
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();

  constexpr uint32_t kWarpgroupWarps = kWarpgroup / ptx::kWarpSize;
  if (warp < kWarpgroupWarps) {
    ptx::decrease_registers<kLoadRegisters>();
    if (warp == 0) load_tiles(context);  // which waits for the kernel before this one when it must
  } else {
    ptx::increase_registers<kConsumerRegisters>();
    ptx::wait_for_upstream();
    multiply_tiles(context, warp - kWarpgroupWarps);
  }
  ptx::cluster_sync();  // no CTA leaves while a peer may still arrive on its barriers
}

}  // namespace jaxbw::sm90
