#include "host/call_site.h"

#include <algorithm>

#include "host/device.h"

namespace jaxbw {

CallSite::CallSite(const GemmAttributes& attributes) : kernel_(attributes.kernel), attributes_(attributes) {
  attributes_.kernel = kernel_;
}

CallSite::~CallSite() {
  const Result<const Driver*> found = driver();
  for (const auto& [device, address] : counters_) {
    const ScopedContext context(device);
    if (context.status().ok()) (void)(*found)->cuMemFree(address);  // at the end of the process there may be none
  }
}

Status CallSite::prepare(int device, CUstream stream) {
  {
    const std::lock_guard lock(mutex_);
    if (Status status = allocate_counters(device, stream); !status.ok()) return status;
    const auto here = [&](const Plan& plan) { return plan.device == device; };
    if (std::any_of(plans_.begin(), plans_.end(), here)) return Status();
  }
  return prepare_gemm(config_of(attributes_), device).status();
}

Status CallSite::allocate_counters(int device, CUstream stream) {
  if (attributes_.counters == 0 || counters_on(device) != 0) return Status();
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const Driver& driver = **found;
  const ScopedContext context(device);
  if (!context.status().ok()) return context.status();
  const auto count = static_cast<size_t>(attributes_.counters);
  CUdeviceptr address = 0;
  Status status = driver.cuMemAlloc(&address, count * sizeof(uint32_t));
  if (status.ok()) status = driver.cuMemsetD32Async(address, 0, count, stream);
  if (status.ok()) {
    counters_.push_back({device, address});
    return Status();
  }
  if (address != 0) (void)driver.cuMemFree(address);
  return with_context(concat("jaxbw: ", count, " counters on device ", device), status);
}

CUdeviceptr CallSite::counters_on(int device) const {
  const auto here = [&](const Counters& counters) { return counters.device == device; };
  const auto found = std::find_if(counters_.begin(), counters_.end(), here);
  return found == counters_.end() ? 0 : found->address;
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
      buffers.counters = counters_on(device);
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
  const std::lock_guard lock(mutex_);
  buffers = call.buffers;
  buffers.counters = counters_on(device);
  return &plans_.emplace_back(Plan{device, operands.size(), std::move(call.arrays), call.plan, *kernel});
}

}  // namespace jaxbw
