// Python bindings of the emulator.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxbw::emulator {

// Adds the submodule `emulator` to `m`. Its typed face is the Python package jaxbw.emulator.
void bind_emulator(nanobind::module_& m);

}  // namespace jaxbw::emulator
