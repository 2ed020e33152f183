// Integer, logic, shift and bit-field instructions (PTX 9.7.1, 9.7.2, 9.7.8). Longer than other files: a list of
// many short instructions that share their templates.
#include <algorithm>
#include <limits>

#include "decoder.h"
#include "lanes.h"

namespace jaxbw::emulator {
namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
// Twice as wide, for products.
template <class T>
struct WideOf;
template <>
struct WideOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WideOf<int16_t> {
  using type = int32_t;
};
template <>
struct WideOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WideOf<int32_t> {
  using type = int64_t;
};
template <>
struct WideOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WideOf<int64_t> {
  using type = __int128;
};
template <class T>
using Wide = typename WideOf<T>::type;

// Arithmetic wraps: computed unsigned, which C++ defines.
template <class T>
T add(T a, T b) {
  return T(Unsigned<T>(a) + Unsigned<T>(b));
}
template <class T>
T sub(T a, T b) {
  return T(Unsigned<T>(a) - Unsigned<T>(b));
}
template <class T>
T mul_lo(T a, T b) {
  return T(uint64_t(a) * uint64_t(b));
}
template <class T>
T mul_hi(T a, T b) {
  return T(Wide<T>(a) * Wide<T>(b) >> 8 * sizeof(T));
}
template <class T>
Wide<T> mul_wide(T a, T b) {
  return Wide<T>(a) * Wide<T>(b);
}
template <class T>
T mad_lo(T a, T b, T c) {
  return add(mul_lo(a, b), c);
}
template <class T>
T mad_hi(T a, T b, T c) {
  return add(mul_hi(a, b), c);
}
template <class T>
Wide<T> mad_wide(T a, T b, Wide<T> c) {
  return Wide<T>(uint64_t(mul_wide(a, b)) + uint64_t(c));
}
template <class T>
T sad(T a, T b, T c) {
  return T(Unsigned<T>(c) + (a < b ? Unsigned<T>(b) - Unsigned<T>(a) : Unsigned<T>(a) - Unsigned<T>(b)));
}
// Division by zero gives an unspecified value (PTX 9.7.1.8): all ones, as the hardware.
template <class T>
T divide(T a, T b) {
  if (b == 0) return T(-1);
  return b == T(-1) && std::is_signed_v<T> ? sub(T(0), a) : T(a / b);
}
template <class T>
T remainder(T a, T b) {
  if (b == 0) return a;
  return b == T(-1) && std::is_signed_v<T> ? T(0) : T(a % b);
}
template <class T>
T minimum(T a, T b) {
  return std::min(a, b);
}
template <class T>
T maximum(T a, T b) {
  return std::max(a, b);
}
template <class T>
T minimum3(T a, T b, T c) {
  return std::min(std::min(a, b), c);
}
template <class T>
T maximum3(T a, T b, T c) {
  return std::max(std::max(a, b), c);
}
template <class T>
T absolute(T a) {
  return a < 0 ? sub(T(0), a) : a;
}
template <class T>
T negate(T a) {
  return sub(T(0), a);
}
template <class T>
T saturated(Wide<T> a) {
  return T(std::clamp<Wide<T>>(a, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}
int32_t add_sat(int32_t a, int32_t b) { return saturated<int32_t>(int64_t{a} + b); }
int32_t sub_sat(int32_t a, int32_t b) { return saturated<int32_t>(int64_t{a} - b); }
int32_t mul24_lo(int32_t a, int32_t b) { return int32_t(int64_t(a << 8 >> 8) * (b << 8 >> 8)); }
uint32_t mul24_lo_u(uint32_t a, uint32_t b) { return (a & 0xffffff) * (b & 0xffffff); }
int32_t mad24_lo(int32_t a, int32_t b, int32_t c) { return int32_t(uint32_t(mul24_lo(a, b)) + uint32_t(c)); }
uint32_t mad24_lo_u(uint32_t a, uint32_t b, uint32_t c) { return mul24_lo_u(a, b) + c; }

template <auto F>
uint32_t halves(uint32_t a, uint32_t b) {
  return uint32_t(uint16_t(F(a, b))) | uint32_t(uint16_t(F(a >> 16, b >> 16))) << 16;
}
template <class T>
T low_add(uint32_t a, uint32_t b) {
  return add(T(a), T(b));
}
template <class T>
T low_min(uint32_t a, uint32_t b) {
  return std::min(T(a), T(b));
}
template <class T>
T low_max(uint32_t a, uint32_t b) {
  return std::max(T(a), T(b));
}

template <class T>
T bit_and(T a, T b) {
  return a & b;
}
template <class T>
T bit_or(T a, T b) {
  return a | b;
}
template <class T>
T bit_xor(T a, T b) {
  return a ^ b;
}
template <class T>
T bit_not(T a) {
  return T(~a);
}
bool and_pred(bool a, bool b) { return a && b; }
bool or_pred(bool a, bool b) { return a || b; }
bool xor_pred(bool a, bool b) { return a != b; }
bool not_pred(bool a) { return !a; }
template <class T>
T is_zero(T a) {
  return a == 0;
}

// Shift amounts are unsigned and clamp at the width (PTX 9.7.8.6-8).
template <class T>
T shift_left(T a, uint32_t n) {
  return n >= 8 * sizeof(T) ? T(0) : T(Unsigned<T>(a) << n);
}
template <class T>
T shift_right(T a, uint32_t n) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  return n >= kBits ? T(std::is_signed_v<T> && a < 0 ? -1 : 0) : T(a >> n);
}
uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t n) {
  return n == 0 ? high : n >= 32 ? low : high << n | low >> (32 - n);
}
uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t n) {
  return n == 0 ? low : n >= 32 ? high : high << (32 - n) | low >> n;
}
template <auto F>
uint32_t funnel_wrap(uint32_t low, uint32_t high, uint32_t n) {
  return F(low, high, n & 31);
}
template <auto F>
uint32_t funnel_clamp(uint32_t low, uint32_t high, uint32_t n) {
  return F(low, high, std::min(n, 32u));
}

