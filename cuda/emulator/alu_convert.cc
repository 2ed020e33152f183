// Conversions (PTX 9.7.9.21 cvt, 9.7.9.22 cvt.pack).
#include <algorithm>
#include <array>
#include <cfenv>
#include <cmath>
#include <limits>
#include <utility>

#include "alu_convert_small.h"
#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace jaxbw::emulator {
namespace {

// What `Instruction::detail` holds for the general case.
struct Conversion {
  Type to, from;
  char rounding;  // n z m p, or 0
  bool to_integral, saturate, flush, relu;
};

uint64_t pack(const Conversion& c) {
  return uint64_t(c.to) | uint64_t(c.from) << 8 | uint64_t(uint8_t(c.rounding)) << 16 | uint64_t{c.to_integral} << 24 |
         uint64_t{c.saturate} << 25 | uint64_t{c.flush} << 26 | uint64_t{c.relu} << 27;
}
Conversion unpack(uint64_t detail) {
  return {Type(detail & 255),     Type(detail >> 8 & 255), char(detail >> 16 & 255), bool(detail >> 24 & 1),
          bool(detail >> 25 & 1), bool(detail >> 26 & 1),  bool(detail >> 27 & 1)};
}

bool is_floating(Type type) {
  return type == Type::k_f16 || type == Type::k_bf16 || type == Type::k_f32 || type == Type::k_f64;
}

double round_to_integer(double value, char rounding) {
  switch (rounding) {
    case 'z':
      return std::trunc(value);
    case 'm':
      return std::floor(value);
    case 'p':
      return std::ceil(value);
    default:
      return std::nearbyint(value);
  }
}

double read_float(Type type, uint64_t raw) {
  switch (type) {
    case Type::k_f16:
      return f16_to_f32(uint16_t(raw));
    case Type::k_bf16:
      return bf16_to_f32(uint16_t(raw));
    case Type::k_f32:
      return std::bit_cast<float>(uint32_t(raw));
    default:
      return std::bit_cast<double>(raw);
  }
}

__int128 read_integer(Type type, uint64_t raw) {
  const uint32_t bits = 8 * size_bytes(type);
  if (bits < 64) raw &= (uint64_t{1} << bits) - 1;
  if (is_signed(type)) return int64_t(raw << (64 - bits)) >> (64 - bits);
  return raw;
}

__int128 clamp_to(Type type, __int128 value) {
  const uint32_t bits = 8 * size_bytes(type);
  const __int128 one = 1;
  const __int128 low = is_signed(type) ? -(one << (bits - 1)) : 0;
  const __int128 high = is_signed(type) ? (one << (bits - 1)) - 1 : (one << bits) - 1;
  return std::clamp(value, low, high);
}

// Float to integer always clamps, and a NaN gives zero (PTX 9.7.9.21), but for 64-bit types on either side: there an
// H200 gives the highest bit.
uint64_t float_to_integer(const Conversion& c, double value) {
  if (value != value) {
    const uint32_t bytes = size_bytes(c.to);
    return bytes == 8 || (bytes == 4 && c.from == Type::k_f64) ? uint64_t{1} << (8 * bytes - 1) : 0;
  }
  value = std::clamp(round_to_integer(value, c.rounding), -1.9e19, 1.9e19);
  return uint64_t(clamp_to(c.to, __int128(value)));
}

template <class F>
auto rounded(char rounding, F f) {
  std::fesetround(rounding == 'z'   ? FE_TOWARDZERO
                  : rounding == 'm' ? FE_DOWNWARD
                  : rounding == 'p' ? FE_UPWARD
                                    : FE_TONEAREST);
  const auto out = f();
  std::fesetround(FE_TONEAREST);
  return out;
}

// Not inlined, so that the conversion happens between the two changes of the rounding mode.
template <class T>
[[gnu::noinline]] T to_floating(__int128 value) {
  return value < 0 ? T(int64_t(value)) : T(uint64_t(value));
}

// Keeps the bits of a binary32 value that a 16-bit format holds, towards zero.
uint16_t truncate_to(Type type, float value) {
  if (value != value) return kNan16;
  if (type == Type::k_bf16) return uint16_t(std::bit_cast<uint32_t>(value) >> 16);
  const uint16_t nearest = f32_to_f16(value);
  return std::fabs(f16_to_f32(nearest)) > std::fabs(value) ? uint16_t(nearest - 1) : nearest;
}

uint64_t write_float(const Conversion& c, double value) {
  if (c.saturate) value = value > 0 ? std::min(value, 1.0) : 0;  // of NaN and -0: +0
  if (c.relu && value <= 0) value = 0;
  switch (c.to) {
    case Type::k_f64:
      return std::bit_cast<uint64_t>(value);
    case Type::k_f32: {
      volatile double held = value;
      float out = rounded(c.rounding, [&] { return float(held); });
      if (out != out) return c.from == Type::k_f64 ? std::bit_cast<uint32_t>(out) : 0x7fffffff;  // keeps the payload
      if (c.flush && std::fabs(out) < std::numeric_limits<float>::min()) out = std::copysign(0.f, out);
      return std::bit_cast<uint32_t>(out);
    }
    default:
      if (c.rounding == 'z') return truncate_to(c.to, float(value));
      return c.to == Type::k_f16 ? f32_to_f16(float(value)) : f32_to_bf16(float(value));
  }
}

uint64_t convert(const Conversion& c, uint64_t raw) {
  if (!is_floating(c.from)) {
    const __int128 value = read_integer(c.from, raw);
    if (!is_floating(c.to)) return uint64_t(read_integer(c.to, uint64_t(c.saturate ? clamp_to(c.to, value) : value)));
    if (c.to == Type::k_f64)
      return std::bit_cast<uint64_t>(rounded(c.rounding, [&] { return to_floating<double>(value); }));
    if (c.to == Type::k_f32)
      return std::bit_cast<uint32_t>(rounded(c.rounding, [&] { return to_floating<float>(value); }));
    return write_float(c, double(value));
  }
  double value = read_float(c.from, raw);
  if (c.flush && c.from == Type::k_f32 && std::fabs(value) < std::numeric_limits<float>::min())
    value = std::copysign(0.0, value);
  if (!is_floating(c.to)) return float_to_integer(c, value);
  if (c.to_integral) value = round_to_integer(value, c.rounding);
  return write_float(c, value);
}

void convert_lanes(Step& s, const Instruction& in) {
  const Conversion conversion = unpack(in.detail);
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, convert(conversion, lane_value(s, in.s[0], i))); });
}

