#include "host/gemm_launch.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "gemm/repack.h"
#include "host/gemm_instances.h"

namespace jaxbw {
namespace {

// Enough blocks to fill any GPU several times over; each goes on to further pieces of its matrix.
constexpr uint64_t kMaxRepackBlocks = 1 << 14;

EpilogueOperand epilogue_operand(const std::optional<DataType>& type, CUdeviceptr address) {
  return {type ? reinterpret_cast<const void*>(address) : nullptr, type.value_or(DataType::kF32)};
}

EpilogueResult epilogue_result(DataType type, CUdeviceptr address) { return {reinterpret_cast<void*>(address), type}; }

GemmParams make_params(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c,
                       const GemmBuffers& buffers, const Work& work) {
  GemmParams params = {};
  params.residual_stages = residual_stages(family, p, c, buffers.residual);
  const CUdeviceptr results = buffers.d | buffers.saved | buffers.saved_up;
  params.epilogue = {.alpha = p.alpha,
                     .beta = p.beta,
                     .alpha_data = reinterpret_cast<const float*>(buffers.alpha),
                     .beta_data = reinterpret_cast<const float*>(buffers.beta),
                     .c = epilogue_operand(p.c, buffers.c),
                     .bias = epilogue_operand(p.bias, buffers.bias),
                     .residual = epilogue_operand(p.residual, buffers.residual),
                     .bias_along_m = p.bias_along_m,
                     .activation = p.activation,
                     .gated = p.gated,
                     .path = epilogue_path(family, p, c, params.residual_stages, results),
                     .a_scales = reinterpret_cast<const float*>(p.a_scaled ? buffers.a_scales : 0),
                     .b_scales = reinterpret_cast<const float*>(p.b_scaled ? buffers.b_scales : 0),
                     .b_up_scales = reinterpret_cast<const float*>(buffers.b_up_scales)};
  params.output = epilogue_result(p.output, buffers.d);
  params.float8_limit = p.out_scaled || p.out_mx ? std::numeric_limits<float>::infinity() : float8_limit(p.output);
  params.out_scale = reinterpret_cast<const float*>(buffers.out_scale);
  params.amax = reinterpret_cast<uint32_t*>(buffers.amax);
  params.saved_output[0] = epilogue_result(p.saved(), buffers.saved);
  params.saved_output[1] = epilogue_result(p.saved(), buffers.saved_up);
  params.store_path = store_path(family, p, c, params.epilogue.path, results);
  const bool columns = params.store_path == StorePath::kColumns;
  params.row_stride = columns ? 1 : p.n;
  params.column_stride = columns ? p.m : 1;
  params.batch_stride = p.m * p.n;
  params.m = static_cast<uint32_t>(p.m);
  params.n = static_cast<uint32_t>(p.n);
  params.k = static_cast<uint32_t>(p.k / packing(counted_type(p)));
  params.batch = static_cast<uint32_t>(p.batch);
  params.a_batched = p.a_batched;
  params.b_batched = p.b_batched;
  params.block_m = c.block_m;
  params.block_n = c.block_n;
  params.pingpong = c.pingpong;
  params.b_columns = c.b_columns;
  params.tile_columns = tile_columns(p, c);
  params.cluster = cluster_shape(c.cluster_m, c.cluster_n, c.cta_group, c.cluster_k);
  params.stages = c.stages;
  params.k_spans = c.k_spans;
  params.accumulators = c.accumulators;
  const bool clc = static_cast<LaunchScheduler>(c.scheduler) == LaunchScheduler::kClc && c.cluster_k == 1;
  params.scheduler = clc ? Scheduler::kClc : Scheduler::kStatic;
  // Where rows are grouped, tiles of a row are a batch index of their own, whose group says to which band they belong.
  params.order = p.grouped == Grouped::kRows
                     ? tile_order(1, static_cast<uint32_t>(work.tiles_n), 1, Raster::kAlongM)
                     : tile_order(static_cast<uint32_t>(work.tiles_m), static_cast<uint32_t>(work.tiles_n), c.swizzle,
                                  static_cast<Raster>(c.raster));
  params.whole_tiles = static_cast<uint32_t>(work.whole_tiles);
  params.split_k = divisor(c.split_k);
  params.parts = divisor(c.split_k * c.cluster_k);
  params.work_items = static_cast<uint32_t>(work.items);
  params.a_type = p.a_type;
  params.b_type = p.b_type;
  params.a_major = operand_a(family, p).as_read().major;
  params.b_major = operand_b(family, p).as_read().major;
  return params;
}

// Of a matmul of few rows, whose operands are where the kernel reads them.
SkinnyParams skinny_params(const KernelFamily& family, const GemmProblem& p, const GemmConfig& c,
                           const GemmParams& params, const GemmBuffers& at, const Work& work) {
  const Operand a = operand_a(family, p), b = operand_b(family, p);
  const auto pitch = [](const Operand& operand) {
    return static_cast<uint32_t>(operand.pitch() / size_bytes(operand.type));
  };
  const auto matrix = [&](const Operand& operand, bool batched) {
    return batched ? pitch(operand) * operand.rows() : 0;
  };
  const SkinnyEpilogue kind = p.gated                                       ? SkinnyEpilogue::kGated
                              : params.epilogue.path == EpiloguePath::kCast ? SkinnyEpilogue::kCast
                                                                            : SkinnyEpilogue::kFormula;
  return {.a = reinterpret_cast<const void*>(at.a),
          .b = reinterpret_cast<const void*>(at.b),
          .output = params.output,
          .a_pitch = pitch(a),
          .b_pitch = pitch(b),
          .m = params.m,
          .n = params.n,
          .k = params.k,
          .log2_parts = static_cast<uint32_t>(std::countr_zero(c.cluster_k)),
          .one_row = work.tiles == work.tiles_n,
          .kind = kind,
          .a_matrix = matrix(a, p.a_batched),
          .b_matrix = matrix(b, p.b_batched),
          .b_up = reinterpret_cast<const void*>(at.b_up),
          .order = params.order,
          .epilogue = params.epilogue};
}

// Fails where an address does not allow what the launch does.
Status check_addresses(const GemmProblem& p, const GemmBuffers& buffers) {
  const bool grouped = p.grouped != Grouped::kNone;  // stored by TMA alone
  const auto of_operand = [&](DataType type) {
    return is_mixed(p) && packing(type) > 1 ? kPaddedAlignment : kTmaAlignment;
  };
  const struct {
    bool present;
    const char* name;
    CUdeviceptr address;
    uint64_t alignment;
  } arrays[] = {
      {true, "lhs", buffers.a, of_operand(p.a_type)},
      {true, "rhs", buffers.b, of_operand(p.b_type)},
      {p.gated, "rhs_up", buffers.b_up, of_operand(p.b_type)},
      {p.c.has_value(), "c", buffers.c, size_bytes(p.c.value_or(DataType::kF16))},
      {p.bias.has_value(), "bias", buffers.bias, size_bytes(p.bias.value_or(DataType::kF16))},
      {p.residual.has_value(), "residual", buffers.residual, size_bytes(p.residual.value_or(DataType::kF16))},
      {p.factors_in_memory, "alpha", buffers.alpha, sizeof(float)},
      {p.factors_in_memory && p.c, "beta", buffers.beta, sizeof(float)},
      {p.a_scaled || p.a_blocks != 0, "lhs_scale", buffers.a_scales, sizeof(float)},
      {p.b_scaled || p.b_blocks != 0, "rhs_scale", buffers.b_scales, sizeof(float)},
      {p.b_scaled && p.gated, "rhs_up_scale", buffers.b_up_scales, sizeof(float)},
      {p.mx != 0, "lhs_tiles", buffers.a_tiles, kTmaAlignment},
      {p.mx != 0, "rhs_tiles", buffers.b_tiles, kTmaAlignment},
      {p.mx != 0 && p.gated, "rhs_up_tiles", buffers.b_up_tiles, kTmaAlignment},
      {p.gathered(), "lhs_rows", buffers.lhs_rows, sizeof(int32_t)},
      {grouped, "group_sizes", buffers.group_sizes, sizeof(int32_t)},
      {grouped, "group_offset", buffers.group_offset, sizeof(int32_t)},
      {p.out_scaled, "out_scale", buffers.out_scale, sizeof(float)},
      {true, "result", buffers.d, grouped || p.out_mx ? kTmaAlignment : size_bytes(p.output)},
      {p.save, "saved", buffers.saved, size_bytes(p.saved())},
      {p.save && p.gated, "saved_up", buffers.saved_up, size_bytes(p.saved())},
      {p.out_scaled, "amax", buffers.amax, sizeof(float)},
      {p.out_mx, "result_tiles", buffers.d_tiles, sizeof(uint32_t)},
  };
  for (const auto& [present, name, address, alignment] : arrays) {
    if (present && (address == 0 || address % alignment != 0)) {
      return invalid(name, " is at address ", address, "; it needs a multiple of ", alignment, " bytes");
    }
  }
  if (grouped && p.c && buffers.c != buffers.d) return invalid("the c of a grouped matmul is its result");
  return Status();
}

GroupTableParams group_table(const GemmProblem& p, const GemmConfig& c, const GemmBuffers& at,
                             const WorkspaceLayout& layout, const Work& work) {
  return {.sizes = reinterpret_cast<const int32_t*>(at.group_sizes),
          .offset = reinterpret_cast<const int32_t*>(at.group_offset),
          .table = reinterpret_cast<GroupRows*>(at.workspace + layout.group_table),
          .places = reinterpret_cast<BandPlace*>(at.workspace + layout.group_places),
          .counts = reinterpret_cast<GroupCounts*>(at.workspace + layout.group_counts),
          .split_tiles = static_cast<uint32_t>(work.tiles - work.whole_tiles),
          .contraction = p.grouped == Grouped::kContraction,
          .batch = static_cast<uint32_t>(p.batch),
          .total_groups = static_cast<uint32_t>(p.total_groups),
          .groups = static_cast<uint32_t>(p.groups),
          .rows = static_cast<uint32_t>(p.grouped_rows()),
          .block_m = c.block_m,
          .band_entries = c.swizzle,
          .a_batched = p.a_batched,
          .b_batched = p.b_batched};
}

RepackCopy repack(const Operand& operand, CUdeviceptr source, CUdeviceptr destination) {
  const Operand read = operand.as_read();
  return {.source = reinterpret_cast<const void*>(source),
          .destination = reinterpret_cast<void*>(destination),
          .rows = static_cast<uint32_t>(read.rows()),
          .columns = static_cast<uint32_t>(read.columns() / packing(read.type)),
          .batch = static_cast<uint32_t>(read.batch),
          .destination_pitch = static_cast<uint32_t>(operand.pitch() / size_bytes(read.type)),
          .transposed = operand.transposed(),
          .pieces = 0};
}

}  // namespace

GemmBuffers as_launched(const GemmBuffers& buffers, const GemmConfig& config) {
  GemmBuffers launched = buffers;
  if (config.swap_ab == 0) return launched;
  std::swap(launched.a, launched.b);
  std::swap(launched.a_scales, launched.b_scales);
  std::swap(launched.a_tiles, launched.b_tiles);
  return launched;
}

Status check_counters(std::span<const uint8_t> bytes) {
  const bool zero = std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
  return zero ? Status() : Status(StatusCode::kCorrupt, "the launch has left counters that are not zero");
}

uint32_t GemmLaunch::reduce_blocks(uint32_t sm_count) const {
  return static_cast<uint32_t>(std::min<uint64_t>(reduced_chunks, sm_count));
}

uint32_t GemmLaunch::clusters(uint32_t resident) const {
  return clusters_of(*family, config, params.work_items, resident);
}

Result<GemmLaunch> make_launch(const GemmPlan& plan, const GemmBuffers& buffers) {
  const auto& [family, problem, config, p, work, layout, shown] = plan;
  if (Status status = check_addresses(problem, buffers); !status.ok()) return status;
  GemmBuffers at = as_launched(buffers, config);
  if (layout.bytes != 0 && (at.workspace == 0 || at.workspace % kTmaAlignment != 0)) {
    return invalid("workspace is at address ", at.workspace, "; it needs a multiple of ", kTmaAlignment, " bytes");
  }

  const bool counted = plan.counters() != 0;
  if (counted && at.counters == 0) return invalid("there are no counters of split tiles");

  const bool grouped = p.grouped != Grouped::kNone;
  GemmLaunch launch{.family = family,
                    .config = config,
                    .params = {},
                    .views = {},
                    .scale_views = {},
                    .repack = {},
                    .repack_blocks = 0,
                    .zeroed = {at.amax, p.out_scaled ? p.batch : 0},
                    .reduced_chunks = 0};
  uint32_t repacks = 0;
  uint64_t pieces = 0;
  const auto repack_if_needed = [&](const Operand& operand, CUdeviceptr& address, uint64_t section) {
    if (!operand.repacked()) return false;
    RepackCopy& copy = launch.repack.copies[repacks++] = repack(operand, address, at.workspace + section);
    const uint64_t of_copy = repack_pieces(copy, size_bytes(operand.type));
    copy.pieces = static_cast<uint32_t>(of_copy);
    pieces += of_copy;
    address = at.workspace + section;
    return true;
  };
  repack_if_needed(operand_a(*family, p), at.a, layout.a);
  bool b_repacked = repack_if_needed(operand_b(*family, p), at.b, layout.b);
  if (p.gated) b_repacked |= repack_if_needed(operand_b(*family, p), at.b_up, layout.b_up);
  if (pieces > UINT32_MAX) return invalid("operands of ", pieces, " pieces to repack are more than 32 bits count");
  launch.repack_blocks = static_cast<uint32_t>(std::min(pieces, kMaxRepackBlocks));

  GemmParams& params = launch.params = make_params(*family, p, config, at, work);
  if (!launch.is_as_planned(plan)) {
    launch.config.kernel = kernel_without_tma(config.kernel);
    if (launch.config.kernel.empty()) {
      return invalid("result is at address ", at.d, "; kernel ", config.kernel, " needs a multiple of ", kTmaAlignment,
                     " bytes");
    }
  }
  params.partials = work.slices != 0 ? reinterpret_cast<float*>(at.workspace + layout.partials) : nullptr;
  params.counters = counted ? reinterpret_cast<uint32_t*>(at.counters) : nullptr;
  if (reduces_apart(*family, config)) {
    const uint64_t tiles = (work.tiles - work.whole_tiles) * config.cluster_tiles();
    params.tile_slices = divisor(cluster_slices(config.block_m, params.tile_columns));
    launch.reduced_chunks = tiles * params.tile_slices.value;
  }
  // The repack waits for everything before it, as every kernel does that is launched without an overlap.
  params.b_is_ready = repacks != 0 && !b_repacked;

  if (family->is_sm90() && p.promoted) {
    launch.scales = BlockScales{reinterpret_cast<const float*>(p.a_blocks != 0 ? at.a_scales : 0),
                                reinterpret_cast<const float*>(p.b_blocks != 0 ? at.b_scales : 0)};
  }
  if (grouped) launch.groups = group_table(p, config, at, layout, work);
  if (p.gathered()) {
    launch.gathered = {reinterpret_cast<const uint8_t*>(at.a), reinterpret_cast<const int32_t*>(at.lhs_rows),
                       static_cast<uint32_t>(p.source_rows)};
  }

  launch.d_scales = reinterpret_cast<uint8_t*>(at.d_tiles);
  launch.stage_gaps = stage_gaps(p, config);
  if (p.mx != 0) {
    const Operand a = operand_a(p), b = operand_b(p);
    launch.scale_views[0] = view_scales(p, a, a_row_tiles(p, config, work), config, "lhs_tiles", at.a_tiles);
    launch.scale_views[1] = view_scales(p, b, row_tiles(b), config, "rhs_tiles", at.b_tiles);
    if (p.gated) launch.scale_views[2] = view_scales(p, b, row_tiles(b), config, "rhs_up_tiles", at.b_up_tiles);
  }
  if (is_skinny(*family, config)) {
    launch.skinny = skinny_params(*family, p, config, params, at, work);
    return launch;
  }
  if (!p.gathered() || !family->is_sm90()) launch.views[0] = view_a(*family, p, config, at.a);
  launch.views[1] = view_b(*family, p, config, "rhs", at.b);
  if (p.gated) launch.views[2] = view_b(*family, p, config, "rhs_up", at.b_up);
  if (params.store_path == StorePath::kTma) {
    const StoreBox box = store_box(*family, p, config);
    launch.views[3] = view_like_result(p, box, "result", p.output, at.d);
    if (p.save) launch.views[4] = view_like_result(p, box, "saved", p.saved(), at.saved);
    if (p.save && p.gated) launch.views[5] = view_like_result(p, box, "saved_up", p.saved(), at.saved_up);
  }
  if (params.residual_stages != 0) {
    const StoreBox box = residual_tile(config.block_m, config.block_n).box;
    launch.views[6] = view_like_result(p, box, "residual", *p.residual, at.residual);
  }
  return launch;
}

}  // namespace jaxbw
