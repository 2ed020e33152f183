// The Python module jaxbw._native. Its documentation is in jaxbw/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "emulator/bindings.h"
#include "host/device.h"
#include "host/direct_launcher.h"
#include "host/ffi_handler.h"
#include "host/gemm.h"
#include "host/kernel_library.h"

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

const KernelFamily& family_named(const std::string& name) {
  const KernelFamily* family = find_family(name);
  if (family == nullptr) throw nb::value_error(concat("no kernel family '", name, "': 'sm90' or 'sm100'").c_str());
  return *family;
}

StorageLayout layout(const std::string& family, uint32_t block_m, uint32_t block_n, uint32_t cta_group) {
  if (block_m == 0 || block_n == 0 || cta_group == 0) throw nb::value_error("a tile has no dimension of 0");
  return storage_layout(block_m, block_n, cta_group, family_named(family).epilogue);
}

using FfiTargets = std::map<std::string, std::map<std::string, nb::capsule>>;

nb::capsule capsule(XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

FfiTargets ffi_targets() {
  return {{kGemmTarget,
           {{"instantiate", capsule(gemm_instantiate)},
            {"initialize", capsule(gemm_initialize)},
            {"execute", capsule(gemm_execute)}}}};
}

FfiTargets emulator_ffi_targets() { return {{kGemmTarget, {{"execute", capsule(gemm_emulate)}}}}; }

// Extents of an operand stored as [batch, outer, contiguous] bit patterns.
struct Operand {
  uint64_t batch, extent, k;
};

Operand operand_of(const char* name, const HostArray& array, Major major) {
  if (array.ndim() != 3 || array.itemsize() != 2) {
    throw nb::value_error(concat(name, " has rank 3 and elements of 2 bytes (a view as uint16)").c_str());
  }
  const bool k_major = major == Major::kK;
  return {array.shape(0), array.shape(k_major ? 1 : 2), array.shape(k_major ? 2 : 1)};
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> launch_gemm_direct(
    const HostArray& lhs, const HostArray& rhs, const std::optional<HostArray>& bias, const std::string& kernel,
    DataType lhs_dtype, DataType output, std::optional<DataType> bias_dtype, Major lhs_major, Major rhs_major,
    Activation activation, uint32_t block_m, uint32_t block_n, uint32_t cluster_m, uint32_t cluster_n,
    uint32_t cta_group, uint32_t stages, uint32_t swizzle, int device, uint64_t guard_bytes, int repeats) {
  const Operand a = operand_of("lhs", lhs, lhs_major), b = operand_of("rhs", rhs, rhs_major);
  const uint64_t batch = std::max(a.batch, b.batch);
  if (a.k != b.k || (a.batch != batch && a.batch != 1) || (b.batch != batch && b.batch != 1)) {
    throw nb::value_error("lhs and rhs do not belong to one product");
  }
  if (bias.has_value() != bias_dtype.has_value()) throw nb::value_error("bias and bias_dtype go together");
  if (bias && (bias->ndim() != 1 || bias->shape(0) != b.extent || bias->itemsize() != size_bytes(*bias_dtype))) {
    throw nb::value_error("bias is a vector of n elements of bias_dtype");
  }
  const GemmProblem problem{.batch = batch,
                            .m = a.extent,
                            .n = b.extent,
                            .k = a.k,
                            .a_batched = a.batch == batch,
                            .b_batched = b.batch == batch,
                            .a_major = lhs_major,
                            .b_major = rhs_major,
                            .input = lhs_dtype,
                            .output = output,
                            .bias = bias_dtype,
                            .activation = activation};
  const GemmConfig config{.kernel = kernel,
                          .block_m = block_m,
                          .block_n = block_n,
                          .cluster_m = cluster_m,
                          .cluster_n = cluster_n,
                          .cta_group = cta_group,
                          .stages = stages,
                          .swizzle = swizzle};
  const HostOperands operands{lhs.data(), rhs.data(), bias ? bias->data() : nullptr};
  const DirectLaunch options{.device = device, .guard_bytes = guard_bytes, .repeats = repeats};
  auto result = [&] {
    const nb::gil_scoped_release release;
    return launch_direct(problem, config, operands, options);
  }();
  raise_unless_ok(result.status());
  auto* bytes = new std::vector<uint8_t>(std::move(result).take());
  nb::capsule owner(bytes, [](void* data) noexcept { delete static_cast<std::vector<uint8_t>*>(data); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(bytes->data(), {bytes->size()}, owner);
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
      .value("F32", DataType::kF32);
  nb::enum_<Major>(m, "Major").value("K", Major::kK).value("MN", Major::kMN);
  nb::enum_<Activation>(m, "Activation")
      .value("NONE", Activation::kNone)
      .value("RELU", Activation::kRelu)
      .value("GELU", Activation::kGelu)
      .value("SILU", Activation::kSilu);
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

  m.def("ffi_targets", &ffi_targets);
  m.def("emulator_ffi_targets", &emulator_ffi_targets);
  m.def("set_kernel_directory", &set_kernel_directory, nb::arg("path"));
  m.def(
      "max_stages",
      [](const std::string& family, uint32_t block_m, uint32_t block_n, uint32_t cta_group) {
        return layout(family, block_m, block_n, cta_group).max_stages();
      },
      nb::arg("family"), nb::arg("block_m"), nb::arg("block_n"), nb::arg("cta_group"));
  m.def(
      "shared_memory_bytes",
      [](const std::string& family, uint32_t block_m, uint32_t block_n, uint32_t cta_group, uint32_t stages) {
        return layout(family, block_m, block_n, cta_group).total_bytes(stages);
      },
      nb::arg("family"), nb::arg("block_m"), nb::arg("block_n"), nb::arg("cta_group"), nb::arg("stages"));
  m.def("launch_gemm", &launch_gemm_direct, nb::arg("lhs"), nb::arg("rhs"), nb::arg("bias").none() = nb::none(),
        nb::kw_only(), nb::arg("kernel"), nb::arg("lhs_dtype"), nb::arg("output"),
        nb::arg("bias_dtype").none() = nb::none(), nb::arg("lhs_major"), nb::arg("rhs_major"),
        nb::arg("activation") = Activation::kNone, nb::arg("block_m"), nb::arg("block_n"), nb::arg("cluster_m") = 1,
        nb::arg("cluster_n") = 1, nb::arg("cta_group") = 1, nb::arg("stages"), nb::arg("swizzle") = 1,
        nb::arg("device") = 0, nb::arg("guard_bytes") = DirectLaunch().guard_bytes, nb::arg("repeats") = 1);

  emulator::bind_emulator(m);
}

}  // namespace jaxbw
