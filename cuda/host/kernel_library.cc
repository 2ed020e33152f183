#include "host/kernel_library.h"

#include <map>
#include <mutex>
#include <tuple>

#include "host/cluster_launch.h"
#include "host/device.h"

namespace jaxbw {
namespace {

// cluster size and shared memory are all of a configuration that occupancy depends on.
using PreparedKey = std::tuple<std::string, int, uint32_t, uint32_t>;
using PreparedKeyView = std::tuple<std::string_view, int, uint32_t, uint32_t>;

struct Cache {
  std::mutex mutex;
  std::string directory;
  std::map<std::string, CUkernel, std::less<>> kernels;
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

Result<CUkernel> load(const Driver& driver, Cache& cache, const KernelFamily& family, std::string_view name) {
  if (const auto found = cache.kernels.find(name); found != cache.kernels.end()) return found->second;
  if (cache.directory.empty()) return Status(StatusCode::kDriver, "no kernel directory is set");
  const std::string kernel_name(name);
  const std::string path = concat(cache.directory, "/", name, ".cubin");
  CUlibrary library = nullptr;
  Status status = driver.cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (!status.ok()) return with_context(path, explain_load_error(family, status));
  CUkernel kernel = nullptr;
  status = driver.cuLibraryGetKernel(&kernel, library, kernel_name.c_str());
  if (!status.ok()) return with_context(path, explain_load_error(family, status));
  cache.kernels.emplace(kernel_name, kernel);
  return kernel;
}

// A library is loaded lazily into each context. Asking for the function does it now, which keeps it out of a launch
// that is being captured into a CUDA graph.
Result<PreparedKernel> prepare_on_device(const Driver& driver, const KernelFamily& family, const GemmConfig& config,
                                         CUkernel kernel, int ordinal) {
  const ScopedContext context(ordinal);
  if (!context.status().ok()) return context.status();
  CUdevice device = 0;
  if (Status status = driver.cuDeviceGet(&device, ordinal); !status.ok()) return status;
  // Always to the most that any launch may ask for, so that one configuration does not undo another's limit.
  Status status =
      driver.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kMaxSharedMemory, kernel, device);
  if (!status.ok()) return explain_load_error(family, status);
  CUfunction function = nullptr;
  status = driver.cuKernelGetFunction(&function, kernel);
  if (!status.ok()) return explain_load_error(family, status);

  const ClusterLaunch launch(family, config, 1, nullptr);
  int clusters = 0;
  status = driver.cuOccupancyMaxActiveClusters(&clusters, function, launch.get());
  if (!status.ok()) return status;
  if (clusters < 1) {
    return Status(StatusCode::kDriver,
                  concat("cuOccupancyMaxActiveClusters: no cluster of ", config.cluster_size(), " blocks with ",
                         shared_memory_bytes(family, config), " bytes of shared memory fits the device"));
  }
  return PreparedKernel{kernel, static_cast<uint32_t>(clusters)};
}

Status check_device(const KernelFamily& family, int ordinal) {
  const Result<DeviceInfo> device = query_device(ordinal);
  if (!device.ok()) return device.status();
  if (family.runs_on(device->compute_major, device->compute_minor)) return Status();
  return Status(StatusCode::kDriver,
                concat("device ", ordinal, " (", device->name, ") has compute capability ", device->compute_major, ".",
                       device->compute_minor, "; the kernel needs ", family.gpus));
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

Result<PreparedKernel> prepare_kernel(const KernelFamily& family, const GemmConfig& config, int device) {
  Cache& cache = jaxbw::cache();
  const PreparedKeyView key(config.kernel, device, config.cluster_size(), shared_memory_bytes(family, config));
  const std::lock_guard lock(cache.mutex);
  if (const auto found = cache.prepared.find(key); found != cache.prepared.end()) return found->second;

  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  if (Status status = check_device(family, device); !status.ok()) return status;
  const Result<CUkernel> kernel = load(**driver, cache, family, config.kernel);
  if (!kernel.ok()) return kernel.status();
  const Result<PreparedKernel> prepared = prepare_on_device(**driver, family, config, *kernel, device);
  if (prepared.ok()) cache.prepared.emplace(PreparedKey(key), *prepared);
  return prepared;
}

}  // namespace jaxbw
