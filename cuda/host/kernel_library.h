// The kernels on disk, one cubin each, loaded at first use.
#pragma once

#include <cstdint>
#include <string>

#include "host/gemm.h"

namespace jaxbw {

// Where <kernel name>.cubin and .ptx lie. What is prepared from now on comes from there, also where a kernel of that
// name was prepared before.
void set_kernel_directory(std::string path);
std::string kernel_directory();

// A gemm kernel made ready on a device for one cluster shape and amount of shared memory.
struct PreparedKernel {
  CUkernel handle, without_tma;  // see kernel_without_tma(); of a profiling build null, where it is another one
  uint32_t resident_clusters;    // how many clusters the whole device runs at a time
  CUkernel repack;               // copies operands for it; null for a kernel that needs none
  CUkernel reduce;               // adds up the parts of its tiles; null in a family that has none
  uint32_t sm_count;
  CUkernel group_table = nullptr;  // of a grouped one: says what its tiles are
};

// Loads the libraries once per process, then once per device raises the kernel's limits and asks for its occupancy.
// Later calls read the cache. Thread-safe; a failure is not kept, so that the next call tries again.
// `directory`: where the gemm kernel's cubin lies if not with all others.
Result<PreparedKernel> prepare_kernel(const KernelFamily& family, const GemmConfig& config, int device,
                                      std::string_view directory = {});

// A kernel that is no gemm kernel, on a device: the handle alone, and the device's SMs.
Result<PreparedKernel> prepare_alone(std::string_view kernel, int device);

}  // namespace jaxbw
