#include "host/kernel_library.h"

#include <map>
#include <mutex>
#include <tuple>

#include "host/device.h"
#include "host/gemm_instances.h"
#include "host/gemm_launch.h"
#include "host/kernel_launch.h"

namespace jaxbw {
namespace {

// Directory and name; cluster size and shared memory are all of a configuration that occupancy depends on.
using PreparedKey = std::tuple<std::string, std::string, int, uint32_t, uint32_t>;
using PreparedKeyView = std::tuple<std::string_view, std::string_view, int, uint32_t, uint32_t>;

struct Cache {
  std::mutex mutex;
  std::string directory;
  std::map<std::string, CUkernel> kernels;  // by the path of their cubin
  std::map<PreparedKey, PreparedKernel, std::less<>> prepared;
};

// Never destroyed: the driver may already be gone when static destructors run.
Cache& cache() {
  static Cache& cache = *new Cache;
  return cache;
}

// The errors with which a driver refuses a cubin that it does not know how to run.
bool refuses_binary(int error) {
  return error == CUDA_ERROR_NO_BINARY_FOR_GPU || error == CUDA_ERROR_INVALID_IMAGE ||
         error == CUDA_ERROR_INVALID_PTX || error == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         error == CUDA_ERROR_INVALID_SOURCE;
}

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

Status explain_load_error(const KernelFamily& family, const Status& status) {
  if (!refuses_binary(status.cuda_error())) return status;
  return Status(StatusCode::kDriver,
                concat(status.message(), ". The kernel needs a GPU of compute capability ", family.compute_major, ".",
                       family.compute_minor < 0 ? "x" : std::to_string(family.compute_minor), " (", family.gpus,
                       ") and a driver that supports CUDA ", version_text(CUDA_VERSION), "; this one supports CUDA ",
                       version_text(driver_version().value_or(0))),
                status.cuda_error());
}

// The functions below run under the cache's mutex.

Result<CUkernel> load(const Driver& driver, Cache& cache, const KernelFamily& family, std::string_view name,
                      std::string_view directory) {
  if (directory.empty()) return Status(StatusCode::kDriver, "no kernel directory is set");
  const std::string path = concat(directory, "/", name, ".cubin");
  if (const auto found = cache.kernels.find(path); found != cache.kernels.end()) return found->second;
  const std::string kernel_name(name);
  CUlibrary library = nullptr;
  Status status = driver.cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (!status.ok()) return with_context(path, explain_load_error(family, status));
  CUkernel kernel = nullptr;
  status = driver.cuLibraryGetKernel(&kernel, library, kernel_name.c_str());
  if (!status.ok()) return with_context(path, explain_load_error(family, status));
  cache.kernels.emplace(path, kernel);
  return kernel;
}

// A library is loaded lazily into each context. Asking for the function does it now, which keeps it out of a launch
// that is being captured into a CUDA graph.
Result<CUfunction> load_into_context(const Driver& driver, const KernelFamily& family, CUkernel kernel) {
  CUfunction function = nullptr;
  const Status status = driver.cuKernelGetFunction(&function, kernel);
  if (!status.ok()) return explain_load_error(family, status);
  return function;
}

// Gives a gemm kernel all that a launch may ask for: always the most, so that one configuration does not undo another's
// limit.
Result<CUfunction> raise_limits(const Driver& driver, const KernelFamily& family, CUkernel kernel, CUdevice device) {
  const std::pair<CUfunction_attribute, int> limits[] = {
      {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kMaxSharedMemory},
      {CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1}};
  for (const auto& [attribute, value] : limits) {
    Status status = driver.cuKernelSetAttribute(attribute, value, kernel, device);
    if (!status.ok()) return explain_load_error(family, status);
  }
  return load_into_context(driver, family, kernel);
}

// How many clusters run at a time.
Result<uint32_t> resident_clusters(const Driver& driver, const KernelFamily& family, const GemmConfig& config,
                                   CUkernel kernel, CUdevice device) {
  const Result<CUfunction> function = raise_limits(driver, family, kernel, device);
  if (!function.ok()) return function.status();
  LaunchShape shape = gemm_shape(family, config, 1, /*overlaps=*/false);
  shape.states_cluster = true;
  const KernelLaunch launch(shape, nullptr);
  int clusters = 0;
  if (Status status = driver.cuOccupancyMaxActiveClusters(&clusters, *function, launch.get()); !status.ok()) {
    return status;
  }
  if (clusters >= 1) return static_cast<uint32_t>(clusters);
  return Status(StatusCode::kDriver,
                concat("cuOccupancyMaxActiveClusters: no cluster of ", config.cluster_size(), " blocks with ",
                       shared_memory_bytes(family, config), " bytes of shared memory fits the device"));
}

// A kernel that is no gemm kernel, in the current context.
Result<CUkernel> load_companion(const Driver& driver, Cache& cache, const KernelFamily& family, std::string_view name) {
  const Result<CUkernel> kernel = load(driver, cache, family, name, cache.directory);
  if (!kernel.ok()) return kernel;
  if (Status status = load_into_context(driver, family, *kernel).status(); !status.ok()) return status;
  return kernel;
}

Result<PreparedKernel> prepare(const Driver& driver, Cache& cache, const KernelFamily& family, const GemmConfig& config,
                               const DeviceInfo& info, std::string_view directory) {
  const Result<CUkernel> kernel = load(driver, cache, family, config.kernel, directory);
  if (!kernel.ok()) return kernel.status();
  const ScopedContext context(info.ordinal);
  if (!context.status().ok()) return context.status();
  CUdevice device = 0;
  if (Status status = driver.cuDeviceGet(&device, info.ordinal); !status.ok()) return status;
  const Result<uint32_t> clusters = resident_clusters(driver, family, config, *kernel, device);
  if (!clusters.ok()) return clusters.status();
  PreparedKernel prepared{*kernel, *kernel, *clusters, nullptr, nullptr, static_cast<uint32_t>(info.sm_count)};
  if (const std::string_view other = kernel_without_tma(config.kernel); other != config.kernel) {
    prepared.without_tma = nullptr;
    if (directory == cache.directory && !other.empty()) {
      const Result<CUkernel> found = load(driver, cache, family, other, directory);
      if (!found.ok()) return found.status();
      if (Status status = raise_limits(driver, family, *found, device).status(); !status.ok()) return status;
      prepared.without_tma = *found;
    }
  }
  const Result<CUkernel> repack = load_companion(driver, cache, family, repack_kernel(family, config.kernel));
  if (!repack.ok()) return repack.status();
  prepared.repack = *repack;
  if (family.is_sm90()) {
    const Result<CUkernel> reduce = load_companion(driver, cache, family, reduce_kernel(family));
    if (!reduce.ok()) return reduce.status();
    prepared.reduce = *reduce;
  }
  if (!find_instance(config.kernel)->has_groups()) return prepared;
  const Result<CUkernel> group_table = load_companion(driver, cache, family, group_table_kernel(family));
  if (!group_table.ok()) return group_table.status();
  prepared.group_table = *group_table;
  return prepared;
}

Status check_device(const KernelFamily& family, const DeviceInfo& device) {
  if (family.runs_on(device.compute_major, device.compute_minor)) return Status();
  return Status(StatusCode::kDriver,
                concat("device ", device.ordinal, " (", device.name, ") has compute capability ", device.compute_major,
                       ".", device.compute_minor, "; the kernel needs ", family.gpus));
}

}  // namespace

void set_kernel_directory(std::string path) {
  const std::lock_guard lock(cache().mutex);
  cache().directory = std::move(path);
}

std::string kernel_directory() {
  const std::lock_guard lock(cache().mutex);
  return cache().directory;
}

namespace {

// What is prepared under a key, by a function of driver and device where it is not there yet.
template <typename Prepare>
Result<PreparedKernel> cached(Cache& cache, const PreparedKeyView& key, const KernelFamily& family, int device,
                              const Prepare& prepare) {
  if (const auto found = cache.prepared.find(key); found != cache.prepared.end()) return found->second;
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  const Result<DeviceInfo> info = query_device(device);
  if (!info.ok()) return info.status();
  if (Status status = check_device(family, *info); !status.ok()) return status;
  const Result<PreparedKernel> prepared = prepare(**driver, *info);
  if (prepared.ok()) cache.prepared.emplace(PreparedKey(key), *prepared);
  return prepared;
}

}  // namespace

Result<PreparedKernel> prepare_kernel(const KernelFamily& family, const GemmConfig& config, int device,
                                      std::string_view directory) {
  Cache& cache = jaxbw::cache();
  const std::lock_guard lock(cache.mutex);
  if (directory.empty()) directory = cache.directory;
  const PreparedKeyView key(directory, config.kernel, device, config.cluster_size(),
                            shared_memory_bytes(family, config));
  return cached(cache, key, family, device, [&](const Driver& driver, const DeviceInfo& info) {
    return prepare(driver, cache, family, config, info, directory);
  });
}

Result<PreparedKernel> prepare_alone(std::string_view kernel, int device) {
  const KernelInstance* instance = find_instance(kernel);
  if (instance == nullptr) return invalid("there is no kernel ", kernel);
  const KernelFamily& family = *find_family(instance->family);
  Cache& cache = jaxbw::cache();
  const std::lock_guard lock(cache.mutex);
  const PreparedKeyView key(cache.directory, kernel, device, 1, 0);
  return cached(cache, key, family, device,
                [&](const Driver& driver, const DeviceInfo& info) -> Result<PreparedKernel> {
                  const ScopedContext context(info.ordinal);
                  if (!context.status().ok()) return context.status();
                  const Result<CUkernel> handle = load_companion(driver, cache, family, kernel);
                  if (!handle.ok()) return handle.status();
                  return PreparedKernel{*handle, *handle, 0, nullptr, nullptr, static_cast<uint32_t>(info.sm_count)};
                });
}

}  // namespace jaxbw
