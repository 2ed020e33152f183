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
#include "gemm/epilogue.h"
#include "gemm/operand_loader.h"
#include "gemm/pipeline.h"
#include "gemm/storage.h"
#include "gemm/store_ring.h"
#include "gemm/tile_scheduler.h"
#include "params.h"
#include "ptx/cluster.h"
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

// The register file holds 65536 registers: 512 for one thread of each warpgroup together. Multiplying needs the most.
constexpr uint32_t kLoadRegisters = 40;
constexpr uint32_t kConsumerRegisters = 232;
static_assert(kLoadRegisters + kConsumers * kConsumerRegisters <= 512);

struct Control {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
};
static_assert(sizeof(Control) <= kControlBytes);

// The work items of this CTA's cluster, and where this CTA's tile lies in each.
class TileWalk {
 public:
  JAXBW_DEVICE TileWalk(const GemmParams& params, ClusterShape cluster, uint32_t rank)
      : params_(params),
        cluster_(cluster),
        rank_(rank),
        item_(blockIdx.x / cluster.size()),
        step_(gridDim.x / cluster.size()),
        items_(params.cluster_tiles_m * params.cluster_tiles_n * params.batch) {}

  JAXBW_DEVICE bool done() const { return item_ >= items_; }
  JAXBW_DEVICE void advance() { item_ += step_; }

  // The CTA tile's first row and column, and its batch index.
  JAXBW_DEVICE Tile origin(uint32_t block_n) const {
    const Tile tile = rasterise(item_, params_.cluster_tiles_m, params_.cluster_tiles_n, params_.swizzle);
    return {(tile.m * cluster_.m + cluster_.row(rank_)) * kBlockM,
            (tile.n * cluster_.n + cluster_.column(rank_)) * block_n, tile.batch};
  }

 private:
  const GemmParams& params_;
  ClusterShape cluster_;
  uint32_t rank_, item_, step_, items_;
};

// Where everything lies in shared memory.
struct Storage {
  StorageLayout layout;
  uint32_t base, stages;

  JAXBW_DEVICE uint32_t a(uint32_t stage) const { return base + stage * layout.stage_bytes(); }
  JAXBW_DEVICE uint32_t b(uint32_t stage) const { return a(stage) + layout.a_stage_bytes; }
  JAXBW_DEVICE uint32_t staging(uint32_t warp) const {
    return base + layout.store_offset(stages) + warp * (layout.store_bytes / kConsumerWarps);
  }
  JAXBW_DEVICE uint32_t control() const { return base + layout.control_offset(stages); }
  JAXBW_DEVICE RingBarriers ring() const {
    return {control() + uint32_t{offsetof(Control, full)}, control() + uint32_t{offsetof(Control, empty)}};
  }
};