uint32_t popcount32(uint32_t a) { return uint32_t(std::popcount(a)); }
uint32_t popcount64(uint64_t a) { return uint32_t(std::popcount(a)); }
uint32_t clz32(uint32_t a) { return uint32_t(std::countl_zero(a)); }
uint32_t clz64(uint64_t a) { return uint32_t(std::countl_zero(a)); }
template <class T>
T reverse(T a) {
  T out = 0;
  for (uint32_t i = 0; i < 8 * sizeof(T); ++i) out = T(out << 1 | (a >> i & 1));
  return out;
}
// Position of the most significant bit that differs from the sign; or, as a shift amount, its distance from the top.
template <class T, bool kShift>
uint32_t find_bit(T a) {
  const auto value = Unsigned<T>(a < 0 ? ~a : a);
  if (value == 0) return ~0u;
  const uint32_t zeros = uint32_t(std::countl_zero(value));
  return kShift ? zeros : 8 * sizeof(T) - 1 - zeros;
}
template <class T>
T extract(T a, uint32_t b, uint32_t c) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  // The low 8 bits of position and length (PTX 9.7.1.18); an H200 takes 64-bit fields at the whole of them.
  const uint32_t position = sizeof(T) == 8 ? std::min(b, 255u) : b & 255;
  const uint32_t length = sizeof(T) == 8 ? std::min(c, 255u) : c & 255;
  const auto value = Unsigned<T>(a);
  if (length == 0) return 0;
  const uint32_t sign_at = std::min(position + length - 1, kBits - 1);
  const bool sign = std::is_signed_v<T> && (value >> sign_at & 1);
  Unsigned<T> out = 0;
  for (uint32_t i = 0; i < kBits; ++i) {
    const bool bit = i < length && position + i < kBits ? value >> (position + i) & 1 : sign;
    out |= Unsigned<T>(bit) << i;
  }
  return T(out);
}
template <class T>
T insert(T a, T b, uint32_t c, uint32_t d) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  const uint32_t position = c & 255, length = d & 255;
  T out = b;
  for (uint32_t i = 0; i < length && position + i < kBits; ++i)
    out = T((out & ~(T{1} << (position + i))) | (a >> i & 1) << (position + i));
  return out;
}
uint32_t bit_mask_clamp(uint32_t a, uint32_t b) { return a >= 32 || b == 0 ? 0 : (b >= 32 ? ~0u : (1u << b) - 1) << a; }
uint32_t bit_mask_wrap(uint32_t a, uint32_t b) {
  b &= 31;
  return ((1u << b) - 1) << (a & 31);
}
int32_t sign_extend(int32_t a, uint32_t n) {
  return n >= 32 ? a : n == 0 ? 0 : int32_t(uint32_t(a) << (32 - n)) >> (32 - n);
}
uint32_t zero_extend(uint32_t a, uint32_t n) { return n >= 32 ? a : a & ((1u << n) - 1); }

