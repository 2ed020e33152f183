#include "host/ffi_quantize.h"

#include <cuda.h>

#include "host/ffi_arrays.h"
#include "host/quantize.h"
#include "host/quantize_blocks.h"

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jaxbw::QuantizeBlocksAttributes,
                                      xla::ffi::StructMember<std::string_view>("kernel"),
                                      xla::ffi::StructMember<int32_t>("columns"),
                                      xla::ffi::StructMember<int32_t>("rows"),
                                      xla::ffi::StructMember<int32_t>("square"));

namespace jaxbw {
namespace {

namespace ffi = xla::ffi;

// noexcept: nothing may be thrown into XLA, which is compiled without exceptions.

ffi::Error initialize_tensor(int32_t device, std::string_view kernel) noexcept {
  return to_error(prepare_quantize(kernel, device));
}

ffi::Error execute_tensor(CUstream stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                          std::string_view kernel) noexcept {
  const GivenArrays given(args, rets);
  return to_error(launch_quantize(kernel, given.operands(), given.results(), device, stream));
}

ffi::Error emulate_tensor(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view kernel) noexcept {
  const GivenArrays given(args, rets);
  return to_error(emulate_quantize(kernel, given.operands(), given.results()));
}

ffi::Error initialize_blocks(int32_t device, QuantizeBlocksAttributes attributes) noexcept {
  return to_error(prepare_quantize_blocks(attributes.kernel, device));
}

ffi::Error execute_blocks(CUstream stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                          QuantizeBlocksAttributes attributes) noexcept {
  const GivenArrays given(args, rets);
  return to_error(launch_quantize_blocks(attributes, given.operands(), given.results(), device, stream));
}

ffi::Error emulate_blocks(ffi::RemainingArgs args, ffi::RemainingRets rets,
                          QuantizeBlocksAttributes attributes) noexcept {
  const GivenArrays given(args, rets);
  return to_error(emulate_quantize_blocks(attributes, given.operands(), given.results()));
}

}  // namespace

XLA_FFI_Error* quantize_initialize(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>().Attr<std::string_view>("kernel").To(initialize_tensor);
  return handler->Call(frame);
}

XLA_FFI_Error* quantize_execute(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindExecute()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("kernel")
                                  .To(execute_tensor, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_Error* quantize_emulate(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindExecute().RemainingArgs().RemainingRets().Attr<std::string_view>("kernel").To(emulate_tensor);
  return handler->Call(frame);
}

XLA_FFI_Error* quantize_blocks_initialize(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>().Attrs<QuantizeBlocksAttributes>().To(initialize_blocks);
  return handler->Call(frame);
}

XLA_FFI_Error* quantize_blocks_execute(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::BindExecute()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs<QuantizeBlocksAttributes>()
                                  .To(execute_blocks, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_Error* quantize_blocks_emulate(XLA_FFI_CallFrame* frame) {
  static const auto handler =
      ffi::Ffi::BindExecute().RemainingArgs().RemainingRets().Attrs<QuantizeBlocksAttributes>().To(emulate_blocks);
  return handler->Call(frame);
}

}  // namespace jaxbw
