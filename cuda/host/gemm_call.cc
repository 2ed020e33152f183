#include "host/gemm_call.h"

#include <algorithm>
#include <tuple>

#include "host/gemm_launch.h"

namespace jaxbw {
namespace {

std::string shape(const std::vector<uint64_t>& dims) {
  std::string text = "[";
  for (const uint64_t extent : dims) text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

// Operands of a call, of which two are there.
size_t operand_count(const GemmAttributes& a) {
  return 2 + (a.gated != 0) + (a.has_c != 0) + (a.has_bias != 0) + (a.has_residual != 0);
}

Status check_flags(const GemmAttributes& a) {
  const std::pair<const char*, int32_t> flags[] = {
      {"has_c", a.has_c}, {"has_bias", a.has_bias}, {"bias_along_m", a.bias_along_m}, {"has_residual", a.has_residual},
      {"gated", a.gated}, {"save", a.save},         {"lhs_major", a.lhs_major},       {"rhs_major", a.rhs_major}};
  for (const auto& [name, value] : flags) {
    if (value != 0 && value != 1) return invalid("attribute ", name, " is ", value, "; it is 0 or 1");
  }
  return Status();
}

}  // namespace

uint64_t CallArray::bytes() const {
  uint64_t bytes = type ? size_bytes(*type) : 1;
  for (const uint64_t extent : dims) bytes *= extent;
  return bytes;
}

std::vector<CallArray> arrays_of(const GemmProblem& p, uint64_t workspace_bytes, GemmBuffers& buffers) {
  std::vector<CallArray> arrays;
  const auto add = [&](bool present, const char* name, std::optional<DataType> type, std::vector<uint64_t> dims,
                       bool result, CUdeviceptr& address) {
    if (present) arrays.push_back({name, type, std::move(dims), result, &address});
  };
  const auto stored = [&](bool batched, Major major, uint64_t extent) {
    const uint64_t batch = batched ? p.batch : 1;
    return major == Major::kK ? std::vector{batch, extent, p.k} : std::vector{batch, p.k, extent};
  };
  const std::vector<uint64_t> rhs = stored(p.b_batched, p.b_major, p.n), result{p.batch, p.m, p.n};
  add(true, "lhs", p.input, stored(p.a_batched, p.a_major, p.m), false, buffers.a);
  add(true, "rhs", p.input, rhs, false, buffers.b);
  add(p.gated, "rhs_up", p.input, rhs, false, buffers.b_up);
  add(p.c.has_value(), "c", p.c, result, false, buffers.c);
  add(p.bias.has_value(), "bias", p.bias, {p.bias_along_m ? p.m : p.n}, false, buffers.bias);
  add(p.residual.has_value(), "residual", p.residual, result, false, buffers.residual);
  add(true, "result", p.output, result, true, buffers.d);
  add(p.save, "saved", p.output, result, true, buffers.saved[0]);
  add(p.save && p.gated, "saved_up", p.output, result, true, buffers.saved[1]);
  add(workspace_bytes != 0, "workspace", std::nullopt, {workspace_bytes}, true, buffers.workspace);
  return arrays;
}

Status match(const char* kind, std::span<const Array> given, std::span<const CallArray> wanted) {
  if (given.size() != wanted.size()) {
    std::string names;
    for (const CallArray& array : wanted) names += std::string(names.empty() ? "" : ", ") + array.name;
    return invalid(given.size(), " ", kind, "; this call has ", wanted.size(), ": ", names);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].dims != wanted[i].dims) {
      return invalid(wanted[i].name, " is ", shape(given[i].dims), "; here it is ", shape(wanted[i].dims));
    }
    if (given[i].type != wanted[i].type) {
      return invalid(wanted[i].name, " has another dtype than it must have beside the other arrays");
    }
    *wanted[i].address = given[i].address;
  }
  return Status();
}

