#include <algorithm>

#include "host/driver.h"
#include "host/emulated_launch.h"
#include "host/quantize.h"

namespace jaxbw {
namespace {

Status launch(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results, int device,
              CUstream stream) {
  const Result<QuantizePlan> plan = read_quantize(kernel, operands, results);
  if (!plan.ok()) return plan.status();
  const Result<PreparedKernel> prepared = prepare_alone(kernel, device);
  if (!prepared.ok()) return prepared.status();
  const Result<const Driver*> driver = jaxbw::driver();
  if (!driver.ok()) return driver.status();
  QuantizeLaunches all = quantize_launches(*plan, prepared->sm_count);
  for (QuantizeLaunch& each : std::span(all.launches).first(all.count)) {
    if (Status status = enqueue(**driver, prepared->handle, each.shape, stream, each.params); !status.ok()) {
      return status;
    }
  }
  return Status();
}

emulator::Buffer buffer_of(const Array& array, bool written) {
  const uint64_t bytes = array_bytes(array.type, array.dims);
  return {array.address, {reinterpret_cast<uint8_t*>(array.address), bytes}, written};
}

Status emulate(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results) {
  const Result<QuantizePlan> plan = read_quantize(kernel, operands, results);
  if (!plan.ok()) return plan.status();
  const Result<emulator::Checks> checks = requested_checks();
  if (!checks.ok()) return checks.status();
  std::vector<emulator::Buffer> memory;
  for (const Array& array : results) memory.push_back(buffer_of(array, true));
  for (const Array& array : operands) memory.push_back(buffer_of(array, false));
  const QuantizeLaunches all = quantize_launches(*plan, kOneWave);
  for (const QuantizeLaunch& each : std::span(all.launches).first(all.count)) {
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

Status launch_quantize(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results,
                       int device, CUstream stream) {
  return with_context(kQuantizeTarget, launch(kernel, operands, results, device, stream));
}

Status emulate_quantize(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results) {
  return with_context(kQuantizeTarget, guarded([&] { return emulate(kernel, operands, results); }));
}

}  // namespace jaxbw
