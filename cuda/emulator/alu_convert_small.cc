#include "alu_convert_small.h"

#include <bit>
#include <cmath>

#include "lanes.h"
#include "number_formats.h"

namespace jaxbw::emulator {
namespace {

enum How : uint64_t { kRelu = 1, kSatfinite = 2, kUp = 4 };

uint32_t element_bits(Type pair) { return pair == Type::k_e2m1x2 ? 4 : 8; }  // in the pair's register

NumberFormat pair_format(Type pair) {
  switch (pair) {
    case Type::k_e4m3x2:
      return NumberFormat::kE4M3;
    case Type::k_e5m2x2:
      return NumberFormat::kE5M2;
    case Type::k_e2m3x2:
      return NumberFormat::kE2M3;
    case Type::k_e3m2x2:
      return NumberFormat::kE3M2;
    default:
      return NumberFormat::kE2M1;
  }
}

// A power of two from 2^-127 on: the exponent field of |value|, rounded towards zero or up.
uint32_t to_ue8m0(float value, uint64_t how) {
  const uint32_t bits = std::bit_cast<uint32_t>(std::fabs(value)), mantissa = bits & 0x7fffff;
  if (bits > 0x7f800000) return 0xff;
  uint32_t exponent = bits >> 23;
  // Below 2^-126 a float has no hidden bit: 2^-127 is half of the mantissa's range.
  if (how & kUp && exponent < 0xff) exponent += mantissa > (exponent ? 0u : 0x400000u);
  return exponent == 0xff && how & kSatfinite ? 0xfe : exponent;
}
uint16_t ue8m0_to_bf16(uint32_t code) {
  if (code == 0xff) return kNan16;
  return code ? uint16_t(code << 7) : 0x40;
}

uint32_t narrow(Type to, float value, uint64_t how) {
  if (to == Type::k_ue8m0x2) return to_ue8m0(value, how);
  if (how & kRelu && value <= 0) value = 0;
  return f32_to_mini(pair_format(to), value);
}
uint16_t widen(Type from, uint32_t code, uint64_t how) {
  if (from == Type::k_ue8m0x2) return ue8m0_to_bf16(code);
  const float value = mini_to_f32(pair_format(from), uint8_t(code));
  return f32_to_f16(how & kRelu && value <= 0 ? 0 : value);
}

// in.target: the types; the first of two sources goes to the high half.
void from_floats(Step& s, const Instruction& in) {
  const auto to = Type(in.target);
  const LaneSource<float> high(s, in.s[0]), low(s, in.s[1]);
  for_lanes(s.active, [&](uint32_t i) {
    set_lane(s, in.d[0], i, narrow(to, high[i], in.detail) << element_bits(to) | narrow(to, low[i], in.detail));
  });
}
template <float (*kWiden)(uint16_t)>
void from_halves(Step& s, const Instruction& in) {
  const auto to = Type(in.target);
  for_lanes(s.active, [&](uint32_t i) {
    const uint32_t raw = row32(s, in.s[0])[i];
    const float high = kWiden(uint16_t(raw >> 16)), low = kWiden(uint16_t(raw));
    set_lane(s, in.d[0], i, narrow(to, high, in.detail) << element_bits(to) | narrow(to, low, in.detail));
  });
}
void to_halves(Step& s, const Instruction& in) {
  const auto from = Type(in.target);
  const uint32_t bits = element_bits(from), mask = (1u << bits) - 1;
  for_lanes(s.active, [&](uint32_t i) {
    const uint32_t raw = row32(s, in.s[0])[i];
    set_lane(s, in.d[0], i,
             uint32_t{widen(from, raw >> bits & mask, in.detail)} << 16 | widen(from, raw & mask, in.detail));
  });
}

}  // namespace

bool is_small_pair(Type type) {
  return type == Type::k_e4m3x2 || type == Type::k_e5m2x2 || type == Type::k_e2m3x2 || type == Type::k_e3m2x2 ||
         type == Type::k_e2m1x2 || type == Type::k_ue8m0x2;
}

void decode_small_conversion(Decoder& d) {
  const Type to = d.type(0), from = d.type(1);
  const bool narrows = is_small_pair(to);
  const Type small = narrows ? to : from, other = narrows ? from : to;
  const bool scale = small == Type::k_ue8m0x2;
  const bool is_fp8 = small == Type::k_e4m3x2 || small == Type::k_e5m2x2;
  const Type halves = scale ? Type::k_bf16x2 : Type::k_f16x2;
  const bool types_fit = narrows ? other == Type::k_f32 || (other == halves && (is_fp8 || scale)) : other == halves;
  if (!types_fit) d.fail("converts between types that the emulator does not convert");
  if (narrows && scale ? d.has("rz") == d.has("rp") : !d.has("rn"))
    d.fail(narrows && scale ? "needs .rz or .rp" : "needs .rn");
  if (narrows && !scale && !d.has("satfinite")) d.fail("needs .satfinite");
  if (scale && d.has("relu")) d.fail("does not take .relu");
  d.out.detail = d.bits_if("relu", kRelu) | d.bits_if("satfinite", kSatfinite) | d.bits_if("rp", kUp);
  d.out.target = uint32_t(small);
  const size_t sources = narrows && other == Type::k_f32 ? 2 : 1;
  if (d.operands() != sources + 1) d.fail("takes " + std::to_string(sources + 1) + " operands");
  d.destination(0, to);
  for (size_t i = 1; i <= sources; ++i) d.source(i, from);
  d.out.flags |= kPure;
  d.out.execute = !narrows       ? to_halves
                  : sources == 2 ? from_floats
                  : scale        ? from_halves<bf16_to_f32>
                                 : from_halves<f16_to_f32>;
}

}  // namespace jaxbw::emulator