// The eight bytes b:a, picked by the nibbles of c; bit 3 of a nibble replicates the byte's sign (PTX 9.7.9.7).
uint32_t permute(uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t nibble = c >> 4 * i & 15;
    uint8_t byte = uint8_t(bytes >> 8 * (nibble & 7));
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= uint32_t{byte} << 8 * i;
  }
  return out;
}

template <class T>
uint32_t dot4(uint32_t a, uint32_t b, uint32_t c) {
  for (uint32_t i = 0; i < 4; ++i) c += uint32_t(int32_t(T(a >> 8 * i)) * int32_t(T(b >> 8 * i)));
  return c;
}

void logic3(Step& s, const Instruction& in) {
  const uint32_t table = uint32_t(in.immediate);
  const uint32_t *a = row32(s, in.s[0]), *b = row32(s, in.s[1]), *c = row32(s, in.s[2]);
  uint32_t* d = row32(s, in.d[0]);
  for_lanes(s.active, [&](uint32_t i) {
    uint32_t out = 0;
    for (uint32_t term = 0; term < 8; ++term)
      if (table >> term & 1) out |= (term & 4 ? a[i] : ~a[i]) & (term & 2 ? b[i] : ~b[i]) & (term & 1 ? c[i] : ~c[i]);
    d[i] = out;
  });
}

// d = a op b op carry, lane by lane; the carry bits of a warp are one mask.
template <class T, bool kSubtract>
void with_carry(Step& s, const Instruction& in) {
  const bool use = in.detail & 1, set = in.detail & 2;
  LaneSource<T> a(s, in.s[0]), b(s, in.s[1]);
  uint32_t carries = s.warp.carry;
  for_lanes(s.active, [&](uint32_t i) {
    const bool carry = use && (carries >> i & 1);
    const auto wide = kSubtract ? Wide<T>(a[i]) - b[i] - carry : Wide<T>(a[i]) + b[i] + carry;
    set_lane(s, in.d[0], i, uint64_t(T(wide)));
    if (set) carries = (carries & ~(1u << i)) | uint32_t(wide >> 8 * sizeof(T) & 1) << i;
  });
  s.warp.carry = carries;
}

template <class T, bool kHigh>
void mad_with_carry(Step& s, const Instruction& in) {
  const bool use = in.detail & 1, set = in.detail & 2;
  LaneSource<T> a(s, in.s[0]), b(s, in.s[1]), c(s, in.s[2]);
  uint32_t carries = s.warp.carry;
  for_lanes(s.active, [&](uint32_t i) {
    const bool carry = use && (carries >> i & 1);
    const T product = kHigh ? mul_hi(a[i], b[i]) : mul_lo(a[i], b[i]);
    const auto wide = Wide<Unsigned<T>>(Unsigned<T>(product)) + Unsigned<T>(c[i]) + carry;
    set_lane(s, in.d[0], i, uint64_t(Unsigned<T>(wide)));
    if (set) carries = (carries & ~(1u << i)) | uint32_t(wide >> 8 * sizeof(T) & 1) << i;
  });
  s.warp.carry = carries;
}

