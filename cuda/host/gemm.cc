#include "host/gemm.h"

#include "gemm/repack.h"
#include "host/device.h"
#include "host/driver.h"
#include "host/gemm_launch.h"
#include "host/kernel_launch.h"
#include "host/kernel_library.h"

namespace jaxbw {
namespace {

// A CUkernel stands for its function in the stream's context (cuLaunchKernelEx).
template <typename Params>
Status enqueue(const Driver& driver, CUkernel kernel, const LaunchShape& shape, CUstream stream, Params& params) {
  const KernelLaunch launch(shape, stream);
  void* arguments[] = {&params};
  return driver.cuLaunchKernelEx(launch.get(), reinterpret_cast<CUfunction>(kernel), arguments, nullptr);
}

// Unlike a launch, this works on the current context, which a stream of XLA need not belong to.
Status clear_counters(const Driver& driver, const GemmLaunch& gemm, int device, CUstream stream) {
  const ScopedContext context(device);
  if (!context.status().ok()) return context.status();
  return driver.cuMemsetD32Async(gemm.counters, 0, gemm.counter_count, stream);
}

Status launch(const GemmProblem& problem, const GemmConfig& config, const GemmBuffers& buffers, int device,
              CUstream stream) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& driver = **found;
  Result<GemmLaunch> made = make_launch(problem, config, buffers);
  if (!made.ok()) return made.status();
  GemmLaunch gemm = std::move(made).take();
  const Result<PreparedKernel> kernel = prepare_kernel(*gemm.family, config, device);
  if (!kernel.ok()) return kernel.status();
  const auto encode = [&](const TensorView& view, TensorMap& map) { return encode_tensor_map(driver, view, map); };
  if (Status status = encode_maps(gemm, encode); !status.ok()) return status;

  if (gemm.counter_count != 0) {
    if (Status status = clear_counters(driver, gemm, device, stream); !status.ok()) return status;
  }
  // Only the first kernel waits for all that was enqueued before it; each of the others starts while the one before it
  // runs, and waits for it.
  bool overlaps = false;
  for (RepackLaunch& repack : gemm.repacks) {
    const LaunchShape shape{.blocks = repack.blocks, .threads = kRepackThreads, .overlaps = overlaps};
    if (Status status = enqueue(driver, kernel->repack, shape, stream, repack.params); !status.ok()) return status;
    overlaps = true;
  }
  const uint32_t clusters = gemm.clusters(kernel->resident_clusters);
  return enqueue(driver, kernel->handle, gemm_shape(*gemm.family, config, clusters, overlaps), stream, gemm.params);
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
