// The operands of a matmul: how they lie in memory, and how the kernels read them.
//
// TMA wants rows that start at multiples of 16 bytes, and some instructions want their operands K-major: those of TF32
// (in the 128-byte swizzle; other swizzles are not used here), and wgmma of 8 bits. What is neither is copied into the
// workspace first, by a repack kernel.
#pragma once

#include <algorithm>
#include <bit>

#include "host/gemm.h"

namespace jaxbw {

constexpr uint64_t kTmaAlignment = 16;  // bytes, of addresses and strides: CUtensorMap
// Of kE2M1Padded (CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B): bytes of addresses, and of whole boxes that rows consist of.
constexpr uint64_t kPaddedAlignment = 32, kPaddedRow = 64;

// A dense array [batch, rows, columns] of matrices that are `extent` (M or N) by `k`.
struct Operand {
  const char* name;  // for messages
  DataType type;
  Major major;
  uint64_t extent, k, batch;
  bool k_major_only = false;  // as its instruction takes it

  uint64_t columns() const { return major == Major::kK ? k : extent; }
  uint64_t rows() const { return major == Major::kK ? extent : k; }
  uint64_t row_bytes() const { return columns() / packing(type) * size_bytes(type); }

  // Bytes that rows are multiples of, as TMA loads them.
  bool padded() const { return type == DataType::kE2M1Padded; }
  uint64_t row_unit() const { return padded() ? kPaddedRow : kTmaAlignment; }

  bool transposed() const { return k_major_only && major == Major::kMN; }
  // Where there is one row, its distance to the next is never used.
  bool repacked() const {
    return transposed() || (row_bytes() % row_unit() != 0 && (rows() > 1 || batch > 1 || padded()));
  }

  // What the kernel reads: this array, or the copy of it.
  Operand as_read() const {
    Operand read = *this;
    if (transposed()) read.major = Major::kK;
    return read;
  }
  // From one row to the next of what the kernel reads, in bytes. The rows of a copy straddle no more cache lines than
  // they must: for those that do, a matmul takes 10 % longer for each operand (4104^3 on an H200).
  uint64_t pitch() const {
    const uint64_t bytes = as_read().row_bytes();
    const uint64_t unit = repacked() ? std::clamp<uint64_t>(std::bit_ceil(bytes), row_unit(), kCacheLine) : row_unit();
    return ceil_div(bytes, unit) * unit;
  }
  uint64_t repacked_bytes() const { return repacked() ? batch * as_read().rows() * pitch() : 0; }
};

// Tiles of an operand's scales along its rows, of one batch index, and along K, of which `block` share one (MxParams).
inline uint64_t row_tiles(const Operand& operand) { return ceil_div(operand.extent, kScaleTileRows); }
inline uint64_t k_tiles(const Operand& operand, uint32_t block) {
  return ceil_div(operand.k, kScaleTileBlocks * block);
}

// PTX 9.7.15.5.1: wgmma has its transpose bits for 16-bit types only.
inline bool takes_k_major_only(const KernelFamily& family, DataType type) {
  return type == DataType::kF32 || (family.is_sm90() && is_8bit(type));
}

// As they are stored, and as the kernels of a family take them.
inline Operand operand_a(const GemmProblem& p) {
  return {"lhs", p.a_type, p.a_major, p.gathered() ? p.source_rows : p.m, p.k, p.a_batched ? p.batch : 1};
}
inline Operand operand_b(const GemmProblem& p) {
  const uint64_t matrices = p.grouped == Grouped::kRows ? p.groups : 1;
  return {"rhs", p.b_type, p.b_major, p.n, p.k, (p.b_batched ? p.batch : 1) * matrices};
}
inline Operand operand_a(const KernelFamily& family, const GemmProblem& p) {
  Operand a = operand_a(p);
  a.k_major_only = takes_k_major_only(family, a.type);
  return a;
}
inline Operand operand_b(const KernelFamily& family, const GemmProblem& p) {
  Operand b = operand_b(p);
  b.k_major_only = takes_k_major_only(family, b.type);
  return b;
}

}  // namespace jaxbw
