// Runs the calls of quantize.h and quantize_blocks.h, which differ in what they launch.
#include <algorithm>

#include "host/driver.h"
#include "host/emulated_launch.h"
#include "host/quantize.h"
#include "host/quantize_blocks.h"

namespace jaxbw {
namespace {

template <typename Plan>
Status launch(std::string_view kernel, const Result<Plan>& plan, int device, CUstream stream) {
  if (!plan.ok()) return plan.status();
  const Result<PreparedKernel> prepared = prepare_alone(kernel, device);
  if (!prepared.ok()) return prepared.status();
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  const auto all = quantize_launches(*plan, prepared->sm_count);
  for (const auto& each : std::span(all.launches).first(all.count)) {
    if (Status status = enqueue(**driver, prepared->handle, each.shape, stream, each.params); !status.ok()) {
      return status;
    }
  }
  return Status();
}

emulator::Buffer buffer_of(const Array& array, bool written) {
  const uint64_t bytes = array_bytes(array.type, array.dims, array.untyped);
  return {array.address, {reinterpret_cast<uint8_t*>(array.address), bytes}, written};
}

template <typename Plan>
Status emulate(std::string_view kernel, const Result<Plan>& plan, std::span<const Array> operands,
               std::span<const Array> results) {
  if (!plan.ok()) return plan.status();
  const Result<emulator::Checks> checks = requested_checks();
  if (!checks.ok()) return checks.status();
  std::vector<emulator::Buffer> memory;
  for (const Array& array : results) memory.push_back(buffer_of(array, true));
  for (const Array& array : operands) memory.push_back(buffer_of(array, false));
  const auto all = quantize_launches(*plan, kOneWave);
  for (const auto& each : std::span(all.launches).first(all.count)) {
    const uint32_t machines = std::min(emulating_threads(*checks), each.shape.blocks);
    const Status status = run_emulated({kernel, each.shape, bytes_of(each.params)}, *checks, machines, memory);
    if (!status.ok()) return status;
  }
  return Status();
}

}  // namespace

Status prepare_quantize(std::string_view kernel, int device) {
  return with_context(kQuantizeTarget, prepare_alone(kernel, device).status());
}

Status prepare_quantize_blocks(std::string_view kernel, int device) {
  return with_context(kQuantizeBlocksTarget, prepare_alone(kernel, device).status());
}

Status launch_quantize(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results,
                       int device, CUstream stream) {
  return with_context(kQuantizeTarget, launch(kernel, read_quantize(kernel, operands, results), device, stream));
}

Status emulate_quantize(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results) {
  const auto run = [&] { return emulate(kernel, read_quantize(kernel, operands, results), operands, results); };
  return with_context(kQuantizeTarget, guarded(run));
}

Status launch_quantize_blocks(const QuantizeBlocksAttributes& attributes, std::span<const Array> operands,
                              std::span<const Array> results, int device, CUstream stream) {
  const Result<QuantizeBlocksPlan> plan = read_quantize_blocks(attributes, operands, results);
  return with_context(kQuantizeBlocksTarget, launch(attributes.kernel, plan, device, stream));
}

Status emulate_quantize_blocks(const QuantizeBlocksAttributes& attributes, std::span<const Array> operands,
                               std::span<const Array> results) {
  const auto run = [&] {
    return emulate(attributes.kernel, read_quantize_blocks(attributes, operands, results), operands, results);
  };
  return with_context(kQuantizeBlocksTarget, guarded(run));
}

}  // namespace jaxbw
