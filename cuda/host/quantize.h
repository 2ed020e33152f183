// The custom call "jaxbw_quantize_v1": an array as 8-bit floating point with scales. Its arrays are listed in
// jaxbw/_native.pyi; what the kernel does is said at QuantizeParams in params.h. quantize.cc reads and plans a call,
// quantize_run.cc runs it.
#pragma once

#include <array>
#include <span>

#include "gemm/quantize.h"
#include "host/gemm_call.h"
#include "host/kernel_launch.h"
#include "host/kernel_library.h"

namespace jaxbw {

inline constexpr const char* kQuantizeTarget = "jaxbw_quantize_v1";

// Of x, [groups, group], or where the transposed data are wanted too [groups, matrices, rows, columns].
struct QuantizeProblem {
  std::span<const int64_t> x;
  std::optional<DataType> type, format;
  bool both() const { return x.size() == 4; }
};

// What does not depend on the device.
struct QuantizePlan {
  QuantizeParams params;  // of the last launch
  uint64_t blocks;        // that have something to do in it
  uint64_t workspace_bytes;
};

Result<QuantizePlan> plan_quantize(const QuantizeProblem& problem);

// A plan with addresses. Fails unless operands and results are those of a call of this kernel.
Result<QuantizePlan> read_quantize(std::string_view kernel, std::span<const Array> operands,
                                   std::span<const Array> results);

struct QuantizeLaunch {
  QuantizeParams params;
  LaunchShape shape;
};

// One or two, in their order.
struct QuantizeLaunches {
  std::array<QuantizeLaunch, 2> launches;
  size_t count;
};

QuantizeLaunches quantize_launches(const QuantizePlan& plan, uint32_t sm_count);

// Loads a kernel, before the first launch on a device.
Status prepare_quantize(std::string_view kernel, int device);

Status launch_quantize(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results,
                       int device, CUstream stream);

// On host memory, before it returns: the kernel's PTX in the emulator.
Status emulate_quantize(std::string_view kernel, std::span<const Array> operands, std::span<const Array> results);

}  // namespace jaxbw
