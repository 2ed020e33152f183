// A planted bug: the result is added to, which nobody has written. compute-sanitizer's initcheck must say so.
#include "params.h"

extern "C" __global__ void KERNEL(const __grid_constant__ jaxbw::GemmParams p) {
  if (blockIdx.x == 0) static_cast<float*>(p.output.data)[threadIdx.x] += 1;  // the bug: += instead of =
}
