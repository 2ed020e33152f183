// The planner's face to Python: long, for each number of a plan has a name there.
#pragma once

#include <nanobind/nanobind.h>

#include "host/gemm_launch.h"

namespace jaxbw {

// A plan, and how many of its clusters run at a time.
struct PlanOnDevice {
  GemmPlan plan;
  uint32_t resident;

  // Where so many run at a time.
  uint32_t clusters_on(uint32_t at_a_time) const {
    return clusters_of(*plan.family, plan.config, static_cast<uint32_t>(plan.work.items), at_a_time);
  }
};

// Throws nanobind's value_error where there is none of that name.
const KernelFamily& family_named(const std::string& name);

// Problem, Plan, Violation, plan and what goes with them: see jaxbw/_native.pyi.
void bind_plan(nanobind::module_& m);

}  // namespace jaxbw
