#include "host/emulated_gemm.h"

#include <algorithm>
#include <cstring>

#include "emulator/tensor_map.h"
#include "gemm/repack.h"
#include "host/gemm_call.h"
#include "host/gemm_instances.h"
#include "host/gemm_launch.h"

namespace jaxbw {
namespace {

using emulator::Checks;

emulator::TensorMapType emulated_type(DataType type) {
  switch (type) {
    case DataType::kF16:
      return emulator::TensorMapType::kF16;
    case DataType::kBF16:
      return emulator::TensorMapType::kBf16;
    case DataType::kF32:
      return emulator::TensorMapType::kF32;
    case DataType::kE2M1Padded:
      return emulator::TensorMapType::k16U4Align16B;
    case DataType::kE4M3:
    case DataType::kE5M2:
    case DataType::kE2M1:
      break;
  }
  return emulator::TensorMapType::kU8;
}

emulator::Swizzle emulated_swizzle(uint32_t bytes) {
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
  const auto& [rank, extents, strides] = map_dimensions(view);
  const auto bytes = emulator::encode_tensor_map({.type = emulated_type(view.type),
                                                  .rank = rank,
                                                  .address = view.address,
                                                  .extents = {extents[0], extents[1], extents[2], extents[3], 1},
                                                  .strides = {strides[0], strides[1], strides[2]},
                                                  .box = {view.box_contiguous, view.box_outer, 1, 1, 1},
                                                  .swizzle = emulated_swizzle(view.swizzle_bytes),
                                                  .l2_promotion = emulator::L2Promotion::k128B});
  static_assert(sizeof(map) == sizeof(bytes));
  std::memcpy(&map, bytes.data(), sizeof(map));
  return Status();
}

// What the kernels of a call have access to.
struct Memory {
  Memory(const GemmPlan& plan, const GemmBuffers& given)
      : counters(plan.counters() * sizeof(uint32_t)), buffers(given) {
    std::vector<CallArray> arrays = arrays_of(plan);
    std::stable_partition(arrays.begin(), arrays.end(), [](const CallArray& array) { return array.result; });
    for (const CallArray& array : arrays) {
      const CUdeviceptr address = buffers.*array.address;
      const auto same = [&](const emulator::Buffer& other) { return other.address == address; };
      if (!std::any_of(parts.begin(), parts.end(), same)) add(address, array.bytes(), array.result);
    }
    if (counters.empty()) return;
    buffers.counters = reinterpret_cast<CUdeviceptr>(counters.data());
    add(buffers.counters, counters.size(), true);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void add(CUdeviceptr address, uint64_t bytes, bool writable) {
    parts.push_back({address, {reinterpret_cast<uint8_t*>(address), bytes}, writable});
  }

  std::vector<uint8_t> counters;        // a call site's: bytes
  GemmBuffers buffers;                  // with them
  std::vector<emulator::Buffer> parts;  // all arrays of the call, but for those in another one (C in the result)
};

// A kernel of independent blocks, where the call has it.
Status run_blocks(const std::optional<EmulatedLaunch>& launch, Checks checks, uint32_t threads,
                  const std::vector<emulator::Buffer>& memory) {
  if (!launch) return Status();
  return run_emulated(*launch, checks, std::min(threads, launch->shape.blocks), memory);
}

// What goes before the gemm kernel.
Status lead_up(const EmulatedCall& call, Checks checks, uint32_t threads, const std::vector<emulator::Buffer>& memory) {
  if (Status status = run_blocks(call.before, checks, threads, memory); !status.ok()) return status;
  const auto& [address, count] = call.zeroed;
  if (count != 0) std::memset(reinterpret_cast<void*>(address), 0, count * sizeof(uint32_t));
  return Status();
}

Status emulate(const GemmPlan& plan, const GemmBuffers& buffers) {
  const Result<Checks> checks = requested_checks();
  if (!checks.ok()) return checks.status();
  const Memory memory(plan, buffers);
  const Result<EmulatedCall> call = emulated_call(plan, memory.buffers, kOneWave, kOneWave);
  if (!call.ok()) return call.status();
  const uint32_t threads = emulating_threads(*checks), together = call->meet_at_words() ? 1 : threads;
  if (Status status = lead_up(*call, *checks, threads, memory.parts); !status.ok()) return status;
  const LaunchShape& shape = call->gemm.shape;
  const uint32_t machines = std::min(together, shape.blocks / shape.cluster_size);
  Status status = run_emulated(call->gemm, *checks, machines, memory.parts);
  if (status.ok()) status = run_blocks(call->reduce, *checks, together, memory.parts);
  return status.ok() ? check_counters(memory.counters) : status;
}

Result<emulator::Report> trace(const GemmPlan& plan, const GemmBuffers& buffers, uint32_t sm_count,
                               const Profiling* profiling) {
  const Result<Checks> checks = requested_checks();
  if (!checks.ok()) return checks.status();
  const uint32_t resident = sm_count / plan.config.cluster_size();
  if (resident == 0) return invalid("a cluster of ", plan.config.cluster_size(), " CTAs on ", sm_count, " SMs");
  Memory memory(plan, buffers);
  const Result<EmulatedCall> call = emulated_call(plan, memory.buffers, resident, sm_count);
  if (!call.ok()) return call.status();
  if (Status status = lead_up(*call, *checks, 1, memory.parts); !status.ok()) return status;
  const auto& [name, shape, params] = call->gemm;
  std::vector<uint8_t> parameters = params;
  if (profiling != nullptr) {
    if (Status status = check_profiling(*profiling, shape); !status.ok()) return status;
    const std::vector<uint8_t> of_memory = bytes_of(profiling->memory);
    parameters.insert(parameters.end(), of_memory.begin(), of_memory.end());
    memory.add(reinterpret_cast<uint64_t>(profiling->memory.words), profiling->words * sizeof(uint64_t), true);
  }
  const Result<const EmulatedKernel*> kernel =
      profiling != nullptr ? load_emulated(name, profiling->directory) : load_emulated(name);
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
                            memory.parts, parameters);
  machine.run();
  if (Status status = run_blocks(call->reduce, *checks, 1, memory.parts); !status.ok()) return status;
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
  EmulatedCall call{
      .before = {},
      .gemm = {config.kernel, shape, launch.with_argument([](const auto& argument) { return bytes_of(argument); })},
      .reduce = {},
      .zeroed = launch.zeroed,
      .counted = launch.params.counters != nullptr};
  if (launch.repack_blocks != 0) {
    call.before = {repack_kernel(*launch.family, config.kernel),
                   {.blocks = std::min(launch.repack_blocks, sm_count), .threads = kRepackThreads},
                   bytes_of(launch.repack)};
  }
  if (launch.groups) {
    call.before = {
        group_table_kernel(*launch.family), {.blocks = 1, .threads = kGroupTableThreads}, bytes_of(*launch.groups)};
  }
  if (launch.reduced_chunks != 0) {
    call.reduce = {reduce_kernel(*launch.family), reduce_shape(launch.reduce_blocks(sm_count)),
                   bytes_of(launch.params)};
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