// d, a, b, ...: `type` for d and all sources, unless told otherwise.
template <class F>
void integer(Decoder& d, F f) {
  d.simple(for_integer(d.type(), f), d.type());
}

void carry_form(Decoder& d, bool subtract, bool use, bool set) {
  const Type type = d.type();
  if (size_bytes(type) < 4) d.fail("takes 32- or 64-bit types with a carry");
  const bool wide = size_bytes(type) == 8;
  d.simple(subtract ? (wide ? with_carry<uint64_t, true> : with_carry<uint32_t, true>)
                    : (wide ? with_carry<uint64_t, false> : with_carry<uint32_t, false>),
           type);
  d.out.detail = uint64_t{use} | uint64_t{set} << 1;
}

// d, a, n: a shift amount is always 32 bits.
template <class F>
void shift(Decoder& d, F f) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, Type::k_u32);
  d.out.execute = for_integer(d.type(), f);
  d.out.flags |= kPure;
}

template <class F>
void logic(Decoder& d, Handler of_predicates, F f) {
  if (d.type() == Type::k_pred)
    d.simple(of_predicates, Type::k_pred);
  else
    integer(d, f);
}

Type wide_type(Type type) {
  switch (type) {
    case Type::k_u16:
      return Type::k_u32;
    case Type::k_s16:
      return Type::k_s32;
    case Type::k_u32:
      return Type::k_u64;
    case Type::k_s32:
      return Type::k_s64;
    default:
      return Type::k_b128;
  }
}

}  // namespace

// add, sub, mul, ...: float types are in alu_float.cc.
bool decode_float_arithmetic(Decoder& d);

