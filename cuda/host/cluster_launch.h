// The launch of a number of clusters, as the driver API takes it: for launching, and for asking how many fit.
#pragma once

#include <cuda.h>

#include "host/gemm.h"

namespace jaxbw {

// Points into itself, so it stays where it was made.
class ClusterLaunch {
 public:
  ClusterLaunch(const KernelFamily& family, const GemmConfig& config, uint32_t clusters, CUstream stream) {
    cluster_.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster_.value.clusterDim.x = config.cluster_size();
    cluster_.value.clusterDim.y = cluster_.value.clusterDim.z = 1;
    config_.gridDimX = clusters * config.cluster_size();
    config_.gridDimY = config_.gridDimZ = 1;
    config_.blockDimX = family.threads;
    config_.blockDimY = config_.blockDimZ = 1;
    config_.sharedMemBytes = shared_memory_bytes(family, config);
    config_.hStream = stream;
    config_.attrs = &cluster_;
    config_.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  const CUlaunchConfig* get() const { return &config_; }

 private:
  CUlaunchAttribute cluster_ = {};
  CUlaunchConfig config_ = {};
};

}  // namespace jaxbw
