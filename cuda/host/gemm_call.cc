#include "host/gemm_call.h"

#include <algorithm>
#include <tuple>

#include "host/gemm_instances.h"

namespace jaxbw {
namespace {

// Operands of a call, of which two are there, but for the factors.
size_t operand_count(const GemmAttributes& a) {
  const size_t rights = a.gated != 0 ? 2 : 1;
  const size_t right_scales = a.has_rhs_scale == 0 ? 0 : rights, tiles = a.mx == 0 ? 0 : 1 + rights;
  return 2 + (a.gated != 0) + (a.has_c != 0) + (a.has_bias != 0) + (a.has_residual != 0) +
         (a.has_lhs_scale != 0 || a.lhs_blocks != 0) + right_scales + (a.rhs_blocks != 0) + tiles +
         (a.has_out_scale != 0);
}

Status check_flags(const GemmAttributes& a) {
  const std::pair<const char*, int32_t> flags[] = {{"has_c", a.has_c},
                                                   {"has_bias", a.has_bias},
                                                   {"bias_along_m", a.bias_along_m},
                                                   {"has_residual", a.has_residual},
                                                   {"has_lhs_scale", a.has_lhs_scale},
                                                   {"has_rhs_scale", a.has_rhs_scale},
                                                   {"has_out_scale", a.has_out_scale},
                                                   {"out_mx", a.out_mx},
                                                   {"gated", a.gated},
                                                   {"save", a.save},
                                                   {"lhs_major", a.lhs_major},
                                                   {"rhs_major", a.rhs_major},
                                                   {"promoted", a.promoted}};
  for (const auto& [name, value] : flags) {
    if (value != 0 && value != 1) return invalid("attribute ", name, " is ", value, "; it is 0 or 1");
  }
  for (const auto& [name, value] : {std::pair("lhs_blocks", a.lhs_blocks), std::pair("rhs_blocks", a.rhs_blocks)}) {
    const bool known = value == 0 || value == 1 || value == int32_t{kScaleBlock};
    if (!known) return invalid("attribute ", name, " is ", value, "; it is 0, 1 or ", kScaleBlock);
  }
  if (a.mx != 0 && a.mx != int32_t{kNvBlock} && a.mx != int32_t{kMxBlock}) {
    return invalid("attribute mx is ", a.mx, "; it is 0, ", kNvBlock, " or ", kMxBlock);
  }
  return Status();
}

}  // namespace

std::string shape_text(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t extent : dims) {
    if (text.size() > 1) text += ",";
    text += std::to_string(extent);
  }
  return text + "]";
}

uint64_t array_bytes(std::optional<DataType> type, std::span<const int64_t> dims, Untyped untyped) {
  uint64_t bytes = type ? size_bytes(*type) : untyped == Untyped::kInt32 ? sizeof(int32_t) : 1;
  for (const int64_t extent : dims) bytes *= static_cast<uint64_t>(extent);
  return type ? bytes / packing(*type) : bytes;
}

Status check_array(const char* name, const Array& given, std::optional<DataType> type, std::span<const int64_t> dims,
                   Untyped untyped) {
  if (!std::ranges::equal(given.dims, dims)) {
    return invalid(name, " is ", shape_text(given.dims), "; here it is ", shape_text(dims));
  }
  if (given.type != type) return invalid(name, " has another dtype than it must have beside the other arrays");
  if (!type && given.untyped != untyped) {
    return invalid(name, untyped == Untyped::kInt32 ? " is not int32" : " is not uint8 or float8_e8m0fnu");
  }
  return Status();
}

