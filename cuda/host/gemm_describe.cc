// A matmul and its configuration in words, for messages. See gemm.h.
#include "host/gemm.h"
#include "host/operand.h"

namespace jaxbw {
namespace {

// "unknown" is what a problem has that check_problem refuses.
const char* name(DataType type) {
  switch (type) {
    case DataType::kF16:
      return "f16";
    case DataType::kBF16:
      return "bf16";
    case DataType::kF32:
      return "f32";
    case DataType::kE4M3:
      return "f8_e4m3";
    case DataType::kE5M2:
      return "f8_e5m2";
    case DataType::kE2M1:
    case DataType::kE2M1Padded:
      return "f4_e2m1";
  }
  return "unknown";
}

std::string shape(DataType type, uint64_t batch, uint64_t rows, uint64_t columns) {
  return concat(name(type), "[", batch, ",", rows, ",", columns, "]");
}

std::string shape(const Operand& o) { return shape(o.type, o.batch, o.rows(), o.columns()); }

}  // namespace

std::string describe(const GemmProblem& p) {
  std::string text = concat(p.grouped == Grouped::kNone ? "" : "grouped ", shape(operand_a(p)),
                            p.gathered() ? "[lhs_rows]" : "", p.a_major == Major::kMN ? "^T" : "", " @ ",
                            shape(operand_b(p)), p.b_major == Major::kK ? "^T" : "", p.gated ? " (gate and up)" : "");
  const std::pair<bool, const char*> terms[] = {
      {p.a_scaled, " * lhs_scale"},    {p.a_blocks != 0, " * lhs_scale of blocks"},
      {p.b_scaled, " * rhs_scale"},    {p.b_blocks != 0, " * rhs_scale of blocks"},
      {p.mx != 0, " in MX format"},    {p.c.has_value(), " + c"},
      {p.bias.has_value(), " + bias"}, {p.residual.has_value(), " + residual"}};
  for (const auto& [present, term] : terms) text += present ? term : "";
  return concat(text, p.out_scaled ? " / out_scale" : "", p.out_mx ? " in MXFP8" : "", " -> ",
                shape(p.output, p.results(), p.m, p.n), p.save ? ", saved" : "");
}

std::string describe(const GemmConfig& c) {
  const GemmConfig unchanged;
  std::string text = concat("kernel ", c.kernel);
#define JAXBW_FIELD(name, ...) \
  if (c.name != unchanged.name) text += concat(", ", #name, " ", c.name);
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  return text;
}

}  // namespace jaxbw
