#include "host/device.h"

#include <map>
#include <mutex>

namespace jaxbw {
namespace {

Result<DeviceInfo> read_device(const Driver& driver, int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  if (Status status = driver.cuDeviceGet(&device, ordinal); !status.ok()) return status;

  char name[256] = {};
  if (Status status = driver.cuDeviceGetName(name, sizeof(name), device); !status.ok()) return status;
  info.name = name;

  size_t memory = 0;
  if (Status status = driver.cuDeviceTotalMem(&memory, device); !status.ok()) return status;
  info.memory_bytes = memory;

  int l2_bytes = 0;
  const std::pair<int*, CUdevice_attribute> attributes[] = {
      {&info.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {&info.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {&info.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {&l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
  };
  for (const auto& [value, attribute] : attributes) {
    if (Status status = driver.cuDeviceGetAttribute(value, attribute, device); !status.ok()) return status;
  }
  info.l2_bytes = static_cast<uint64_t>(l2_bytes);
  return info;
}

// Retained once and kept, like JAX's own: releasing the last hold would destroy the context with all its memory.
Result<CUcontext> primary_context(const Driver& driver, int ordinal) {
  static std::mutex mutex;
  static std::map<int, CUcontext> contexts;
  const std::lock_guard lock(mutex);
  if (const auto found = contexts.find(ordinal); found != contexts.end()) return found->second;
  CUdevice device = 0;
  if (Status status = driver.cuDeviceGet(&device, ordinal); !status.ok()) return status;
  CUcontext context = nullptr;
  if (Status status = driver.cuDevicePrimaryCtxRetain(&context, device); !status.ok()) return status;
  contexts.emplace(ordinal, context);
  return context;
}

}  // namespace

Result<std::vector<DeviceInfo>> query_devices() {
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  int count = 0;
  if (Status status = (*driver)->cuDeviceGetCount(&count); !status.ok()) return status;
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const Result<DeviceInfo> device = query_device(ordinal);
    if (!device.ok()) return device.status();
    devices.push_back(*device);
  }
  return devices;
}

Result<DeviceInfo> query_device(int ordinal) {
  static std::mutex mutex;
  static std::map<int, DeviceInfo> devices;
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  const std::lock_guard lock(mutex);
  if (const auto found = devices.find(ordinal); found != devices.end()) return found->second;
  const Result<DeviceInfo> device = read_device(**driver, ordinal);
  if (device.ok()) devices.emplace(ordinal, *device);
  return device;
}

ScopedContext::ScopedContext(int ordinal) {
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) {
    status_ = driver.status();
    return;
  }
  const Result<CUcontext> context = primary_context(**driver, ordinal);
  status_ = context.ok() ? (*driver)->cuCtxPushCurrent(*context) : context.status();
}

ScopedContext::~ScopedContext() {
  CUcontext popped = nullptr;
  if (status_.ok()) (void)(*driver())->cuCtxPopCurrent(&popped);
}

}  // namespace jaxbw
