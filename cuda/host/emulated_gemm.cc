#include "host/emulated_gemm.h"

#include <algorithm>
#include <cfenv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "emulator/instruction.h"
#include "emulator/machine.h"
#include "emulator/ptx.h"
#include "emulator/tensor_map.h"
#include "gemm/repack.h"
#include "host/gemm_call.h"
#include "host/gemm_launch.h"
#include "host/kernel_launch.h"
#include "host/kernel_library.h"

namespace jaxbw {
namespace {

using emulator::Checks;

constexpr uint32_t kOneWave = 132;        // clusters of a grid that walks its tiles: as many as an H200 has SMs
constexpr uint32_t kCheckedClusters = 2;  // that run at a time under checks, to have them meet

// The emulator's errors are exceptions; here they become values.
template <typename Function>
auto guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    return Status(StatusCode::kCorrupt, error.what());
  }
}

// --- kernels, each parsed once

// Parts of a program point into the module, so it stays where it was made.
struct EmulatedKernel {
  emulator::Module module;
  emulator::Program program;
};

Result<const EmulatedKernel*> load(std::string_view name, const std::string& directory = kernel_directory()) {
  static std::mutex mutex;
  static auto& kernels = *new std::map<std::string, std::unique_ptr<EmulatedKernel>>;
  const std::lock_guard lock(mutex);
  const std::string path = concat(directory, "/", name, ".ptx");
  if (const auto found = kernels.find(path); found != kernels.end()) return found->second.get();
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) return Status(StatusCode::kCorrupt, concat(path, ": cannot be read"));
  auto kernel = std::make_unique<EmulatedKernel>();
  kernel->module = emulator::parse(text.str(), concat(name, ".ptx"));
  const emulator::ModuleData data = emulator::lay_out(kernel->module);
  if (!data.bytes.empty()) return Status(StatusCode::kCorrupt, concat(path, ": has variables in global memory"));
  for (const emulator::Function& function : kernel->module.functions) {
    if (function.name == name) kernel->program = emulator::decode(kernel->module, data, function);
  }
  if (kernel->program.function == nullptr) return Status(StatusCode::kCorrupt, concat(path, ": has no entry ", name));
  return kernels.emplace(path, std::move(kernel)).first->second.get();
}

// --- one launch

emulator::TensorMapType encoded_type(DataType type) {
  switch (type) {
    case DataType::kF16:
      return emulator::TensorMapType::kF16;
    case DataType::kBF16:
      return emulator::TensorMapType::kBf16;
    case DataType::kF32:
      return emulator::TensorMapType::kF32;
    case DataType::kE4M3:
    case DataType::kE5M2:
      break;
  }
  return emulator::TensorMapType::kU8;
}

emulator::Swizzle encoded_swizzle(uint32_t bytes) {
  switch (bytes) {
    case 128:
      return emulator::Swizzle::k128B;
    case 64:
      return emulator::Swizzle::k64B;
    case 32:
      return emulator::Swizzle::k32B;
  }
  return emulator::Swizzle::kNone;
}

Status encode_emulated_map(const TensorView& view, TensorMap& map) {
  const auto bytes = emulator::encode_tensor_map({.type = encoded_type(view.type),
                                                  .rank = 3,
                                                  .address = view.address,
                                                  .extents = {view.contiguous, view.outer, view.batch, 1, 1},
                                                  .strides = {view.row_stride, view.row_stride * view.outer},
                                                  .box = {view.box_contiguous, view.box_outer, 1, 1, 1},
                                                  .swizzle = encoded_swizzle(view.swizzle_bytes),
                                                  .l2_promotion = emulator::L2Promotion::k128B});
  static_assert(sizeof(map) == sizeof(bytes));
  std::memcpy(&map, bytes.data(), sizeof(map));
  return Status();
}

template <typename Params>
std::vector<uint8_t> bytes_of(const Params& params) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&params);
  return {bytes, bytes + sizeof(params)};
}

// All arrays of the call, but for those that lie in another one (C in the result).
std::vector<emulator::Buffer> memory_of(const GemmPlan& plan, const GemmBuffers& buffers) {
  std::vector<CallArray> arrays = arrays_of(plan.problem, plan.workspace.bytes);
  std::stable_partition(arrays.begin(), arrays.end(), [](const CallArray& array) { return array.result; });
  std::vector<emulator::Buffer> memory;
  for (const CallArray& array : arrays) {
    const CUdeviceptr address = buffers.*array.address;
    const auto same = [&](const emulator::Buffer& other) { return other.address == address; };
    if (std::any_of(memory.begin(), memory.end(), same)) continue;
    memory.push_back({address, {reinterpret_cast<uint8_t*>(address), array.bytes()}, array.result});
  }
  return memory;
}

