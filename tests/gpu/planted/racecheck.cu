// A planted bug: a shared array is read by other threads than wrote it, with no barrier between.
// compute-sanitizer's racecheck must say so.
#include <cstdio>

__global__ void reverse(int* values) {
  __shared__ int staged[128];
  staged[threadIdx.x] = values[threadIdx.x];
  // the bug: no __syncthreads()
  values[threadIdx.x] = staged[blockDim.x - 1 - threadIdx.x];
}

int main() {
  constexpr int kCount = 128;
  int* values = nullptr;
  cudaMalloc(&values, kCount * sizeof(int));
  cudaMemset(values, 0, kCount * sizeof(int));
  reverse<<<1, kCount>>>(values);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  cudaFree(values);
}
