// What a GEMM launch is, whoever carries it out: the CUDA driver (gemm.cc) or the emulator (emulated_gemm.cc).
// Two steps: a plan (gemm_plan.cc) holds whatever is the same for all buffers, a launch (gemm_launch.cc) is the plan
// with their addresses.
#pragma once

#include <array>
#include <span>

#include "gemm/groups.h"
#include "host/gemm.h"
#include "host/tensor_map.h"

namespace jaxbw {

// What the kernel computes: the problem itself, or with swap_ab D^T = B^T A^T. No data moves for that, operands and
// strides change places.
GemmProblem as_launched(const GemmProblem& problem, const GemmConfig& config);
GemmBuffers as_launched(const GemmBuffers& buffers, const GemmConfig& config);

// Offsets of the sections of the workspace. Repacked operands are those of the kernel.
struct WorkspaceLayout {
  uint64_t a = 0, b = 0, b_up = 0, partials = 0;
  uint64_t group_table = 0, group_places = 0, group_counts = 0;  // of a grouped matmul
  uint64_t bytes = 0;
};

// How the cluster tiles of D become work items.
struct Work {
  uint64_t tiles_m, tiles_n;           // of one batch index; where rows are grouped of all, as many as there may be
  uint64_t tiles, whole_tiles, items;  // of a grouped contraction as many as there may be
  uint64_t slices;                     // of the split tiles: each has sums of every part, and perhaps a counter
  uint64_t slice_floats;               // of one part

  // Rounds of whole tiles, then of parts, on a device that holds `resident` clusters at a time.
  uint64_t waves(uint64_t resident) const;
};

// Fails on more than a grid, or 32 bits, hold.
Verdict check_work(const Work& work, const GemmProblem& launched, const GemmConfig& config);
Work work_of(const KernelFamily& family, const GemmProblem& launched, const GemmConfig& config);

// Tiles of A's scales along its rows, of one batch index. Of rows in groups there are those of all entries that their
// table may have (GroupedMx).
inline uint64_t a_row_tiles(const GemmProblem& p, const GemmConfig& c, const Work& work) {
  return p.grouped == Grouped::kRows ? work.tiles_m * (c.block_m / kScaleTileRows) : row_tiles(operand_a(p));
}

// The clusters to launch for so many work items on a machine that holds `resident` of them at a time.
uint32_t clusters_of(const KernelFamily& family, const GemmConfig& config, uint32_t items, uint32_t resident);

// How results leave, whose addresses taken together are `results`.
StorePath store_path(const KernelFamily& family, const GemmProblem& launched, const GemmConfig& config,
                     EpiloguePath path, CUdeviceptr results);

// Which way an epilogue takes if all addresses are multiples of 16 bytes, as those of XLA are.
struct EpiloguePlan {
  uint32_t residual_stages;
  EpiloguePath path;
  StorePath store_path;
};

class InstancesOfProblem;

// Fails where no kernel of a tile serves such a launch. `of_tile`: one of them, as `instances` find it.
Verdict check_served(const KernelFamily& family, const InstancesOfProblem& instances, const KernelInstance& of_tile,
                     const GemmProblem& launched, const GemmConfig& config);

// The same for every device: the workspace is sized when a call is traced.
struct GemmPlan {
  const KernelFamily* family;
  GemmProblem problem;  // as it was given
  GemmConfig config;
  GemmProblem launched;  // as the kernel computes it
  Work work;
  WorkspaceLayout workspace;
  EpiloguePlan epilogue;