std::vector<CallArray> arrays_of(const GemmPlan& plan) {
  const GemmProblem& p = plan.problem;
  using Buffers = GemmBuffers;
  using Dims = std::vector<uint64_t>;
  std::vector<CallArray> arrays;
  const auto add = [&](bool present, const char* name, std::optional<DataType> type, const Dims& dims, bool result,
                       CUdeviceptr Buffers::* address, Untyped untyped = Untyped::kBytes) {
    if (present) arrays.push_back({name, type, {dims.begin(), dims.end()}, result, address, untyped});
  };
  const bool grouped = p.grouped != Grouped::kNone;
  const auto stored = [&](bool batched, Major major, uint64_t extent) {
    const uint64_t batch = batched ? p.batch : 1;
    return major == Major::kK ? Dims{batch, extent, p.k} : Dims{batch, p.k, extent};
  };
  Dims rhs = stored(p.b_batched, p.b_major, p.n), result{p.batch, p.m, p.n};
  if (grouped) {
    Dims& of_groups = p.grouped == Grouped::kRows ? rhs : result;
    of_groups.insert(of_groups.begin() + 1, p.groups);
  }
  const Dims rows{p.a_batched ? p.batch : 1, p.m};
  const Dims columns = grouped ? Dims{p.b_batched ? p.batch : 1, p.groups, p.n} : Dims{p.b_batched ? p.batch : 1, p.n};
  const auto of_blocks = [&](bool batched, uint64_t extent, uint32_t shared) {
    return Dims{batched ? p.batch : 1, ceil_div(extent, std::max(shared, 1u)), ceil_div(p.k, kScaleBlock)};
  };
  const uint64_t lhs_extent = p.gathered() ? p.source_rows : p.m;
  add(true, "lhs", p.a_type, stored(p.a_batched, p.a_major, lhs_extent), false, &Buffers::a);
  add(true, "rhs", p.b_type, rhs, false, &Buffers::b);
  add(p.gated, "rhs_up", p.b_type, rhs, false, &Buffers::b_up);
  add(p.c.has_value(), "c", p.c, result, false, &Buffers::c);
  const Dims bias = grouped ? columns : Dims{p.bias_along_m ? p.m : p.n};
  add(p.bias.has_value(), "bias", p.bias, bias, false, &Buffers::bias);
  add(p.residual.has_value(), "residual", p.residual, result, false, &Buffers::residual);
  add(p.factors_in_memory, "alpha", DataType::kF32, {}, false, &Buffers::alpha);
  add(p.factors_in_memory && p.c, "beta", DataType::kF32, {}, false, &Buffers::beta);
  add(p.a_scaled, "lhs_scale", DataType::kF32, rows, false, &Buffers::a_scales);
  add(p.a_blocks != 0, "lhs_scale", DataType::kF32, of_blocks(p.a_batched, p.m, p.a_blocks), false, &Buffers::a_scales);
  add(p.b_scaled, "rhs_scale", DataType::kF32, columns, false, &Buffers::b_scales);
  add(p.b_blocks != 0, "rhs_scale", DataType::kF32, of_blocks(p.b_batched, p.n, p.b_blocks), false, &Buffers::b_scales);
  add(p.b_scaled && p.gated, "rhs_up_scale", DataType::kF32, columns, false, &Buffers::b_up_scales);
  if (p.mx != 0) {
    const std::optional<DataType> type = p.mx == kNvBlock ? std::optional(DataType::kE4M3) : std::nullopt;  // or ue8m0
    const Operand a = operand_a(p), b = operand_b(p);
    const auto scale_tiles = [&](const Operand& operand, uint64_t row_tiles) {
      return Dims{operand.batch, row_tiles, k_tiles(operand, p.mx), kScaleTileBytes};
    };
    add(true, "lhs_tiles", type, scale_tiles(a, a_row_tiles(p, plan.config, plan.work)), false, &Buffers::a_tiles);
    add(true, "rhs_tiles", type, scale_tiles(b, row_tiles(b)), false, &Buffers::b_tiles);
    add(p.gated, "rhs_up_tiles", type, scale_tiles(b, row_tiles(b)), false, &Buffers::b_up_tiles);
  }
  add(p.gathered(), "lhs_rows", std::nullopt, {p.m}, false, &Buffers::lhs_rows, Untyped::kInt32);
  add(grouped, "group_sizes", std::nullopt, {p.batch, p.total_groups}, false, &Buffers::group_sizes, Untyped::kInt32);
  add(grouped, "group_offset", std::nullopt, {}, false, &Buffers::group_offset, Untyped::kInt32);
  add(p.out_scaled, "out_scale", DataType::kF32, {}, false, &Buffers::out_scale);
  const Dims stored_result = p.out_mx ? Dims{p.batch, p.m, p.result_columns()} : result;
  add(true, "result", p.output, stored_result, true, &Buffers::d);
  add(p.save, "saved", p.saved(), result, true, &Buffers::saved);
  add(p.save && p.gated, "saved_up", p.saved(), result, true, &Buffers::saved_up);
  add(p.out_scaled, "amax", DataType::kF32, {p.batch}, true, &Buffers::amax);
  const Dims result_tiles{p.batch, ceil_div(p.m, kScaleTileRows), ceil_div(p.n, kMxBlock * kScaleTileBlocks),
                          kScaleTileBytes};
  add(p.out_mx, "result_tiles", std::nullopt, result_tiles, true, &Buffers::d_tiles);
  const uint64_t workspace = plan.workspace.bytes;
  add(workspace != 0, "workspace", std::nullopt, {workspace}, true, &Buffers::workspace);
  return arrays;
}

