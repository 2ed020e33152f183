#include "host/gemm.h"

#include <algorithm>

#include "host/cluster_launch.h"
#include "host/driver.h"
#include "host/kernel_library.h"
#include "host/tensor_map.h"

namespace jaxbw {
namespace {

constexpr uint64_t kMaxGrid = 0x7fffffff;  // blocks along x: CUDA C++ programming guide, technical specifications

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// The maps are filled in by the caller.
GemmParams make_params(const GemmProblem& p, const GemmConfig& c, const GemmBuffers& buffers) {
  GemmParams params = {};
  params.epilogue = {.bias = p.bias ? reinterpret_cast<const void*>(buffers.bias) : nullptr,
                     .bias_type = p.bias.value_or(DataType::kF32),
                     .activation = p.activation,
                     .output = p.output};
  params.m = static_cast<uint32_t>(p.m);
  params.n = static_cast<uint32_t>(p.n);
  params.k = static_cast<uint32_t>(p.k);
  params.batch = static_cast<uint32_t>(p.batch);
  params.a_batched = p.a_batched;
  params.b_batched = p.b_batched;
  params.block_m = c.block_m;
  params.block_n = c.block_n;
  params.cluster_m = c.cluster_m;
  params.cluster_n = c.cluster_n;
  params.stages = c.stages;
  params.cluster_tiles_m = static_cast<uint32_t>(ceil_div(p.m, uint64_t{c.cluster_m} * c.block_m / c.cta_group));
  params.cluster_tiles_n = static_cast<uint32_t>(ceil_div(p.n, uint64_t{c.cluster_n} * c.block_n));
  // More than all the rows means all of them; the bound keeps the kernel's products within 32 bits.
  params.swizzle = std::min(c.swizzle, params.cluster_tiles_m);
  params.input = p.input;
  params.a_major = p.a_major;
  params.b_major = p.b_major;
  return params;
}

Status encode_maps(const Driver& driver, const KernelFamily& family, const GemmProblem& problem,
                   const GemmConfig& config, const GemmBuffers& buffers, GemmParams& params) {
  const std::pair<TensorMap*, TensorView> maps[] = {{&params.a, view_a(problem, config, buffers.a)},
                                                    {&params.b, view_b(problem, config, buffers.b)},
                                                    {&params.d, view_d(problem, family, buffers.d)}};
  for (const auto& [map, view] : maps) {
    if (Status status = encode_tensor_map(driver, view, *map); !status.ok()) return status;
  }
  return Status();
}

Status launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers, int device,
              CUstream stream) {
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  if (Status status = check_launch(problem, config, buffers); !status.ok()) return status;
  const KernelFamily& family = *family_of_kernel(config.kernel);
  const Result<PreparedKernel> kernel = prepare_kernel(family, config, device);
  if (!kernel.ok()) return kernel.status();

  GemmParams params = make_params(problem, config, buffers);
  if (Status status = encode_maps(**driver, family, problem, config, buffers, params); !status.ok()) return status;

  const uint64_t tiles = uint64_t{params.cluster_tiles_m} * params.cluster_tiles_n;
  if (tiles > kMaxGrid / problem.batch / config.cluster_size()) {
    return invalid(params.cluster_tiles_m, "x", params.cluster_tiles_n, " cluster tiles for each of ", problem.batch,
                   " batch indices are more than a grid holds");
  }
  const uint64_t work_items = tiles * problem.batch;
  const uint64_t clusters = family.one_wave ? std::min<uint64_t>(work_items, kernel->resident_clusters) : work_items;

  const ClusterLaunch launch(family, config, static_cast<uint32_t>(clusters), stream);
  void* arguments[] = {&params};
  // A CUkernel stands for its function in the stream's context (cuLaunchKernelEx).
  return (*driver)->cuLaunchKernelEx(launch.get(), reinterpret_cast<CUfunction>(kernel->handle), arguments, nullptr);
}

}  // namespace

Status prepare_gemm(const GemmConfig& config, int device) {
  Status status = check_config(config);
  if (status.ok()) status = prepare_kernel(*family_of_kernel(config.kernel), config, device).status();
  if (status.ok()) return status;
  return with_context(concat("jaxbw: ", describe(config), ", device ", device), status);
}

Status launch_gemm(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers, int device,
                   CUstream stream) {
  const Status status = launch(problem, config, buffers, device, stream);
  if (status.ok()) return status;
  return with_context(concat("jaxbw: ", describe(problem), ", ", describe(config), ", device ", device), status);
}

}  // namespace jaxbw
