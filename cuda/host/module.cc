// The Python module jaxbw._native. Its documentation is in jaxbw/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <variant>

#include "emulator/bindings.h"
#include "host/device.h"
#include "host/direct_launcher.h"
#include "host/emulated_gemm.h"
#include "host/ffi_handler.h"
#include "host/ffi_quantize.h"
#include "host/gemm_launch.h"
#include "host/kernel_library.h"
#include "host/kernel_times.h"
#include "host/launch_bindings.h"
#include "host/plan_bindings.h"
#include "host/quantize.h"
#include "host/quantize_blocks.h"

namespace nb = nanobind;

namespace jaxbw {
namespace {

struct DriverError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void raise_unless_ok(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kInvalid) throw nb::value_error(status.message().c_str());
  if (status.code() == StatusCode::kDriver) throw DriverError(status.message());
  throw std::runtime_error(status.message());
}

using HostArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

StorageLayout layout(const std::string& family, uint32_t block_m, uint32_t block_n, uint32_t cta_group,
                     uint32_t k_spans) {
  if (block_m == 0 || block_n == 0 || cta_group == 0 || k_spans == 0) {
    throw nb::value_error("a tile has no dimension of 0");
  }
  return storage_layout(block_m / cta_group, block_n / cta_group, k_spans, family_named(family).epilogue);
}

using FfiTargets = std::map<std::string, std::map<std::string, nb::capsule>>;

nb::capsule capsule(XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

FfiTargets ffi_targets() {
  return {{kGemmTarget,
           {{"instantiate", capsule(gemm_instantiate)},
            {"initialize", capsule(gemm_initialize)},
            {"execute", capsule(gemm_execute)}}},
          {kQuantizeTarget, {{"initialize", capsule(quantize_initialize)}, {"execute", capsule(quantize_execute)}}},
          {kQuantizeBlocksTarget,
           {{"initialize", capsule(quantize_blocks_initialize)}, {"execute", capsule(quantize_blocks_execute)}}}};
}

// By name, what XLA has to know of a type of state.
FfiTargets ffi_types() {
  return {{kCallSiteType, {{"type_id", nb::capsule(call_site_id())}, {"type_info", nb::capsule(call_site_info())}}}};
}

FfiTargets emulator_ffi_targets() {
  return {{kGemmTarget, {{"execute", capsule(gemm_emulate)}}},
          {kQuantizeTarget, {{"execute", capsule(quantize_emulate)}}},
          {kQuantizeBlocksTarget, {{"execute", capsule(quantize_blocks_emulate)}}}};
}

uint64_t quantize_workspace_bytes(const std::vector<int64_t>& x, DataType type, DataType format) {
  const Result<QuantizePlan> plan = plan_quantize({x, type, format});
  raise_unless_ok(plan.status());
  return plan->workspace_bytes;
}

// The attributes of a call from a dict that has exactly these. The kernel's name lives in the dict.
GemmAttributes attributes_of(const nb::dict& given) {
  const auto get = [&](const char* name) {
    if (!given.contains(name)) throw nb::value_error(concat("attribute ", name, " is missing").c_str());
    return given[name];
  };
  size_t count = 3;
  GemmAttributes attributes{.kernel = nb::cast<const char*>(get("kernel")),
                            .alpha = nb::cast<float>(get("alpha")),
                            .beta = nb::cast<float>(get("beta"))};
#define JAXBW_FIELD(name, ...)                     \
  attributes.name = nb::cast<int32_t>(get(#name)); \
  ++count;
  JAXBW_PROBLEM_ATTRIBUTES(JAXBW_FIELD)
  JAXBW_CONFIG_FIELDS(JAXBW_FIELD)
#undef JAXBW_FIELD
  if (given.size() != count) throw nb::value_error(concat(given.size(), " attributes; there are ", count).c_str());
  return attributes;
}

// Bytes of workspace, and counters.
std::tuple<uint64_t, uint64_t> scratch_of(const std::vector<int64_t>& lhs, const std::vector<int64_t>& rhs,
                                          DataType input, const nb::dict& attributes) {
  const GemmAttributes given = attributes_of(attributes);
  const Result<GemmProblem> problem = read_matmul(given, {.type = input, .dims = lhs}, {.type = input, .dims = rhs});
  raise_unless_ok(problem.status());
  const Result<GemmPlan> plan = plan_call(*problem, config_of(given));
  raise_unless_ok(with_context(concat(describe(*problem), ", ", describe(config_of(given))), plan.status()));
  return {plan->workspace.bytes, plan->counters()};
}

using ByteArray = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

ByteArray byte_array(Bytes data) {
  auto* bytes = new Bytes(std::move(data));
  nb::capsule owner(bytes, [](void* data) noexcept { delete static_cast<Bytes*>(data); });
  return ByteArray(bytes->data(), {bytes->size()}, owner);
}

std::vector<ByteArray> launch_gemm_direct(const std::vector<HostArray>& operands,
                                          const std::vector<std::optional<DataType>>& dtypes, DataType output,
                                          const nb::dict& attributes, bool alias_c, int device, uint64_t guard_bytes,
                                          int repeats, bool poison, uintptr_t stream) {
  if (operands.size() != dtypes.size()) throw nb::value_error("every operand has one of dtypes");
  std::vector<Array> arrays;
  std::vector<std::vector<int64_t>> shapes(operands.size());  // in numbers, which may share a byte
  for (size_t i = 0; i < operands.size(); ++i) {
    const HostArray& operand = operands[i];
    if (operand.itemsize() != (dtypes[i] ? size_bytes(*dtypes[i]) : 1)) {
      throw nb::value_error(
          concat("operand ", i, " has elements of ", operand.itemsize(), " bytes, which its dtype has not").c_str());
    }
    shapes[i].assign(operand.shape_ptr(), operand.shape_ptr() + operand.ndim());
    if (dtypes[i] && !shapes[i].empty()) shapes[i].back() *= packing(*dtypes[i]);
    arrays.push_back({dtypes[i], shapes[i], reinterpret_cast<CUdeviceptr>(operand.data())});
  }
  const GemmAttributes given = attributes_of(attributes);
  const DirectLaunch options{.device = device,
                             .guard_bytes = guard_bytes,
                             .repeats = repeats,
                             .poison = poison,
                             .stream = reinterpret_cast<CUstream>(stream),
                             .alias_c = alias_c};
  auto launched = [&] {
    const nb::gil_scoped_release release;
    return launch_direct(given, std::move(arrays), output, options);
  }();
  raise_unless_ok(launched.status());
  std::vector<ByteArray> results;
  for (Bytes& result : std::move(launched).take()) results.push_back(byte_array(std::move(result)));
  return results;
}

// Address, shape and dtype.
using DeviceArrayTuple = std::tuple<uint64_t, std::vector<int64_t>, std::variant<DataType, Untyped>>;

std::vector<Array> device_arrays(const std::vector<DeviceArrayTuple>& given) {
  std::vector<Array> arrays;
  for (const auto& [address, dims, type] : given) {
    Array& array = arrays.emplace_back(Array{.type = std::nullopt, .dims = dims, .address = address});
    if (const DataType* multiplied = std::get_if<DataType>(&type)) array.type = *multiplied;
    if (const Untyped* other = std::get_if<Untyped>(&type)) array.untyped = *other;
  }
  return arrays;
}

// Directory of the kernels; address of the memory, its words, and those of a warp's slice.
using ProfilingTuple = std::tuple<std::string, uint64_t, uint64_t, uint64_t>;

std::optional<Profiling> profiling_of(const std::optional<ProfilingTuple>& given) {
  if (!given) return std::nullopt;
  const auto& [directory, address, words, slice_words] = *given;
  return Profiling{directory, {reinterpret_cast<uint64_t*>(address), slice_words}, words};
}

void enqueue_gemm(const std::vector<DeviceArrayTuple>& operands, const std::vector<DeviceArrayTuple>& results,
                  const nb::dict& attributes, uint64_t counters, int device, bool wait,
                  const std::optional<ProfilingTuple>& profiled) {
  const GemmAttributes given = attributes_of(attributes);
  const std::optional<Profiling> profiling = profiling_of(profiled);
  const Status status = [&] {
    const nb::gil_scoped_release release;
    return enqueue_direct(given, device_arrays(operands), device_arrays(results), counters, device, wait,
                          profiling ? &*profiling : nullptr);
  }();
  raise_unless_ok(status);
}

// Name, start and end of each kernel; records dropped.
std::tuple<std::vector<std::tuple<std::string, uint64_t, uint64_t>>, uint64_t> kernel_times() {
  const Result<KernelTimes> times = [] {
    const nb::gil_scoped_release release;
    return stop_kernel_times();
  }();
  raise_unless_ok(times.status());
  std::vector<std::tuple<std::string, uint64_t, uint64_t>> kernels;
  for (const KernelTime& kernel : times->kernels) kernels.emplace_back(kernel.name, kernel.start, kernel.end);
  return {std::move(kernels), times->dropped};
}

emulator::Report emulate_traced(const std::vector<DeviceArrayTuple>& operands,
                                const std::vector<DeviceArrayTuple>& results, const nb::dict& attributes,
                                uint32_t sm_count, const std::optional<ProfilingTuple>& profiled) {
  const GemmAttributes given = attributes_of(attributes);
  const Result<GemmCall> call = read_call(given, device_arrays(operands), device_arrays(results));
  raise_unless_ok(call.status());
  const std::optional<Profiling> profiling = profiling_of(profiled);
  Result<emulator::Report> report = [&] {
    const nb::gil_scoped_release release;
    return trace_gemm(call->plan, call->buffers, sm_count, profiling ? &*profiling : nullptr);
  }();
  raise_unless_ok(report.status());
  return std::move(report).take();
}

std::vector<std::string> activities() {
  return {
#define JAXBW_ACTIVITY(name, text) text,
      JAXBW_ACTIVITIES(JAXBW_ACTIVITY)
#undef JAXBW_ACTIVITY
  };
}

std::string repr(const DeviceInfo& d) {
  return concat("DeviceInfo(ordinal=", d.ordinal, ", name='", d.name, "', compute_capability=(", d.compute_major, ", ",
                d.compute_minor, "), sm_count=", d.sm_count, ", memory_bytes=", d.memory_bytes,
                ", l2_bytes=", d.l2_bytes, ")");
}

}  // namespace

NB_MODULE(_native, m) {
  nb::enum_<DataType>(m, "DataType")
      .value("F16", DataType::kF16)
      .value("BF16", DataType::kBF16)
      .value("F32", DataType::kF32)
      .value("E4M3", DataType::kE4M3)
      .value("E5M2", DataType::kE5M2)
      .value("E2M1", DataType::kE2M1);
  nb::enum_<Untyped>(m, "Untyped").value("BYTES", Untyped::kBytes).value("INT32", Untyped::kInt32);
  nb::enum_<Major>(m, "Major").value("K", Major::kK).value("MN", Major::kMN);
  nb::enum_<Activation>(m, "Activation")
      .value("NONE", Activation::kNone)
      .value("RELU", Activation::kRelu)
      .value("GELU", Activation::kGelu)
      .value("SILU", Activation::kSilu)
      .value("GELU_EXACT", Activation::kGeluExact);
  nb::exception<DriverError>(m, "DriverError", PyExc_RuntimeError);

  nb::class_<DeviceInfo>(m, "DeviceInfo")
      .def_ro("ordinal", &DeviceInfo::ordinal)
      .def_ro("name", &DeviceInfo::name)
      .def_prop_ro("compute_capability",
                   [](const DeviceInfo& d) { return std::pair(d.compute_major, d.compute_minor); })
      .def_ro("sm_count", &DeviceInfo::sm_count)
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes)
      .def_ro("l2_bytes", &DeviceInfo::l2_bytes)
      .def("__repr__", &repr);

  m.attr("CUDA_VERSION") = CUDA_VERSION;
  m.def("driver_version", &driver_version);
  m.def("driver_problem", []() -> std::optional<std::string> {
    const Status status = query_devices().status();
    return status.ok() ? std::nullopt : std::optional(status.message());
  });
  m.def("devices", [] {
    const Result<std::vector<DeviceInfo>> devices = query_devices();
    return devices.ok() ? *devices : std::vector<DeviceInfo>();
  });

  m.def(
      "start_kernel_times",
      [](const std::vector<std::string>& libraries) { raise_unless_ok(start_kernel_times(libraries)); },
      nb::arg("libraries"));
  m.def("stop_kernel_times", &kernel_times);

  m.def("ffi_targets", &ffi_targets);
  m.def("ffi_types", &ffi_types);
  m.def("emulator_ffi_targets", &emulator_ffi_targets);
  m.def("set_kernel_directory", &set_kernel_directory, nb::arg("path"));
  m.def(
      "max_stages",
      [](const std::string& family, uint32_t block_m, uint32_t block_n, uint32_t cta_group, uint32_t k_spans) {
        return layout(family, block_m, block_n, cta_group, k_spans).max_stages();
      },
      nb::arg("family"), nb::arg("block_m"), nb::arg("block_n"), nb::arg("cta_group"), nb::arg("k_spans") = 1);
  m.def(
      "shared_memory_bytes",
      [](const std::string& family, uint32_t block_m, uint32_t block_n, uint32_t cta_group, uint32_t stages,
         uint32_t k_spans) { return layout(family, block_m, block_n, cta_group, k_spans).total_bytes(stages); },
      nb::arg("family"), nb::arg("block_m"), nb::arg("block_n"), nb::arg("cta_group"), nb::arg("stages"),
      nb::arg("k_spans") = 1);
  m.def("scratch", &scratch_of, nb::arg("lhs"), nb::arg("rhs"), nb::arg("input"), nb::arg("attributes"));
  m.def("quantize_workspace_bytes", &quantize_workspace_bytes, nb::arg("x"), nb::arg("dtype"), nb::arg("format"));
  m.def("launch_gemm", &launch_gemm_direct, nb::arg("operands"), nb::arg("dtypes"), nb::arg("output"),
        nb::arg("attributes"), nb::kw_only(), nb::arg("alias_c") = false, nb::arg("device") = 0,
        nb::arg("guard_bytes") = DirectLaunch().guard_bytes, nb::arg("repeats") = 1, nb::arg("poison") = true,
        nb::arg("stream") = 0);
  m.def("enqueue_gemm", &enqueue_gemm, nb::arg("operands"), nb::arg("results"), nb::arg("attributes"), nb::kw_only(),
        nb::arg("counters") = 0, nb::arg("device") = 0, nb::arg("wait") = false, nb::arg("profiling") = nb::none());
  m.def("trace_gemm", &emulate_traced, nb::arg("operands"), nb::arg("results"), nb::arg("attributes"), nb::kw_only(),
        nb::arg("sm_count"), nb::arg("profiling") = nb::none());
  m.def("activities", &activities);
  m.attr("PROFILE_HEAD_WORDS") = kProfileHeadWords;
  m.attr("PROFILE_SLICE_HEAD") = kProfileSliceHead;

  bind_plan(m);
  bind_launch(m);
  emulator::bind_emulator(m);
}

}  // namespace jaxbw
