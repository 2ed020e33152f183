// Launch parameters that are under way before they are needed.
#pragma once

#include "params.h"
#include "ptx/thread.h"

namespace jaxbw {

// The launch parameters come from memory when they are first read, a line of the constant cache at a time: several
// hundred cycles each. Warps that have nothing else to do read all lines at once, so that the others find them under
// way. (The short sleep is there for the reading to have a purpose.)
JAXBW_DEVICE void request_parameters(const GemmParams& params) {
  constexpr uint32_t kLine = 64, kFirst = offsetof(GemmParams, epilogue) / kLine, kEnd = sizeof(GemmParams) / kLine;
  uint32_t bits = 0;
#pragma unroll
  for (uint32_t line = kFirst; line < kEnd; ++line) {
    bits |= reinterpret_cast<const uint32_t*>(&params)[line * (kLine / sizeof(uint32_t))];
  }
  ptx::sleep(bits >> 31);
}

}  // namespace jaxbw
