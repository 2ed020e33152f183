#include "host/direct_launcher.h"

#include <algorithm>

#include "host/device.h"

namespace jaxbw {
namespace {

constexpr uint64_t kGuardUnit = 16;  // keeps the payload as aligned as TMA needs, and no better
constexpr uint8_t kNan = 0xff;       // a byte that makes NaN of f16, bf16 and f32 alike
constexpr uint8_t kResultGuard = 0xa5;

uint64_t element_count(uint64_t batch, uint64_t rows, uint64_t columns) { return batch * rows * columns; }

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

  // Fills guards and payload with the pattern.
  Status allocate() {
    if (bytes_ == 0) return Status();
    if (Status status = driver_.cuMemAlloc(&base_, total_bytes()); !status.ok()) return status;
    return driver_.cuMemsetD8(base_, pattern_, total_bytes());
  }

  Status upload(const void* source) { return bytes_ == 0 ? Status() : driver_.cuMemcpyHtoD(payload(), source, bytes_); }

  Status fill(uint8_t value) { return driver_.cuMemsetD8(payload(), value, bytes_); }

  Status download(std::vector<uint8_t>& destination) const {
    destination.resize(bytes_);
    return driver_.cuMemcpyDtoH(destination.data(), payload(), bytes_);
  }

  Status check_guards() const {
    if (base_ == 0 || guard_bytes_ == 0) return Status();
    if (Status status = check_guard(base_, "before"); !status.ok()) return status;
    return check_guard(payload() + bytes_, "after");
  }

 private:
  uint64_t total_bytes() const { return bytes_ + 2 * guard_bytes_; }

  Status check_guard(CUdeviceptr address, const char* side) const {
    std::vector<uint8_t> guard(guard_bytes_);
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

}  // namespace

Result<std::vector<uint8_t>> launch_direct(const GemmProblem& problem, const GemmConfig& config,
                                           const HostOperands& operands, const DirectLaunch& options) {
  if (options.repeats < 1) return invalid("repeats is ", options.repeats, "; it is 1 or more");
  if (options.guard_bytes % kGuardUnit != 0) {
    return invalid("guard_bytes is ", options.guard_bytes, "; it is a multiple of ", kGuardUnit);
  }
  // Before the sizes of the host's arrays are taken from it.
  if (Status status = check_problem(problem); !status.ok()) return with_context(describe(problem), status);
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  const ScopedContext context(options.device);
  if (!context.status().ok()) return context.status();

  const uint64_t input_bytes = size_bytes(problem.input);
  const uint64_t lhs_bytes = element_count(problem.a_batched ? problem.batch : 1, problem.m, problem.k) * input_bytes;
  const uint64_t rhs_bytes = element_count(problem.b_batched ? problem.batch : 1, problem.k, problem.n) * input_bytes;
  const uint64_t bias_bytes = problem.bias ? problem.n * size_bytes(*problem.bias) : 0;
  const uint64_t result_bytes = element_count(problem.batch, problem.m, problem.n) * size_bytes(problem.output);
  GuardedBuffer lhs(**driver, "lhs", lhs_bytes, options.guard_bytes, kNan);
  GuardedBuffer rhs(**driver, "rhs", rhs_bytes, options.guard_bytes, kNan);
  GuardedBuffer bias(**driver, "bias", bias_bytes, options.guard_bytes, kNan);
  GuardedBuffer result(**driver, "result", result_bytes, options.guard_bytes, kResultGuard);
  GuardedBuffer* const buffers[] = {&lhs, &rhs, &bias, &result};
  for (GuardedBuffer* buffer : buffers) {
    if (Status status = buffer->allocate(); !status.ok()) return status;
  }
  if (Status status = lhs.upload(operands.lhs); !status.ok()) return status;
  if (Status status = rhs.upload(operands.rhs); !status.ok()) return status;
  if (Status status = bias.upload(operands.bias); !status.ok()) return status;

  const GemmBuffers addresses{lhs.payload(), rhs.payload(), bias.payload(), result.payload()};
  std::vector<uint8_t> first, latest;
  for (int launch = 0; launch < options.repeats; ++launch) {
    if (Status status = result.fill(kNan); !status.ok()) return status;
    // The null stream: of the current context, and ordered with the copies around it.
    Status status = launch_gemm(problem, config, addresses, options.device, nullptr);
    if (!status.ok()) return status;
    status = (*driver)->cuCtxSynchronize();
    if (!status.ok()) return with_context(concat(describe(problem), ", ", describe(config)), status);
    for (const GuardedBuffer* buffer : buffers) {
      if (status = buffer->check_guards(); !status.ok()) return with_context(describe(config), status);
    }
    std::vector<uint8_t>& output = launch == 0 ? first : latest;
    if (status = result.download(output); !status.ok()) return status;
    if (launch > 0 && latest != first) {
      const auto difference = std::mismatch(first.begin(), first.end(), latest.begin()).first - first.begin();
      return Status(StatusCode::kCorrupt, concat(describe(config), ": launch ", launch + 1, " of ", options.repeats,
                                                 " differs from the first at element ",
                                                 difference / size_bytes(problem.output), " of the result"));
    }
  }
  return first;
}

}  // namespace jaxbw
