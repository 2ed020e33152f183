// tcgen05.mma: descriptors, legality, operands, and the multiply itself (PTX 9.7.16).
//
// Dense kind::f16, kind::tf32 and kind::f8f6f4, and the block-scaled kinds (umma_scales.h). Everything else (i8,
// sparsity, .ws, .ashift, A with 6- or 4-bit elements in tensor memory) is refused.
//
// Where D lies (PTX 9.7.16.10.5), and A when it is in tensor memory:
//
//   M  cta_group  layout  CTA c, lane l holds
//   256    2        A     row 128*c + l
//   128    2        B     row 64*c + l%64, columns [0, N/2) for l < 64 and [N/2, N) for l >= 64; A, which
//                         needs every column of K, stands there twice (CUTLASS, TmemAllocMode::Duplicated)
//   128    1        D     row l
//    64    1        F     row 16*(l/32) + l%32 - base, for the 16 lanes of each quarter that start at the
//                         lane of the address, 0 or 16 (A and D must agree)
//
// CuTe's accumulator fragments have the same four layouts of D (compared once, on the host).
//
// Pair MMA: CTA c has its rows of A and columns [c*N/2, (c+1)*N/2) of B in its own shared memory, at the
// addresses of the one pair of descriptors, and both use the tensor memory addresses of the instruction.
//
// The words of disable-output-lane are the even CTA's, then the odd one's: PTX gives only their number.
//
// A 16-bit D occupies the low halves of its cells (PTX 9.7.16.10.4.1); the high halves are cleared here,
// which PTX leaves open.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "number_formats.h"
#include "smem_matrix.h"
#include "tmem.h"

namespace jaxbw::emulator {

// Shared-memory descriptor (PTX table 40). Throws Error on constants that are not as documented, on an
// invalid swizzle mode and on the absolute-address mode of sm_103a.
SharedMatrix decode_umma_shared_descriptor(uint64_t descriptor);

enum class UmmaKind : uint8_t { kF16, kTf32, kF8F6F4, kMxF8F6F4, kMxF4, kMxF4NvF4 };
constexpr bool is_block_scaled(UmmaKind kind) { return kind >= UmmaKind::kMxF8F6F4; }

// Instruction descriptor (PTX table 42; of block-scaled kinds 43 and 44).
struct UmmaInstruction {
  UmmaKind kind;
  uint32_t m, n;
  NumberFormat a_format, b_format;
  bool f32_result;  // or f16
  bool negate_a, negate_b;
  OperandMajor a_major, b_major;
  // Of block-scaled kinds.
  bool ue8m0_scales = false;        // or ue4m3
  uint32_t sfa_id = 0, sfb_id = 0;  // which byte of a cell has the scale of the first block

  bool operator==(const UmmaInstruction&) const = default;
};

UmmaInstruction decode_umma_instruction(uint32_t descriptor, UmmaKind kind);

// One instruction with its operands decoded.
struct Umma {
  UmmaInstruction instruction;
  uint32_t cta_group = 1;
  bool a_in_tmem = false;
  SharedMatrix a;          // unless a_in_tmem
  uint32_t a_address = 0;  // in tensor memory, if a_in_tmem
  SharedMatrix b;
  uint32_t d_address = 0;
  bool accumulate = false;     // enable-input-d
  uint32_t scale_input_d = 0;  // D * 2^-scale_input_d
  bool fused_sum = false;
  std::array<uint32_t, 8> disable_output_lane = {};  // lane l of CTA c: bit l%32 of word 4c + l/32
  // Of block-scaled kinds: where the scales lie in tensor memory, and the elements of K that share one.
  uint32_t sfa_address = 0, sfb_address = 0;
  uint32_t block = 32;
};

// Throws Error, naming the rule and its section, on whatever the instruction may not be.
void check_umma(const Umma& op);

// Bytes of a matrix operand in shared memory: a chunk of 16 without its padding.
struct OperandChunk {
  uint32_t address, bytes;
};

// What each CTA's half of the instruction touches. All of these check the instruction first; shared addresses are
// those that the descriptors give, which may lie outside the CTA's memory (execute_umma then throws).
std::vector<OperandChunk> umma_shared_chunks(const Umma& op);  // A's, then B's
std::vector<TmemRegion> umma_d_regions(const Umma& op);        // written, and read if `accumulate`
std::vector<TmemRegion> umma_a_regions(const Umma& op);        // read; empty unless A is in tensor memory
std::vector<TmemRegion> umma_scale_regions(const Umma& op);    // read; empty unless block-scaled

struct UmmaCta {
  SharedView shared;
  TensorMemory* tmem;
};

// Checks and executes; `ctas` holds one CTA, or the even and the odd one of the pair. Accumulation is in
// float32 (mma_kernel.h), rounded to f16 at the end for an f16 D; or as in fused_sum.h. Block-scaled: the product of
// each block of K in float32, which is then scaled and added to D, rounded once.
void execute_umma(const Umma& op, std::span<const UmmaCta> ctas);

}  // namespace jaxbw::emulator
