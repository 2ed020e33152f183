// A launch's face to Python, for those who run its kernels in the emulator themselves: tests.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxbw {

// EmulatedLaunch, emulated_launches and gemm_params_fields: see jaxbw/_native.pyi. After bind_plan.
void bind_launch(nanobind::module_& m);

}  // namespace jaxbw
