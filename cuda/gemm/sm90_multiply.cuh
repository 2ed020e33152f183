// The main loops of the Hopper kernel's multiply role.
#pragma once

#include "gemm/descriptors.h"
#include "gemm/operand_bits.h"
#include "gemm/sm90_block_scales.cuh"
#include "gemm/sm90_context.h"
#include "gemm/sm90_stages.h"
#include "ptx/wgmma.h"

namespace jaxbw::sm90 {

// What wgmma has of the operands in its instruction.
template <DataType kTypeOfA, DataType kTypeOfB, Major kMajorOfA, Major kMajorOfB>
struct Operands {
  static constexpr DataType kA = kTypeOfA, kB = kTypeOfB;
  static constexpr Major kAMajor = kMajorOfA, kBMajor = kMajorOfB;

  // As that of OperandsOfKernel.
  template <typename Function>
  JAXBW_DEVICE void call(const Function& function) const {
    function.template operator()<Operands>();
  }
};

// Which operands an instance has, and so which instructions. Of 16 bits each type has an instance of its own, and of
// bf16 each layout; of 8 bits the launch says which types. What is not of 16 bits wgmma takes K-major only.
template <Config kConfig>
class OperandsOfKernel {
 public:
  explicit JAXBW_DEVICE OperandsOfKernel(const GemmParams& p) : p_(p) {}

  JAXBW_DEVICE bool is_8bit() const { return kConfig.promoted || (kConfig.of_8bit && bits_.is_8bit()); }
  JAXBW_DEVICE bool is_tf32() const { return kConfig.of_tf32 && bits_.is_tf32(); }
  JAXBW_DEVICE uint32_t element_log2() const { return is_8bit() ? 0 : is_tf32() ? 2 : 1; }

  JAXBW_DEVICE Major a_major() const {
    if (!kConfig.of_16bit || kConfig.gathered) return Major::kK;
    return bits_.any_layout() ? p_.a_major : bits_.a_major();
  }
  JAXBW_DEVICE Major b_major() const {
    if (!kConfig.of_16bit) return Major::kK;
    return bits_.any_layout() ? p_.b_major : bits_.b_major();
  }

  // How a part of a stage with `extent` rows of A or columns of B lies in shared memory.
  JAXBW_DEVICE OperandTile a_tile(uint32_t extent) const { return tile(a_major(), extent); }
  JAXBW_DEVICE OperandTile b_tile(uint32_t extent) const { return tile(b_major(), extent); }

  // Calls function.operator()<Operands>().
  template <typename Function>
  JAXBW_DEVICE void call(const Function& function) const {
    constexpr Major kK = Major::kK, kMN = Major::kMN;
    if constexpr (kConfig.of_8bit) {
      if (is_8bit()) {
        const auto with_type = [](DataType type, const auto& next) {
          if (type == DataType::kE4M3) return next.template operator()<DataType::kE4M3>();
          next.template operator()<DataType::kE5M2>();
        };
        return with_type(p_.a_type, [&]<DataType kA>() {
          with_type(p_.b_type, [&]<DataType kB>() { function.template operator()<Operands<kA, kB, kK, kK>>(); });
        });
      }
    }
    if constexpr (kConfig.of_tf32) {
      if (is_tf32()) return function.template operator()<Operands<DataType::kF32, DataType::kF32, kK, kK>>();
    }
    if constexpr (kConfig.of_16bit) {
      const auto with_majors = [&]<DataType kType>() {
        if (a_major() == kK) {
          if (b_major() == kK) return function.template operator()<Operands<kType, kType, kK, kK>>();
          function.template operator()<Operands<kType, kType, kK, kMN>>();
        } else {
          if (b_major() == kK) return function.template operator()<Operands<kType, kType, kMN, kK>>();
          function.template operator()<Operands<kType, kType, kMN, kMN>>();
        }
      };
      if (!bits_.is_f16()) return with_majors.template operator()<DataType::kBF16>();
      with_majors.template operator()<DataType::kF16>();
    }
  }

 private:
  JAXBW_DEVICE OperandTile tile(Major major, uint32_t extent) const {
    if (major == Major::kMN) return operand_tile(Major::kMN, DataType::kBF16, extent, 1);
    return {Major::kK, element_log2(), kSwizzleSpan, extent, 1};
  }

  const GemmParams& p_;
  OperandBits bits_;
};

// A descriptor and what is added to it. As in UmmaOperand, the lower word never carries.
constexpr uint64_t stepped(uint64_t descriptor, uint32_t step) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + step);
}

