#include "host/gemm_launch.h"

#include <algorithm>
#include <utility>

#include "gemm/repack.h"

namespace jaxbw {
namespace {

constexpr uint64_t kMaxGrid = 0x7fffffff;  // blocks along x: CUDA C++ programming guide, technical specifications
constexpr uint64_t kSectionAlignment = 256;
// Enough blocks to fill any GPU several times over; each goes on to further pieces of its matrix.
constexpr uint64_t kMaxRepackBlocks = 1 << 14;

// How the cluster tiles of D become work items.
struct Work {
  uint64_t tiles_m, tiles_n;  // of one batch index
  uint64_t tiles, whole_tiles, items;
  uint64_t slices;  // of the split tiles: each has a counter, and sums of every part
};

Work work_of(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c) {
  Work work;
  work.tiles_m = ceil_div(p.m, uint64_t{c.cluster_m} * c.cta_rows());
  work.tiles_n = ceil_div(p.n, uint64_t{c.cluster_n} * tile_columns(p, c));
  work.tiles = work.tiles_m * work.tiles_n * p.batch;
  work.whole_tiles = c.split_k == 1 ? work.tiles : c.split_tail != 0 ? work.tiles / c.wave * c.wave : 0;
  work.items = work.whole_tiles + (work.tiles - work.whole_tiles) * c.split_k;
  const uint32_t mma_tiles = family.is_sm90() ? 1 : sm100_mma_tiles(c.cta_rows());
  work.slices = slice_count(work.tiles - work.whole_tiles, c.cluster_size(), mma_tiles, family.epilogue);
  return work;
}

Status check_work(const Work& work, const GemmProblem& p, const GemmConfig& c) {
  if (work.tiles_m * work.tiles_n > kMaxGrid / p.batch / c.cluster_size() / c.split_k) {
    return invalid(work.tiles_m, "x", work.tiles_n, " cluster tiles for each of ", p.batch,
                   " batch indices are more than a grid holds");
  }
  if (work.slices > kMaxGrid) return invalid(work.slices, " slices of split tiles are more than 32 bits count");
  return Status();
}

WorkspaceLayout layout_of(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c, const Work& work) {
  WorkspaceLayout layout;
  const auto section = [&](uint64_t bytes) {
    return std::exchange(layout.bytes, layout.bytes + ceil_div(bytes, kSectionAlignment) * kSectionAlignment);
  };
  if (!is_naive(c.kernel)) {
    layout.a = section(operand_a(p).repacked_bytes());
    layout.b = section(operand_b(p).repacked_bytes());
    layout.b_up = section(p.gated ? operand_b(p).repacked_bytes() : 0);
  }
  layout.partials = section(work.slices * c.split_k * partial_floats(c.block_n, family.epilogue) * sizeof(float));
  layout.counters = section(work.slices * sizeof(uint32_t));
  layout.counter_count = work.slices;
  return layout;
}

EpilogueOperand epilogue_operand(const std::optional<DataType>& type, CUdeviceptr address) {
  return {type ? reinterpret_cast<const void*>(address) : nullptr, type.value_or(DataType::kF32)};
}

EpilogueResult epilogue_result(DataType type, CUdeviceptr address) { return {reinterpret_cast<void*>(address), type}; }

StorePath store_path(const GemmProblem& p, const GemmConfig& c, const GemmBuffers& buffers) {
  if (c.swap_ab != 0) return StorePath::kColumns;
  // TMA stores 16 bytes whole, even past the end of the last row (seen on an H200: a result of one element overwrote
  // what followed it): so the rule holds for a single row too.
  const bool aligned =
      (p.n * size_bytes(p.output) | buffers.d | buffers.saved[0] | buffers.saved[1]) % kTmaAlignment == 0;
  return aligned && c.tma_store != 0 && !is_naive(c.kernel) ? StorePath::kTma : StorePath::kRows;
}

GemmParams make_params(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c,
                       const GemmBuffers& buffers, const Work& work) {
  GemmParams params = {};
  params.epilogue = {.alpha = p.alpha,
                     .beta = p.beta,
                     .c = epilogue_operand(p.c, buffers.c),
                     .bias = epilogue_operand(p.bias, buffers.bias),
                     .residual = epilogue_operand(p.residual, buffers.residual),
                     .bias_along_m = p.bias_along_m,
                     .activation = p.activation,
                     .gated = p.gated,
                     .identity = is_identity(p, c)};
  params.output = epilogue_result(p.output, buffers.d);
  for (int i = 0; i < 2; ++i) params.saved_output[i] = epilogue_result(p.output, buffers.saved[i]);
  params.store_path = store_path(p, c, buffers);
  const bool columns = params.store_path == StorePath::kColumns;
  params.row_stride = columns ? 1 : p.n;
  params.column_stride = columns ? p.m : 1;
  params.batch_stride = p.m * p.n;
  params.m = static_cast<uint32_t>(p.m);
  params.n = static_cast<uint32_t>(p.n);
  params.k = static_cast<uint32_t>(p.k);
  params.batch = static_cast<uint32_t>(p.batch);
  params.a_batched = p.a_batched;
  params.b_batched = p.b_batched;
  params.block_m = c.block_m;
  params.block_n = c.block_n;
  params.tile_columns = tile_columns(p, c);
  params.cluster_m = c.cluster_m;
  params.cluster_n = c.cluster_n;
  params.stages = c.stages;
  params.k_spans = c.k_spans;
  params.operand_swizzle = c.operand_swizzle;
  // A tile of two MMAs needs both slots at once.
  params.accumulators = !family.is_sm90() && sm100_mma_tiles(c.cta_rows()) > 1 ? 2 : c.accumulators;
  params.store_buffers = c.store_buffers;
  params.scheduler =
      static_cast<LaunchScheduler>(c.scheduler) == LaunchScheduler::kClc ? Scheduler::kClc : Scheduler::kStatic;
  params.raster = static_cast<Raster>(c.raster);
  params.cluster_tiles_m = static_cast<uint32_t>(work.tiles_m);
  params.cluster_tiles_n = static_cast<uint32_t>(work.tiles_n);
  // A band wider than the grid of tiles is all of it; the bound keeps the kernel's products within 32 bits.
  params.swizzle =
      std::min(c.swizzle, params.raster == Raster::kAlongM ? params.cluster_tiles_m : params.cluster_tiles_n);
  params.whole_tiles = static_cast<uint32_t>(work.whole_tiles);
  params.split_k = c.split_k;
  params.work_items = static_cast<uint32_t>(work.items);
  params.input = p.input;
  params.a_major = operand_a(p).as_read().major;
  params.b_major = operand_b(p).as_read().major;
  return params;
}

// Fails where an address does not allow what the launch does.
Status check_addresses(const GemmProblem& p, const GemmConfig& c, const GemmBuffers& buffers) {
  const uint64_t input = size_bytes(p.input), output = size_bytes(p.output);
  const uint64_t operand = is_naive(c.kernel) ? input : kTmaAlignment;
  const struct {
    bool present;
    const char* name;
    CUdeviceptr address;
    uint64_t alignment;
  } arrays[] = {
      {true, "lhs", buffers.a, operand},
      {true, "rhs", buffers.b, operand},
      {p.gated, "rhs_up", buffers.b_up, operand},
      {p.c.has_value(), "c", buffers.c, size_bytes(p.c.value_or(DataType::kF16))},
      {p.bias.has_value(), "bias", buffers.bias, size_bytes(p.bias.value_or(DataType::kF16))},
      {p.residual.has_value(), "residual", buffers.residual, size_bytes(p.residual.value_or(DataType::kF16))},
      {true, "result", buffers.d, output},
      {p.save, "saved", buffers.saved[0], output},
      {p.save && p.gated, "saved_up", buffers.saved[1], output},
  };
  for (const auto& [present, name, address, alignment] : arrays) {
    if (present && (address == 0 || address % alignment != 0)) {
      return invalid(name, " is at address ", address, "; it needs a multiple of ", alignment, " bytes");
    }
  }
  return Status();
}

RepackLaunch repack(const Operand& operand, CUdeviceptr source, CUdeviceptr destination) {
  const Operand read = operand.as_read();
  const RepackParams params{.source = reinterpret_cast<const void*>(source),
                            .destination = reinterpret_cast<void*>(destination),
                            .rows = static_cast<uint32_t>(read.rows()),
                            .columns = static_cast<uint32_t>(read.columns()),
                            .batch = static_cast<uint32_t>(read.batch),
                            .destination_pitch = static_cast<uint32_t>(operand.pitch() / size_bytes(read.type)),
                            .transposed = operand.transposed()};
  return {params, static_cast<uint32_t>(std::min(repack_pieces(params, size_bytes(read.type)), kMaxRepackBlocks))};
}

}  // namespace

GemmProblem as_launched(const GemmProblem& problem, const GemmConfig& config) {
  GemmProblem launched = problem;
  if (config.swap_ab == 0) return launched;
  std::swap(launched.m, launched.n);
  std::swap(launched.a_batched, launched.b_batched);
  std::swap(launched.a_major, launched.b_major);
  launched.bias_along_m = !problem.bias_along_m;
  return launched;
}

GemmBuffers as_launched(const GemmBuffers& buffers, const GemmConfig& config) {
  GemmBuffers launched = buffers;
  if (config.swap_ab != 0) std::swap(launched.a, launched.b);
  return launched;
}

Result<uint64_t> workspace_bytes(const GemmProblem& problem, const GemmConfig& config) {
  if (Status status = check_launch(problem, config); !status.ok()) return status;
  const KernelFamily& family = *family_of_kernel(config.kernel);
  const GemmProblem launched = as_launched(problem, config);
  const Work work = work_of(family, launched, config);
  if (Status status = check_work(work, launched, config); !status.ok()) return status;
  return layout_of(family, launched, config, work).bytes;
}

uint32_t GemmLaunch::clusters(uint32_t resident) const {
  const bool one_wave = static_cast<LaunchScheduler>(config.scheduler) == LaunchScheduler::kStatic;
  return one_wave ? std::min(params.work_items, resident) : params.work_items;
}

Result<GemmLaunch> make_launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers) {
  if (Status status = check_launch(problem, config); !status.ok()) return status;
  const KernelFamily& family = *family_of_kernel(config.kernel);
  if (Status status = check_addresses(problem, config, buffers); !status.ok()) return status;
  const GemmProblem p = as_launched(problem, config);
  GemmBuffers at = as_launched(buffers, config);
  const Work work = work_of(family, p, config);
  if (Status status = check_work(work, p, config); !status.ok()) return status;
  const WorkspaceLayout layout = layout_of(family, p, config, work);
  if (layout.bytes != 0 && (at.workspace == 0 || at.workspace % kTmaAlignment != 0)) {
    return invalid("workspace is at address ", at.workspace, "; it needs a multiple of ", kTmaAlignment, " bytes");
  }

  GemmLaunch launch{.family = &family,
                    .config = config,
                    .params = {},
                    .views = {},
                    .repacks = {},
                    .repack_kernel = repack_kernel(family, config.kernel),
                    .counters = at.workspace + layout.counters,
                    .counter_count = layout.counter_count};
  const bool tma = !is_naive(config.kernel);
  const auto repack_if_needed = [&](const Operand& operand, CUdeviceptr& address, uint64_t section) {
    if (!tma || !operand.repacked()) return false;
    launch.repacks.push_back(repack(operand, address, at.workspace + section));
    address = at.workspace + section;
    return true;
  };
  repack_if_needed(operand_a(p), at.a, layout.a);
  bool b_repacked = repack_if_needed(operand_b(p), at.b, layout.b);
  if (p.gated) b_repacked |= repack_if_needed(operand_b(p), at.b_up, layout.b_up);

  GemmParams& params = launch.params = make_params(family, p, config, at, work);
  params.a_data = reinterpret_cast<const void*>(at.a);
  params.b_data = reinterpret_cast<const void*>(at.b);
  params.partials = work.slices != 0 ? reinterpret_cast<float*>(at.workspace + layout.partials) : nullptr;
  params.counters = work.slices != 0 ? reinterpret_cast<uint32_t*>(launch.counters) : nullptr;
  // The first repack waits for everything before it, as every kernel does that is launched without an overlap.
  params.b_is_ready = !launch.repacks.empty() && !b_repacked;

  if (tma) {
    launch.views[0] = view_a(p, config, at.a);
    launch.views[1] = view_b(p, config, "rhs", at.b);
    if (p.gated) launch.views[2] = view_b(p, config, "rhs_up", at.b_up);
  }
  if (params.store_path == StorePath::kTma) {
    const StoreBox box = store_box(family, p, config);
    launch.views[3] = view_result(p, box, "result", at.d);
    if (p.save) launch.views[4] = view_result(p, box, "saved", at.saved[0]);
    if (p.save && p.gated) launch.views[5] = view_result(p, box, "saved_up", at.saved[1]);
  }
  return launch;
}

}  // namespace jaxbw
