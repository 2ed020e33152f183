#include "host/driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace jaxbw {
namespace {

Status unusable(std::string message) { return Status(StatusCode::kDriver, std::move(message)); }

Result<Driver> open() {
  const char* chosen = std::getenv(kDriverPathVariable);
  const char* path = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // never closed: the driver lives as long as the process
  if (library == nullptr) return unusable(concat("no CUDA driver: ", dlerror()));

  // cuGetProcAddress itself has no older lookup than dlsym; _v2 is of CUDA 12.0.
  const auto get = reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(dlsym(library, "cuGetProcAddress_v2"));
  const char* too_old = " is too old: jaxbw needs a driver that supports CUDA 12.0 or newer (missing: ";
  if (get == nullptr) return unusable(concat(path, too_old, "cuGetProcAddress_v2)"));

  Driver driver;
  const char* missing = nullptr;
  const auto resolve = [&](auto& call) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult result = get(call.name, &address, kDriverApiVersion, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    if (result != CUDA_SUCCESS || address == nullptr) missing = call.name;
    call.function = reinterpret_cast<decltype(call.function)>(address);
  };
#define JAXBW_RESOLVE(name) resolve(driver.name);
  JAXBW_DRIVER_FUNCTIONS(JAXBW_RESOLVE)
#undef JAXBW_RESOLVE
  if (missing != nullptr) return unusable(concat(path, too_old, missing, ")"));
  return driver;
}

// Initialisation of a local static is thread-safe, and happens at the first call.
const Result<Driver>& opened() {
  static const Result<Driver> result = open();
  return result;
}

}  // namespace

Status driver_error(const char* call, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (opened().ok()) {
    (*opened()).cuGetErrorName.function(result, &name);
    (*opened()).cuGetErrorString.function(result, &text);
  }
  return Status(StatusCode::kDriver,
                concat(call, ": ", name != nullptr ? name : "CUDA error ",
                       name != nullptr ? "" : std::to_string(result), " (", text != nullptr ? text : "unknown", ")"),
                result);
}

Result<const Driver*> driver() {
  static const Status initialised = opened().ok() ? (*opened()).cuInit(0) : opened().status();
  if (!initialised.ok()) return initialised;
  return &*opened();
}

std::optional<int> driver_version() {
  int version = 0;
  if (!opened().ok() || !(*opened()).cuDriverGetVersion(&version).ok()) return std::nullopt;
  return version;
}

}  // namespace jaxbw
