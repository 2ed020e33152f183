// What a launch will do, as far as no address decides it: a pure function of problem and configuration.
#include <algorithm>
#include <utility>

#include "host/gemm_instances.h"
#include "host/gemm_launch.h"

namespace jaxbw {
namespace {

constexpr uint64_t kMaxGrid = 0x7fffffff;  // blocks along x: CUDA C++ programming guide, technical specifications
constexpr uint64_t kSectionAlignment = 256;

// Slices of a CTA's tile, and values in one.
std::pair<uint64_t, uint64_t> slices_of(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  if (is_skinny(family, c)) return {0, 0};
  if (family.is_sm90() && c.cluster_k > 1) {
    // None in a gated tile that is too narrow, which check_launched refuses.
    const uint32_t slices = std::max(cluster_slices(c.block_m, tile_columns(p, c)), 1u);
    return {slices, uint64_t{c.block_m} * c.block_n / slices};
  }
  if (!family.is_sm90()) {
    return {slice_count(sm100_mma_tiles(c.cta_rows()), family.epilogue), partial_floats(c.block_n, family.epilogue)};
  }
  return {slice_count(1, family.epilogue),
          partial_floats(c.block_n * (c.warpgroup_tile().rows / kWgmmaRows), family.epilogue)};
}

WorkspaceLayout layout_of(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c, const Work& work) {
  WorkspaceLayout layout;
  const auto section = [&](uint64_t bytes) {
    return std::exchange(layout.bytes, layout.bytes + ceil_div(bytes, kSectionAlignment) * kSectionAlignment);
  };
  layout.a = section(operand_a(family, p).repacked_bytes());
  layout.b = section(operand_b(family, p).repacked_bytes());
  layout.b_up = section(p.gated ? operand_b(family, p).repacked_bytes() : 0);
  layout.partials = section(work.slices * c.split_k * work.slice_floats * sizeof(float));
  if (p.grouped == Grouped::kNone) return layout;
  const bool of_rows = p.grouped == Grouped::kRows;
  layout.group_table = section((of_rows ? work.tiles_m : p.results()) * sizeof(GroupRows));
  layout.group_places = section(of_rows ? work.tiles_m * sizeof(BandPlace) : 0);
  layout.group_counts = section(sizeof(GroupCounts));
  return layout;
}

EpiloguePlan epilogue_plan(const KernelFamily& family, const GemmProblem& launched, const GemmConfig& config) {
  const uint32_t in_ring = residual_stages(family, launched, config, 0);
  const EpiloguePath path = epilogue_path(family, launched, config, in_ring, 0);
  return {in_ring, path, store_path(family, launched, config, path, 0)};
}

Violation not_served(const GemmConfig& c) {
  return {Rule::whole_tiles, {{"block_m", c.block_m}, {"block_n", c.block_n}, {"pingpong", c.pingpong}}};
}

}  // namespace

GemmProblem as_launched(const GemmProblem& problem, const GemmConfig& config) {
  GemmProblem launched = problem;
  if (is_mixed(problem)) {
    for (DataType* type : {&launched.a_type, &launched.b_type}) {
      if (packing(*type) > 1) *type = DataType::kE2M1Padded;
    }
  }
  if (config.swap_ab == 0) return launched;
  std::swap(launched.m, launched.n);
  std::swap(launched.a_batched, launched.b_batched);
  std::swap(launched.a_type, launched.b_type);
  std::swap(launched.a_major, launched.b_major);
  std::swap(launched.a_scaled, launched.b_scaled);
  std::swap(launched.a_blocks, launched.b_blocks);
  launched.bias_along_m = !problem.bias_along_m;
  return launched;
}

Verdict check_served(const KernelFamily& family, const InstancesOfProblem& instances, const KernelInstance& of_tile,
                     const GemmProblem& launched, const GemmConfig& c) {
  if (!of_tile.for_some()) return {};
  if (instances.serving(of_tile, launched, c, epilogue_plan(family, launched, c)) != nullptr) return {};
  return not_served(c);
}

Work work_of(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  Work work;
  work.tiles_m = ceil_div(p.m, uint64_t{c.cluster_m} * c.cta_rows());
  if (p.grouped == Grouped::kRows) work.tiles_m = p.batch * max_row_tiles(p.m, p.total_groups, c.block_m);
  work.tiles_n = ceil_div(p.n, uint64_t{c.cluster_n} * tile_columns(p, c));
  work.tiles = work.tiles_m * work.tiles_n * p.tiled();
  work.whole_tiles = c.split_k == 1 ? work.tiles : c.split_tail != 0 ? work.tiles / c.wave * c.wave : 0;
  // Of one group's tiles, which are nearly all the work where they are split (gemm/groups.h).
  if (p.grouped == Grouped::kContraction && c.split_tail != 0) {
    work.whole_tiles = work.tiles - work.tiles_m * work.tiles_n % c.wave;
  }
  work.items = work.whole_tiles + (work.tiles - work.whole_tiles) * c.split_k;
  const auto [slices, floats] = slices_of(family, p, c);
  work.slices = (work.tiles - work.whole_tiles) * c.cluster_tiles() * slices;
  work.slice_floats = floats;
  return work;
}

Verdict check_work(const Work& work, const GemmProblem& p, const GemmConfig& c) {
  if (work.tiles_m * work.tiles_n > kMaxGrid / p.tiled() / c.cluster_size() / c.split_k) {
    return Violation{Rule::grid,
                     {{"tiles_m", static_cast<int64_t>(work.tiles_m)},
                      {"tiles_n", static_cast<int64_t>(work.tiles_n)},
                      {"batch", static_cast<int64_t>(p.batch)}}};
  }
  if (work.slices > kMaxGrid) return Violation{Rule::slices, {{"slices", static_cast<int64_t>(work.slices)}}};
  return {};
}

uint64_t Work::waves(uint64_t resident) const {
  return ceil_div(whole_tiles, resident) + ceil_div(items - whole_tiles, resident);
}

StorePath store_path(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c, EpiloguePath path,
                     CUdeviceptr results) {
  if (c.swap_ab != 0) return StorePath::kColumns;
  if (is_skinny(family, c)) return StorePath::kRows;
  // The general way of the Hopper kernel does not store by TMA: no tensor maps are encoded for it.
  if (family.is_sm90() && path == EpiloguePath::kGeneral) return StorePath::kRows;
  return stored_by_tma(p, c, results) ? StorePath::kTma : StorePath::kRows;
}

uint32_t clusters_of(const KernelFamily& family, const GemmConfig& config, uint32_t items, uint32_t resident) {
  const bool one_wave = static_cast<LaunchScheduler>(config.scheduler) == LaunchScheduler::kStatic &&
                        config.cluster_k == 1 && !is_skinny(family, config);
  return one_wave ? std::min(items, resident) : items;
}

Planned<GemmPlan> plan_gemm(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& given) {
  GemmConfig config = given;
  config.span_tiles = span_tiles(problem);
  config.b_tiles = b_tiles(problem, config);
  if (Verdict broken = check_problem(family, problem)) return *std::move(broken);
  if (Verdict broken = check_config(family, config)) return *std::move(broken);
  const GemmProblem launched = as_launched(problem, config);
  const InstancesOfProblem instances(family, launched);
  const KernelInstance* instance = instances.find(config);
  if (instance == nullptr) return instances.missing(config);
  config.b_columns = b_columns(family, launched, config);
  if (Verdict broken = check_launched(family, launched, config)) return *std::move(broken);
  const Work work = work_of(family, launched, config);
  if (Verdict broken = check_work(work, launched, config)) return *std::move(broken);
  const EpiloguePlan epilogue = epilogue_plan(family, launched, config);
  const KernelInstance* const serving = instances.serving(*instance, launched, config, epilogue);
  if (serving == nullptr) return not_served(config);
  config.kernel = serving->name;
  return GemmPlan{&family, problem, config, launched, work, layout_of(family, launched, config, work), epilogue};
}

Status check_call(const GemmConfig& config) {
  const KernelFamily* family = family_of_kernel(config.kernel);
  if (family == nullptr) return invalid("no kernel family is known for kernel '", config.kernel, "'");
  const Verdict broken = check_config(*family, config);
  return broken ? Status(StatusCode::kInvalid, describe(*broken)) : Status();
}

Result<GemmPlan> plan_call(const GemmProblem& problem, const GemmConfig& config) {
  const KernelFamily* family = family_of_kernel(config.kernel);
  if (family == nullptr) return invalid("no kernel family is known for kernel '", config.kernel, "'");
  const Planned<GemmPlan> planned = plan_gemm(*family, problem, config);
  if (!planned.ok()) return Status(StatusCode::kInvalid, describe(planned.violation()));
  GemmPlan plan = *planned;
  const KernelInstance &named = *find_instance(config.kernel), &needed = *find_instance(plan.config.kernel);
  if (find_instance(needed, named.role) != &named) return invalid("this launch needs kernel ", needed.name);
  // A program of an earlier version names the kernel for all launches, which is loaded by now.
  if (!named.for_some()) plan.config.kernel = named.name;
  return plan;
}

}  // namespace jaxbw