// Behind the wait for a stage: wgmma then reads what threads have copied there, where they do.
template <Config kConfig>
JAXBW_DEVICE void acquire_operands() {
  if constexpr (kConfig.gathered) ptx::fence_proxy_async();
}

// Where a warpgroup's part of a tile begins.
struct PartOrigin {
  uint32_t row, column;
};

// Where its operands begin in a stage, as descriptors have it. An index along M or N is as far from the next one as a
// swizzle span is long, whichever way the operand lies (OperandTile).
struct OperandStarts {
  JAXBW_DEVICE OperandStarts(const Context& context, uint32_t slot, PartOrigin part)
      : a(descriptor_start(context.a(slot) + part.row * kSwizzleSpan)),
        a_to_b(((context.layout.a_stage_bytes + part.column * kSwizzleSpan) >> 4) - (part.row * kSwizzleSpan >> 4)) {}

  JAXBW_DEVICE uint32_t b() const { return a + a_to_b; }

  // To the next slot, which is not the ring's first one.
  JAXBW_DEVICE void advance(uint32_t stage_bytes) { a += stage_bytes >> 4; }

  uint32_t a, a_to_b;
};

// Issues the wgmmas of a stage, a group of its own. Steps along K take turns at kSets sets of accumulators.
// `accumulate`: 0 overwrites them.
template <Config kConfig, typename Operands, uint32_t kSets>
JAXBW_DEVICE void issue_stage(float (&accumulators)[kConfig.accumulators()], float (&other)[kConfig.accumulators()],
                              OperandStarts starts, uint32_t accumulate) {
  using Wgmma = ptx::Wgmma<Operands::kA, Operands::kB, kConfig.block_n>;
  constexpr OperandTile kATile = operand_tile(Operands::kAMajor, Operands::kA, kConfig.warpgroup_rows, 1);
  constexpr OperandTile kBTile = operand_tile(Operands::kBMajor, Operands::kB, kConfig.block_n, 1);
  static_assert(descriptor_mma_tile_step(kATile, kConfig.warpgroup_rows) ==
                descriptor_start(kConfig.warpgroup_rows * kSwizzleSpan));
  static_assert(descriptor_mma_tile_step(kBTile, kConfig.block_n) == descriptor_start(kConfig.block_n * kSwizzleSpan));
  const uint64_t a = stepped(wgmma_descriptor(0, kATile), starts.a);
  const uint64_t b = stepped(wgmma_descriptor(0, kBTile), starts.b());
  ptx::wgmma_fence();
  for_each_step<1, kMmasPerSpan>([&]<uint32_t kStep>() {
    constexpr uint32_t kToA = kStep * descriptor_steps(kATile).mma, kToB = kStep * descriptor_steps(kBTile).mma;
    float (&sums)[kConfig.accumulators()] = kStep % kSets == 0 ? accumulators : other;
    for_each_step<Wgmma::kRegisters, kConfig.accumulators()>([&]<uint32_t kFirst>() {
      constexpr uint32_t kBelow = descriptor_mma_tile_step(kATile, kFirst / Wgmma::kRegisters * kWgmmaRows);
      Wgmma::template issue<Operands::kAMajor, Operands::kBMajor>(
          reinterpret_cast<float (&)[Wgmma::kRegisters]>(sums[kFirst]), stepped(a, kToA + kBelow), stepped(b, kToB),
          kStep < kSets ? accumulate : 1);
    });
  });
  ptx::wgmma_commit_group();
}

