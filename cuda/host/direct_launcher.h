// Launches a GEMM on host arrays, without XLA: for tests and for compute-sanitizer.
//
// It allocates each buffer with guard regions on both sides, poisons the result, launches, waits, and looks at the
// guards: a kernel that writes outside its result, or leaves a part of it unwritten, is found out.
#pragma once

#include <cstdint>
#include <vector>

#include "host/gemm.h"

namespace jaxbw {

// Dense arrays in the shapes and element types that the problem says; bias null for none.
struct HostOperands {
  const void* lhs;
  const void* rhs;
  const void* bias;
};

struct DirectLaunch {
  int device = 0;
  // On each side of every buffer, a multiple of 16. The guards of the operands hold NaN, so that a product with
  // an element outside an operand shows in the result. 0 leaves finding such reads to compute-sanitizer, which does
  // not see them inside an allocation.
  uint64_t guard_bytes = 4096;
  // Launches of the same product, each on a poisoned result; all must agree bit for bit.
  int repeats = 1;
};

// The bytes of the result [batch, m, n].
Result<std::vector<uint8_t>> launch_direct(const GemmProblem& problem, const GemmConfig& config,
                                           const HostOperands& operands, const DirectLaunch& options);

}  // namespace jaxbw