Status match(const char* kind, std::span<const Array> given, std::span<const CallArray> wanted, GemmBuffers& buffers) {
  if (given.size() != wanted.size()) {
    std::string names;
    for (const CallArray& array : wanted) names += std::string(names.empty() ? "" : ", ") + array.name;
    return invalid(given.size(), " ", kind, "; this call has ", wanted.size(), ": ", names);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& [name, type, dims, _, address, untyped] = wanted[i];
    if (Status status = check_array(name, given[i], type, dims, untyped); !status.ok()) return status;
    buffers.*address = given[i].address;
  }
  return Status();
}

// A negative value becomes a huge one, which gemm_rules.cc refuses.
GemmConfig config_of(const GemmAttributes& attributes) {
  GemmConfig config{.kernel = attributes.kernel};
#define JAXBW_FIELD(name, ...) config.name = static_cast<uint32_t>(attributes.name);
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  if (const KernelInstance* instance = find_instance(attributes.kernel); instance != nullptr && config.cta_group != 0) {
    const GemmProblem problem{.a_major = static_cast<Major>(attributes.lhs_major),
                              .b_major = static_cast<Major>(attributes.rhs_major),
                              .a_type = operand_type(*instance),
                              .b_type = operand_type(*instance),
                              .gated = attributes.gated != 0};
    const KernelFamily* family = find_family(instance->family);
    config.b_columns = b_columns(*family, as_launched(problem, config), config);
  }
  return config;
}

GemmAttributes attributes_of_call(const GemmPlan& plan) {
  const GemmProblem& p = plan.problem;
  const GemmConfig& config = plan.config;
  GemmAttributes attributes{.kernel = config.kernel,
                            .alpha = p.alpha,
                            .beta = p.beta,
                            .has_c = p.c.has_value(),
                            .has_bias = p.bias.has_value(),
                            .bias_along_m = p.bias_along_m,
                            .has_residual = p.residual.has_value(),
                            .has_lhs_scale = p.a_scaled,
                            .has_rhs_scale = p.b_scaled,
                            .lhs_blocks = static_cast<int32_t>(p.a_blocks),
                            .rhs_blocks = static_cast<int32_t>(p.b_blocks),
                            .mx = static_cast<int32_t>(p.mx),
                            .has_out_scale = p.out_scaled,
                            .out_mx = p.out_mx,
                            .gated = p.gated,
                            .save = p.save,
                            .activation = static_cast<int32_t>(p.activation),
                            .lhs_major = static_cast<int32_t>(p.a_major),
                            .rhs_major = static_cast<int32_t>(p.b_major),
                            .promoted = p.promoted,
                            .counters = static_cast<int32_t>(plan.counters())};
#define JAXBW_FIELD(name, ...) attributes.name = static_cast<int32_t>(config.name);
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  return attributes;
}

