// A planted bug: a shared array is read by other threads than wrote it, with no barrier between.
// compute-sanitizer's racecheck must say so.
#include "params.h"

extern "C" __global__ void KERNEL(const __grid_constant__ jaxbw::GemmParams p) {
  extern __shared__ float staged[];
  staged[threadIdx.x] = static_cast<float>(threadIdx.x);
  // the bug: no __syncthreads()
  if (blockIdx.x == 0) static_cast<float*>(p.output.data)[threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}
