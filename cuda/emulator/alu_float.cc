// Floating-point arithmetic (PTX 9.7.3, 9.7.4, 9.7.5) of f32, f64, f16, bf16 and their packed forms.
//
// 16-bit types are computed in binary32 and rounded once more, which is exact for a single operation (binary32 has more
// than twice their precision) except fma, which is computed in binary64 and rounded to odd up to the last step. The
// approximations (ex2, rcp, tanh, ...) are computed accurately: within the error that PTX allows, not bit-equal to the
// hardware. Over 400 lines: the types share their rules for NaN, rounding, .ftz and .sat.
#include <cfenv>
#include <cmath>
#include <limits>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace jaxbw::emulator {
namespace {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

float widen(float x) { return x; }
double widen(double x) { return x; }
float widen(F16 x) { return f16_to_f32(x.bits); }
float widen(BF16 x) { return bf16_to_f32(x.bits); }

// The neighbour of a rounded value with an odd last bit, where the exact one lies off by `error`: from there on,
// rounding to half as many bits is as if done once.
template <class W>
W to_odd(W rounded, double error) {
  using Bits = std::conditional_t<sizeof(W) == 8, uint64_t, uint32_t>;
  const auto bits = std::bit_cast<Bits>(rounded);
  if (error == 0 || !std::isfinite(rounded) || !std::isfinite(error) || (bits & 1)) return rounded;
  return std::bit_cast<W>((error > 0) == (rounded > 0) ? bits + 1 : bits - 1);
}
float narrow_to_odd(double x) {
  const auto rounded = float(x);
  if (rounded == 0) return std::copysign(x == 0 ? 0 : std::numeric_limits<float>::denorm_min(), rounded);
  return to_odd(rounded, x - double(rounded));
}
// Of 16-bit operands: their product is exact, and the error of its sum with c is (Knuth's two-sum).
double fma_to_odd(double a, double b, double c) {
  const double product = a * b, sum = product + c, part = sum - product;
  return to_odd(sum, (product - (sum - part)) + (c - part));
}

template <class T, class W>
T narrow(W x) {
  if constexpr (std::is_same_v<T, F16>)
    return F16{f32_to_f16(narrow_to_odd(x))};
  else if constexpr (std::is_same_v<T, BF16>)
    return BF16{f32_to_bf16(narrow_to_odd(x))};
  else
    return T(x);
}
template <class T>
using Widened = decltype(widen(T{}));

enum Detail : uint64_t { kFtz = 1, kSat = 2, kRounding = 12, kRz = 4, kRm = 8, kRp = 12, kRelu = 16, kNan = 32 };

// NaN results of binary32 are canonical (PTX 9.7.3.3): 0x7fffffff. An H200 hands on binary64 operands.
template <class W>
W canonical(W x) {
  if constexpr (std::is_same_v<W, float>)
    return x == x ? x : std::bit_cast<float>(0x7fffffffu);
  else
    return x;
}
double quiet(double nan) { return std::bit_cast<double>(std::bit_cast<uint64_t>(nan) | uint64_t{1} << 51); }
// A value of T's that is subnormal in T becomes a zero of its sign.
template <class T, class W>
W flush(W x) {
  constexpr double kSmallest = std::is_same_v<T, F16>      ? 0x1p-14
                               : std::is_same_v<T, double> ? std::numeric_limits<double>::min()
                                                           : double(std::numeric_limits<float>::min());
  return double(std::fabs(x)) < kSmallest ? std::copysign(W(0), x) : x;
}

// Of two NaNs an H200's binary64 units return the second. (Division is not done by one of them.)
template <class W>
W second_nan(W a, W b, W result) {
  if constexpr (std::is_same_v<W, double>) {
    if (b != b) return quiet(b);
    if (a != a) return quiet(a);
  }
  return result;
}

struct Add {
  template <class W>
  static W apply(W a, W b) {
    return second_nan(a, b, a + b);
  }
};
struct Sub {
  template <class W>
  static W apply(W a, W b) {
    return second_nan(a, b, a - b);
  }
};
struct Mul {
  template <class W>
  static W apply(W a, W b) {
    return second_nan(a, b, a * b);
  }
};
struct Div {
  template <class W>
  static W apply(W a, W b) {
    return a / b;
  }
};
struct Fma {
  template <class W>
  static W apply(W a, W b, W c) {
    const W result = std::fma(a, b, c);
    if constexpr (std::is_same_v<W, double>)
      if (c != c && b == b) return quiet(c);
    return second_nan(a, b, result);
  }
};
// One NaN gives the other operand, and -0 is less than +0 (PTX 9.7.3.11-12).
struct Min {
  template <class W>
  static W apply(W a, W b) {
    if (a != a) return b;
    if (b != b) return a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
  }
  template <class W>
  static W apply(W a, W b, W c) {
    return apply(apply(a, b), c);
  }
};
struct Max {
  template <class W>
  static W apply(W a, W b) {
    if (a != a) return b;
    if (b != b) return a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
  }
  template <class W>
  static W apply(W a, W b, W c) {
    return apply(apply(a, b), c);
  }
};
struct Abs {
  template <class W>
  static W apply(W a) {
    return a == a ? std::fabs(a) : a;
  }
};
struct Neg {
  template <class W>
  static W apply(W a) {
    return a == a ? -a : a;
  }
};
struct Rcp {
  template <class W>
  static W apply(W a) {
    return 1 / a;
  }
};
struct Sqrt {
  template <class W>
  static W apply(W a) {
    return std::sqrt(a);
  }
};
struct Rsqrt {
  template <class W>
  static W apply(W a) {
    return W(1 / std::sqrt(double(a)));
  }
};
struct Ex2 {
  template <class W>
  static W apply(W a) {
    return W(std::exp2(double(a)));
  }
};
struct Lg2 {
  template <class W>
  static W apply(W a) {
    return W(std::log2(double(a)));
  }
};
struct Sin {
  template <class W>
  static W apply(W a) {
    return W(std::sin(double(a)));
  }
};
struct Cos {
  template <class W>
  static W apply(W a) {
    return W(std::cos(double(a)));
  }
};
struct Tanh {
  template <class W>
  static W apply(W a) {
    return W(std::tanh(double(a)));
  }
};
// copysign d, a, b: the sign of a on the magnitude of b, of a NaN too.
template <class T>
T copy_sign(T a, T b) {
  constexpr T kSign = T{1} << (8 * sizeof(T) - 1);
  return (a & kSign) | (b & ~kSign);
}

// The plain case, a loop that vectorises.
template <class Op, class T>
T plain1(T a) {
  return canonical(Op::apply(a));
}
template <class Op, class T>
T plain2(T a, T b) {
  return canonical(Op::apply(a, b));
}
template <class Op, class T>
T plain3(T a, T b, T c) {
  return canonical(Op::apply(a, b, c));
}

template <class Op, class T, uint32_t kSources>
T one(const T* a, uint64_t detail) {
  using W = std::conditional_t<std::is_same_v<Op, Fma> && sizeof(T) == 2, double, Widened<T>>;
  W v[3];
  for (uint32_t i = 0; i < kSources; ++i) {
    v[i] = widen(a[i]);
    if (detail & kFtz) v[i] = flush<T>(v[i]);
  }
  W out;
  if constexpr (kSources == 1)
    out = Op::apply(v[0]);
  else if constexpr (kSources == 2)
    out = Op::apply(v[0], v[1]);
  else if constexpr (std::is_same_v<Op, Fma> && sizeof(T) == 2)
    out = fma_to_odd(v[0], v[1], v[2]);
  else
    out = Op::apply(v[0], v[1], v[2]);
  if (detail & kNan)
    for (uint32_t i = 0; i < kSources; ++i)
      if (v[i] != v[i]) out = v[i];
  if (detail & kFtz) out = flush<T>(out);
  if (detail & kSat) out = !(out > 0) ? W(0) : out > 1 ? W(1) : out;  // of NaN and -0: +0
  if (detail & kRelu) out = out <= 0 ? W(0) : out;
  return narrow<T>(canonical(out));
}

// Sets the rounding of + - * / sqrt and fma for a scope.
class Rounding {
 public:
  explicit Rounding(uint64_t detail) : change_(detail & kRounding) {
    if (change_)
      std::fesetround((detail & kRounding) == kRz   ? FE_TOWARDZERO
                      : (detail & kRounding) == kRm ? FE_DOWNWARD
                                                    : FE_UPWARD);
  }
  ~Rounding() {
    if (change_) std::fesetround(FE_TONEAREST);
  }

