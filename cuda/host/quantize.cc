#include "host/quantize.h"

#include <algorithm>

#include "host/call_arrays.h"

namespace jaxbw {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 40;
constexpr uint64_t kMaxGroupBlocks = 1 << 20;  // each goes on to further groups

Status check(const QuantizeProblem& problem) {
  const std::string text = concat("x ", shape_text(problem.x), ": ");
  if (!problem.type || is_8bit(*problem.type)) return invalid(text, "it is f16, bf16 or f32");
  const bool is_float8 = problem.format && is_8bit(*problem.format) && packing(*problem.format) == 1;
  if (!is_float8) return invalid(text, "data are e4m3 or e5m2");
  if (problem.x.size() != 2 && problem.x.size() != 4) {
    return invalid(text, "it is [groups, group] or [groups, matrices, rows, columns]");
  }
  uint64_t elements = 1;
  for (const int64_t extent : problem.x) {
    if (extent <= 0) return invalid(text, "a dimension is 0; there is nothing to launch");
    if (static_cast<uint64_t>(extent) > kMaxElements / elements) return invalid(text, "it has more than 2^40 elements");
    elements *= static_cast<uint64_t>(extent);
  }
  if (problem.both() && (problem.x[2] % 4 != 0 || problem.x[3] % 4 != 0)) {
    return invalid(text, "its transpose is written where rows and columns are multiples of 4");
  }
  return Status();
}

}  // namespace

Result<QuantizePlan> plan_quantize(const QuantizeProblem& problem) {
  if (Status status = check(problem); !status.ok()) return status;
  const std::span<const int64_t> x = problem.x;
  const DataType type = *problem.type;
  const uint64_t groups = static_cast<uint64_t>(x[0]);
  uint64_t group = 1;
  for (const int64_t extent : x.subspan(1)) group *= static_cast<uint64_t>(extent);

  QuantizePlan plan = {};
  QuantizeParams& params = plan.params;
  params.group = group;
  params.lanes = quantize_lanes(group, type);
  params.format = *problem.format;
  const uint64_t piece = quantize_piece(type);
  uint64_t slices = 0, tiles = 0;
  if (!problem.both() && group <= piece) {
    params.pass = QuantizePass::kGroups;
    const uint64_t of_block = kQuantizeThreads / params.lanes;
    plan.blocks = std::min(ceil_div(groups, of_block), kMaxGroupBlocks);
  } else {
    // Whole pieces, but for a group's end.
    params.slice = ceil_div(ceil_div(group, kQuantizeSlices), piece) * piece;
    slices = ceil_div(group, params.slice);
    params.pass = problem.both() ? QuantizePass::kBoth : QuantizePass::kData;
    plan.workspace_bytes = groups * slices * sizeof(uint32_t);
    plan.blocks = groups * slices;
  }
  if (problem.both()) {
    tiles = quantize_tiles(x[2]) * quantize_tiles(x[3]) * static_cast<uint64_t>(x[1]);
    plan.blocks = groups * tiles;
  }
  const uint64_t counted[] = {groups, groups * slices, groups * tiles, problem.both() ? uint64_t(x[2]) : 0,
                              problem.both() ? uint64_t(x[3]) : 0};
  if (std::ranges::max(counted) >= INT32_MAX) {
    return invalid("x ", shape_text(x), ": it has more groups, rows, columns or tiles than the kernel counts");
  }
  params.groups = static_cast<uint32_t>(groups);
  params.slices = static_cast<uint32_t>(slices);
  if (problem.both()) {
    params.matrices = static_cast<uint32_t>(x[1]);
    params.rows = static_cast<uint32_t>(x[2]);
    params.columns = static_cast<uint32_t>(x[3]);
  }
  return plan;
}

Result<QuantizePlan> read_quantize(std::string_view kernel, std::span<const Array> operands,
                                   std::span<const Array> results) {
  if (operands.size() != 1 || results.size() < 2) return invalid("there are x, data and scale at least");
  const Array& given = operands[0];
  const QuantizeProblem problem{given.dims, given.type, results[0].type};
  Result<QuantizePlan> planned = plan_quantize(problem);
  if (!planned.ok()) return planned;
  const KernelInstance* instance = find_instance(kernel);
  if (instance == nullptr || instance->role != "quantize" || instance->input != quantized_input(*given.type)) {
    return invalid("kernel ", kernel, " does not quantize ", quantized_input(*given.type));
  }

  QuantizePlan plan = std::move(planned).take();
  const auto bytes = static_cast<int64_t>(plan.workspace_bytes);
  std::array<int64_t, 4> turned = {};
  if (problem.both()) turned = {given.dims[0], given.dims[1], given.dims[3], given.dims[2]};
  WantedArray x{"x", given.type, given.dims}, data{"data", problem.format, given.dims};
  WantedArray scale{"scale", DataType::kF32, given.dims.first(1)}, transposed{"transposed", problem.format, turned};
  WantedArray workspace{"workspace", std::nullopt, {&bytes, 1}};
  std::array<WantedArray*, 4> wanted = {&data, &scale};
  size_t count = 2;
  if (problem.both()) wanted[count++] = &transposed;
  if (bytes != 0) wanted[count++] = &workspace;
  if (results.size() != count) return invalid(results.size(), " results; this call has ", count);
  Status status = take(given, x);
  for (size_t i = 0; status.ok() && i < count; ++i) status = take(results[i], *wanted[i]);
  if (!status.ok()) return status;
  plan.params.x = x.pointer<const void>();
  plan.params.data = data.pointer<void>();
  plan.params.scale = scale.pointer<float>();
  plan.params.transposed = transposed.pointer<void>();
  plan.params.maxima = workspace.pointer<uint32_t>();
  return plan;
}

QuantizeLaunches quantize_launches(const QuantizePlan& plan, uint32_t sm_count) {
  const auto shape = [](uint64_t blocks) {
    return LaunchShape{.blocks = static_cast<uint32_t>(blocks), .threads = kQuantizeThreads};
  };
  const QuantizeParams& last = plan.params;
  if (last.pass == QuantizePass::kGroups) return {{{{last, shape(plan.blocks)}}}, 1};
  const uint64_t wave = uint64_t{sm_count} * kQuantizeBlocks;
  // Blocks of the first launch go where there is room: 12 % quicker than as many as run at a time, each with its share.
  QuantizeLaunches all{
      {{{last, shape(uint64_t{last.groups} * last.slices)}, {last, shape(std::min(plan.blocks, wave))}}}, 2};
  all.launches[0].params.pass = QuantizePass::kAmax;
  all.launches[1].shape.overlaps = true;
  return all;
}

}  // namespace jaxbw
