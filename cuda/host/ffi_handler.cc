#include "host/ffi_handler.h"

#include <cuda.h>

#include "host/emulated_gemm.h"
#include "host/gemm.h"
#include "xla/ffi/api/ffi.h"

namespace jaxbw {

// The attributes of the custom call, by name.
struct GemmAttributes {
  std::string_view kernel;
  int32_t lhs_major, rhs_major, activation;
  int32_t block_m, block_n, cluster_m, cluster_n, cta_group, stages, swizzle;
};

}  // namespace jaxbw

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jaxbw::GemmAttributes, xla::ffi::StructMember<std::string_view>("kernel"),
    xla::ffi::StructMember<int32_t>("lhs_major"), xla::ffi::StructMember<int32_t>("rhs_major"),
    xla::ffi::StructMember<int32_t>("activation"), xla::ffi::StructMember<int32_t>("block_m"),
    xla::ffi::StructMember<int32_t>("block_n"), xla::ffi::StructMember<int32_t>("cluster_m"),
    xla::ffi::StructMember<int32_t>("cluster_n"), xla::ffi::StructMember<int32_t>("cta_group"),
    xla::ffi::StructMember<int32_t>("stages"), xla::ffi::StructMember<int32_t>("swizzle"));

namespace jaxbw {
namespace {

namespace ffi = xla::ffi;

ffi::Error to_error(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  if (status.code() == StatusCode::kInvalid) return ffi::Error::InvalidArgument(status.message());
  return ffi::Error::Internal(status.message());
}

// A negative value becomes a huge one, which gemm_rules.cc refuses.
GemmConfig config_of(const GemmAttributes& a) {
  return {.kernel = a.kernel,
          .block_m = static_cast<uint32_t>(a.block_m),
          .block_n = static_cast<uint32_t>(a.block_n),
          .cluster_m = static_cast<uint32_t>(a.cluster_m),
          .cluster_n = static_cast<uint32_t>(a.cluster_n),
          .cta_group = static_cast<uint32_t>(a.cta_group),
          .stages = static_cast<uint32_t>(a.stages),
          .swizzle = static_cast<uint32_t>(a.swizzle)};
}

std::optional<DataType> data_type(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return DataType::kF16;
    case ffi::DataType::BF16:
      return DataType::kBF16;
    case ffi::DataType::F32:
      return DataType::kF32;
    default:
      return std::nullopt;
  }
}

std::string shape(const ffi::AnyBuffer& buffer) {
  std::string text = "[";
  for (const int64_t extent : buffer.dimensions()) text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

// The problem is in the buffers' shapes and dtypes; the attributes say only which dimension is which.
Result<GemmProblem> problem_of(const GemmAttributes& attributes, const ffi::AnyBuffer& lhs, const ffi::AnyBuffer& rhs,
                               const std::optional<ffi::AnyBuffer>& bias, const ffi::AnyBuffer& result) {
  const auto a = lhs.dimensions(), b = rhs.dimensions(), d = result.dimensions();
  const std::string shapes = concat(kGemmTarget, " of lhs ", shape(lhs), ", rhs ", shape(rhs), ", bias ",
                                    bias ? shape(*bias) : "none", ", result ", shape(result), ": ");
  if (a.size() != 3 || b.size() != 3 || d.size() != 3) return invalid(shapes, "lhs, rhs and result have rank 3");

  const auto input = data_type(lhs.element_type()), output = data_type(result.element_type());
  if (!input || !output || lhs.element_type() != rhs.element_type()) {
    return invalid(shapes, "lhs and rhs have one dtype, f16 or bf16; the result is f16, bf16 or f32");
  }
  GemmProblem problem{.batch = static_cast<uint64_t>(d[0]),
                      .m = static_cast<uint64_t>(d[1]),
                      .n = static_cast<uint64_t>(d[2]),
                      .a_batched = a[0] != 1 || d[0] == 1,
                      .b_batched = b[0] != 1 || d[0] == 1,
                      .a_major = static_cast<Major>(attributes.lhs_major),
                      .b_major = static_cast<Major>(attributes.rhs_major),
                      .input = *input,
                      .output = *output,
                      .activation = static_cast<Activation>(attributes.activation)};
  const bool a_k_major = problem.a_major == Major::kK, b_k_major = problem.b_major == Major::kK;
  problem.k = static_cast<uint64_t>(a[a_k_major ? 2 : 1]);
  if (a[a_k_major ? 1 : 2] != d[1] || b[b_k_major ? 1 : 2] != d[2] || b[b_k_major ? 2 : 1] != a[a_k_major ? 2 : 1] ||
      (a[0] != 1 && a[0] != d[0]) || (b[0] != 1 && b[0] != d[0])) {
    return invalid(shapes, "the sizes do not belong to one product");
  }
  if (bias) {
    problem.bias = data_type(bias->element_type());
    if (!problem.bias || bias->dimensions().size() != 1 || bias->dimensions()[0] != d[2]) {
      return invalid(shapes, "bias is a vector as long as the result's last dimension, f16, bf16 or f32");
    }
  }
  return problem;
}

CUdeviceptr address(const ffi::AnyBuffer& buffer) { return reinterpret_cast<CUdeviceptr>(buffer.untyped_data()); }

// The problem and the memory of one call.
struct GemmCall {
  GemmProblem problem;
  GemmBuffers buffers;
};

Result<GemmCall> call_of(const GemmAttributes& attributes, const ffi::AnyBuffer& lhs, const ffi::AnyBuffer& rhs,
                         const ffi::RemainingArgs& rest, const ffi::AnyBuffer& result) {
  std::optional<ffi::AnyBuffer> bias;
  if (rest.size() > 1) return invalid(kGemmTarget, ": more than three operands");
  if (rest.size() == 1) bias = *rest.get<ffi::AnyBuffer>(0);
  const Result<GemmProblem> problem = problem_of(attributes, lhs, rhs, bias, result);
  if (!problem.ok()) return problem.status();
  return GemmCall{*problem, {address(lhs), address(rhs), bias ? address(*bias) : 0, address(result)}};
}

// noexcept: nothing may be thrown into XLA, which is compiled without exceptions.

ffi::Error instantiate(GemmAttributes attributes) noexcept { return to_error(check_config(config_of(attributes))); }

ffi::Error initialize(int32_t device, GemmAttributes attributes) noexcept {
  return to_error(prepare_gemm(config_of(attributes), device));
}

ffi::Error execute(CUstream stream, int32_t device, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::RemainingArgs rest,
                   ffi::Result<ffi::AnyBuffer> result, GemmAttributes attributes) noexcept {
  const Result<GemmCall> call = call_of(attributes, lhs, rhs, rest, *result);
  if (!call.ok()) return to_error(call.status());
  return to_error(launch_gemm(call->problem, config_of(attributes), call->buffers, device, stream));
}

ffi::Error emulate(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> result,
                   GemmAttributes attributes) noexcept {
  const Result<GemmCall> call = call_of(attributes, lhs, rhs, rest, *result);
  if (!call.ok()) return to_error(call.status());
  return to_error(emulate_gemm(call->problem, config_of(attributes), call->buffers));
}

}  // namespace

XLA_FFI_Error* gemm_instantiate(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindInstantiate().Attrs<GemmAttributes>().To(instantiate);
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_initialize(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>().Attrs<GemmAttributes>().To(initialize);
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_execute(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindExecute()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attrs<GemmAttributes>()
                                  .To(execute, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_emulate(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindExecute()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attrs<GemmAttributes>()
                                  .To(emulate);
  return handler->Call(frame);
}

}  // namespace jaxbw
