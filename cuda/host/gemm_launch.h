// What a GEMM launch is, whoever carries it out: the CUDA driver (gemm.cc) or the emulator (emulated_gemm.cc).
#pragma once

#include "host/gemm.h"
#include "host/tensor_map.h"

namespace jaxbw {

// All but who encodes the tensor maps, and how many clusters run at a time. Threads and shared memory of a block are
// those of the family and the configuration.
struct GemmLaunch {
  const KernelFamily* family;
  GemmConfig config;
  GemmParams params;   // its tensor maps are still to be encoded
  TensorView a, b, d;  // of what
  uint64_t work_items;

  // The clusters to launch on a machine that holds `resident` of them at a time.
  uint32_t clusters(uint32_t resident) const;
};

// Fails on what check_launch refuses, and on more work than a grid holds.
Result<GemmLaunch> make_launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers);

// Fills in the tensor maps by `encode(view, map)`, which returns a Status.
template <typename Encode>
Status encode_maps(GemmLaunch& launch, Encode encode) {
  const std::pair<const TensorView*, TensorMap*> maps[] = {
      {&launch.a, &launch.params.a}, {&launch.b, &launch.params.b}, {&launch.d, &launch.params.d}};
  for (const auto& [view, map] : maps) {
    if (Status status = encode(*view, *map); !status.ok())
      return with_context(concat("tensor map of ", view->name), status);
  }
  return Status();
}

}  // namespace jaxbw
