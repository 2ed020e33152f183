// wgmma.mma_async of sm_90a: descriptors, register fragments, and the multiply itself (PTX 9.7.15).
//
// Dense f16, bf16, tf32 and fp8. Integer, single-bit and sparse forms are refused by having no entry point.
//
// Thread t of the warpgroup: warp w = t / 32, g = t % 32 / 4, c = t % 4. Its registers hold
//
//   D, float32: register i       row 16w + g + 8*(i/2%2)   column 8*(i/4) + 2c + i%2        (figures 149-153)
//   D, f16:     register i       row 16w + g + 8*(i%2)     columns 8*(i/2) + 2c, + 1
//   A: 4 registers of 4 bytes, e = elements in a register, register j:
//                                row 16w + g + 8*(j%2)     columns 4e*(j/2) + e*c ... + e-1 (figures 148-152)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "number_formats.h"
#include "smem_matrix.h"

namespace jaxbw::emulator {

inline constexpr uint32_t kWarpgroupThreads = 128;
inline constexpr uint32_t kWgmmaM = 64;
inline constexpr uint32_t kWgmmaARegisters = 4;

// Matrix descriptor (PTX 9.7.15.5.1.2.2). Throws Error on bits that belong to no field.
SharedMatrix decode_wgmma_shared_descriptor(uint64_t descriptor);

struct Wgmma {
  uint32_t n;
  NumberFormat a_format, b_format;
  bool f32_result;  // or f16
  bool a_in_registers = false;
  SharedMatrix a;  // unless a_in_registers
  SharedMatrix b;
  OperandMajor a_major = OperandMajor::kK, b_major = OperandMajor::kK;  // imm-trans-a, imm-trans-b
  bool negate_a = false, negate_b = false;                              // imm-scale-a, imm-scale-b = -1
  bool accumulate = false;                                              // scale-d
  bool fused_sum = false;
};

// Throws Error, naming the rule and its section, on whatever the instruction may not be.
void check_wgmma(const Wgmma& op);

// 32-bit accumulator registers of each thread: n / 2 for float32, n / 4 for f16.
uint32_t wgmma_d_registers(const Wgmma& op);

struct FragmentPosition {
  uint32_t row, column;  // of the first element in the register; the others follow along the columns
};
FragmentPosition wgmma_d_position(bool f32_result, uint32_t thread, uint32_t reg);
FragmentPosition wgmma_a_position(NumberFormat format, uint32_t thread, uint32_t reg);

// Addresses of the 16-byte chunks of shared memory that the instruction reads, A's, then B's: those that the
// descriptors give, which may lie outside the CTA's memory (execute_wgmma then throws). Checks first.
std::vector<uint32_t> wgmma_shared_chunks(const Wgmma& op);

// Checks and executes. a[reg * 128 + thread] (empty unless A is in registers), d[reg * 128 + thread].
// Accumulation is in float32 (mma_kernel.h), rounded to f16 at the end for an f16 D; or as in fused_sum.h.
void execute_wgmma(const Wgmma& op, const SharedView& shared, std::span<const uint32_t> a, std::span<uint32_t> d);

}  // namespace jaxbw::emulator
