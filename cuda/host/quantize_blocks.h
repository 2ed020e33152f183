// The custom call "jaxbw_quantize_blocks_v1": an array in a block-scaled format. Its arrays and attributes are listed
// in jaxbw/_native.pyi; what the kernel does is said at QuantizeBlocksParams in params.h.
#pragma once

#include <array>
#include <span>

#include "host/gemm_call.h"
#include "host/kernel_launch.h"

namespace jaxbw {

inline constexpr const char* kQuantizeBlocksTarget = "jaxbw_quantize_blocks_v1";

// What is wanted of blocks along a dimension.
enum class BlocksWanted : int32_t { kNothing, kScales, kDataAndScales };

struct QuantizeBlocksAttributes {
  std::string_view kernel;
  int32_t columns, rows;  // BlocksWanted
  int32_t square;
};

// A launch with addresses.
struct QuantizeBlocksPlan {
  QuantizeBlocksParams params;
  LaunchShape shape;
};
struct QuantizeBlocksLaunches {
  std::array<QuantizeBlocksPlan, 1> launches;
  size_t count = 1;
};
inline QuantizeBlocksLaunches quantize_launches(const QuantizeBlocksPlan& plan, uint32_t) { return {{plan}}; }

// Fails unless operands and results are those of a call of this kernel.
Result<QuantizeBlocksPlan> read_quantize_blocks(const QuantizeBlocksAttributes& attributes,
                                                std::span<const Array> operands, std::span<const Array> results);

// Loads a kernel, before the first launch on a device.
Status prepare_quantize_blocks(std::string_view kernel, int device);

Status launch_quantize_blocks(const QuantizeBlocksAttributes& attributes, std::span<const Array> operands,
                              std::span<const Array> results, int device, CUstream stream);

// On host memory, before it returns: the kernel's PTX in the emulator.
Status emulate_quantize_blocks(const QuantizeBlocksAttributes& attributes, std::span<const Array> operands,
                               std::span<const Array> results);

}  // namespace jaxbw