// A negative value becomes a huge one, which gemm_rules.cc refuses.
GemmConfig config_of(const GemmAttributes& attributes) {
  GemmConfig config{.kernel = attributes.kernel};
#define JAXBW_FIELD(name, ...) config.name = static_cast<uint32_t>(attributes.name);
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  return config;
}

Result<GemmProblem> read_product(const GemmAttributes& attributes, const Array& lhs, const Array& rhs) {
  if (Status status = check_flags(attributes); !status.ok()) return status;
  const std::string shapes = concat("lhs ", shape(lhs.dims), ", rhs ", shape(rhs.dims), ": ");
  if (lhs.dims.size() != 3 || rhs.dims.size() != 3) return invalid(shapes, "they have rank 3");
  if (!lhs.type || lhs.type != rhs.type) return invalid(shapes, "they have one dtype, f16, bf16 or f32");
  const bool a_k_major = attributes.lhs_major == 0, b_k_major = attributes.rhs_major == 0;
  GemmProblem problem{.batch = std::max(lhs.dims[0], rhs.dims[0]),
                      .m = lhs.dims[a_k_major ? 1 : 2],
                      .n = rhs.dims[b_k_major ? 1 : 2],
                      .k = lhs.dims[a_k_major ? 2 : 1],
                      .a_major = static_cast<Major>(attributes.lhs_major),
                      .b_major = static_cast<Major>(attributes.rhs_major),
                      .input = *lhs.type,
                      .alpha = attributes.alpha,
                      .beta = attributes.beta,
                      .bias_along_m = attributes.bias_along_m != 0,
                      .activation = static_cast<Activation>(attributes.activation),
                      .gated = attributes.gated != 0,
                      .save = attributes.save != 0};
  problem.a_batched = lhs.dims[0] == problem.batch;
  problem.b_batched = rhs.dims[0] == problem.batch;
  if (rhs.dims[b_k_major ? 2 : 1] != problem.k || (!problem.a_batched && lhs.dims[0] != 1) ||
      (!problem.b_batched && rhs.dims[0] != 1)) {
    return invalid(shapes, "the sizes do not belong to one product");
  }
  return problem;
}

Result<GemmProblem> read_operands(const GemmAttributes& attributes, std::span<const Array> operands) {
  if (Status status = check_flags(attributes); !status.ok()) return status;
  if (operands.size() != operand_count(attributes)) {
    return invalid(operands.size(), " operands; the attributes say that there are ", operand_count(attributes));
  }
  const Result<GemmProblem> product = read_product(attributes, operands[0], operands[1]);
  if (!product.ok()) return product;
  GemmProblem problem = *product;
  size_t next = problem.gated ? 3 : 2;
  const std::tuple<const char*, int32_t, std::optional<DataType>*> optional[] = {
      {"c", attributes.has_c, &problem.c},
      {"bias", attributes.has_bias, &problem.bias},
      {"residual", attributes.has_residual, &problem.residual}};
  for (const auto& [name, present, type] : optional) {
    if (present == 0) continue;
    *type = operands[next++].type;
    if (!*type) return invalid(name, " is not f16, bf16 or f32");
  }
  return problem;
}

Result<GemmCall> read_call(const GemmAttributes& attributes, std::span<const Array> operands,
                           std::span<const Array> results) {
  Result<GemmProblem> problem = read_operands(attributes, operands);
  if (!problem.ok()) return problem.status();
  GemmCall call{.problem = std::move(problem).take(), .config = config_of(attributes), .buffers = {}};
  if (results.empty() || !results[0].type) return invalid("the result is f16, bf16 or f32");
  call.problem.output = *results[0].type;
  const Result<uint64_t> workspace = workspace_bytes(call.problem, call.config);
  if (!workspace.ok()) return workspace.status();
  const std::vector<CallArray> wanted = arrays_of(call.problem, *workspace, call.buffers);
  Status status = match("operands", operands, std::span(wanted).first(operands.size()));
  if (status.ok()) status = match("results", results, std::span(wanted).subspan(operands.size()));
  if (!status.ok()) return with_context(describe(call.problem), status);
  return call;
}

}  // namespace jaxbw
