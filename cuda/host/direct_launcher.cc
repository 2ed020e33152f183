#include "host/direct_launcher.h"

#include <algorithm>
#include <memory>

#include "host/device.h"
#include "host/kernel_library.h"

namespace jaxbw {
namespace {

constexpr uint64_t kGuardUnit = 16;  // keeps the payload as aligned as TMA needs, and no better
constexpr uint8_t kNan = 0xff;       // a byte that makes NaN of f16, bf16 and f32 alike
constexpr uint8_t kOther = 0xfe;     // in results before every other launch: an element that is not written differs
constexpr uint8_t kResultGuard = 0xa5;
constexpr uint8_t kGarbage = 0x5a;  // in the workspace: finite numbers

// Device memory with a guard region on either side; a buffer of no bytes is a null pointer.
class GuardedBuffer {
 public:
  GuardedBuffer(const Driver& driver, const char* name, uint64_t bytes, uint64_t guard_bytes, uint8_t pattern)
      : driver_(driver), name_(name), bytes_(bytes), guard_bytes_(guard_bytes), pattern_(pattern) {}
  ~GuardedBuffer() {
    if (base_ != 0) (void)driver_.cuMemFree(base_);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  CUdeviceptr payload() const { return base_ == 0 ? 0 : base_ + guard_bytes_; }

  // Fills guards and payload with the pattern, if there are guards.
  Status allocate() {
    if (bytes_ == 0) return Status();
    if (Status status = driver_.cuMemAlloc(&base_, total_bytes()); !status.ok()) return status;
    return guard_bytes_ == 0 ? Status() : driver_.cuMemsetD8(base_, pattern_, total_bytes());
  }

  Status upload(const void* source) { return bytes_ == 0 ? Status() : driver_.cuMemcpyHtoD(payload(), source, bytes_); }

  Status fill(uint8_t value) { return bytes_ == 0 ? Status() : driver_.cuMemsetD8(payload(), value, bytes_); }

  Status download(Bytes& destination) const {
    destination.resize(bytes_);
    return bytes_ == 0 ? Status() : driver_.cuMemcpyDtoH(destination.data(), payload(), bytes_);
  }

  Status check_guards() const {
    if (base_ == 0 || guard_bytes_ == 0) return Status();
    if (Status status = check_guard(base_, "before"); !status.ok()) return status;
    return check_guard(payload() + bytes_, "after");
  }

 private:
  uint64_t total_bytes() const { return bytes_ + 2 * guard_bytes_; }

  Status check_guard(CUdeviceptr address, const char* side) const {
    Bytes guard(guard_bytes_);
    if (Status status = driver_.cuMemcpyDtoH(guard.data(), address, guard_bytes_); !status.ok()) return status;
    const auto damage = std::find_if(guard.begin(), guard.end(), [&](uint8_t byte) { return byte != pattern_; });
    if (damage == guard.end()) return Status();
    return Status(StatusCode::kCorrupt,
                  concat("the guard ", side, " the ", name_, " buffer was overwritten, first at byte ",
                         damage - guard.begin(), " of ", guard_bytes_));
  }

  const Driver& driver_;
  const char* name_;
  const uint64_t bytes_, guard_bytes_;
  const uint8_t pattern_;
  CUdeviceptr base_ = 0;
};

// One array of the call on the device.
struct DeviceArray {
  CallArray call;
  const void* source;  // on the host, of an operand
  std::unique_ptr<GuardedBuffer> buffer;

  bool workspace() const { return call.address == &GemmBuffers::workspace; }

