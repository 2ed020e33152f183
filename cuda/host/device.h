// The CUDA devices of the process and their primary contexts, the ones that JAX uses too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/driver.h"

namespace jaxbw {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int sm_count = 0;
  uint64_t memory_bytes = 0, l2_bytes = 0;
};

// Fails where there is no driver, or no device.
Result<std::vector<DeviceInfo>> query_devices();

// One device; its numbers are read from the driver once per process.
Result<DeviceInfo> query_device(int ordinal);

// Makes the primary context of a device current, for as long as the object lives.
class ScopedContext {
 public:
  explicit ScopedContext(int ordinal);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace jaxbw