Result<GemmProblem> read_matmul(const GemmAttributes& attributes, const Array& lhs, const Array& rhs) {
  if (Status status = check_flags(attributes); !status.ok()) return status;
  const std::string shapes = concat("lhs ", shape_text(lhs.dims), ", rhs ", shape_text(rhs.dims), ": ");
  const auto extent = [](const Array& array, int axis) { return static_cast<uint64_t>(array.dims[axis]); };
  if (lhs.dims.size() != 3 || rhs.dims.size() != 3) return invalid(shapes, "they have rank 3");
  if (!lhs.type || !rhs.type || !multiplied_together(*lhs.type, *rhs.type))
    return invalid(shapes, "they have one dtype, f16, bf16 or f32, or 8 or 4 bits each, e4m3, e5m2 or e2m1");
  const bool a_k_major = attributes.lhs_major == 0, b_k_major = attributes.rhs_major == 0;
  GemmProblem problem{.batch = std::max(extent(lhs, 0), extent(rhs, 0)),
                      .m = extent(lhs, a_k_major ? 1 : 2),
                      .n = extent(rhs, b_k_major ? 1 : 2),
                      .k = extent(lhs, a_k_major ? 2 : 1),
                      .a_major = static_cast<Major>(attributes.lhs_major),
                      .b_major = static_cast<Major>(attributes.rhs_major),
                      .a_type = *lhs.type,
                      .b_type = *rhs.type,
                      .promoted = attributes.promoted != 0,
                      .alpha = attributes.alpha,
                      .beta = attributes.beta,
                      .a_scaled = attributes.has_lhs_scale != 0,
                      .b_scaled = attributes.has_rhs_scale != 0,
                      .a_blocks = static_cast<uint32_t>(attributes.lhs_blocks),
                      .b_blocks = static_cast<uint32_t>(attributes.rhs_blocks),
                      .mx = static_cast<uint32_t>(attributes.mx),
                      .bias_along_m = attributes.bias_along_m != 0,
                      .activation = static_cast<Activation>(attributes.activation),
                      .gated = attributes.gated != 0,
                      .save = attributes.save != 0,
                      .out_scaled = attributes.has_out_scale != 0,
                      .out_mx = attributes.out_mx != 0};
  problem.a_batched = extent(lhs, 0) == problem.batch;
  problem.b_batched = extent(rhs, 0) == problem.batch;
  if (extent(rhs, b_k_major ? 2 : 1) != problem.k || (!problem.a_batched && extent(lhs, 0) != 1) ||
      (!problem.b_batched && extent(rhs, 0) != 1)) {
    return invalid(shapes, "the sizes do not belong to one matmul");
  }
  return problem;
}

Result<GemmProblem> read_operands(const GemmAttributes& attributes, std::span<const Array> operands) {
  if (Status status = check_flags(attributes); !status.ok()) return status;
  const size_t arrays = operand_count(attributes), factors = attributes.has_c != 0 ? 2 : 1;
  if (operands.size() != arrays && operands.size() != arrays + factors) {
    return invalid(operands.size(), " operands; the attributes say that there are ", arrays, ", or with factors ",
                   arrays + factors);
  }
  const Result<GemmProblem> matmul = read_matmul(attributes, operands[0], operands[1]);
  if (!matmul.ok()) return matmul;
  GemmProblem problem = *matmul;
  problem.factors_in_memory = operands.size() != arrays;
  size_t next = problem.gated ? 3 : 2;
  const std::tuple<const char*, int32_t, std::optional<DataType>*> optional[] = {
      {"c", attributes.has_c, &problem.c},
      {"bias", attributes.has_bias, &problem.bias},
      {"residual", attributes.has_residual, &problem.residual}};
  for (const auto& [name, present, type] : optional) {
    if (present == 0) continue;
    *type = operands[next++].type;
    if (!*type || is_8bit(**type)) return invalid(name, " is not f16, bf16 or f32");
  }
  return problem;
}

