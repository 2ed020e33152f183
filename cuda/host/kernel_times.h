// When kernels of this process run, whoever launches them: CUPTI's activity records, of which the laboratory makes its
// device times (jaxbw/_src/lab/cupti.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/status.h"

namespace jaxbw {

struct KernelTime {
  std::string name;
  uint64_t start, end;  // ns
};

struct KernelTimes {
  std::vector<KernelTime> kernels;  // in no order
  uint64_t dropped = 0;             // records that CUPTI says it has dropped
};

// From here on. `libraries`: names and paths of CUPTI; one that the process has already is taken before others.
Status start_kernel_times(const std::vector<std::string>& libraries);

// Up to here, of kernels that have ended. After start_kernel_times.
Result<KernelTimes> stop_kernel_times();

}  // namespace jaxbw