// Packed results: the first source goes to the high half.
enum Packed : uint32_t { kTowardsZero = 1, kRelu = 2, kSatfinite = 4 };
template <Type kTo, uint32_t kHow>
uint16_t half_of(float value) {
  constexpr uint16_t kInfinity = kTo == Type::k_bf16 ? 0x7f80 : 0x7c00;
  if (kHow & kRelu && value <= 0) value = 0;
  const uint16_t out = kHow & kTowardsZero   ? truncate_to(kTo, value)
                       : kTo == Type::k_bf16 ? f32_to_bf16(value)
                                             : f32_to_f16(value);
  return kHow & kSatfinite && (out & 0x7fff) == kInfinity ? uint16_t(out - 1) : out;
}
template <Type kTo, uint32_t kHow>
uint32_t pack_halves(float high, float low) {
  return uint32_t{half_of<kTo, kHow>(high)} << 16 | half_of<kTo, kHow>(low);
}
// Infinities and NaNs lose their low bits too: an H200 makes an infinity of a NaN that has no others.
uint32_t to_tf32(uint32_t x) { return ((x & 0x7f800000) == 0x7f800000 ? x : x + 0x1000) & ~0x1fffu; }  // ties away
uint32_t to_tf32_even(uint32_t x) {
  return ((x & 0x7f800000) == 0x7f800000 ? x : x + 0xfff + (x >> 13 & 1)) & ~0x1fffu;
}

// Hot single conversions, without the detour.
float f16_to_float(uint16_t x) { return (x & 0x7fff) > 0x7c00 ? std::bit_cast<float>(0x7fffffffu) : f16_to_f32(x); }
float bf16_to_float(uint16_t x) { return bf16_to_f32(x); }
uint32_t low16(uint16_t x) { return x; }
uint16_t low16_of_32(uint32_t x) { return uint16_t(x); }
uint64_t wide_u32(uint32_t x) { return x; }
int64_t wide_s32(int32_t x) { return x; }
uint32_t low32(uint64_t x) { return uint32_t(x); }
float float_of_s32(int32_t x) { return float(x); }
float float_of_u32(uint32_t x) { return float(x); }

