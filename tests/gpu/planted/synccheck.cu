// A planted bug: a thread calls __syncwarp with a mask that it is not in. compute-sanitizer's synccheck must say so.
#include <cstdio>

__global__ void sum(int* values, int count) {
  const unsigned mask = (1u << count) - 1;
  if (threadIdx.x <= count) {  // the bug: one thread too many
    const int mine = values[threadIdx.x];
    __syncwarp(mask);
    values[threadIdx.x] = mine + 1;
  }
}

int main() {
  constexpr int kWarp = 32;
  int* values = nullptr;
  cudaMalloc(&values, kWarp * sizeof(int));
  cudaMemset(values, 0, kWarp * sizeof(int));
  sum<<<1, kWarp>>>(values, kWarp / 2);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  cudaFree(values);
}
