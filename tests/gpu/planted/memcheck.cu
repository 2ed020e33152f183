// A planted bug: one element behind the result is written. compute-sanitizer's memcheck must say so.
#include "params.h"

extern "C" __global__ void KERNEL(const __grid_constant__ jaxbw::GemmParams p) {
  const uint64_t size = uint64_t{p.m} * p.n;
  const uint64_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index <= size) static_cast<float*>(p.output.data)[size - index] = 1;  // the bug: index < size
}
