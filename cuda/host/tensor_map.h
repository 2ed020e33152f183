// Tensor maps: the descriptors by which the TMA unit reads the operands and writes the results.
#pragma once

#include "host/driver.h"
#include "host/operand.h"

namespace jaxbw {

// An array [batch, outer, contiguous] in device memory, and the box that one TMA instruction moves.
struct TensorView {
  const char* name;  // "lhs", for messages
  CUdeviceptr address;
  DataType type;
  uint64_t contiguous, outer, batch;
  uint64_t row_stride;  // bytes: a multiple of 16
  uint32_t box_contiguous, box_outer;
  uint32_t swizzle_bytes;  // 128, 64, 32, or 16 for none
  bool gathered = false;   // of one batch index, rows are addressed one by one
  bool ragged = false;     // of all batch indices one behind the other, rows are addressed by their group's end
};

// The dimensions of its tensor map: contiguous, outer, batch, the last not of a gathered one; of a ragged one as
// gemm/groups.h has them.
struct MapDimensions {
  uint32_t rank;
  uint64_t extents[4], strides[3];
};
MapDimensions map_dimensions(const TensorView& view);

// `address`: of the operand as the kernel reads it.
TensorView view_a(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config,
                  CUdeviceptr address);
TensorView view_b(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config, const char* name,
                  CUdeviceptr address);
// Of an operand's tiles of scales (MxParams), so many along the rows: a box is what a stage has of one tile of rows.
TensorView view_scales(const GemmProblem& problem, const Operand& operand, uint64_t row_tiles, const GemmConfig& config,
                       const char* name, CUdeviceptr address);
// Of an array that is shaped as the result, which it is where rows are grouped.
TensorView view_like_result(const GemmProblem& problem, StoreBox box, const char* name, DataType type,
                            CUdeviceptr address);

Status encode_tensor_map(const Driver& driver, const TensorView& view, TensorMap& map);

}  // namespace jaxbw
