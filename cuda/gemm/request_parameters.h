// Launch parameters that are under way before they are needed.
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw {

// The launch parameters come from memory when they are first read, a line of the constant cache at a time: on an H200
// eight lines take 705 cycles one after the other, as code comes by them, but 227 where they are asked for at once
// (launch_parameters in benchmarks/micro). One warp asks for all, first of all, and the others find them under way.
//
// Asking takes loads with an index that the compiler does not know; those without one it makes one by one. threadIdx.z
// is such an index: zero.
class RequestedParameters {
 public:
  JAXBW_DEVICE RequestedParameters(const GemmParams& params, bool asks) {
    if (!asks) return;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(&params) + threadIdx.z;
#pragma unroll
    for (uint32_t line = 0; line < kLines; ++line) words_[line] = words[(kFirst + line) * (kLine / sizeof(uint32_t))];
  }

  // By the warp that asks, when it has nothing else to do: what is never read is never asked for. (It sleeps for a
  // nanosecond, or not.)
  JAXBW_DEVICE void await() const {
    uint32_t bits = 0;
    for (uint32_t word : words_) bits |= word;
    ptx::sleep(bits >> 31);
  }

 private:
  static constexpr uint32_t kLine = 64;
  static constexpr uint32_t kFirst = offsetof(GemmParams, block_m) / kLine;
  static constexpr uint32_t kLines = sizeof(GemmParams) / kLine - kFirst;

  uint32_t words_[kLines] = {};  // of each line one
};

}  // namespace jaxbw
