#include "host/tensor_map.h"

#include <cstring>

#include "gemm/groups.h"

namespace jaxbw {
namespace {

CUtensorMapDataType encoded_type(DataType type) {
  switch (type) {
    case DataType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DataType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DataType::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DataType::kE2M1Padded:
      return CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
    case DataType::kE4M3:
    case DataType::kE5M2:
    case DataType::kE2M1:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

CUtensorMapSwizzle encoded_swizzle(uint32_t bytes) {
  switch (bytes) {
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

// A box is one block of an OperandTile (storage.h), or the part of its rows that one of `peers` CTAs loads: one row of
// the block wide, `extent` rows of M or N high (K-major), or all of the stage's K (MN-major). Of numbers that share a
// byte these are the elements; but padded ones are elements themselves, of rows that end with a whole box. What such a
// row has behind K the other operand multiplies by zeros, and e2m1 has numbers only.
//
// `multiplied`: what one instruction reads of the extent, which decides the swizzle of an MN-major operand.
TensorView view(const Operand& operand, CUdeviceptr address, const GemmConfig& config, uint32_t extent,
                uint32_t multiplied, uint32_t peers) {
  const Operand read = operand.as_read();
  const OperandTile tile =
      operand_tile(read.major, read.type, read.major == Major::kK ? extent : multiplied, config.k_spans);
  return {.name = operand.name,
          .address = address,
          .type = read.type,
          .contiguous = operand.padded() ? ceil_div(read.row_bytes(), kPaddedRow) * kPaddedRow * packing(read.type)
                                         : read.columns() / packing(read.type),
          .outer = read.rows(),
          .batch = read.batch,
          .row_stride = operand.pitch(),
          .box_contiguous = tile.row_bytes / size_bytes(read.type),
          .box_outer = tile.rows / peers,
          .swizzle_bytes = tile.row_bytes};
}

}  // namespace

MapDimensions map_dimensions(const TensorView& view) {
  const uint64_t row = view.row_stride;
  if (view.gathered) return {2, {view.contiguous, view.outer, 1, 1}, {row}};
  if (!view.ragged) return {3, {view.contiguous, view.outer, view.batch, 1}, {row, row * view.outer, 0}};
  return {4, {view.contiguous, kRaggedRows, kRaggedExtent, kRaggedExtent}, {row, kRaggedWrap - row, row}};
}

TensorView view_a(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config,
                  CUdeviceptr address) {
  TensorView a = view(operand_a(family, problem), address, config, a_extent(config), a_extent(config), a_peers(config));
  a.gathered = problem.gathered();
  a.ragged = problem.grouped != Grouped::kNone && !a.gathered;
  if (a.gathered) a.box_outer = 1;
  return a;
}

TensorView view_b(const KernelFamily& family, const GemmProblem& problem, const GemmConfig& config, const char* name,
                  CUdeviceptr address) {
  const uint32_t extent = b_extent(problem, config);
  const uint32_t multiplied = family.is_sm90() ? config.warpgroup_tile().columns : extent;
  TensorView b = view(operand_b(family, problem), address, config, extent, multiplied, b_peers(config));
  b.name = name;
  b.ragged = problem.grouped == Grouped::kContraction;
  return b;
}

TensorView view_scales(const GemmProblem& problem, const Operand& operand, uint64_t row_tiles, const GemmConfig& config,
                       const char* name, CUdeviceptr address) {
  constexpr DataType kType = DataType::kBF16;  // a tile has more bytes than a box elements
  return {.name = name,
          .address = address,
          .type = kType,
          .contiguous = kScaleTileBytes / size_bytes(kType),
          .outer = k_tiles(operand, problem.mx),
          .batch = operand.batch * row_tiles,
          .row_stride = kScaleTileBytes,
          .box_contiguous = kScaleTileBytes / size_bytes(kType),
          .box_outer = config.stage_k_tiles(),
          .swizzle_bytes = kTmaAlignment};
}

TensorView view_like_result(const GemmProblem& problem, StoreBox box, const char* name, DataType type,
                            CUdeviceptr address) {
  return {.name = name,
          .address = address,
          .type = type,
          .contiguous = problem.result_columns(),
          .outer = problem.m,
          .batch = problem.results(),
          .row_stride = problem.result_columns() * size_bytes(type),
          .box_contiguous = box.columns,
          .box_outer = box.rows,
          .swizzle_bytes = box.row_bytes(type),
          .ragged = problem.grouped == Grouped::kRows};
}

Status encode_tensor_map(const Driver& driver, const TensorView& view, TensorMap& map) {
  const MapDimensions map_of = map_dimensions(view);
  const cuuint32_t box[4] = {view.box_contiguous, view.box_outer, 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};

  CUtensorMap encoded;
  const Status status = driver.cuTensorMapEncodeTiled(
      &encoded, encoded_type(view.type), map_of.rank, reinterpret_cast<void*>(view.address), map_of.extents,
      map_of.strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, encoded_swizzle(view.swizzle_bytes),
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // "none" fills with zeros; the other choice is NaN
  if (!status.ok()) return status;

  static_assert(sizeof(map) == sizeof(encoded));
  std::memcpy(&map, &encoded, sizeof(map));
  return Status();
}

}  // namespace jaxbw