// Load role: one thread.
template <Config kConfig>
JAXBW_DEVICE void load_tiles(const GemmParams& params, const Storage& storage, ClusterShape cluster, uint32_t rank) {
  const OperandLoader<1> a(params.a, kConfig.a_major, kBlockM, cluster.a_peers(), cluster.a_peer(rank),
                           cluster.a_mask(rank));
  const OperandLoader<1> b(params.b, kConfig.b_major, kConfig.block_n, cluster.b_peers(), cluster.b_peer(rank),
                           cluster.b_mask(rank));
  const RingBarriers ring = storage.ring();
  RingPosition at = RingPosition::producer(storage.stages);
  for (TileWalk walk(params, cluster, rank); !walk.done(); walk.advance()) {
    const Tile origin = walk.origin(kConfig.block_n);
    for (uint32_t k = 0; k < params.k; k += kBlockK, at.advance()) {
      ring.wait_empty(at);
      ptx::mbarrier_arrive_expect_tx(ring.full(at.slot()), storage.layout.stage_bytes());
      a.load(storage.a(at.slot()), origin.m, k, origin.batch * params.a_batched, ring.full(at.slot()));
      b.load(storage.b(at.slot()), origin.n, k, origin.batch * params.b_batched, ring.full(at.slot()));
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

// Multiply role's main loop: accumulators = A[64 rows] * B over all of K. One group of wgmmas stays in flight while the
// next stage is awaited, so the tensor core does not run dry.
template <Config kConfig, typename Wgmma>
JAXBW_DEVICE void multiply(float (&accumulators)[Wgmma::kRegisters], const Storage& storage, uint32_t k_blocks,
                           uint32_t consumer, StageReader& reader) {
  // K-major: 64 rows of a span. MN-major: one block of 64 M indices.
  constexpr uint32_t kConsumerOffset = kConfig.a_major == Major::kK ? kConsumerRows * kSwizzleSpan : kMnBlockBytes;
  static_assert(kConsumerRows == kMnBlock);
  uint32_t previous = 0;
  for (uint32_t block = 0; block < k_blocks; ++block) {
    const uint32_t slot = reader.acquire();
    const uint64_t a = wgmma_descriptor(storage.a(slot) + consumer * kConsumerOffset, kConfig.a_major);
    const uint64_t b = wgmma_descriptor(storage.b(slot), kConfig.b_major);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t step = 0; step < kBlockK / kMmaK; ++step) {
      Wgmma::template issue<kConfig.a_major, kConfig.b_major>(accumulators, a + step * descriptor_step(kConfig.a_major),
                                                              b + step * descriptor_step(kConfig.b_major),
                                                              block > 0 || step > 0);
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

// Registers -> staging -> global memory, for one output type. `row`, `column`: where this warp's 16 rows of the tile
// start in D. The accumulators' layout is drawn in ptx/wgmma.h.
template <DataType kOutput, uint32_t kCount>
JAXBW_DEVICE void store_tile(const float (&accumulators)[kCount], StoreRing& stores, uint32_t row, uint32_t column,
                             uint32_t batch) {
  constexpr uint32_t kColumns = kSm90Epilogue.store_columns(kOutput);
  constexpr uint32_t kRowBytes = kSm90Epilogue.store_row_bytes(kOutput);
  constexpr uint32_t kFragmentColumns = 8;  // that four accumulators of each lane cover
  const uint32_t lane = ptx::lane_index();
#pragma unroll
  for (uint32_t first = 0; first < kCount / 4; first += kColumns / kFragmentColumns) {
    const uint32_t buffer = stores.acquire();
#pragma unroll
    for (uint32_t i = 0; i < kColumns / kFragmentColumns; i += 2) {
      const float* v = accumulators + (first + i) * 4;
      if constexpr (kOutput == DataType::kF32) {
        // Eight columns are two chunks of 16 bytes; a lane has 8 bytes of one of them, in each of two rows.
        const uint32_t part = lane % 2 * 8;
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
          const uint32_t chunk = (i + j) * 2 + lane % 4 / 2;
          const uint32_t upper = buffer + staged_offset<kRowBytes>(lane / 4, chunk) + part;
          const uint32_t lower = buffer + staged_offset<kRowBytes>(lane / 4 + 8, chunk) + part;
          ptx::store_shared(upper, v[4 * j], v[4 * j + 1]);
          ptx::store_shared(lower, v[4 * j + 2], v[4 * j + 3]);
        }
      } else {
        // Eight columns are one chunk. Matrices: rows 0-7 and 8-15 of chunk i, then of chunk i + 1.
        ptx::stmatrix_x4(buffer + staged_offset<kRowBytes>(lane % 16, i + lane / 16), ptx::pack<kOutput>(v[0], v[1]),
                         ptx::pack<kOutput>(v[2], v[3]), ptx::pack<kOutput>(v[4], v[5]),
                         ptx::pack<kOutput>(v[6], v[7]));
      }
    }
    stores.store({column + first * kFragmentColumns, row, batch});
  }
}

template <DataType kBias, uint32_t kCount>
JAXBW_DEVICE void add_bias(float (&accumulators)[kCount], const GemmParams& params, uint32_t column) {
#pragma unroll
  for (uint32_t i = 0; i < kCount / 4; ++i) {
    const uint32_t first = column + 8 * i + ptx::lane_index() % 4 * 2;
    const float bias[2] = {load_bias<kBias>(params.epilogue.bias, first, params.n),
                           load_bias<kBias>(params.epilogue.bias, first + 1, params.n)};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) accumulators[4 * i + j] += bias[j % 2];
  }
}

// Multiply role: two warpgroups, `consumer` 0 and 1.
template <Config kConfig>
JAXBW_DEVICE void multiply_tiles(const GemmParams& params, const Storage& storage, ClusterShape cluster, uint32_t rank,
                                 uint32_t warp) {
  using Wgmma = ptx::Wgmma<kConfig.input, kConfig.block_n>;
  const uint32_t consumer = warp / (kConsumerWarps / kConsumers);
  const uint32_t k_blocks = (params.k + kBlockK - 1) / kBlockK;
  StageReader reader(storage.ring(), storage.stages, cluster, rank);
  StoreRing stores(params, storage.staging(warp), kSm90Epilogue.rows_per_warp * kSwizzleSpan);
  for (TileWalk walk(params, cluster, rank); !walk.done(); walk.advance()) {
    float accumulators[Wgmma::kRegisters];
    multiply<kConfig, Wgmma>(accumulators, storage, k_blocks, consumer, reader);

    const Tile origin = walk.origin(kConfig.block_n);
    const uint32_t row = origin.m + warp * kSm90Epilogue.rows_per_warp;
    if (params.epilogue.bias != nullptr) {
      with_type(params.epilogue.bias_type, [&]<DataType kBias>() { add_bias<kBias>(accumulators, params, origin.n); });
    }
    activate(accumulators, params.epilogue.activation);
    with_type(params.epilogue.output,
              [&]<DataType kOutput>() { store_tile<kOutput>(accumulators, stores, row, origin.n, origin.batch); });
  }
  stores.drain();
}

template <Config kConfig>
JAXBW_DEVICE void gemm(const GemmParams& params) {
  extern __shared__ __align__(kSwizzleAtom) uint8_t shared_memory[];
  const ClusterShape cluster{params.cluster_m, params.cluster_n, 1};
  const uint32_t rank = ptx::cluster_rank();
  const uint32_t warp = ptx::warp_index();
  const Storage storage{storage_layout(kBlockM, kConfig.block_n, 1, kSm90Epilogue), ptx::shared_address(shared_memory),
                        params.stages};

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(params.a);
    ptx::prefetch_tensor_map(params.b);
    ptx::prefetch_tensor_map(params.d);
    storage.ring().init(params.stages, kStageFullArrivals, stage_empty_arrivals(cluster, kConsumerWarps));
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();

  constexpr uint32_t kWarpgroupWarps = kWarpgroup / ptx::kWarpSize;
  if (warp < kWarpgroupWarps) {
    ptx::decrease_registers<kLoadRegisters>();
    if (warp == 0 && ptx::elect_one()) load_tiles<kConfig>(params, storage, cluster, rank);
    __syncwarp();
  } else {
    ptx::increase_registers<kConsumerRegisters>();
    multiply_tiles<kConfig>(params, storage, cluster, rank, warp - kWarpgroupWarps);
  }
  ptx::cluster_sync();  // no CTA leaves while a peer may still arrive on its barriers
}

}  // namespace jaxbw::sm90
