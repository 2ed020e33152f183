#include "host/ffi_handler.h"

#include <cuda.h>

#include <memory>

#include "host/call_site.h"
#include "host/emulated_gemm.h"
#include "host/ffi_arrays.h"

#define JAXBW_MEMBER(name, ...) , xla::ffi::StructMember<int32_t>(#name)
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jaxbw::GemmAttributes, xla::ffi::StructMember<std::string_view>("kernel"),
                                      xla::ffi::StructMember<float>("alpha"),
                                      xla::ffi::StructMember<float>("beta") JAXBW_PROBLEM_ATTRIBUTES(JAXBW_MEMBER)
                                          JAXBW_CONFIG_FIELDS(JAXBW_MEMBER));
#undef JAXBW_MEMBER

namespace jaxbw {
namespace {

namespace ffi = xla::ffi;

struct CallState {
  explicit CallState(const GemmAttributes& attributes) : site(attributes) {}

  static ffi::TypeId id;  // as the FFI wants it
  CallSite site;
};

ffi::TypeId CallState::id = XLA_FFI_UNKNOWN_TYPE_ID;

// noexcept: nothing may be thrown into XLA, which is compiled without exceptions.

ffi::ErrorOr<std::unique_ptr<CallState>> instantiate(GemmAttributes attributes) noexcept {
  if (Status status = check_call(config_of(attributes)); !status.ok()) return ffi::Unexpected(to_error(status));
  return std::make_unique<CallState>(attributes);
}

ffi::Error initialize(CUstream stream, int32_t device, CallState* state, ffi::Dictionary) noexcept {
  return to_error(state->site.prepare(device, stream));
}

ffi::Error execute(CUstream stream, int32_t device, CallState* state, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   ffi::Dictionary) noexcept {
  const GivenArrays given(args, rets);
  return to_error(state->site.launch(given.operands(), given.results(), device, stream));
}

ffi::Error emulate_matmul(ffi::RemainingArgs args, ffi::RemainingRets rets, GemmAttributes attributes) noexcept {
  const GivenArrays given(args, rets);
  const Result<GemmCall> call = read_call(attributes, given.operands(), given.results());
  if (!call.ok()) return to_error(with_context(kGemmTarget, call.status()));
  return to_error(emulate_gemm(call->plan, call->buffers));
}

}  // namespace

XLA_FFI_Error* gemm_instantiate(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindInstantiate().Attrs<GemmAttributes>().To(instantiate);
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_initialize(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindInitialize()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::State<CallState>>()
                                  .Attrs()
                                  .To(initialize);
  return handler->Call(frame);
}

XLA_FFI_Error* gemm_execute(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindExecute()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::State<CallState>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs()  // read by instantiate
                                  .To(execute, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_TypeId* call_site_id() { return &CallState::id; }

const XLA_FFI_TypeInfo* call_site_info() {
  static const XLA_FFI_TypeInfo info = ffi::MakeTypeInfo<CallState>();
  return &info;
}

XLA_FFI_Error* gemm_emulate(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindExecute().RemainingArgs().RemainingRets().Attrs<GemmAttributes>().To(emulate_matmul);
  return handler->Call(frame);
}

}  // namespace jaxbw
