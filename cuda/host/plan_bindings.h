// The planner's face to Python: long, for each number of a plan has a name there.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxbw {

// Problem, Plan, Violation, plan and what goes with them: see jaxbw/_native.pyi.
void bind_plan(nanobind::module_& m);

}  // namespace jaxbw
