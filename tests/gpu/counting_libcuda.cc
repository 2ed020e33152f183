// The CUDA driver with a counter in front of cuLaunchKernelEx: how many launches went into a stream that was being
// captured into a CUDA graph, and how many were run at once. For JAXBW_LIBCUDA; what XLA itself launches is not seen.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace {

std::atomic<long> captured, at_once;

void* library() {
  static void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return handle;
}

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(library(), name));
}

CUresult counted_launch(const CUlaunchConfig* launch, CUfunction function, void** arguments, void** extra) {
  static auto* const is_capturing = real<decltype(::cuStreamIsCapturing)>("cuStreamIsCapturing");
  static auto* const launch_kernel = real<decltype(::cuLaunchKernelEx)>("cuLaunchKernelEx");
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = is_capturing(launch->hStream, &status);
  if (asked != CUDA_SUCCESS) return asked;
  ++(status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? captured : at_once);
  return launch_kernel(launch, function, arguments, extra);
}

}  // namespace

extern "C" {

long captured_launches() { return captured; }
long immediate_launches() { return at_once; }

CUresult cuGetProcAddress_v2(const char* name, void** address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found) {
  if (library() == nullptr) return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  const CUresult result =
      real<decltype(::cuGetProcAddress_v2)>("cuGetProcAddress_v2")(name, address, version, flags, found);
  if (std::strcmp(name, "cuLaunchKernelEx") == 0) *address = reinterpret_cast<void*>(counted_launch);
  return result;
}

}  // extern "C"
