#include "host/call_site.h"

#include <algorithm>

namespace jaxbw {

CallSite::CallSite(const GemmAttributes& attributes) : kernel_(attributes.kernel), attributes_(attributes) {
  attributes_.kernel = kernel_;
}

Status CallSite::prepare(int device) {
  {
    const std::lock_guard lock(mutex_);
    const auto here = [&](const Plan& plan) { return plan.device == device; };
    if (std::any_of(plans_.begin(), plans_.end(), here)) return Status();
  }
  return prepare_gemm(config_of(attributes_), device).status();
}

Status CallSite::launch(std::span<const Array> operands, std::span<const Array> results, int device, CUstream stream) {
  GemmBuffers buffers;
  const Plan* plan = find(operands, results, device, buffers);
  if (plan == nullptr) {
    const Result<const Plan*> added = add(operands, results, device, buffers);
    if (!added.ok()) return added.status();
    plan = *added;
  }
  return launch_gemm(plan->gemm, plan->kernel, buffers, device, stream);
}

const CallSite::Plan* CallSite::find(std::span<const Array> operands, std::span<const Array> results, int device,
                                     GemmBuffers& buffers) {
  const std::lock_guard lock(mutex_);
  for (const Plan& plan : plans_) {
    const std::span<const CallArray> wanted(plan.arrays);
    if (plan.device == device && match("operands", operands, wanted.first(plan.operand_count), buffers).ok() &&
        match("results", results, wanted.subspan(plan.operand_count), buffers).ok()) {
      return &plan;
    }
  }
  return nullptr;
}

// Two threads may come here at a time: then both plans are kept, and the first is found from then on.
Result<const CallSite::Plan*> CallSite::add(std::span<const Array> operands, std::span<const Array> results, int device,
                                            GemmBuffers& buffers) {
  Result<GemmCall> read = read_call(attributes_, operands, results);
  if (!read.ok()) return with_context(kGemmTarget, read.status());
  GemmCall call = std::move(read).take();
  const Result<PreparedKernel> kernel = prepare_gemm(call.plan.config, device);
  if (!kernel.ok()) return kernel.status();
  buffers = call.buffers;
  const std::lock_guard lock(mutex_);
  return &plans_.emplace_back(Plan{device, operands.size(), std::move(call.arrays), call.plan, *kernel});
}

}  // namespace jaxbw
