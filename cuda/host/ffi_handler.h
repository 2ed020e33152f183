// The XLA custom call "jaxbw_gemm_v2", one product with its epilogue: on platform CUDA by the driver, on platform cpu
// by the emulator. Its operands, results and attributes are listed in jaxbw/_native.pyi.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxbw {

inline constexpr const char* kGemmTarget = "jaxbw_gemm_v2";

// Instantiate runs when a program is compiled, perhaps where there is no GPU: it only checks the attributes.
// Initialize runs once per device before the first execution: it loads the kernels.
// Execute launches them, and may be captured into a CUDA graph.
// No stage keeps a state of its own: a kernel made ready is a function of the attributes and the device, and kept for
// the process in kernel_library.cc.
XLA_FFI_Error* gemm_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* gemm_initialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* gemm_execute(XLA_FFI_CallFrame* frame);

// The one stage on platform cpu: runs the kernel's PTX in the emulator.
XLA_FFI_Error* gemm_emulate(XLA_FFI_CallFrame* frame);

}  // namespace jaxbw
