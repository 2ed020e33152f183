// Calls a GEMM without XLA: on host arrays for tests and for compute-sanitizer, on device memory for measuring.
//
// On host arrays it allocates each buffer with guard regions on both sides, poisons the results and the workspace,
// launches, waits, and looks at guards and counters: a kernel that writes outside its results, leaves a part of them
// unwritten, reads what the workspace happened to hold, or leaves a counter that is not zero is found out.
#pragma once

#include <cstdint>
#include <vector>

#include "host/gemm_call.h"

namespace jaxbw {

struct DirectLaunch {
  int device = 0;
  // On each side of every buffer, a multiple of 16. The guards of the operands hold NaN, so that a matmul with
  // an element outside an operand shows in the result. 0 leaves finding such reads to compute-sanitizer, which does
  // not see them inside an allocation.
  uint64_t guard_bytes = 4096;
  // Launches of the same matmul, each on results poisoned in another way than the last; all must agree bit for bit.
  int repeats = 1;
  // false: results and workspace are left as they were allocated, so that initcheck of compute-sanitizer sees what is
  // read before it is written. Takes no guards.
  bool poison = true;
  CUstream stream = nullptr;
  bool alias_c = false;  // C lies in the memory of D
};

using Bytes = std::vector<uint8_t>;

// `operands` as of the custom call, their addresses in host memory; the results are of type `output`. Returns the bytes
// of each result but the workspace.
Result<std::vector<Bytes>> launch_direct(const GemmAttributes& attributes, std::vector<Array> operands, DataType output,
                                         const DirectLaunch& options);

// Enqueues a call whose operands and results, the workspace among them, are in device memory already: on the null
// stream, which nothing of XLA's is ordered with. `counters`: as many words as the attributes say, which are zero.
// `wait`: until the device has done all that was enqueued. `profiling`: null, or by which kernels it is done instead.
Status enqueue_direct(const GemmAttributes& attributes, std::span<const Array> operands, std::span<const Array> results,
                      CUdeviceptr counters, int device, bool wait, const Profiling* profiling = nullptr);

}  // namespace jaxbw
