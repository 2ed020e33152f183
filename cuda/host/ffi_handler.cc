#include "host/ffi_handler.h"

#include <cuda.h>

#include "host/emulated_gemm.h"
#include "host/gemm_call.h"
#include "xla/ffi/api/ffi.h"

#define JAXBW_MEMBER(name, ...) , xla::ffi::StructMember<int32_t>(#name)
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jaxbw::GemmAttributes, xla::ffi::StructMember<std::string_view>("kernel"),
                                      xla::ffi::StructMember<float>("alpha"),
                                      xla::ffi::StructMember<float>("beta") JAXBW_PROBLEM_ATTRIBUTES(JAXBW_MEMBER)
                                          JAXBW_CONFIG_FIELDS(JAXBW_MEMBER));
#undef JAXBW_MEMBER

namespace jaxbw {
namespace {

namespace ffi = xla::ffi;

ffi::Error to_error(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  if (status.code() == StatusCode::kInvalid) return ffi::Error::InvalidArgument(status.message());
  return ffi::Error::Internal(status.message());
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

Array array_of(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {data_type(buffer.element_type()),
          {dims.begin(), dims.end()},
          reinterpret_cast<CUdeviceptr>(buffer.untyped_data())};
}

Result<GemmCall> call_of(const GemmAttributes& attributes, const ffi::RemainingArgs& args,
                         const ffi::RemainingRets& rets) {
  std::vector<Array> operands, results;
  for (size_t i = 0; i < args.size(); ++i) operands.push_back(array_of(*args.get<ffi::AnyBuffer>(i)));
  for (size_t i = 0; i < rets.size(); ++i) results.push_back(array_of(**rets.get<ffi::AnyBuffer>(i)));
  const Result<GemmCall> call = read_call(attributes, operands, results);
  return call.ok() ? call : with_context(kGemmTarget, call.status());
}

// noexcept: nothing may be thrown into XLA, which is compiled without exceptions.

ffi::Error instantiate(GemmAttributes attributes) noexcept { return to_error(check_config(config_of(attributes))); }

ffi::Error initialize(int32_t device, GemmAttributes attributes) noexcept {
  return to_error(prepare_gemm(config_of(attributes), device));
}

ffi::Error execute(CUstream stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   GemmAttributes attributes) noexcept {
  const Result<GemmCall> call = call_of(attributes, args, rets);
  if (!call.ok()) return to_error(call.status());
  return to_error(launch_gemm(call->problem, call->config, call->buffers, device, stream));
}

ffi::Error emulate(ffi::RemainingArgs args, ffi::RemainingRets rets, GemmAttributes attributes) noexcept {
  const Result<GemmCall> call = call_of(attributes, args, rets);
  if (!call.ok()) return to_error(call.status());
  return to_error(emulate_gemm(call->problem, call->config, call->buffers));
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
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs<GemmAttributes>()
                                  .To(execute, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_emulate(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindExecute().RemainingArgs().RemainingRets().Attrs<GemmAttributes>().To(emulate);
  return handler->Call(frame);
}

}  // namespace jaxbw