void decode_add(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  if (d.has("cc")) return carry_form(d, false, false, true);
  if (d.has("sat")) return d.simple(d.type() == Type::k_s32 ? lanes<&add_sat> : nullptr, d.type());
  if (d.type() == Type::k_u16x2 || d.type() == Type::k_s16x2)
    return d.simple(lanes<&halves<&low_add<uint16_t>>>, d.type());
  integer(d, []<class T>(T) -> Handler { return lanes<&add<T>>; });
}
void decode_addc(Decoder& d) { carry_form(d, false, true, d.has("cc")); }
void decode_sub(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  if (d.has("cc")) return carry_form(d, true, false, true);
  if (d.has("sat")) return d.simple(d.type() == Type::k_s32 ? lanes<&sub_sat> : nullptr, d.type());
  integer(d, []<class T>(T) -> Handler { return lanes<&sub<T>>; });
}
void decode_subc(Decoder& d) { carry_form(d, true, true, d.has("cc")); }
void decode_mul(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  if (d.has("wide")) {
    if (size_bytes(d.type()) > 4) d.fail("takes 16- and 32-bit types with .wide");
    return d.simple(for_integer(d.type(),
                                []<class T>(T) -> Handler {
                                  if constexpr (sizeof(T) == 8)
                                    return nullptr;
                                  else
                                    return lanes<&mul_wide<T>>;
                                }),
                    wide_type(d.type()), d.type());
  }
  if (d.has("hi")) return integer(d, []<class T>(T) -> Handler { return lanes<&mul_hi<T>>; });
  integer(d, []<class T>(T) -> Handler { return lanes<&mul_lo<T>>; });
}
void decode_mul24(Decoder& d) {
  if (!d.has("lo")) d.fail("is supported with .lo only");
  d.simple(d.type() == Type::k_s32 ? lanes<&mul24_lo> : lanes<&mul24_lo_u>, d.type());
}
void decode_mad24(Decoder& d) {
  if (!d.has("lo")) d.fail("is supported with .lo only");
  d.simple(d.type() == Type::k_s32 ? lanes<&mad24_lo> : lanes<&mad24_lo_u>, d.type());
}
void decode_mad(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  const Type type = d.type();
  if (d.has("wide")) {
    if (size_bytes(type) > 4) d.fail("takes 16- and 32-bit types with .wide");
    d.destination(0, wide_type(type));
    d.source(1, type);
    d.source(2, type);
    d.source(3, wide_type(type));
    d.out.flags |= kPure;
    d.out.execute = for_integer(type, []<class T>(T) -> Handler {
      if constexpr (sizeof(T) == 8)
        return nullptr;
      else
        return lanes<&mad_wide<T>>;
    });
    return;
  }
  if (d.has("cc") || d.opcode.mnemonic == "madc") {
    const bool hi = d.has("hi"), wide = size_bytes(type) == 8;
    d.out.detail = uint64_t{d.opcode.mnemonic == "madc"} | uint64_t{d.has("cc")} << 1;
    const bool is_s = is_signed(type);
    return d.simple(hi ? (wide ? (is_s ? mad_with_carry<int64_t, true> : mad_with_carry<uint64_t, true>)
                               : (is_s ? mad_with_carry<int32_t, true> : mad_with_carry<uint32_t, true>))
                       : (wide ? mad_with_carry<uint64_t, false> : mad_with_carry<uint32_t, false>),
                    type);
  }
  if (d.has("hi")) return integer(d, []<class T>(T) -> Handler { return lanes<&mad_hi<T>>; });
  integer(d, []<class T>(T) -> Handler { return lanes<&mad_lo<T>>; });
}
void decode_sad(Decoder& d) {
  integer(d, []<class T>(T) -> Handler { return lanes<&sad<T>>; });
}
void decode_div(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  integer(d, []<class T>(T) -> Handler { return lanes<&divide<T>>; });
}
void decode_rem(Decoder& d) {
  integer(d, []<class T>(T) -> Handler { return lanes<&remainder<T>>; });
}
void decode_min(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  if (d.type() == Type::k_u16x2) return d.simple(lanes<&halves<&low_min<uint16_t>>>, d.type());
  if (d.type() == Type::k_s16x2) return d.simple(lanes<&halves<&low_min<int16_t>>>, d.type());
  if (d.operands() == 4) return integer(d, []<class T>(T) -> Handler { return lanes<&minimum3<T>>; });
  integer(d, []<class T>(T) -> Handler { return lanes<&minimum<T>>; });
}
void decode_max(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  if (d.type() == Type::k_u16x2) return d.simple(lanes<&halves<&low_max<uint16_t>>>, d.type());
  if (d.type() == Type::k_s16x2) return d.simple(lanes<&halves<&low_max<int16_t>>>, d.type());
  if (d.operands() == 4) return integer(d, []<class T>(T) -> Handler { return lanes<&maximum3<T>>; });
  integer(d, []<class T>(T) -> Handler { return lanes<&maximum<T>>; });
}
void decode_abs(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  integer(d, []<class T>(T) -> Handler { return lanes<&absolute<T>>; });
}
void decode_neg(Decoder& d) {
  if (decode_float_arithmetic(d)) return;
  integer(d, []<class T>(T) -> Handler { return lanes<&negate<T>>; });
}

