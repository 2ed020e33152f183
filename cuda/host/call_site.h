// A custom call of a compiled program. XLA runs it time and again with other buffers; all that does not depend on their
// addresses is read, checked and worked out the first time.
#pragma once

#include <list>
#include <mutex>

#include "host/gemm_call.h"
#include "host/kernel_library.h"

namespace jaxbw {

// Thread-safe: a program may run on several devices, and in several threads, at a time.
class CallSite {
 public:
  explicit CallSite(const GemmAttributes& attributes);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  // Loads the kernels and allocates the counters, before the first launch on a device: neither may be done while a
  // stream is captured. `stream`: launches on the device come behind what is enqueued on it now.
  Status prepare(int device, CUstream stream);

  // Enqueues the matmul. From the second time on a device, no more than make_launch, the tensor maps and the driver's
  // launch is left to do.
  Status launch(std::span<const Array> operands, std::span<const Array> results, int device, CUstream stream);

 private:
  struct Plan {
    int device;
    size_t operand_count;
    std::vector<CallArray> arrays;
    GemmPlan gemm;
    PreparedKernel kernel;
  };

  // What a device has in GemmBuffers::counters. XLA's clients enqueue all runs on the one compute stream of a device,
  // and what runs beside it joins it again, so launches of a call site do not overlap.
  struct Counters {
    int device;
    CUdeviceptr address;
  };

  Status allocate_counters(int device, CUstream stream);
  CUdeviceptr counters_on(int device) const;

  // The plan for these arrays on this device, and their addresses; null where there is none yet.
  const Plan* find(std::span<const Array> operands, std::span<const Array> results, int device, GemmBuffers& buffers);
  Result<const Plan*> add(std::span<const Array> operands, std::span<const Array> results, int device,
                          GemmBuffers& buffers);

  const std::string kernel_;  // XLA's copy of the attributes need not live as long
  GemmAttributes attributes_;
  std::mutex mutex_;
  std::vector<Counters> counters_;
  std::list<Plan> plans_;  // one for each device, since a call's shapes are fixed; they stay where they are
};

}  // namespace jaxbw
