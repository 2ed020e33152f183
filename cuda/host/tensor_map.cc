#include "host/tensor_map.h"

#include <cstring>

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
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;  // not reached: check_launch refuses other values
}

// An operand whose tile has `rows` rows of M or N, of which `peers` CTAs load an equal part each.
// The tile is kBlockK deep, so it is [rows, kBlockK] in K-major storage: one box of the peer's rows.
// In MN-major storage it is [kBlockK, rows], cut into boxes one swizzle span wide.
TensorView operand(const char* name, CUdeviceptr address, DataType type, Major major, uint64_t extent, uint64_t k,
                   uint64_t batch, uint32_t rows, uint32_t peers) {
  const bool k_major = major == Major::kK;
  return {.name = name,
          .address = address,
          .type = type,
          .contiguous = k_major ? k : extent,
          .outer = k_major ? extent : k,
          .batch = batch,
          .box_contiguous = kSwizzleSpan / size_bytes(type),
          .box_outer = (k_major ? rows : kBlockK) / peers};
}

// The widths of a box, which storage.h makes: see TensorView::swizzle_bytes.
static_assert(kSm90Epilogue.store_row_bytes(DataType::kF32) == 128 &&
              kSm90Epilogue.store_row_bytes(DataType::kF16) == 128);
static_assert(kSm100Epilogue.store_row_bytes(DataType::kF32) == 128 &&
              kSm100Epilogue.store_row_bytes(DataType::kF16) == 64);

}  // namespace

TensorView view_a(const GemmProblem& problem, const GemmConfig& config, CUdeviceptr address) {
  return operand("lhs", address, problem.input, problem.a_major, problem.m, problem.k,
                 problem.a_batched ? problem.batch : 1, config.block_m / config.cta_group, peers_a(config));
}

TensorView view_b(const GemmProblem& problem, const GemmConfig& config, CUdeviceptr address) {
  return operand("rhs", address, problem.input, problem.b_major, problem.n, problem.k,
                 problem.b_batched ? problem.batch : 1, config.block_n / config.cta_group, peers_b(config));
}

TensorView view_d(const GemmProblem& problem, const KernelFamily& family, CUdeviceptr address) {
  return {.name = "result",
          .address = address,
          .type = problem.output,
          .contiguous = problem.n,
          .outer = problem.m,
          .batch = problem.batch,
          .box_contiguous = family.epilogue.store_columns(problem.output),
          .box_outer = family.epilogue.rows_per_warp,
          .written = true};
}

Status encode_tensor_map(const Driver& driver, const TensorView& view, TensorMap& map) {
  const cuuint64_t dims[3] = {view.contiguous, view.outer, view.batch};
  const cuuint64_t strides[2] = {view.row_stride(), view.row_stride() * view.outer};
  const cuuint32_t box[3] = {view.box_contiguous, view.box_outer, 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};

  CUtensorMap encoded;
  const Status status = driver.cuTensorMapEncodeTiled(
      &encoded, encoded_type(view.type), 3, reinterpret_cast<void*>(view.address), dims, strides, box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      view.swizzle_bytes() == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // "none" fills with zeros; the other choice is NaN
  if (!status.ok()) return status;

  static_assert(sizeof(map) == sizeof(encoded));
  std::memcpy(&map, &encoded, sizeof(map));
  return Status();
}

}  // namespace jaxbw