Result<Checks> requested_checks() {
  const char* value = std::getenv(kEmulatorChecksVariable);
  const std::string_view name = value == nullptr ? "off" : value;
  if (name == "off") return Checks::kOff;
  if (name == "hardware") return Checks::kHardware;
  if (name == "strict") return Checks::kStrict;
  return invalid(kEmulatorChecksVariable, " is '", name, "'; it is 'off', 'hardware' or 'strict'");
}

// XLA's threads may flush subnormal numbers to zero. A tensor core does not, and neither do those who emulate it.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_;
};

Status run_machine(const emulator::Program& program, const emulator::LaunchOptions& options,
                   const std::vector<emulator::Buffer>& memory, const std::vector<uint8_t>& parameters) {
  return guarded([&] {
    const DefaultFloatingPoint floating_point;
    emulator::Machine machine(program, options, memory, parameters);
    machine.run();
    const std::vector<emulator::Finding>& findings = machine.report().findings;
    if (findings.empty()) return Status();
    std::string text = concat(program.module->file, ": the emulator has found");
    for (const emulator::Finding& finding : findings) text += "\n  " + describe(finding);
    return Status(StatusCode::kCorrupt, text);
  });
}

// `machines`: threads that share its clusters.
Status run_kernel(const EmulatedLaunch& launch, Checks checks, uint32_t machines,
                  const std::vector<emulator::Buffer>& memory) {
  const Result<const EmulatedKernel*> kernel = load(launch.kernel);
  if (!kernel.ok()) return kernel.status();
  const LaunchShape& shape = launch.shape;
  const bool checked = checks != Checks::kOff;
  const emulator::LaunchOptions options{.grid = {shape.blocks},
                                        .block = {shape.threads},
                                        .cluster = {shape.cluster_size},
                                        .dynamic_shared = shape.shared_memory,
                                        .checks = checks,
                                        .sm_count = shape.cluster_size * (checked ? kCheckedClusters : 1)};

  std::vector<Status> outcomes(machines);
  const auto run_share = [&](uint32_t share) {
    emulator::LaunchOptions own = options;
    own.first_cluster = share;
    own.cluster_step = machines;
    outcomes[share] = run_machine((*kernel)->program, own, memory, launch.parameters);
  };
  {
    std::vector<std::jthread> threads;
    for (uint32_t share = 1; share < machines; ++share) threads.emplace_back(run_share, share);
    run_share(0);
  }
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](const Status& s) { return !s.ok(); });
  return failed == outcomes.end() ? Status() : *failed;
}

// A kernel of independent blocks, where the call has it.
Status run_blocks(const std::optional<EmulatedLaunch>& launch, Checks checks, uint32_t threads,
                  const std::vector<emulator::Buffer>& memory) {
  if (!launch) return Status();
  return run_kernel(*launch, checks, std::min(threads, launch->shape.blocks), memory);
}

// What goes before the gemm kernel.
Status lead_up(const EmulatedCall& call, Checks checks, uint32_t threads, const std::vector<emulator::Buffer>& memory) {
  if (Status status = run_blocks(call.repack, checks, threads, memory); !status.ok()) return status;
  if (call.counter_count != 0) std::memset(call.counters, 0, call.counter_count * sizeof(uint32_t));
  return Status();
}

Status emulate(const GemmPlan& plan, const GemmBuffers& buffers) {
  const Result<Checks> checks = requested_checks();
  if (!checks.ok()) return checks.status();
  const std::vector<emulator::Buffer> memory = memory_of(plan, buffers);
  const uint32_t threads = *checks == Checks::kOff ? std::max(std::thread::hardware_concurrency(), 1u) : 1;
  const Result<EmulatedCall> call = emulated_call(plan, buffers, kOneWave, kOneWave);
  if (!call.ok()) return call.status();
  if (Status status = lead_up(*call, *checks, threads, memory); !status.ok()) return status;
  const LaunchShape& shape = call->gemm.shape;
  // Clusters that count each other's parts of a tile run on one machine: the emulator's atomics are atomic within one.
  const uint32_t machines = call->counter_count != 0 ? 1 : std::min(threads, shape.blocks / shape.cluster_size);
  const Status status = run_kernel(call->gemm, *checks, machines, memory);
  return status.ok() ? run_blocks(call->reduce, *checks, threads, memory) : status;
}

