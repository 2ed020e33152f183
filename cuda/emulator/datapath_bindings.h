// Python bindings of the emulator's datapaths.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxbw::emulator {

// Adds the submodule `datapath` to `m`: TensorMapFields and the pure functions of the engines, for tests and
// for looking at a layout from Python. emulator::Error reaches Python as RuntimeError unless `m` registers it.
void bind_emulator_datapath(nanobind::module_& m);

}  // namespace jaxbw::emulator
