#include "host/kernel_times.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <utility>

namespace jaxbw {
namespace {

// Of cupti_activity.h and cupti_result.h, which not every CUDA installation has. The record is what all versions since
// CUpti_ActivityKernel4 (CUDA 9) begin with.
using CuptiResult = int;
constexpr CuptiResult kSuccess = 0, kNoMoreRecords = 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
constexpr uint32_t kConcurrentKernel = 10;                // CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
constexpr uint32_t kFlushForced = 1;                      // CUPTI_ACTIVITY_FLAG_FLUSH_FORCED

struct KernelRecord {
  uint32_t kind;
  uint8_t configuration[12];  // caches and registers
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  int32_t static_shared_memory, dynamic_shared_memory;
  uint32_t local_memory_per_thread, local_memory_total;
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
};
static_assert(offsetof(KernelRecord, start) == 16 && offsetof(KernelRecord, grid_id) == 96 &&
              offsetof(KernelRecord, name) == 104);

using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using BufferCompleted = void (*)(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid_size);

struct Cupti {
  CuptiResult (*register_callbacks)(BufferRequested, BufferCompleted);
  CuptiResult (*enable)(uint32_t kind);
  CuptiResult (*disable)(uint32_t kind);
  CuptiResult (*flush_all)(uint32_t flag);
  CuptiResult (*next_record)(uint8_t* buffer, size_t valid_size, void** record);
  CuptiResult (*dropped_records)(CUcontext context, uint32_t stream, size_t* dropped);
};

constexpr size_t kBufferBytes = 1 << 20, kRecordAlignment = 8;

Cupti cupti;
bool recording = false;
std::mutex mutex;  // of what follows: CUPTI calls back on threads of its own
std::vector<KernelTime> kernels;

void request_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kRecordAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_size) {
  const std::lock_guard lock(mutex);
  void* record = nullptr;
  while (cupti.next_record(buffer, valid_size, &record) == kSuccess) {
    const auto* kernel = static_cast<const KernelRecord*>(record);
    if (kernel->kind == kConcurrentKernel) kernels.push_back({kernel->name, kernel->start, kernel->end});
  }
  std::free(buffer);
}

// Since this was asked last; of all buffers, which belong to no context.
uint64_t take_dropped() {
  size_t dropped = 0;
  return cupti.dropped_records(nullptr, 0, &dropped) == kSuccess ? dropped : 0;
}

void* open(const std::vector<std::string>& libraries) {
  for (const int loaded_only : {RTLD_NOLOAD, 0}) {
    for (const std::string& library : libraries) {
      if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | loaded_only)) return handle;
    }
  }
  return nullptr;
}

Status failed(const char* call, CuptiResult result) {
  return Status(StatusCode::kDriver, concat(call, ": CUPTI error ", result));
}

Status load(const std::vector<std::string>& libraries) {
  void* library = open(libraries);  // never closed, as its callbacks are not
  if (library == nullptr) {
    return Status(StatusCode::kDriver, "no CUPTI, which measures kernels: pip install \"jax[cuda13]\"");
  }
  const char* missing = nullptr;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  resolve(cupti.register_callbacks, "cuptiActivityRegisterCallbacks");
  resolve(cupti.enable, "cuptiActivityEnable");
  resolve(cupti.disable, "cuptiActivityDisable");
  resolve(cupti.flush_all, "cuptiActivityFlushAll");
  resolve(cupti.next_record, "cuptiActivityGetNextRecord");
  resolve(cupti.dropped_records, "cuptiActivityGetNumDroppedRecords");
  return missing == nullptr ? Status() : Status(StatusCode::kDriver, concat("this CUPTI has no ", missing));
}

}  // namespace

Status start_kernel_times(const std::vector<std::string>& libraries) {
  static const Status loaded = load(libraries);
  if (!loaded.ok()) return loaded;
  if (recording) return invalid("kernels are being recorded already");
  // Each time: XLA's profiler registers its own.
  if (const CuptiResult result = cupti.register_callbacks(request_buffer, take_buffer)) {
    return failed("cuptiActivityRegisterCallbacks", result);
  }
  if (const CuptiResult result = cupti.enable(kConcurrentKernel)) return failed("cuptiActivityEnable", result);
  recording = true;
  (void)take_dropped();  // of before: XLA's profiler leaves some
  const std::lock_guard lock(mutex);
  kernels.clear();
  return Status();
}

Result<KernelTimes> stop_kernel_times() {
  if (!recording) return invalid("no kernels are being recorded");
  recording = false;
  const CuptiResult flushed = cupti.flush_all(kFlushForced), disabled = cupti.disable(kConcurrentKernel);
  if (flushed != kSuccess) return failed("cuptiActivityFlushAll", flushed);
  if (disabled != kSuccess) return failed("cuptiActivityDisable", disabled);
  const uint64_t dropped = take_dropped();
  const std::lock_guard lock(mutex);
  return KernelTimes{std::exchange(kernels, {}), dropped};
}

}  // namespace jaxbw