  // Words of GemmBuffers::counters.
  uint64_t counters() const { return reduces_apart(*family, config) ? 0 : work.slices; }
};

// Fails where a launch has left a counter that is not zero. `bytes`: of all its counters.
Status check_counters(std::span<const uint8_t> bytes);

// Fails on what the rules refuse. Finds the kernel.
Planned<GemmPlan> plan_gemm(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config);

// The same of a call, which names its kernel: it must be the right one.
Result<GemmPlan> plan_call(const GemmProblem& problem, const GemmConfig& config);

// 32-bit words in device memory, perhaps none.
struct Words {
  CUdeviceptr address;
  uint64_t count;
};

// All but who encodes the tensor maps, and how many clusters run at a time. Threads and shared memory of a block are
// those of the family and the configuration.
struct GemmLaunch {
  const KernelFamily* family;
  GemmConfig config;
  GemmParams params;                                     // its tensor maps are still to be encoded
  std::array<std::optional<TensorView>, 7> views;        // in the order of the tensor maps in GemmParams
  std::array<std::optional<TensorView>, 3> scale_views;  // of MX formats: of A, B, and where it is gated B_up
  RepackParams repack;                                   // what is copied before, where repack_blocks is not 0
  uint32_t repack_blocks;
  Words zeroed;             // to be set to zero before: what amax begins with
  uint64_t reduced_chunks;  // that a launch behind adds up, where it is not 0 (reduces_apart)
  std::optional<GroupTableParams> groups = std::nullopt;  // of a grouped matmul: what a launch before it makes
  std::optional<GatheredRowsOfA> gathered = std::nullopt;

  std::optional<SkinnyParams> skinny = std::nullopt;  // of few rows, in place of params

  std::optional<BlockScales> scales = std::nullopt;  // of a promoting kernel, perhaps none
  std::array<TensorMap, 3> scale_maps = {};          // of scale_views
  uint8_t* d_scales = nullptr;                       // MxParams::d_scales
  uint32_t stage_gaps = 0;                           // MxParams::stage_gaps

  // Whether the result is stored as planned: not if it, or what is saved or added to it, is at no multiple of 16 bytes.
  bool is_as_planned(const GemmPlan& plan) const { return params.store_path == plan.epilogue.store_path; }

  // Calls function(argument) with the argument of the gemm kernel, of the type that it has.
  template <typename Function>
  auto with_argument(const Function& function) const {
    if (config.span_tiles != 0 && params.a_type == DataType::kE2M1) {
      return with_groups(
          function, Mx4BitParams{params, scale_maps[0], {scale_maps[1], scale_maps[2]}, d_scales, config.span_tiles});
    }
    if (config.span_tiles != 0) {
      return with_groups(function,
                         MxParams{params, scale_maps[0], {scale_maps[1], scale_maps[2]}, d_scales, stage_gaps});
    }
    if (groups) {
      const GroupedParams grouped{params, groups->table, groups->places, groups->counts};
      if (gathered) return function(GatheredParams{grouped, *gathered});
      return function(grouped);
    }
    if (scales) return function(PromotedParams{params, *scales});
    if (skinny) return function(*skinny);
    return function(params);
  }

  // Of MX formats.
  template <typename Function, typename Mx>
  auto with_groups(const Function& function, const Mx& mx) const {
    if (groups) return function(GroupedMx<Mx>{mx, groups->table, groups->places, groups->counts});
    return function(mx);
  }

  // Its blocks: each fills an SM.
  uint32_t reduce_blocks(uint32_t sm_count) const;

  // The clusters to launch on a machine that holds `resident` of them at a time.
  uint32_t clusters(uint32_t resident) const;
};

// Fails on misaligned buffers, and on more to repack than 32 bits count.
Result<GemmLaunch> make_launch(const GemmPlan& plan, const GemmBuffers& buffers);

// Fails on a configuration that no problem can be launched with.
Status check_call(const GemmConfig& config);

// Fills in the tensor maps by `encode(view, map)`, which returns a Status.
template <typename Encode>
Status encode_maps(GemmLaunch& launch, Encode encode) {
  GemmParams& p = launch.params;
  TensorMap* const maps[] = {&p.a, &p.b, &p.b_up, &p.d, &p.saved[0], &p.saved[1], &p.residual};
  const auto fill_in = [&](const std::optional<TensorView>& view, TensorMap& map) {
    const Status status = view ? encode(*view, map) : Status();
    return status.ok() ? status : with_context(concat("tensor map of ", view->name), status);
  };
  for (size_t i = 0; i < launch.views.size(); ++i) {
    if (Status status = fill_in(launch.views[i], *maps[i]); !status.ok()) return status;
  }
  for (size_t i = 0; i < launch.scale_views.size(); ++i) {
    if (Status status = fill_in(launch.scale_views[i], launch.scale_maps[i]); !status.ok()) return status;
  }
  return Status();
}

}  // namespace jaxbw
