// The launch parameters of every GEMM kernel: the one struct that host and device share.
//
// Plain C++ without CUDA headers, so that the host runtime, the kernels and the emulator include the
// same file. A kernel takes exactly one argument, `const __grid_constant__ GemmParams`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxbw {

// Element types. kF16 and kBF16 have the values of the operand-format field of the sm_100
// instruction descriptor for kind::f16 (PTX 9.7.16.4.2).
enum class DataType : uint32_t { kF16 = 0, kBF16 = 1, kF32 = 2 };

constexpr uint32_t size_bytes(DataType type) { return type == DataType::kF32 ? 4 : 2; }

// Which dimension of an operand is contiguous in memory: K, or the other one (M of A, N of B).
// The values are those of the transpose bits of wgmma and of the sm_100 instruction descriptor.
enum class Major : uint32_t { kK = 0, kMN = 1 };

// kGelu is the tanh approximation, jax.nn.gelu's default.
enum class Activation : uint32_t { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3 };

// A CUtensorMap: 128 opaque bytes, encoded by the driver and read by the TMA unit.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// What happens to an accumulator on its way out, in float32 up to the final cast:
//   d = cast<output>(activation(accumulator + bias))
struct Epilogue {
  const void* bias;  // [n], or null
  DataType bias_type;
  Activation activation;
  DataType output;
};

// D[batch, m, n] = epilogue(sum_k A[batch, m, k] * B[batch, k, n])
//
// Work is handed out in cluster tiles: the block of D that one cluster of CTAs computes at a time,
// cluster_m x cluster_n CTA tiles (cta_group::2: two CTAs along M share one MMA tile).
// The CTA of rank r within its cluster stands at (r % cluster_m, r / cluster_m).
struct GemmParams {
  TensorMap a, b, d;  // rank 3: (contiguous dimension, outer dimension, batch)
  Epilogue epilogue;

  uint32_t m, n, k, batch;
  uint32_t a_batched, b_batched;  // 1, or 0 where one matrix serves every batch index

  uint32_t block_m, block_n;      // MMA tile: rows x columns of D (cta_group::2: of the CTA pair)
  uint32_t cluster_m, cluster_n;  // CTAs
  uint32_t stages;                // depth of the shared-memory ring
  uint32_t swizzle;               // rasterisation: cluster tiles along M that are walked together

  uint32_t cluster_tiles_m, cluster_tiles_n;  // the grid of cluster tiles of one batch index

  DataType input;          // read at run time by sm_100 kernels only; sm_90 has it in the instruction
  Major a_major, b_major;  // likewise
};

static_assert(sizeof(TensorMap) == 128 && alignof(GemmParams) == 64);
static_assert(offsetof(GemmParams, epilogue) == 3 * sizeof(TensorMap));

}  // namespace jaxbw
