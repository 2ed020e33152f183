// The main loops of the Hopper kernel's multiply role.
#pragma once

#include "gemm/descriptors.h"
#include "gemm/sm90_context.h"
#include "gemm/sm90_stages.h"
#include "ptx/wgmma.h"

namespace jaxbw::sm90 {

// Where wgmma finds a warpgroup's operands in a stage: descriptors of its first step along K, and what leads to others.
template <Config kConfig>
class StageDescriptors {
 public:
  static constexpr OperandTile a_tile() { return stage_tile<kConfig>(kConfig.a_major, kConfig.warpgroup_rows); }
  static constexpr OperandTile b_tile() { return stage_tile<kConfig>(kConfig.b_major, kConfig.block_n); }
  static constexpr uint64_t a_step() { return descriptor_steps(a_tile()).mma; }
  static constexpr uint64_t b_step() { return descriptor_steps(b_tile()).mma; }

  // `first_row`: of the stage's rows of A.
  JAXBW_DEVICE StageDescriptors(const Context& context, uint32_t first_row)
      : context_(context), to_first_row_(descriptor_mma_tile_step(a_tile(), first_row)) {}

  JAXBW_DEVICE uint64_t a(uint32_t slot) const { return wgmma_descriptor(context_.a(slot), a_tile()) + to_first_row_; }
  JAXBW_DEVICE uint64_t b(uint32_t slot) const { return wgmma_descriptor(context_.b(slot), b_tile()); }

 private:
  const Context& context_;
  uint64_t to_first_row_;
};

// Accumulators = A * B over `blocks` stages, of whose rows this warpgroup's start at `first_row`. One group of wgmmas
// stays in flight while the next stage is awaited, so the tensor core does not run dry. Calls `meanwhile` beside the
// MMAs of every block, with its number, and `issued` once nothing more is awaited.
template <Config kConfig, DataType kA, DataType kB, typename Meanwhile, typename Issued>
JAXBW_DEVICE void multiply(float (&accumulators)[kConfig.accumulators()], const Context& context, uint32_t blocks,
                           uint32_t first_row, StageReader& reader, const Meanwhile& meanwhile, const Issued& issued) {
  using Wgmma = ptx::Wgmma<kA, kB, kConfig.block_n>;
  using Stage = StageDescriptors<kConfig>;
  const Stage stage(context, first_row);
  constexpr uint32_t kSets = kConfig.accumulator_sets();
  float other[kConfig.accumulators()];  // the second set
  if constexpr (is_8bit(kConfig.input)) {
    // Undefined registers at the head of one loop are nothing to ptxas; of several loops, it serializes the wgmmas.
#pragma unroll
    for (float& sum : accumulators) sum = 0;
#pragma unroll
    for (float& sum : other) sum = 0;
  }
  uint32_t previous = 0;
  for (uint32_t block = 0; block < blocks; ++block) {
    context.profile.enter(Activity::kAwaitFull, block);
    const uint32_t slot = reader.acquire();
    context.profile.enter(Activity::kMultiply, block);
    const uint64_t a = stage.a(slot), b = stage.b(slot);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t step = 0; step < kMmasPerSpan; ++step) {
      float (&sums)[kConfig.accumulators()] = step % kSets == 0 ? accumulators : other;
      for_each_step<Wgmma::kRegisters, kConfig.accumulators()>([&]<uint32_t kFirst>() {
        constexpr uint64_t kBelow = descriptor_mma_tile_step(Stage::a_tile(), kFirst / Wgmma::kRegisters * kWgmmaRows);
        Wgmma::template issue<kConfig.a_major, kConfig.b_major>(
            reinterpret_cast<float (&)[Wgmma::kRegisters]>(sums[kFirst]), a + kBelow + step * Stage::a_step(),
            b + step * Stage::b_step(), block > 0 || step >= kSets);
      });
    }
    ptx::wgmma_commit_group();
    if (block > 0) {
      context.profile.enter(Activity::kAwaitMultiply, block - 1);
      ptx::wgmma_wait_group<1>();
      reader.release(previous);
    }
    meanwhile(block);
    previous = slot;
  }
  issued();
  context.profile.enter(Activity::kAwaitMultiply, blocks - 1);
  ptx::wgmma_wait_group<0>();
  reader.release(previous);
  if constexpr (kSets == 2) {
#pragma unroll
    for (uint32_t i = 0; i < kConfig.accumulators(); ++i) accumulators[i] += other[i];
  }
}

// The same with sums promoted: those of each block of K are added to the accumulators in float32. Blocks use two sets
// of registers in turn, and the sums of one are added beside the MMAs of the next: the tensor cores do not wait for
// additions, not even where both warpgroups do the same at the same time.
template <Config kConfig, DataType kA, DataType kB, typename Meanwhile, typename Issued>
JAXBW_DEVICE void multiply_promoted(float (&accumulators)[kConfig.accumulators()], const Context& context,
                                    uint32_t blocks, uint32_t first_row, StageReader& reader,
                                    const Meanwhile& meanwhile, const Issued& issued) {
  using Wgmma = ptx::Wgmma<kA, kB, kConfig.block_n>;
  static_assert(Wgmma::kRegisters == kConfig.accumulators());
  using Stage = StageDescriptors<kConfig>;
  const Stage stage(context, first_row);
  float sums[2][Wgmma::kRegisters] = {};  // of a block and the next
#pragma unroll
  for (float& sum : accumulators) sum = 0;

  uint32_t previous = 0;
  const auto acquire = [&](uint32_t block) {
    context.profile.enter(Activity::kAwaitFull, block);
    return reader.acquire();
  };
  const auto issue = [&]<uint32_t kSet>(uint32_t block, uint32_t slot) {
    context.profile.enter(Activity::kMultiply, block);
    const uint64_t a = stage.a(slot), b = stage.b(slot);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t step = 0; step < kMmasPerSpan; ++step) {
      Wgmma::template issue<kConfig.a_major, kConfig.b_major>(sums[kSet], a + step * Stage::a_step(),
                                                              b + step * Stage::b_step(), step > 0);
    }
    ptx::wgmma_commit_group();
  };
  const auto add = [&]<uint32_t kSet, uint32_t kPending>(uint32_t block) {
    context.profile.enter(Activity::kAwaitMultiply, block);
    ptx::wgmma_wait_group<kPending>();
    reader.release(previous);
    ptx::wgmma_fence_registers(sums[kSet]);
#pragma unroll
    for (uint32_t i = 0; i < Wgmma::kRegisters; ++i) accumulators[i] += sums[kSet][i];
  };
  const auto add_last = [&]<uint32_t kSet>() {
    issued();
    add.template operator()<kSet, 0>(blocks - 1);
  };
  const auto step = [&]<uint32_t kSet>(uint32_t block) {
    const uint32_t slot = acquire(block);
    issue.template operator()<kSet>(block, slot);
    add.template operator()<kSet ^ 1, 1>(block - 1);
    meanwhile(block);
    previous = slot;
  };
  previous = acquire(0);
  issue.template operator()<0>(0, previous);
  meanwhile(0);
  for (uint32_t block = 1;; ++block) {  // at every branch ptxas must know which set is in flight
    if (block == blocks) return add_last.template operator()<0>();
    step.template operator()<1>(block);
    if (++block == blocks) return add_last.template operator()<1>();
    step.template operator()<0>(block);
  }
}

}  // namespace jaxbw::sm90
