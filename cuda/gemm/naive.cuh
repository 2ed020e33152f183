// The first step of the ladder (examples/ladder/run.py): a product on CUDA cores, one thread for each element of D.
// Every thread reads its row of A and its column of B from global memory, so that each multiply-add costs two loads:
// what all other kernels here are about.
#pragma once

#include "gemm/epilogue.h"
#include "ptx/programmatic_launch.h"

namespace jaxbw {

// A block of 256 threads computes 8 x 32 elements of D: warp w row w, lane l column l, so that a warp's stores are
// neighbours. Blocks walk these pieces of all batch indices: any grid will do.
constexpr uint32_t kNaiveRows = 8, kNaiveColumns = ptx::kWarpSize;
constexpr uint32_t kNaiveThreads = kNaiveRows * kNaiveColumns;

// One matrix of A or B: element (mn, k) lies at `data` + mn * mn_stride + k * k_stride.
struct NaiveOperand {
  EpilogueOperand data;
  uint64_t mn_stride, k_stride;

  JAXBW_DEVICE NaiveOperand(const GemmParams& p, const void* data, Major major, uint32_t extent)
      : data{data, p.input}, mn_stride(major == Major::kK ? p.k : 1), k_stride(major == Major::kK ? 1 : extent) {}
};

// alpha * sum + beta * c + bias, the activation, the residual: see Epilogue in params.h. Neither gated products nor
// saved results.
JAXBW_DEVICE void naive_epilogue(const GemmParams& p, float sum, uint32_t row, uint32_t column, uint32_t batch) {
  const Epilogue& e = p.epilogue;
  const uint64_t index = element_index(p, row, column, batch);
  float z[1] = {e.alpha * sum};
  if (e.c.data != nullptr) z[0] += e.beta * load_element(e.c, index);
  if (e.bias.data != nullptr) z[0] += load_bias(p, row, column);
  activate<1>(z, e.activation);
  if (e.residual.data != nullptr) z[0] += load_element(e.residual, index);
  with_type(p.output.type, [&]<DataType kOutput>() { store_element<kOutput>(p.output.data, index, z[0]); });
}

JAXBW_DEVICE void naive_gemm(const GemmParams& p) {
  ptx::wait_for_upstream();
  const NaiveOperand a(p, p.a_data, p.a_major, p.m), b(p, p.b_data, p.b_major, p.n);
  const uint32_t warp = threadIdx.x / kNaiveColumns, lane = threadIdx.x % kNaiveColumns;
  const uint64_t pieces_m = (p.m + kNaiveRows - 1) / kNaiveRows;
  const uint64_t pieces_n = (p.n + kNaiveColumns - 1) / kNaiveColumns;
  for (uint64_t piece = blockIdx.x; piece < pieces_m * pieces_n * p.batch; piece += gridDim.x) {
    const auto column = static_cast<uint32_t>(piece % pieces_n * kNaiveColumns + lane);
    const auto row = static_cast<uint32_t>(piece / pieces_n % pieces_m * kNaiveRows + warp);
    const auto batch = static_cast<uint32_t>(piece / pieces_n / pieces_m);
    if (row >= p.m || column >= p.n) continue;
    const uint64_t a_first = batch * p.a_batched * (uint64_t{p.m} * p.k) + row * a.mn_stride;
    const uint64_t b_first = batch * p.b_batched * (uint64_t{p.n} * p.k) + column * b.mn_stride;
    float sum = 0.0f;
    for (uint64_t k = 0; k < p.k; ++k) {
      sum += load_element(a.data, a_first + k * a.k_stride) * load_element(b.data, b_first + k * b.k_stride);
    }
    naive_epilogue(p, sum, row, column, batch);
  }
}

}  // namespace jaxbw
