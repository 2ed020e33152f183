#include "host/gemm.h"

#include "gemm/groups.h"
#include "gemm/repack.h"
#include "host/device.h"
#include "host/gemm_instances.h"
#include "host/gemm_launch.h"
#include "host/kernel_launch.h"
#include "host/kernel_library.h"

namespace jaxbw {
namespace {

// Unlike a launch, this works on the current context, which a stream of XLA need not belong to.
Status set_to_zero(const Driver& driver, const Words& words, int device, CUstream stream) {
  if (words.count == 0) return Status();
  const ScopedContext context(device);
  if (!context.status().ok()) return context.status();
  return driver.cuMemsetD32Async(words.address, 0, words.count, stream);
}

Status launch(const GemmPlan& plan, const PreparedKernel& kernel, const GemmBuffers& buffers, int device,
              CUstream stream, const Profiling* profiling) {
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& driver = **found;
  Result<GemmLaunch> made = make_launch(plan, buffers);
  if (!made.ok()) return made.status();
  GemmLaunch gemm = std::move(made).take();
  const auto encode = [&](const TensorView& view, TensorMap& map) { return encode_tensor_map(driver, view, map); };
  if (Status status = encode_maps(gemm, encode); !status.ok()) return status;

  if (Status status = set_to_zero(driver, gemm.zeroed, device, stream); !status.ok()) return status;
  // The first kernel waits for all that was enqueued before it; those behind it start while it runs.
  const bool repacks = gemm.repack_blocks != 0, grouped = gemm.groups.has_value();
  if (repacks) {
    const LaunchShape shape{.blocks = gemm.repack_blocks, .threads = kRepackThreads};
    if (Status status = enqueue(driver, kernel.repack, shape, stream, gemm.repack); !status.ok()) return status;
  }
  if (grouped) {
    const LaunchShape shape{.blocks = 1, .threads = kGroupTableThreads};
    if (Status status = enqueue(driver, kernel.group_table, shape, stream, *gemm.groups); !status.ok()) return status;
  }
  const CUkernel handle = gemm.is_as_planned(plan) ? kernel.handle : kernel.without_tma;
  if (handle == nullptr)
    return invalid("the result, or what is saved or added to it, is at no multiple of 16 bytes, which a profile needs");
  const uint32_t clusters = gemm.clusters(kernel.resident_clusters);
  const LaunchShape shape = gemm_shape(*gemm.family, gemm.config, clusters, repacks || grouped);
  const Status status = gemm.with_argument([&](const auto& argument) {
    if (profiling == nullptr) return enqueue(driver, handle, shape, stream, argument);
    if (Status checked = check_profiling(*profiling, shape); !checked.ok()) return checked;
    return enqueue(driver, handle, shape, stream, argument, profiling->memory);
  });
  if (!status.ok() || gemm.reduced_chunks == 0) return status;
  return enqueue(driver, kernel.reduce, reduce_shape(gemm.reduce_blocks(kernel.sm_count)), stream, gemm.params);
}

}  // namespace

Result<PreparedKernel> prepare_gemm(const GemmConfig& config, int device, const Profiling* profiling) {
  const Status valid = check_call(config);
  const Result<PreparedKernel> kernel =
      valid.ok() ? prepare_kernel(*family_of_kernel(config.kernel), config, device,
                                  profiling == nullptr ? std::string_view() : profiling->directory)
                 : valid;
  if (kernel.ok()) return kernel;
  return with_context(concat("jaxbw: ", describe(config), ", device ", device), kernel.status());
}

Status launch_gemm(const GemmPlan& plan, const PreparedKernel& kernel, const GemmBuffers& buffers, int device,
                   CUstream stream, const Profiling* profiling) {
  const Status status = launch(plan, kernel, buffers, device, stream, profiling);
  if (status.ok()) return status;
  return with_context(concat("jaxbw: ", describe(plan.problem), ", ", describe(plan.config), ", device ", device),
                      status);
}

}  // namespace jaxbw
