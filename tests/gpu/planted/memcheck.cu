// A planted bug: the last thread reads and writes one element past its array. compute-sanitizer's memcheck must say so.
#include <cstdio>

__global__ void increment(int* values, int count) {
  const int i = threadIdx.x;
  if (i <= count) values[i] += 1;  // the bug: i < count
}

int main() {
  constexpr int kCount = 128;
  int* values = nullptr;
  cudaMalloc(&values, kCount * sizeof(int));
  cudaMemset(values, 0, kCount * sizeof(int));
  increment<<<1, 2 * kCount>>>(values, kCount);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  cudaFree(values);
}