 private:
  const bool change_;
};

template <class Op, class T, uint32_t kSources>
void general(Step& s, const Instruction& in) {
  const Rounding rounding(in.detail);
  for_lanes(s.active, [&](uint32_t i) {
    T a[3];
    for (uint32_t k = 0; k < kSources; ++k) a[k] = LaneSource<T>(s, in.s[k])[i];
    set_lane(s, in.d[0], i, to_raw<T>(one<Op, T, kSources>(a, in.detail)));
  });
}

// Two values in a register: f16x2, bf16x2 and f32x2.
template <class Op, class T, uint32_t kSources>
void packed(Step& s, const Instruction& in) {
  const Rounding rounding(in.detail);
  constexpr uint32_t kBits = 8 * sizeof(T);
  for_lanes(s.active, [&](uint32_t i) {
    T low[3], high[3];
    for (uint32_t k = 0; k < kSources; ++k) {
      const uint64_t raw = lane_value(s, in.s[k], i);
      low[k] = from_raw<T>(uint32_t(raw));
      high[k] = from_raw<T>(uint32_t(raw >> kBits));
    }
    const uint64_t out = uint64_t{to_raw<T>(one<Op, T, kSources>(low, in.detail))} |
                         uint64_t{to_raw<T>(one<Op, T, kSources>(high, in.detail))} << kBits;
    set_lane(s, in.d[0], i, out);
  });
}

// Mixed precision (PTX 9.7.5): d and the last source are f32, the sources before it f16 or bf16, exact in f32.
template <class Op, class T, uint32_t kSources>
void mixed(Step& s, const Instruction& in) {
  const Rounding rounding(in.detail);
  for_lanes(s.active, [&](uint32_t i) {
    float a[3];
    for (uint32_t k = 0; k + 1 < kSources; ++k) a[k] = widen(LaneSource<T>(s, in.s[k])[i]);
    a[kSources - 1] = LaneSource<float>(s, in.s[kSources - 1])[i];
    set_lane(s, in.d[0], i, to_raw<float>(one<Op, float, kSources>(a, in.detail)));
  });
}

template <class Op, uint32_t kSources>
Handler handler_of(Type type, uint64_t detail) {
  const auto plain = []<class T>(T) -> Handler {
    if constexpr (kSources == 1)
      return lanes<&plain1<Op, T>>;
    else if constexpr (kSources == 2)
      return lanes<&plain2<Op, T>>;
    else
      return lanes<&plain3<Op, T>>;
  };
  switch (type) {
    case Type::k_f32:
      return detail ? general<Op, float, kSources> : plain(float{});
    case Type::k_f64:
      return detail ? general<Op, double, kSources> : plain(double{});
    case Type::k_f16:
      return general<Op, F16, kSources>;
    case Type::k_bf16:
      return general<Op, BF16, kSources>;
    case Type::k_f16x2:
      return packed<Op, F16, kSources>;
    case Type::k_bf16x2:
      return packed<Op, BF16, kSources>;
    case Type::k_f32x2:
      return packed<Op, float, kSources>;
    default:
      return nullptr;
  }
}

uint64_t detail_of(const Decoder& d) {
  uint64_t detail = 0;
  if (d.has("ftz")) detail |= kFtz;
  if (d.has("sat")) detail |= kSat;
  if (d.has("relu")) detail |= kRelu;
  if (d.has("NaN")) detail |= kNan;
  if (d.has("rz")) detail |= kRz;
  if (d.has("rm")) detail |= kRm;
  if (d.has("rp")) detail |= kRp;
  return detail;
}

template <class Op, uint32_t kSources>
void mixed_arithmetic(Decoder& d) {
  constexpr bool kExists = std::is_same_v<Op, Add> || std::is_same_v<Op, Sub> || std::is_same_v<Op, Fma>;
  const Type from = d.type(1);
  if (!kExists || d.type(0) != Type::k_f32 || (from != Type::k_f16 && from != Type::k_bf16))
    d.fail("mixes f32 with f16 or bf16 only, in add, sub and fma");
  d.destination(0, Type::k_f32);
  for (size_t i = 1; i < kSources; ++i) d.source(i, from);
  d.source(kSources, Type::k_f32);
  d.out.flags |= kPure;
  if constexpr (kExists) d.out.execute = from == Type::k_f16 ? mixed<Op, F16, kSources> : mixed<Op, BF16, kSources>;
}

template <class Op, uint32_t kSources>
void arithmetic(Decoder& d) {
  if (d.operands() != kSources + 1) d.fail("takes " + std::to_string(kSources + 1) + " operands");
  d.out.detail = detail_of(d);
  if (d.types.size() == 2) return mixed_arithmetic<Op, kSources>(d);
  d.simple(handler_of<Op, kSources>(d.type(), d.out.detail), d.type());
}

bool is_float(Type type) {
  switch (type) {
    case Type::k_f16:
    case Type::k_f16x2:
    case Type::k_bf16:
    case Type::k_bf16x2:
    case Type::k_f32:
    case Type::k_f32x2:
    case Type::k_f64:
      return true;
    default:
      return false;
  }
}

bool test_finite(float x) { return std::isfinite(x); }
bool test_infinite(float x) { return std::isinf(x); }
bool test_number(float x) { return x == x; }
bool test_nan(float x) { return x != x; }
bool test_normal(float x) { return std::isnormal(x) || x == 0; }  // PTX 9.7.3.2: zeros are normal
bool test_subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL; }

}  // namespace