Result<emulator::Report> trace(const GemmPlan& plan, const GemmBuffers& buffers, uint32_t sm_count,
                               const Profiling* profiling) {
  const Result<Checks> checks = requested_checks();
  if (!checks.ok()) return checks.status();
  const uint32_t resident = sm_count / plan.config.cluster_size();
  if (resident == 0) return invalid("a cluster of ", plan.config.cluster_size(), " CTAs on ", sm_count, " SMs");
  const Result<EmulatedCall> call = emulated_call(plan, buffers, resident, sm_count);
  if (!call.ok()) return call.status();
  std::vector<emulator::Buffer> memory = memory_of(plan, buffers);
  if (Status status = lead_up(*call, *checks, 1, memory); !status.ok()) return status;
  const auto& [name, shape, params] = call->gemm;
  std::vector<uint8_t> parameters = params;
  if (profiling != nullptr) {
    if (Status status = check_profiling(*profiling, shape); !status.ok()) return status;
    const std::vector<uint8_t> of_memory = bytes_of(profiling->memory);
    parameters.insert(parameters.end(), of_memory.begin(), of_memory.end());
    auto* words = reinterpret_cast<uint8_t*>(profiling->memory.words);
    memory.push_back({reinterpret_cast<uint64_t>(words), {words, profiling->words * sizeof(uint64_t)}, true});
  }
  const Result<const EmulatedKernel*> kernel = profiling != nullptr ? load(name, profiling->directory) : load(name);
  if (!kernel.ok()) return kernel.status();
  const DefaultFloatingPoint floating_point;
  emulator::Machine machine((*kernel)->program,
                            {.grid = {shape.blocks},
                             .block = {shape.threads},
                             .cluster = {shape.cluster_size},
                             .dynamic_shared = shape.shared_memory,
                             .checks = *checks,
                             .sm_count = sm_count,
                             .trace = true},
                            memory, parameters);
  machine.run();
  if (Status status = run_blocks(call->reduce, *checks, 1, memory); !status.ok()) return status;
  return machine.report();
}

Status with_call(const GemmPlan& plan, const Status& status) {
  return with_context(concat("jaxbw: ", describe(plan.problem), ", ", describe(plan.config), ", emulated"), status);
}

}  // namespace

Result<EmulatedCall> emulated_call(const GemmPlan& plan, const GemmBuffers& buffers, uint32_t resident,
                                   uint32_t sm_count) {
  Result<GemmLaunch> made = make_launch(plan, buffers);
  if (!made.ok()) return made.status();
  GemmLaunch launch = std::move(made).take();
  if (Status status = encode_maps(launch, encode_emulated_map); !status.ok()) return status;
  const GemmConfig& config = launch.config;
  const LaunchShape shape = gemm_shape(*launch.family, config, launch.clusters(resident), false);
  EmulatedCall call{.repack = {},
                    .gemm = {config.kernel, shape, bytes_of(launch.params)},
                    .reduce = {},
                    .counters = reinterpret_cast<uint32_t*>(launch.counters),
                    .counter_count = launch.counter_count};
  if (launch.repack_blocks != 0) {
    call.repack = {repack_kernel(*launch.family, config.kernel),
                   {.blocks = std::min(launch.repack_blocks, sm_count), .threads = kRepackThreads},
                   bytes_of(launch.repack)};
  }
  if (launch.reduced_chunks != 0) {
    call.reduce = {reduce_kernel(*launch.family), reduce_shape(launch.reduce_blocks(sm_count)), call.gemm.parameters};
  }
  return call;
}

Result<emulator::Report> trace_gemm(const GemmPlan& plan, const GemmBuffers& buffers, uint32_t sm_count,
                                    const Profiling* profiling) {
  Result<emulator::Report> report =
      guarded([&]() -> Result<emulator::Report> { return trace(plan, buffers, sm_count, profiling); });
  if (!report.ok()) return with_call(plan, report.status());
  return report;
}

Status emulate_gemm(const GemmPlan& plan, const GemmBuffers& buffers) {
  const Status status = guarded([&] { return emulate(plan, buffers); });
  return status.ok() ? status : with_call(plan, status);
}

}  // namespace jaxbw
