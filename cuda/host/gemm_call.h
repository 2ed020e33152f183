// What a call is made of, whoever makes it: XLA's runtime (ffi_handler.cc) or Python (module.cc). Attributes and arrays
// come in, a plan of the launch and addresses come out.
#pragma once

#include <span>
#include <vector>

#include "host/gemm_launch.h"

namespace jaxbw {

inline constexpr const char* kGemmTarget = "jaxbw_gemm_v10";

// The int32 attributes that describe the matmul, and GemmPlan::counters(), which a call site allocates before it knows
// the shapes; the names are also Python's.
#define JAXBW_PROBLEM_ATTRIBUTES(X) \
  X(has_c)                          \
  X(has_bias)                       \
  X(bias_along_m)                   \
  X(has_residual)                   \
  X(has_lhs_scale)                  \
  X(has_rhs_scale)                  \
  X(lhs_blocks)                     \
  X(rhs_blocks)                     \
  X(mx)                             \
  X(has_out_scale)                  \
  X(out_mx)                         \
  X(gated)                          \
  X(save)                           \
  X(activation)                     \
  X(lhs_major)                      \
  X(rhs_major)                      \
  X(promoted)                       \
  X(counters)

// All attributes: these, and the fields of GemmConfig.
struct GemmAttributes {
  std::string_view kernel;
  float alpha, beta;
#define JAXBW_FIELD(name, ...) int32_t name;
  JAXBW_PROBLEM_ATTRIBUTES(JAXBW_FIELD)
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
};

// Elements of an array whose type is none that a GEMM multiplies: bytes are uint8, or float8_e8m0fnu.
enum class Untyped { kBytes, kInt32, kUnknown };

// An array that is given; no type where it is none that a GEMM has.
struct Array {
  std::optional<DataType> type;
  std::span<const int64_t> dims;
  CUdeviceptr address = 0;
  Untyped untyped = Untyped::kBytes;  // where it has no type
};

// "[2,3]"
std::string shape_text(std::span<const int64_t> dims);

uint64_t array_bytes(std::optional<DataType> type, std::span<const int64_t> dims, Untyped untyped = Untyped::kBytes);

// Fails unless a given array is as it must be.
Status check_array(const char* name, const Array& given, std::optional<DataType> type, std::span<const int64_t> dims,
                   Untyped untyped);

// An array that a call must have, and where its address goes.
struct CallArray {
  const char* name;
  std::optional<DataType> type;
  std::vector<int64_t> dims;
  bool result;
  CUdeviceptr GemmBuffers::* address;
  Untyped untyped = Untyped::kBytes;  // where it has no type

  uint64_t bytes() const { return array_bytes(type, dims, untyped); }
};

// All arrays of a call in their order: operands, then results, the workspace last. For a problem that is known but for
// rules on the launch, and `workspace_bytes` of scratch memory. Factors may lie in memory: that there are so many
// operands tells that they do, and those among the attributes do not count.
std::vector<CallArray> arrays_of(const GemmPlan& plan);

// Fails unless given arrays are those that a call must have; takes their addresses. `kind`: "operands" or "results".
Status match(const char* kind, std::span<const Array> given, std::span<const CallArray> wanted, GemmBuffers& buffers);

struct GemmCall {
  GemmPlan plan;
  std::vector<CallArray> arrays;
  GemmBuffers buffers;
};

GemmConfig config_of(const GemmAttributes& attributes);

// The attributes of the call that is planned.
GemmAttributes attributes_of_call(const GemmPlan& plan);

// The problem, as far as two operands tell it: without the types of result, C, bias and residual.
Result<GemmProblem> read_matmul(const GemmAttributes& attributes, const Array& lhs, const Array& rhs);

// The problem without the type of the result, from all operands.
Result<GemmProblem> read_operands(const GemmAttributes& attributes, std::span<const Array> operands);

// Fails unless operands and results are those of one launchable call.
Result<GemmCall> read_call(const GemmAttributes& attributes, std::span<const Array> operands,
                           std::span<const Array> results);

}  // namespace jaxbw
