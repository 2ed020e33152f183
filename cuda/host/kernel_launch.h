// A launch, as the driver API takes it: for launching, and for asking how many clusters fit.
#pragma once

#include <cuda.h>

#include "gemm/reduce.h"
#include "host/driver.h"
#include "host/gemm.h"

namespace jaxbw {

struct LaunchShape {
  uint32_t blocks, threads;
  uint32_t cluster_size = 1;  // blocks; they divide the grid
  uint32_t shared_memory = 0;
  bool states_cluster = false;  // even one of a single block, as it must where the driver is asked how many fit
  // Starts while the kernel before it in the stream still runs: it waits by griddepcontrol before it touches memory.
  bool overlaps = false;
};

inline LaunchShape gemm_shape(const KernelFamily& family, const GemmConfig& config, uint32_t clusters, bool overlaps) {
  return {.blocks = clusters * config.cluster_size(),
          .threads = threads(family, config),
          .cluster_size = config.cluster_size(),
          .shared_memory = shared_memory_bytes(family, config),
          .overlaps = overlaps};
}

// Fails on a profile that does not hold all CTAs of a launch.
inline Status check_profiling(const Profiling& profiling, const LaunchShape& shape) {
  const ProfileMemory& memory = profiling.memory;
  const uint64_t needed = shape.blocks * profile_words(shape.threads / 32, memory.slice_words);
  if (memory.slice_words > kProfileSliceHead && needed <= profiling.words) return Status();
  return invalid("a profile of ", shape.blocks, " CTAs with ", memory.slice_words, " words a warp takes ", needed,
                 " words; there are ", profiling.words);
}

// Of the launch behind a matmul that adds up its parts.
inline LaunchShape reduce_shape(uint32_t blocks) {
  return {.blocks = blocks, .threads = kReduceThreads, .overlaps = true};
}

// Points into itself, so it stays where it was made.
class KernelLaunch {
 public:
  KernelLaunch(const LaunchShape& shape, CUstream stream) {
    // A block that has no cluster is one by itself; to ask for that costs 0.2 us of a launch on an H200.
    if (shape.cluster_size > 1 || shape.states_cluster) {
      CUlaunchAttribute& cluster = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
      cluster.value.clusterDim.x = shape.cluster_size;
      cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
    }
    if (shape.overlaps) {
      add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).value.programmaticStreamSerializationAllowed = 1;
    }
    config_.gridDimX = shape.blocks;
    config_.gridDimY = config_.gridDimZ = 1;
    config_.blockDimX = shape.threads;
    config_.blockDimY = config_.blockDimZ = 1;
    config_.sharedMemBytes = shape.shared_memory;
    config_.hStream = stream;
    config_.attrs = attributes_;
  }
  KernelLaunch(const KernelLaunch&) = delete;
  KernelLaunch& operator=(const KernelLaunch&) = delete;

  const CUlaunchConfig* get() const { return &config_; }

 private:
  CUlaunchAttribute& add(CUlaunchAttributeID id) {
    CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = id;
    return attribute;
  }

  CUlaunchAttribute attributes_[2] = {};
  CUlaunchConfig config_ = {};
};

// A CUkernel stands for its function in the stream's context (cuLaunchKernelEx).
template <typename... Params>
Status enqueue(const Driver& driver, CUkernel kernel, const LaunchShape& shape, CUstream stream,
               const Params&... params) {
  const KernelLaunch launch(shape, stream);
  void* arguments[] = {const_cast<Params*>(&params)...};  // which the driver reads
  return driver.cuLaunchKernelEx(launch.get(), reinterpret_cast<CUfunction>(kernel), arguments, nullptr);
}

}  // namespace jaxbw
