// A planted bug: a barrier for the whole block that half of a warp does not reach. compute-sanitizer's synccheck must
// say so. It ends nevertheless, since threads that have exited are not waited for.
#include <cstdio>

__global__ void sum(int* values, int count) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  if (threadIdx.x < count) {
    atomicAdd(&total, values[threadIdx.x]);
    __syncthreads();  // the bug: not for the threads from `count` on
    values[threadIdx.x] = total;
  }
}

int main() {
  constexpr int kCount = 64;
  int* values = nullptr;
  cudaMalloc(&values, kCount * sizeof(int));
  cudaMemset(values, 0, kCount * sizeof(int));
  sum<<<1, kCount>>>(values, kCount - 16);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  cudaFree(values);
}
