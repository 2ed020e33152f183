// A planted bug: a thread calls __syncwarp with a mask that it is not in. compute-sanitizer's synccheck must say so.
#include "params.h"

extern "C" __global__ void KERNEL(const __grid_constant__ jaxbw::GemmParams p) {
  constexpr unsigned kCount = 16, kMask = (1u << kCount) - 1;
  if (blockIdx.x != 0 || threadIdx.x > kCount) return;  // the bug: >= kCount
  float* values = static_cast<float*>(p.output.data);
  const float mine = static_cast<float>(threadIdx.x);
  __syncwarp(kMask);
  values[threadIdx.x] = mine + 1;
}
