// A CUPTI for machines without a GPU: a flush hands over two kernels, the later one first, and drops as many records as
// JAXBW_FAKE_DROPPED says. One was dropped before all, as when XLA's profiler was at work.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

// As cupti_activity.h has it (CUpti_ActivityKernel10 of CUDA 13.0), up to its name.
constexpr size_t kStart = 16, kEnd = 24, kName = 104, kBytes = 112;
constexpr uint32_t kConcurrentKernel = 10;

void (*request)(uint8_t**, size_t*, size_t*);
void (*complete)(void*, uint32_t, uint8_t*, size_t, size_t);
bool enabled = false;
size_t dropped_records = 1;

void write(uint8_t* record, uint64_t start, uint64_t end, const char* name) {
  std::memset(record, 0, kBytes);
  std::memcpy(record, &kConcurrentKernel, sizeof kConcurrentKernel);
  std::memcpy(record + kStart, &start, sizeof start);
  std::memcpy(record + kEnd, &end, sizeof end);
  std::memcpy(record + kName, &name, sizeof name);
}

}  // namespace

extern "C" {

int cuptiActivityRegisterCallbacks(decltype(request) requested, decltype(complete) completed) {
  request = requested;
  complete = completed;
  return 0;
}

int cuptiActivityEnable(uint32_t kind) {
  enabled = kind == kConcurrentKernel;
  return 0;
}

int cuptiActivityDisable(uint32_t) {
  enabled = false;
  return 0;
}

int cuptiActivityFlushAll(uint32_t) {
  if (!enabled) return 1;
  uint8_t* buffer = nullptr;
  size_t size = 0, most = 0;
  request(&buffer, &size, &most);
  if (size < 2 * kBytes) return 1;
  write(buffer, 5000, 7000, "later");
  write(buffer + kBytes, 1000, 1500, "earlier");
  complete(nullptr, 0, buffer, size, 2 * kBytes);
  if (const char* dropped = std::getenv("JAXBW_FAKE_DROPPED")) dropped_records += std::strtoul(dropped, nullptr, 10);
  return 0;
}

int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
  *record = *record == nullptr ? buffer : *record + kBytes;
  return *record < buffer + valid ? 0 : 12;
}

int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  *dropped = std::exchange(dropped_records, 0);
  return 0;
}

}  // extern "C"
