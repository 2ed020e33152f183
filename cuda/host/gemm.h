// One GEMM launch, as the host sees it: the problem, the chosen configuration, the buffers.
// gemm_rules.cc says what may be launched, kernel_library.cc loads it, gemm.cc launches it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gemm/storage.h"
#include "host/status.h"
#include "params.h"

namespace jaxbw {

// D[batch, m, n] = activation(A @ B + bias). A is [batch|1, m, k] (K-major) or [batch|1, k, m] (MN-major),
// B is [batch|1, n, k] (K-major) or [batch|1, k, n] (MN-major); all are dense.
struct GemmProblem {
  uint64_t batch = 0, m = 0, n = 0, k = 0;
  bool a_batched = true, b_batched = true;  // false: one matrix for every batch index
  Major a_major = Major::kK, b_major = Major::kMN;
  DataType input = DataType::kBF16, output = DataType::kBF16;
  std::optional<DataType> bias = std::nullopt;
  Activation activation = Activation::kNone;
};

// What Python's selection chose. The kernel is named as in the manifest.
struct GemmConfig {
  std::string_view kernel;
  uint32_t block_m = 0, block_n = 0;
  uint32_t cluster_m = 1, cluster_n = 1;
  uint32_t cta_group = 1;
  uint32_t stages = 0;
  uint32_t swizzle = 1;

  uint32_t cluster_size() const { return cluster_m * cluster_n; }
};

struct GemmBuffers {
  CUdeviceptr a, b;
  CUdeviceptr bias;  // 0: none
  CUdeviceptr d;
};

// What the kernels of one architecture have in common.
struct KernelFamily {
  std::string_view name;
  EpilogueShape epilogue;
  uint32_t threads;  // a block's, as in the kernels' __launch_bounds__
  bool one_wave;     // grid: at most one wave of clusters, which walk the tiles (else a cluster for each tile)
  int compute_major;
  int compute_minor;  // -1: any, a family target
  std::string_view gpus;

  bool runs_on(int major, int minor) const {
    return major == compute_major && (compute_minor < 0 || minor == compute_minor);
  }
};

// By family name ("sm90") and by kernel name ("jaxbw_sm90_..."); null where there is none.
const KernelFamily* find_family(std::string_view name);
const KernelFamily* family_of_kernel(std::string_view kernel);

// Dynamic shared memory of a launch, in bytes.
uint32_t shared_memory_bytes(const KernelFamily& family, const GemmConfig& config);

// How the rows of a tile are loaded: the CTAs of a cluster that share an operand's tile load an equal part of
// it each, and multicast it to the others.
constexpr uint32_t peers_a(const GemmConfig& config) { return config.cluster_n; }
constexpr uint32_t peers_b(const GemmConfig& config) { return config.cluster_m / config.cta_group; }

// Re-checks what would be unsafe to launch. Python's selection has the whole set of rules; a request that fails
// here is a mistake there.
Status check_problem(const GemmProblem& problem);
Status check_config(const GemmConfig& config);
Status check_launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers);

// "bf16[1,512,256] @ bf16[1,256,128] -> f32[1,512,128]", operands in the shapes they are stored in.
std::string describe(const GemmProblem& problem);
std::string describe(const GemmConfig& config);

// Loads the kernel and asks what a launch has to know of the device, so that launch_gemm only launches.
Status prepare_gemm(const GemmConfig& config, int device);

// Enqueues the product. Nothing is allocated, nothing waits.
Status launch_gemm(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers, int device,
                   CUstream stream);

}  // namespace jaxbw