Handler fast(Type to, Type from, bool narrow_source, bool narrow_destination) {
  if (!narrow_source || !narrow_destination) return nullptr;
  if (to == Type::k_f32 && from == Type::k_f16) return lanes<&f16_to_float>;
  if (to == Type::k_f32 && from == Type::k_bf16) return lanes<&bf16_to_float>;
  if ((to == Type::k_u32 || to == Type::k_s32) && from == Type::k_u16) return lanes<&low16>;
  if ((to == Type::k_u16 || to == Type::k_s16) && (from == Type::k_u32 || from == Type::k_s32))
    return lanes<&low16_of_32>;
  if ((to == Type::k_u64 || to == Type::k_s64) && from == Type::k_u32) return lanes<&wide_u32>;
  if ((to == Type::k_u64 || to == Type::k_s64) && from == Type::k_s32) return lanes<&wide_s32>;
  if ((to == Type::k_u32 || to == Type::k_s32) && (from == Type::k_u64 || from == Type::k_s64)) return lanes<&low32>;
  return nullptr;
}

void packed_conversion(Decoder& d) {
  const Type to = d.type(0), from = d.type(1);
  if (from != Type::k_f32 || d.has("rn") == d.has("rz") || d.operands() != 3)
    d.fail("this packed conversion is not supported");
  d.destination(0, to);
  d.source(1, from);
  d.source(2, from);
  d.out.flags |= kPure;
  const auto how =
      uint32_t(d.bits_if("rz", kTowardsZero) | d.bits_if("relu", kRelu) | d.bits_if("satfinite", kSatfinite));
  constexpr auto kHandlers = []<uint32_t... kHow>(std::integer_sequence<uint32_t, kHow...>) {
    return std::array{std::array{lanes<&pack_halves<Type::k_bf16, kHow>>...},
                      std::array{lanes<&pack_halves<Type::k_f16, kHow>>...}};
  }(std::make_integer_sequence<uint32_t, 8>{});
  d.out.execute = kHandlers[to == Type::k_f16x2][how];
}

}  // namespace

void decode_cvt(Decoder& d) {
  if (d.types.size() != 2) d.fail("needs a destination type and a source type");
  const Type to = d.type(0), from = d.type(1);
  if (to == Type::k_tf32) {
    if (from != Type::k_f32) d.fail("this conversion is not supported");
    return d.simple(d.has("rn") ? lanes<&to_tf32_even> : lanes<&to_tf32>, Type::k_b32);
  }
  if (is_small_pair(to) || is_small_pair(from)) return decode_small_conversion(d);
  if (to == Type::k_bf16x2 || to == Type::k_f16x2) return packed_conversion(d);
  const auto known = [](Type type) { return is_floating(type) || (type >= Type::k_u8 && type <= Type::k_s64); };
  if (!known(to) || !known(from)) d.fail("this conversion is not supported");
  Conversion c{.to = to,
               .from = from,
               .rounding = 0,
               .to_integral = false,
               .saturate = d.has("sat"),
               .flush = d.has("ftz"),
               .relu = d.has("relu")};
  for (const std::string_view modifier : d.modifiers) {
    if (modifier.size() == 2 && modifier[0] == 'r') c.rounding = modifier[1];
    if (modifier.size() == 3 && modifier[0] == 'r' && modifier[2] == 'i') {
      c.rounding = modifier[1];
      c.to_integral = true;
    }
  }
  d.destination(0, to, true);
  d.source(1, from, true);
  d.out.flags |= kPure;
  d.out.detail = pack(c);
  const auto exact = [](Reg reg, Type type) { return reg.bytes == std::max(4u, size_bytes(type)); };
  d.out.execute =
      c.saturate || c.flush || c.relu ? nullptr : fast(to, from, exact(d.out.s[0], from), exact(d.out.d[0], to));
  if (!d.out.execute && c.rounding == 'n' && !c.to_integral && !c.saturate && to == Type::k_f32 &&
      d.out.d[0].bytes == 4 && d.out.s[0].bytes == 4) {
    if (from == Type::k_s32) d.out.execute = lanes<&float_of_s32>;
    if (from == Type::k_u32) d.out.execute = lanes<&float_of_u32>;
  }
  if (!d.out.execute) d.out.execute = convert_lanes;
}

}  // namespace jaxbw::emulator