  // What a launch finds in it: an operand is not written, so it was uploaded once.
  Status prepare(bool poison, int launch) {
    if (!call.result) return Status();
    if (source != nullptr) return buffer->upload(source);
    if (!poison) return Status();
    return buffer->fill(workspace() ? kGarbage : launch % 2 == 0 ? kNan : kOther);
  }
};

Status allocate(DeviceArray& array) {
  if (Status status = array.buffer->allocate(); !status.ok()) return status;
  return array.call.result ? Status() : array.buffer->upload(array.source);
}

// The first launch's results are kept, those of later ones compared with them.
Status collect(const DeviceArray& array, bool first, Bytes& kept, int launch, int repeats) {
  Bytes latest;
  if (Status status = array.buffer->download(first ? kept : latest); !status.ok() || first) return status;
  if (latest == kept) return Status();
  const auto difference = std::mismatch(kept.begin(), kept.end(), latest.begin()).first - kept.begin();
  return Status(StatusCode::kCorrupt,
                concat("launch ", launch + 1, " of ", repeats, " differs from the first at element ",
                       difference / array_bytes(array.call.type, {}), " of the ", array.call.name));
}

}  // namespace

Result<std::vector<Bytes>> launch_direct(const GemmAttributes& attributes, std::vector<Array> operands, DataType output,
                                         const DirectLaunch& options) {
  if (options.repeats < 1) return invalid("repeats is ", options.repeats, "; it is 1 or more");
  if (options.guard_bytes % kGuardUnit != 0) {
    return invalid("guard_bytes is ", options.guard_bytes, "; it is a multiple of ", kGuardUnit);
  }
  if (!options.poison && options.guard_bytes != 0) return invalid("without poison there are no guards");
  Result<GemmProblem> read = read_operands(attributes, operands);
  if (!read.ok()) return read.status();
  GemmProblem problem = std::move(read).take();
  problem.output = output;
  const GemmConfig config = config_of(attributes);
  const std::string context = concat(describe(problem), ", ", describe(config));
  if (options.alias_c && problem.c != output) return invalid("c has not the dtype of the result it is to lie in");
  const Result<GemmPlan> plan = plan_call(problem, config);
  if (!plan.ok()) return with_context(context, plan.status());
  const std::vector<CallArray> arrays = arrays_of(*plan);
  GemmBuffers buffers;
  if (Status status = match("operands", operands, std::span(arrays).first(operands.size()), buffers); !status.ok()) {
    return with_context(context, status);
  }

  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const ScopedContext device(options.device);
  if (!device.status().ok()) return device.status();
  std::vector<DeviceArray> on_device;
  const void* c = nullptr;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const CallArray& array = arrays[i];
    const void* source = array.result ? nullptr : reinterpret_cast<const void*>(operands[i].address);
    if (options.alias_c && array.address == &GemmBuffers::c) {
      c = source;
      continue;
    }
    if (array.address == &GemmBuffers::d) source = c;
    on_device.push_back({array, source,
                         std::make_unique<GuardedBuffer>(**found, array.name, array.bytes(), options.guard_bytes,
                                                         array.result ? kResultGuard : kNan)});
  }
  for (DeviceArray& array : on_device) {
    if (Status status = allocate(array); !status.ok()) return status;
    buffers.*array.call.address = array.buffer->payload();
  }
  if (options.alias_c) buffers.c = buffers.d;
  GuardedBuffer counters(**found, "counters", plan->counters() * sizeof(uint32_t), options.guard_bytes, kResultGuard);
  if (Status status = counters.allocate(); !status.ok()) return status;
  if (Status status = counters.fill(0); !status.ok()) return status;
  buffers.counters = counters.payload();
  Bytes counted;
  const Result<PreparedKernel> kernel = prepare_gemm(config, options.device);
  if (!kernel.ok()) return kernel.status();

  std::vector<Bytes> results(std::count_if(on_device.begin(), on_device.end(), [](const DeviceArray& array) {
    return array.call.result && !array.workspace();
  }));
  for (int launch = 0; launch < options.repeats; ++launch) {
    for (DeviceArray& array : on_device) {
      if (Status status = array.prepare(options.poison, launch); !status.ok()) return status;
    }
    // The null stream is ordered with the copies around the launch, another one need not be.
    Status status = options.stream == nullptr ? Status() : (*found)->cuCtxSynchronize();
    if (!status.ok()) return status;
    status = launch_gemm(*plan, *kernel, buffers, options.device, options.stream);
    if (!status.ok()) return status;
    status = (*found)->cuCtxSynchronize();
    if (!status.ok()) return with_context(context, status);
    for (const DeviceArray& array : on_device) {
      if (status = array.buffer->check_guards(); !status.ok()) return with_context(context, status);
    }
    if (status = counters.check_guards(); !status.ok()) return with_context(context, status);
    if (status = counters.download(counted); !status.ok()) return status;
    if (status = check_counters(counted); !status.ok()) return with_context(context, status);
    auto result = results.begin();
    for (const DeviceArray& array : on_device) {
      if (!array.call.result || array.workspace()) continue;
      status = collect(array, launch == 0, *result++, launch, options.repeats);
      if (!status.ok()) return with_context(context, status);
    }
  }
  return results;
}

Status enqueue_direct(const GemmAttributes& attributes, std::span<const Array> operands, std::span<const Array> results,
                      CUdeviceptr counters, int device, bool wait, const Profiling* profiling) {
  Result<GemmCall> read = read_call(attributes, operands, results);
  if (!read.ok()) return read.status();
  GemmCall call = std::move(read).take();
  call.buffers.counters = counters;
  const Result<const Driver*> found = driver();
  if (!found.ok()) return found.status();
  const ScopedContext context(device);  // whose null stream it is
  if (!context.status().ok()) return context.status();
  const Result<PreparedKernel> kernel = prepare_gemm(call.plan.config, device, profiling);
  if (!kernel.ok()) return kernel.status();
  const Status status = launch_gemm(call.plan, *kernel, call.buffers, device, nullptr, profiling);
  return status.ok() && wait ? (*found)->cuCtxSynchronize() : status;
}

}  // namespace jaxbw
