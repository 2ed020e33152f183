// Tensor maps: the descriptors by which the TMA unit reads the operands and writes the result.
#pragma once

#include "host/driver.h"
#include "host/gemm.h"

namespace jaxbw {

// A dense array [batch, outer, contiguous] in device memory, and the box that one TMA instruction moves.
struct TensorView {
  const char* name;  // "lhs", for messages
  CUdeviceptr address;
  DataType type;
  uint64_t contiguous, outer, batch;
  uint32_t box_contiguous, box_outer;
  bool written = false;

  uint64_t row_bytes() const { return contiguous * size_bytes(type); }
  uint64_t bytes() const { return batch * outer * row_bytes(); }
  // Every box is swizzled over its own width, 64 or 128 bytes.
  uint32_t swizzle_bytes() const { return box_contiguous * size_bytes(type); }
  // From one row to the next, in bytes: a multiple of 16. Rounding up matters only where there is one row, whose
  // distance to the next is never used but must be legal.
  uint64_t row_stride() const { return (row_bytes() + 15) / 16 * 16; }
  // The rule for what TMA can address: the distance from row to row, where there is a second row, is a multiple of
  // 16 bytes. What it writes ends on such a multiple too: it stores 16 bytes whole, even past the end of the last row
  // (seen on an H200: a result of one element overwrote what followed it).
  bool has_one_row() const { return outer == 1 && batch == 1; }
};

TensorView view_a(const GemmProblem& problem, const GemmConfig& config, CUdeviceptr address);
TensorView view_b(const GemmProblem& problem, const GemmConfig& config, CUdeviceptr address);
TensorView view_d(const GemmProblem& problem, const KernelFamily& family, CUdeviceptr address);

Status encode_tensor_map(const Driver& driver, const TensorView& view, TensorMap& map);

}  // namespace jaxbw