void decode_and(Decoder& d) {
  logic(d, lanes<&and_pred>, []<class T>(T) -> Handler { return lanes<&bit_and<T>>; });
}
void decode_or(Decoder& d) {
  logic(d, lanes<&or_pred>, []<class T>(T) -> Handler { return lanes<&bit_or<T>>; });
}
void decode_xor(Decoder& d) {
  logic(d, lanes<&xor_pred>, []<class T>(T) -> Handler { return lanes<&bit_xor<T>>; });
}
void decode_not(Decoder& d) {
  logic(d, lanes<&not_pred>, []<class T>(T) -> Handler { return lanes<&bit_not<T>>; });
}
void decode_cnot(Decoder& d) {
  integer(d, []<class T>(T) -> Handler { return lanes<&is_zero<T>>; });
}
void decode_lop3(Decoder& d) {
  if (d.has("and") || d.has("or")) d.fail("with a predicate is not supported");
  d.destination(0, Type::k_b32);
  for (size_t i = 1; i < 4; ++i) d.source(i, Type::k_b32);
  d.out.immediate = d.constant(4);
  d.out.execute = logic3;
  d.out.flags |= kPure;
}
void decode_shl(Decoder& d) {
  shift(d, []<class T>(T) -> Handler { return lanes<&shift_left<T>>; });
}
void decode_shr(Decoder& d) {
  shift(d, []<class T>(T) -> Handler { return lanes<&shift_right<T>>; });
}
void decode_shf(Decoder& d) {
  const bool left = d.has("l"), wrap = d.has("wrap");
  d.simple(left ? (wrap ? lanes<&funnel_wrap<&funnel_left>> : lanes<&funnel_clamp<&funnel_left>>)
                : (wrap ? lanes<&funnel_wrap<&funnel_right>> : lanes<&funnel_clamp<&funnel_right>>),
           Type::k_b32);
}
void decode_popc(Decoder& d) {
  d.simple(size_bytes(d.type()) == 8 ? lanes<&popcount64> : lanes<&popcount32>, Type::k_u32, d.type());
}
void decode_clz(Decoder& d) {
  d.simple(size_bytes(d.type()) == 8 ? lanes<&clz64> : lanes<&clz32>, Type::k_u32, d.type());
}
void decode_brev(Decoder& d) {
  d.simple(size_bytes(d.type()) == 8 ? lanes<&reverse<uint64_t>> : lanes<&reverse<uint32_t>>, d.type());
}
void decode_bfind(Decoder& d) {
  const bool amount = d.has("shiftamt");
  d.simple(for_integer(
               d.type(),
               [&]<class T>(T) -> Handler { return amount ? lanes<&find_bit<T, true>> : lanes<&find_bit<T, false>>; }),
           Type::k_u32, d.type());
}
void decode_bfe(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, Type::k_u32);
  d.source(3, Type::k_u32);
  d.out.execute = for_integer(d.type(), []<class T>(T) -> Handler { return lanes<&extract<T>>; });
  d.out.flags |= kPure;
}
void decode_bfi(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, d.type());
  d.source(3, Type::k_u32);
  d.source(4, Type::k_u32);
  d.out.execute = size_bytes(d.type()) == 8 ? lanes<&insert<uint64_t>> : lanes<&insert<uint32_t>>;
  d.out.flags |= kPure;
}
void decode_bmsk(Decoder& d) { d.simple(d.has("wrap") ? lanes<&bit_mask_wrap> : lanes<&bit_mask_clamp>, Type::k_b32); }
void decode_szext(Decoder& d) {
  if (d.has("wrap")) d.fail("is supported with .clamp only");
  d.simple(d.type() == Type::k_s32 ? lanes<&sign_extend> : lanes<&zero_extend>, d.type());
}
void decode_prmt(Decoder& d) {
  if (d.modifiers.size() > 1) d.fail("is supported without a mode only");
  d.simple(lanes<&permute>, Type::k_b32);
}
void decode_dp4a(Decoder& d) {
  if (d.type(0) != d.type(1)) d.fail("is supported with equal types only");
  d.simple(is_signed(d.type()) ? lanes<&dot4<int8_t>> : lanes<&dot4<uint8_t>>, Type::k_b32);
}

}  // namespace jaxbw::emulator