// Accumulators = A * B over `blocks` stages. One group of wgmmas stays in flight while the next stage is awaited, so
// the tensor core does not run dry. Calls `meanwhile` beside the MMAs of every block, with its number, and `issued`
// once nothing more is awaited.
template <Config kConfig, typename Meanwhile, typename Issued>
JAXBW_DEVICE void multiply(float (&accumulators)[kConfig.accumulators()], const Context& context, uint32_t blocks,
                           PartOrigin part, StageReader& reader, const Meanwhile& meanwhile, const Issued& issued) {
  constexpr uint32_t kSets = kConfig.accumulator_sets();
  const OperandsOfKernel<kConfig> operands(context.params);
  float other[kConfig.accumulators()];  // the second set
  const auto loop = [&](const auto& issue) {
    const uint32_t stage_bytes = context.layout.stage_bytes();
    uint32_t block = 0, previous = 0;
    do {
      RingRun run = reader.run(blocks - block);
      OperandStarts starts(context, ptx::uniform(run.slot()), part);
#pragma unroll 1
      do {
        context.profile.enter(Activity::kAwaitFull, block);
        run.wait_full();
        acquire_operands<kConfig>();
        context.profile.enter(Activity::kMultiply, block);
        issue(starts, block > 0);
        starts.advance(stage_bytes);
        if (block > 0) {
          context.profile.enter(Activity::kAwaitMultiply, block - 1);
          ptx::wgmma_wait_group<1>();
          reader.release_by(previous);
        }
        meanwhile(block);
        previous = run.signalled();
        ++block;
      } while (run.next());
    } while (block < blocks);
    issued();
    context.profile.enter(Activity::kAwaitMultiply, blocks - 1);
    ptx::wgmma_wait_group<0>();
    reader.release_by(previous);
  };
  // At each block of a narrow tile there is no time to look for the types, or whether to overwrite: hence zeros. ptxas
  // needs them, too: at the heads of several loops it serializes wgmmas on registers that are undefined.
  if constexpr (kSets == 2) {
#pragma unroll
    for (uint32_t i = 0; i < kConfig.accumulators(); ++i) accumulators[i] = other[i] = 0;
    operands.call([&]<typename Operands>() {
      loop([&](OperandStarts starts, uint32_t) {
        issue_stage<kConfig, Operands, kSets>(accumulators, other, starts, 1);
      });
    });
  } else {
    loop([&](OperandStarts starts, uint32_t accumulate) {
      operands.call(
          [&]<typename Operands>() { issue_stage<kConfig, Operands, kSets>(accumulators, other, starts, accumulate); });
    });
  }
  if constexpr (kSets == 2) {
#pragma unroll
    for (uint32_t i = 0; i < kConfig.accumulators(); ++i) accumulators[i] += other[i];
  }
}

// The same with sums promoted: those of each block of K are added to the accumulators in float32. Blocks use two sets
// of registers in turn, and the sums of one are added beside the MMAs of the next: the tensor cores do not wait for
// additions, not even where both warpgroups do the same at the same time. Wide tiles leave registers for one set: then
// one warpgroup adds beside the MMAs of the other. `scales` multiplies them: Unscaled, or Scaled. `operands`: Operands,
// or OperandsOfKernel, which asks for their types at each block: one copy of the code instead of four, where waiting
// for scales hides it. Else it takes 2 % of the time, measured on an H200.
template <Config kConfig, typename KnownOperands, typename Scales, typename Meanwhile, typename Issued>
JAXBW_DEVICE void multiply_promoted(float (&accumulators)[kConfig.accumulators()], const Context& context,
                                    const KnownOperands& operands, uint32_t blocks, PartOrigin part,
                                    StageReader& reader, Scales scales, const Meanwhile& meanwhile,
                                    const Issued& issued) {
  constexpr uint32_t kSets = kConfig.accumulators() <= 64 ? 2 : 1;
  float sums[kSets][kConfig.accumulators()] = {};  // of a block and the next
  ptx::wgmma_fence_registers(sums[0]);             // else zeros are written behind the first wgmma.fence
#pragma unroll
  for (float& sum : accumulators) sum = 0;

  uint32_t previous = 0;
  const auto acquire = [&](uint32_t block) {
    context.profile.enter(Activity::kAwaitFull, block);
    const uint32_t slot = reader.acquire();
    acquire_operands<kConfig>();
    return slot;
  };
  const auto issue = [&]<uint32_t kSet>(uint32_t block, uint32_t slot) {
    context.profile.enter(Activity::kMultiply, block);
    operands.call([&]<typename Operands>() {
      issue_stage<kConfig, Operands, 1>(sums[kSet], sums[kSet], OperandStarts(context, slot, part), 0);
    });
  };
  const auto add = [&]<uint32_t kSet, uint32_t kPending>(uint32_t block) {
    context.profile.enter(Activity::kAwaitMultiply, block);
    ptx::wgmma_wait_group<kPending>();
    reader.release(previous);
    ptx::wgmma_fence_registers(sums[kSet]);
    scales.template add<kSet>(accumulators, sums[kSet], min(block + 2, blocks - 1));
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
  if constexpr (kSets == 1) {
#pragma unroll 1
    for (uint32_t block = 0; block < blocks; ++block) {
      previous = acquire(block);
      issue.template operator()<0>(block, previous);
      meanwhile(block);
      if (block + 1 == blocks) issued();
      add.template operator()<0, 0>(block);
    }
  } else {
    scales.template request<0>(0);
    scales.template request<1>(min(1u, blocks - 1));
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
}

}  // namespace jaxbw::sm90
