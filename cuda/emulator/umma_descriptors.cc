// The descriptors of tcgen05.mma (PTX tables 40 and 42 to 44).
#include <string>

#include "bits.h"
#include "error.h"
#include "umma.h"
#include "umma_rules.h"

namespace jaxbw::emulator {
namespace {

NumberFormat decode_format(uint64_t code, UmmaKind kind) {
  if (kind == UmmaKind::kF16 && code == 0) return NumberFormat::kF16;
  if (kind == UmmaKind::kF16 && code == 1) return NumberFormat::kBf16;
  if (kind == UmmaKind::kTf32 && code == 2) return NumberFormat::kTf32;
  if ((kind == UmmaKind::kMxF4 || kind == UmmaKind::kMxF4NvF4) && code == 1) return NumberFormat::kE2M1Packed;
  if (kind == UmmaKind::kF8F6F4 || kind == UmmaKind::kMxF8F6F4) {
    switch (code) {
      case 0:
        return NumberFormat::kE4M3;
      case 1:
        return NumberFormat::kE5M2;
      case 3:
        return NumberFormat::kE2M3;
      case 4:
        return NumberFormat::kE3M2;
      case 5:
        return NumberFormat::kE2M1;
    }
  }
  throw Error("tcgen05.mma: instruction descriptor: operand type " + std::to_string(code) +
              " does not exist for this kind (PTX tables 42 to 44)");
}

UmmaInstruction decode_block_scaled(uint32_t descriptor, UmmaKind kind) {
  const auto field = [&](uint32_t first, uint32_t count) { return bit_field(descriptor, first, count); };
  const bool fp4 = kind != UmmaKind::kMxF8F6F4;
  require(field(2, 1) == 0, "instruction descriptor: sparsity is not supported");
  require(field(0, 2) == 0 && field(3, 1) == 0 && field(6, 1) == 0 && field(24, 3) == 0,
          "instruction descriptor: bits 0-1, 3, 6 and 24-26 are reserved (PTX tables 43 and 44)");
  require(!fp4 || field(12, 1) == 0, "instruction descriptor: bit 12 is reserved (PTX table 44)");
  require(field(31, 1) == 0, "instruction descriptor: bit 31 is reserved, and on sm_103a K = 96");
  const UmmaInstruction instruction = {.kind = kind,
                                       .m = static_cast<uint32_t>(field(27, 2)) << 7,
                                       .n = static_cast<uint32_t>(field(17, 6)) << 3,
                                       .a_format = decode_format(field(7, 3), kind),
                                       .b_format = decode_format(field(10, fp4 ? 2 : 3), kind),
                                       .f32_result = true,
                                       .negate_a = field(13, 1) != 0,
                                       .negate_b = field(14, 1) != 0,
                                       .a_major = static_cast<OperandMajor>(field(15, 1)),
                                       .b_major = static_cast<OperandMajor>(field(16, 1)),
                                       .ue8m0_scales = field(23, 1) != 0,
                                       .sfa_id = static_cast<uint32_t>(field(29, 2)),
                                       .sfb_id = static_cast<uint32_t>(field(4, 2))};
  require(instruction.ue8m0_scales || kind == UmmaKind::kMxF4NvF4,
          "instruction descriptor: scales of this kind are ue8m0 (bit 23)");
  return instruction;
}

}  // namespace

SharedMatrix decode_umma_shared_descriptor(uint64_t descriptor) {
  require(bit_field(descriptor, 46, 3) == 1, "shared-memory descriptor: bits 46-48 must be 0b001 (PTX table 40)");
  require(bit_field(descriptor, 52, 1) == 0,
          "shared-memory descriptor: absolute leading address (bit 52) is sm_103a's");
  require(bit_field(descriptor, 53, 8) == 0, "shared-memory descriptor: bits 53-60 must be 0 (PTX table 40)");
  require(bit_field(descriptor, 14, 2) == 0 && bit_field(descriptor, 30, 2) == 0,
          "shared-memory descriptor: bits 14-15 and 30-31 are not part of any field (PTX table 40)");
  const uint64_t mode = bit_field(descriptor, 61, 3);
  switch (mode) {
    case 0:
      return decode_shared_matrix(descriptor, Swizzle::kNone);
    case 1:
      return decode_shared_matrix(descriptor, Swizzle::k128BAtom32B);
    case 2:
      return decode_shared_matrix(descriptor, Swizzle::k128B);
    case 4:
      return decode_shared_matrix(descriptor, Swizzle::k64B);
    case 6:
      return decode_shared_matrix(descriptor, Swizzle::k32B);
  }
  throw Error("tcgen05.mma: shared-memory descriptor: swizzle mode " + std::to_string(mode) +
              " is invalid (PTX table 40)");
}

UmmaInstruction decode_umma_instruction(uint32_t descriptor, UmmaKind kind) {
  if (is_block_scaled(kind)) return decode_block_scaled(descriptor, kind);
  const auto field = [&](uint32_t first, uint32_t count) { return bit_field(descriptor, first, count); };
  require(field(2, 1) == 0 && field(0, 2) == 0, "instruction descriptor: sparsity is not supported");
  require(field(3, 1) == 0, "instruction descriptor: saturation is for kind::i8 (PTX table 42)");
  require(field(6, 1) == 0 && field(23, 1) == 0 && field(29, 1) == 0,
          "instruction descriptor: bits 6, 23 and 29 are reserved (PTX table 42)");
  require(field(30, 2) == 0, "instruction descriptor: the maximum shift is for .ws, which is not supported");
  const uint64_t d_type = field(4, 2);
  require(d_type == 1 || (d_type == 0 && kind != UmmaKind::kTf32),
          "instruction descriptor: D type " + std::to_string(d_type) + " does not exist for this kind (PTX table 42)");
  const UmmaInstruction instruction = {.kind = kind,
                                       .m = static_cast<uint32_t>(field(24, 5)) << 4,
                                       .n = static_cast<uint32_t>(field(17, 6)) << 3,
                                       .a_format = decode_format(field(7, 3), kind),
                                       .b_format = decode_format(field(10, 3), kind),
                                       .f32_result = d_type == 1,
                                       .negate_a = field(13, 1) != 0,
                                       .negate_b = field(14, 1) != 0,
                                       .a_major = static_cast<OperandMajor>(field(15, 1)),
                                       .b_major = static_cast<OperandMajor>(field(16, 1))};
  if (kind == UmmaKind::kF16) {
    // Table 39: an f16 result takes f16 operands only; a and b share their type in this kind.
    require(instruction.a_format == instruction.b_format, "kind::f16: A and B must have the same type");
    require(instruction.f32_result || instruction.a_format == NumberFormat::kF16,
            "kind::f16: an f16 D needs f16 operands (PTX table 39)");
  }
  return instruction;
}

}  // namespace jaxbw::emulator
