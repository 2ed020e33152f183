// The CUDA driver API, opened at first use. Nothing of CUDA is linked, so the extension imports on any
// machine; that there is no driver is a value to report.
#pragma once

#include <cuda.h>

#include <optional>

#include "host/status.h"

namespace jaxbw {

// Names the other libcuda to open: a driver installed elsewhere, or the tests' recording one.
inline constexpr const char* kDriverPathVariable = "JAXBW_LIBCUDA";

// The oldest driver API with all that is called here (library loading and tensor maps are of CUDA 12.0).
// Also the version of the entry points that cuGetProcAddress is asked for.
inline constexpr int kDriverApiVersion = 12000;

// "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
Status driver_error(const char* call, CUresult result);

// One function of the driver. A failure becomes a Status that names the call.
template <typename Function>
struct DriverCall;

template <typename... Args>
struct DriverCall<CUresult(Args...)> {
  const char* name;
  CUresult (*function)(Args...) = nullptr;

  Status operator()(Args... args) const {
    const CUresult result = function(args...);
    return result == CUDA_SUCCESS ? Status() : driver_error(name, result);
  }
};

#define JAXBW_DRIVER_FUNCTIONS(X) \
  X(cuInit)                       \
  X(cuDriverGetVersion)           \
  X(cuGetErrorName)               \
  X(cuGetErrorString)             \
  X(cuDeviceGetCount)             \
  X(cuDeviceGet)                  \
  X(cuDeviceGetName)              \
  X(cuDeviceGetAttribute)         \
  X(cuDeviceTotalMem)             \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuCtxPushCurrent)             \
  X(cuCtxPopCurrent)              \
  X(cuCtxSynchronize)             \
  X(cuLibraryLoadFromFile)        \
  X(cuLibraryGetKernel)           \
  X(cuKernelGetFunction)          \
  X(cuKernelSetAttribute)         \
  X(cuOccupancyMaxActiveClusters) \
  X(cuTensorMapEncodeTiled)       \
  X(cuLaunchKernelEx)             \
  X(cuMemAlloc)                   \
  X(cuMemFree)                    \
  X(cuMemcpyHtoD)                 \
  X(cuMemcpyDtoH)                 \
  X(cuMemsetD8)                   \
  X(cuMemsetD32Async)

// cuda.h renames some of these by macro (cuMemAlloc is cuMemAlloc_v2): declaration and use are renamed
// alike, while #name stays the documented name, which is what cuGetProcAddress expects.
struct Driver {
#define JAXBW_DECLARE(name) DriverCall<decltype(::name)> name{#name};
  JAXBW_DRIVER_FUNCTIONS(JAXBW_DECLARE)
#undef JAXBW_DECLARE
};

// The initialised driver, opened once per process; thread-safe.
Result<const Driver*> driver();

// The CUDA version that the driver supports, as 1000 * major + 10 * minor; none where there is no driver.
std::optional<int> driver_version();

}  // namespace jaxbw