namespace {

// The problem of a grouped call, as far as ranks of the first two and the last two go: match() sees to the rest.
Result<GemmProblem> read_grouped(const GemmAttributes& attributes, Grouped grouped, std::span<const Array> operands,
                                 std::span<const Array> results) {
  if (Status status = check_flags(attributes); !status.ok()) return status;
  const bool of_rows = grouped == Grouped::kRows;
  const bool gathered = find_instance(attributes.kernel)->role == "gathered";
  const size_t ranks[] = {3, of_rows ? 4u : 3u, 2, 0}, count = operand_count(attributes) + 2 + gathered;
  const auto rank_is = [&](size_t i, size_t rank) { return operands[i].dims.size() == rank; };
  if (operands.size() != count || !rank_is(0, ranks[0]) || !rank_is(1, ranks[1]) || !rank_is(count - 2, ranks[2]) ||
      !rank_is(count - 1, ranks[3]) || (gathered && !rank_is(count - 3, 1)) ||
      results[0].dims.size() != (of_rows ? 3u : 4u)) {
    return invalid("a grouped call has lhs, rhs, group_sizes and group_offset of ranks 3, ", ranks[1],
                   ", 2 and 0, and what the attributes say");
  }
  const Array &lhs = operands[0], &rhs = operands[1], &sizes = operands[count - 2];
  if (!lhs.type || !rhs.type || !multiplied_together(*lhs.type, *rhs.type)) {
    return invalid("lhs and rhs have one dtype, f16, bf16 or e2m1, or 8 bits each, e4m3 or e5m2");
  }
  const auto extent = [](const Array& array, size_t axis) { return static_cast<uint64_t>(array.dims[axis]); };
  const bool b_k_major = attributes.rhs_major == 0;
  GemmProblem problem{.batch = extent(sizes, 0),
                      .m = gathered ? extent(operands[count - 3], 0) : extent(lhs, of_rows ? 1 : 2),
                      .n = extent(rhs, rhs.dims.size() - (b_k_major ? 2 : 1)),
                      .k = extent(lhs, of_rows ? 2 : 1),
                      .a_major = static_cast<Major>(attributes.lhs_major),
                      .b_major = static_cast<Major>(attributes.rhs_major),
                      .a_type = *lhs.type,
                      .b_type = *rhs.type,
                      .promoted = attributes.promoted != 0,
                      .alpha = attributes.alpha,
                      .beta = attributes.beta,
                      .a_scaled = attributes.has_lhs_scale != 0,
                      .b_scaled = attributes.has_rhs_scale != 0,
                      .mx = static_cast<uint32_t>(attributes.mx),
                      .activation = static_cast<Activation>(attributes.activation),
                      .gated = attributes.gated != 0,
                      .grouped = grouped,
                      .groups = extent(of_rows ? rhs : results[0], 1),
                      .total_groups = extent(sizes, 1),
                      .source_rows = gathered ? extent(lhs, 1) : 0};
  problem.a_batched = extent(lhs, 0) == problem.batch;
  problem.b_batched = extent(rhs, 0) == problem.batch;
  size_t next = problem.gated ? 3 : 2;
  if (attributes.has_c != 0) problem.c = operands[next++].type;
  if (attributes.has_bias != 0) problem.bias = operands[next++].type;
  if (problem.bias && is_8bit(*problem.bias)) return invalid("bias is not f16, bf16 or f32");
  return problem;
}

}  // namespace

Result<GemmCall> read_call(const GemmAttributes& attributes, std::span<const Array> operands,
                           std::span<const Array> results) {
  if (results.empty() || !results[0].type) return invalid("the result is f16, bf16, f32, e4m3 or e5m2");
  const Grouped grouped = grouped_by(attributes.kernel, static_cast<Major>(attributes.lhs_major));
  Result<GemmProblem> problem = grouped == Grouped::kNone ? read_operands(attributes, operands)
                                                          : read_grouped(attributes, grouped, operands, results);
  if (!problem.ok()) return problem.status();
  GemmProblem whole = std::move(problem).take();
  whole.output = *results[0].type;
  const Result<GemmPlan> plan = plan_call(whole, config_of(attributes));
  if (!plan.ok()) return plan.status();
  if (static_cast<uint64_t>(attributes.counters) != plan->counters()) {
    return invalid("attribute counters is ", attributes.counters, "; this call has ", plan->counters());
  }
  GemmCall call{*plan, arrays_of(*plan), {}};
  const std::span<const CallArray> wanted(call.arrays);
  Status status = match("operands", operands, wanted.first(operands.size()), call.buffers);
  if (status.ok()) status = match("results", results, wanted.subspan(operands.size()), call.buffers);
  if (!status.ok()) return with_context(describe(whole), status);
  return call;
}

}  // namespace jaxbw
