// The XLA custom calls "jaxbw_quantize_v1" and "jaxbw_quantize_blocks_v1": on platform CUDA by the driver, on platform
// cpu by the emulator. Their operands, results and attributes are listed in jaxbw/_native.pyi.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxbw {

// On platform CUDA: loads the kernel before an execution; launches it, which may be captured into a CUDA graph.
XLA_FFI_Error* quantize_initialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* quantize_execute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* quantize_blocks_initialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* quantize_blocks_execute(XLA_FFI_CallFrame* frame);

// The one stage on platform cpu: runs the kernel's PTX in the emulator.
XLA_FFI_Error* quantize_emulate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* quantize_blocks_emulate(XLA_FFI_CallFrame* frame);

}  // namespace jaxbw
