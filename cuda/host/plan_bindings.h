// The planner's face to Python.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxbw {

// Problem, Plan, Violation, plan and what goes with them: see jaxbw/_native.pyi.
void bind_plan(nanobind::module_& m);

}  // namespace jaxbw
