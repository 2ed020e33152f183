// The XLA custom call "jaxbw_gemm_v10", one matmul with its epilogue: on platform CUDA by the driver, on platform cpu
// by the emulator. Its operands, results and attributes are listed in jaxbw/_native.pyi.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxbw {

// On platform CUDA.
// Instantiate runs when a program is compiled, perhaps where there is no GPU: it checks the attributes, and leaves with
// XLA the state of the other stages, a CallSite.
// Initialize runs before every execution, on each device: at first it loads the kernels.
// Execute launches them, and may be captured into a CUDA graph.
XLA_FFI_Error* gemm_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* gemm_initialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* gemm_execute(XLA_FFI_CallFrame* frame);

// The type of the state, which has to be registered with XLA, too. XLA writes the id.
inline constexpr const char* kCallSiteType = "jaxbw_call_site";
XLA_FFI_TypeId* call_site_id();
const XLA_FFI_TypeInfo* call_site_info();

// The one stage on platform cpu: runs the kernel's PTX in the emulator.
XLA_FFI_Error* gemm_emulate(XLA_FFI_CallFrame* frame);

}  // namespace jaxbw
