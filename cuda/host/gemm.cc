#include "host/gemm.h"

#include "host/cluster_launch.h"
#include "host/driver.h"
#include "host/gemm_launch.h"
#include "host/kernel_library.h"

namespace jaxbw {
namespace {

Status launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers, int device,
              CUstream stream) {
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  Result<GemmLaunch> made = make_launch(problem, config, buffers);
  if (!made.ok()) return made.status();
  GemmLaunch gemm = std::move(made).take();
  const Result<PreparedKernel> kernel = prepare_kernel(*gemm.family, config, device);
  if (!kernel.ok()) return kernel.status();

  const Status encoded =
      encode_maps(gemm, [&](const TensorView& view, TensorMap& map) { return encode_tensor_map(**driver, view, map); });
  if (!encoded.ok()) return encoded;

  const ClusterLaunch launch(*gemm.family, config, gemm.clusters(kernel->resident_clusters), stream);
  void* arguments[] = {&gemm.params};
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