// The float forms of mnemonics that integers have too; false: not a float type.
bool decode_float_arithmetic(Decoder& d) {
  if (!is_float(d.type())) return false;
  const std::string_view name = d.opcode.mnemonic;
  if (name == "add")
    arithmetic<Add, 2>(d);
  else if (name == "sub")
    arithmetic<Sub, 2>(d);
  else if (name == "mul")
    arithmetic<Mul, 2>(d);
  else if (name == "div")
    arithmetic<Div, 2>(d);
  else if (name == "mad")
    arithmetic<Fma, 3>(d);
  else if (name == "min")
    d.operands() == 4 ? arithmetic<Min, 3>(d) : arithmetic<Min, 2>(d);
  else if (name == "max")
    d.operands() == 4 ? arithmetic<Max, 3>(d) : arithmetic<Max, 2>(d);
  else if (name == "abs")
    arithmetic<Abs, 1>(d);
  else if (name == "neg")
    arithmetic<Neg, 1>(d);
  else
    d.fail("does not take a float type");
  return true;
}

void decode_fma(Decoder& d) { arithmetic<Fma, 3>(d); }
void decode_rcp(Decoder& d) { arithmetic<Rcp, 1>(d); }
void decode_sqrt(Decoder& d) { arithmetic<Sqrt, 1>(d); }
void decode_rsqrt(Decoder& d) { arithmetic<Rsqrt, 1>(d); }
void decode_ex2(Decoder& d) { arithmetic<Ex2, 1>(d); }
void decode_lg2(Decoder& d) { arithmetic<Lg2, 1>(d); }
void decode_sin(Decoder& d) { arithmetic<Sin, 1>(d); }
void decode_cos(Decoder& d) { arithmetic<Cos, 1>(d); }
void decode_tanh(Decoder& d) { arithmetic<Tanh, 1>(d); }
void decode_copysign(Decoder& d) {
  if (d.type() == Type::k_f64)
    d.simple(lanes<&copy_sign<uint64_t>>, Type::k_b64);
  else
    d.simple(lanes<&copy_sign<uint32_t>>, Type::k_b32);
}
void decode_testp(Decoder& d) {
  d.destination(0, Type::k_pred);
  d.source(1, d.type());
  d.out.flags |= kPure;
  if (d.type() != Type::k_f32) d.fail("is supported for f32 only");
  if (d.has("finite"))
    d.out.execute = lanes<&test_finite>;
  else if (d.has("infinite"))
    d.out.execute = lanes<&test_infinite>;
  else if (d.has("number"))
    d.out.execute = lanes<&test_number>;
  else if (d.has("notanumber"))
    d.out.execute = lanes<&test_nan>;
  else if (d.has("normal"))
    d.out.execute = lanes<&test_normal>;
  else if (d.has("subnormal"))
    d.out.execute = lanes<&test_subnormal>;
}

}  // namespace jaxbw::emulator
