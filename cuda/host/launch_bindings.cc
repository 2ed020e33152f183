#include "host/launch_bindings.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <map>

#include "host/emulated_gemm.h"
#include "host/gemm_call.h"
#include "host/plan_bindings.h"

namespace nb = nanobind;

namespace jaxbw {
namespace {

// Addresses by the names of a call's arrays, and of its counters, which must be these.
GemmBuffers buffers_of(const GemmPlan& plan, const std::map<std::string, uint64_t>& addresses) {
  const std::vector<CallArray> arrays = arrays_of(plan);
  const auto address_of = [&](const char* name) {
    const auto found = addresses.find(name);
    if (found == addresses.end()) throw nb::value_error(concat(name, " is missing").c_str());
    return found->second;
  };
  GemmBuffers buffers;
  for (const CallArray& array : arrays) buffers.*array.address = address_of(array.name);
  const bool counted = plan.counters() != 0;
  if (counted) buffers.counters = address_of("counters");
  if (const size_t wanted = arrays.size() + counted; addresses.size() != wanted) {
    throw nb::value_error(concat(addresses.size(), " arrays; this call has ", wanted).c_str());
  }
  return buffers;
}

using Launches = std::tuple<std::optional<EmulatedLaunch>, EmulatedLaunch, std::optional<EmulatedLaunch>>;

// Of what goes before, the gemm kernel, and the reduce kernel.
Launches emulated_launches(const PlanOnDevice& plan, const std::map<std::string, uint64_t>& arrays, uint32_t sm_count) {
  const Result<EmulatedCall> call = emulated_call(plan.plan, buffers_of(plan.plan, arrays), plan.resident, sm_count);
  if (!call.ok()) throw nb::value_error(call.status().message().c_str());
  return {call->before, call->gemm, call->reduce};
}

#define JAXBW_PARAMS_FIELDS(X) \
  X(a)                         \
  X(b)                         \
  X(b_up)                      \
  X(d)                         \
  X(residual)                  \
  X(b_is_ready)                \
  X(epilogue.path)             \
  X(store_path)                \
  X(row_stride)                \
  X(column_stride)             \
  X(partials)                  \
  X(counters)

// Offset and size.
std::map<std::string, std::tuple<uint64_t, uint64_t>> gemm_params_fields() {
  return {
#define JAXBW_FIELD(name) {#name, {offsetof(GemmParams, name), sizeof(GemmParams::name)}},
      JAXBW_PARAMS_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  };
}

}  // namespace

void bind_launch(nb::module_& m) {
  nb::class_<EmulatedLaunch>(m, "EmulatedLaunch")
      .def_prop_ro("kernel", [](const EmulatedLaunch& launch) { return std::string(launch.kernel); })
      .def_prop_ro("blocks", [](const EmulatedLaunch& launch) { return launch.shape.blocks; })
      .def_prop_ro("threads", [](const EmulatedLaunch& launch) { return launch.shape.threads; })
      .def_prop_ro("cluster_ctas", [](const EmulatedLaunch& launch) { return launch.shape.cluster_size; })
      .def_prop_ro("shared_memory", [](const EmulatedLaunch& launch) { return launch.shape.shared_memory; })
      .def_prop_ro("parameters", [](const EmulatedLaunch& launch) {
        return nb::bytes(launch.parameters.data(), launch.parameters.size());
      });
  m.def("emulated_launches", &emulated_launches, nb::arg("plan"), nb::arg("arrays"), nb::kw_only(),
        nb::arg("sm_count"));
  m.def("gemm_params_fields", &gemm_params_fields);
}

}  // namespace jaxbw
