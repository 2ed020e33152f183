// What every role of a kernel of either family knows: the launch, the cluster, and where stages, staging buffers and
// barriers lie in shared memory (gemm/storage.h).
#pragma once

#include "gemm/cluster_protocol.h"
#include "gemm/profile.h"
#include "gemm/storage.h"
#include "params.h"

namespace jaxbw {

// What every kernel's argument has.
JAXBW_DEVICE const GemmParams& gemm_params(const GemmParams& argument) { return argument; }
JAXBW_DEVICE const GemmParams& gemm_params(const PromotedParams& argument) { return argument.gemm; }
JAXBW_DEVICE const GemmParams& gemm_params(const MxParams& argument) { return argument.gemm; }
JAXBW_DEVICE const GemmParams& gemm_params(const Mx4BitParams& argument) { return argument.gemm; }

template <EpilogueShape kEpilogue>
struct KernelContext {
  const GemmParams& params;
  ClusterShape cluster;
  uint32_t rank;
  StorageLayout layout;
  uint32_t shared;  // address of the dynamic shared memory
  Profile profile;

  JAXBW_DEVICE uint32_t a(uint32_t stage) const { return shared + layout.stage_offset(stage); }
  JAXBW_DEVICE uint32_t b(uint32_t stage) const { return a(stage) + layout.a_stage_bytes; }
  JAXBW_DEVICE uint32_t staging(uint32_t epilogue_warp) const {
    return shared + layout.store_offset() + epilogue_warp * (layout.store_bytes / kEpilogue.warps);
  }

  // Of a member of the family's Control.
  JAXBW_DEVICE uint32_t control(uint32_t member_offset) const { return shared + member_offset; }
};

}  // namespace jaxbw
