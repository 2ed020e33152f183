// Moves, comparisons and selections (PTX 9.7.6, 9.7.9.3 mov).
#include <algorithm>
#include <cmath>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace jaxbw::emulator {
namespace {

// --- mov

void move32(Step& s, const Instruction& in) {
  const uint32_t* a = row32(s, in.s[0]);
  uint32_t* d = row32(s, in.d[0]);
  for (uint32_t i = 0; i < kLanes; ++i) d[i] = s.active >> i & 1 ? a[i] : d[i];
}
void move64(Step& s, const Instruction& in) {
  const uint64_t* a = row64(s, in.s[0]);
  uint64_t* d = row64(s, in.d[0]);
  for (uint32_t i = 0; i < kLanes; ++i) d[i] = s.active >> i & 1 ? a[i] : d[i];
}
void move128(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) { std::copy_n(row64(s, in.s[0]) + 2 * i, 2, row64(s, in.d[0]) + 2 * i); });
}
bool same(bool a) { return a; }

// Vectors and scalars: {lo, hi} = r and r = {lo, hi}, parts of 16, 32 or 64 bits (`immediate`).
uint64_t part_of(Step& s, Reg reg, uint32_t lane, uint32_t part, uint32_t bits) {
  if (reg.bytes == 16) return row64(s, reg)[2 * lane + part];
  const uint64_t raw = lane_value(s, reg, lane) >> part * bits;
  return bits == 64 ? raw : raw & ((uint64_t{1} << bits) - 1);
}
void unpack(Step& s, const Instruction& in) {
  const uint32_t poison = undefined(s, in.s[0]);
  for (uint32_t part = 0; part < in.list.size(); ++part) {
    for_lanes(s.active,
              [&](uint32_t i) { set_lane(s, in.list[part], i, part_of(s, in.s[0], i, part, uint32_t(in.immediate))); });
    mark_written(s, in.list[part], s.active, poison);
  }
}
void pack(Step& s, const Instruction& in) {
  uint32_t poison = 0;
  const uint32_t bits = uint32_t(in.immediate);
  for (const Reg& reg : in.list) poison |= undefined(s, reg);
  for_lanes(s.active, [&](uint32_t i) {
    if (in.d[0].bytes == 16) {
      for (uint32_t part = 0; part < 2; ++part) row64(s, in.d[0])[2 * i + part] = lane_value(s, in.list[part], i);
      return;
    }
    uint64_t value = 0;
    for (uint32_t part = 0; part < in.list.size(); ++part) {
      const uint64_t raw = lane_value(s, in.list[part], i);
      value |= (bits == 64 ? raw : raw & ((uint64_t{1} << bits) - 1)) << part * bits;
    }
    set_lane(s, in.d[0], i, value);
  });
  mark_written(s, in.d[0], s.active, poison);
}

void clock(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, s.machine.steps()); });
  mark_written(s, in.d[0], s.active);
}

void vector_move(Decoder& d, bool unpacks) {
  const Operand& vector = d.operand(unpacks ? 0 : 1);
  const uint32_t bytes = size_bytes(d.type());
  const size_t parts = vector.parts.size();
  if (parts < 2 || parts > 4 || bytes % parts) d.fail("has a vector of the wrong size");
  d.out.immediate = 8 * bytes / parts;
  const Type part = bytes / parts == 1   ? Type::k_b8
                    : bytes / parts == 2 ? Type::k_b16
                    : bytes / parts == 4 ? Type::k_b32
                                         : Type::k_b64;
  if (bytes == 16 && parts != 2) d.fail("splits 128 bits into two halves only");
  for (const Operand& operand : vector.parts)
    d.out.list.push_back(unpacks ? d.written(operand, part) : d.read(operand, part));
  if (unpacks)
    d.source(1, d.type());
  else
    d.destination(0, d.type());
  d.out.flags |= kPassesOn;
  d.out.execute = unpacks ? unpack : pack;
}

// --- setp

enum class Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kNum, kNan };
enum Detail : uint64_t { kAnd = 1, kOr = 2, kXor = 3, kCombine = 3, kNegated = 4, kUnordered = 8, kFtz = 16 };

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
float value_of(Half x) { return f16_to_f32(x.bits); }
float value_of(Brain x) { return bf16_to_f32(x.bits); }
template <class T>
T value_of(T x) {
  return x;
}

template <class T>
bool unordered(T a, T b) {
  return a != a || b != b;
}

template <class V, Compare kOp>
bool compare(V a, V b) {
  if constexpr (kOp == Compare::kEq) return a == b;
  if constexpr (kOp == Compare::kNe) return a != b;
  if constexpr (kOp == Compare::kLt) return a < b;
  if constexpr (kOp == Compare::kLe) return a <= b;
  if constexpr (kOp == Compare::kGt) return a > b;
  if constexpr (kOp == Compare::kGe) return a >= b;
  if constexpr (kOp == Compare::kNum) return !unordered(a, b);
  return unordered(a, b);
}

template <class T, Compare kOp>
uint32_t compare_lanes(Step& s, const Instruction& in) {
  const LaneSource<T> a(s, in.s[0]), b(s, in.s[1]);
  const bool with_nan = in.detail & kUnordered, ftz = in.detail & kFtz;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < kLanes; ++i) {
    auto x = value_of(a[i]), y = value_of(b[i]);
    if constexpr (std::is_floating_point_v<decltype(x)>) {
      if (ftz && std::fabs(x) < std::numeric_limits<decltype(x)>::min()) x = 0;
      if (ftz && std::fabs(y) < std::numeric_limits<decltype(y)>::min()) y = 0;
      // The ordered comparisons are false of a NaN, the unordered ones true; != must be told (PTX 9.7.6).
      const bool nan = unordered(x, y);
      const bool result = kOp == Compare::kNum || kOp == Compare::kNan ? compare<decltype(x), kOp>(x, y)
                          : nan                                        ? with_nan
                                                                       : compare<decltype(x), kOp>(x, y);
      bits |= uint32_t{result} << i;
    } else {
      bits |= uint32_t{compare<decltype(x), kOp>(x, y)} << i;
    }
  }
  return bits;
}

uint32_t combine(Step& s, const Instruction& in, uint32_t bits) {
  if (!(in.detail & kCombine)) return bits;
  const uint32_t c = in.detail & kNegated ? ~predicate(s, in.s[2]) : predicate(s, in.s[2]);
  switch (in.detail & kCombine) {
    case kAnd:
      return bits & c;
    case kOr:
      return bits | c;
    default:
      return bits ^ c;
  }
}

template <class T, Compare kOp>
void setp(Step& s, const Instruction& in) {
  const uint32_t bits = compare_lanes<T, kOp>(s, in);
  const uint32_t first = combine(s, in, bits);
  const uint32_t second = in.destinations > 1 ? combine(s, in, ~bits) : 0;
  uint32_t& p = predicate(s, in.d[0]);
  p = (p & ~s.active) | (first & s.active);
  if (in.destinations > 1) {
    uint32_t& q = predicate(s, in.d[1]);
    q = (q & ~s.active) | (second & s.active);
  }
}

// set: like setp, but the result is 0xffffffff or 1.0 in a register (`immediate`).
template <class T, Compare kOp>
void set(Step& s, const Instruction& in) {
  const uint32_t bits = combine(s, in, compare_lanes<T, kOp>(s, in));
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, bits >> i & 1 ? in.immediate : 0); });
}

template <template <class, Compare> class Maker, class T>
Handler for_compare(Compare op) {
  switch (op) {
    case Compare::kEq:
      return Maker<T, Compare::kEq>::handler;
    case Compare::kNe:
      return Maker<T, Compare::kNe>::handler;
    case Compare::kLt:
      return Maker<T, Compare::kLt>::handler;
    case Compare::kLe:
      return Maker<T, Compare::kLe>::handler;
    case Compare::kGt:
      return Maker<T, Compare::kGt>::handler;
    case Compare::kGe:
      return Maker<T, Compare::kGe>::handler;
    case Compare::kNum:
      return Maker<T, Compare::kNum>::handler;
    case Compare::kNan:
      return Maker<T, Compare::kNan>::handler;
  }
  return nullptr;
}
template <class T, Compare kOp>
struct Setp {
  static constexpr Handler handler = setp<T, kOp>;
};
template <class T, Compare kOp>
struct Set {
  static constexpr Handler handler = set<T, kOp>;
};

template <template <class, Compare> class Maker>
Handler comparison(Type type, Compare op) {
  switch (type) {
    case Type::k_f32:
      return for_compare<Maker, float>(op);
    case Type::k_f64:
      return for_compare<Maker, double>(op);
    case Type::k_f16:
      return for_compare<Maker, Half>(op);
    case Type::k_bf16:
      return for_compare<Maker, Brain>(op);
    default:
      return for_integer(type, [op]<class T>(T) { return for_compare<Maker, T>(op); });
  }
}

// Reads the comparison, its combination with operand `c`, and the sources.
Compare comparison_of(Decoder& d, Type type) {
  static constexpr std::pair<std::string_view, Compare> kNames[] = {
      {"eq", Compare::kEq},   {"ne", Compare::kNe},  {"lt", Compare::kLt},  {"le", Compare::kLe},
      {"gt", Compare::kGt},   {"ge", Compare::kGe},  {"lo", Compare::kLt},  {"ls", Compare::kLe},
      {"hi", Compare::kGt},   {"hs", Compare::kGe},  {"equ", Compare::kEq}, {"neu", Compare::kNe},
      {"ltu", Compare::kLt},  {"leu", Compare::kLe}, {"gtu", Compare::kGt}, {"geu", Compare::kGe},
      {"num", Compare::kNum}, {"nan", Compare::kNan}};
  const auto* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& name) { return d.has(name.first); });
  if (found == std::end(kNames)) d.fail("needs a comparison");
  if (found->first.size() == 3 && found->first.back() == 'u') d.out.detail |= kUnordered;
  if (d.has("ftz")) d.out.detail |= kFtz;
  d.source(1, type);
  d.source(2, type);
  const uint64_t combination = d.bits_if("and", kAnd) | d.bits_if("or", kOr) | d.bits_if("xor", kXor);
  d.out.detail |= combination;
  if ((combination != 0) != (d.operands() == 4)) d.fail("takes a predicate exactly where it combines");
  if (combination) {
    Operand c = d.operand(3);
    if (c.negated) d.out.detail |= kNegated;
    c.negated = false;
    d.source(c, Type::k_pred);
  }
  d.out.flags |= kPure;
  return found->second;
}

template <class T>
T select(T a, T b, bool p) {
  return p ? a : b;
}
// Undefined is what it takes, and not what it leaves: compilers compute a value on the side that may not be used.
template <class T>
void selp(Step& s, const Instruction& in) {
  const uint32_t p = predicate(s, in.s[2]);
  const uint32_t poison = (undefined(s, in.s[0]) & p) | (undefined(s, in.s[1]) & ~p) | undefined(s, in.s[2]);
  lanes<&select<T>>(s, in);
  mark_written(s, in.d[0], s.active, poison);
}
template <class T>
T select_sign(T a, T b, int32_t c) {
  return c >= 0 ? a : b;
}
template <class T>
T select_sign_f(T a, T b, float c) {
  return c >= 0 ? a : b;
}

}  // namespace

void decode_mov(Decoder& d) {
  const Operand &to = d.operand(0), &from = d.operand(1);
  if (to.kind == Operand::Kind::kVector) return vector_move(d, true);
  if (from.kind == Operand::Kind::kVector) return vector_move(d, false);
  if (from.kind == Operand::Kind::kSpecial &&
      (from.name.starts_with("%clock") || from.name.starts_with("%globaltimer"))) {
    d.destination(0, d.type());
    d.out.execute = clock;
    return;
  }
  Handler handler = move32;
  if (d.type() == Type::k_pred)
    handler = lanes<&same>;
  else if (size_bytes(d.type()) == 8)
    handler = move64;
  else if (size_bytes(d.type()) == 16)
    handler = move128;
  d.simple(handler, d.type());
  d.out.flags |= kPassesOn;
}

void decode_setp(Decoder& d) {
  const Operand& to = d.operand(0);
  const bool dual = to.kind == Operand::Kind::kPair;
  d.destination(dual ? to.parts[0] : to, Type::k_pred);
  if (dual) d.destination(to.parts[1], Type::k_pred);
  d.out.execute = comparison<Setp>(d.type(), comparison_of(d, d.type()));
}

void decode_set(Decoder& d) {
  d.destination(0, d.type(0));
  d.out.immediate = d.type(0) == Type::k_f32 ? 0x3f800000u : 0xffffffffu;
  d.out.execute = comparison<Set>(d.type(1), comparison_of(d, d.type(1)));
}

void decode_selp(Decoder& d) {
  const Type type = d.type();
  d.destination(0, type);
  d.source(1, type);
  d.source(2, type);
  d.source(3, Type::k_pred);
  d.out.execute = size_bytes(type) == 8 ? selp<uint64_t> : selp<uint32_t>;
}

void decode_slct(Decoder& d) {
  const Type type = d.type(0), sign = d.type(1);
  d.destination(0, type);
  d.source(1, type);
  d.source(2, type);
  d.source(3, sign);
  d.out.flags |= kPure;
  const bool wide = size_bytes(type) == 8, is_float = sign == Type::k_f32;
  d.out.execute = wide ? (is_float ? lanes<&select_sign_f<uint64_t>> : lanes<&select_sign<uint64_t>>)
                       : (is_float ? lanes<&select_sign_f<uint32_t>> : lanes<&select_sign<uint32_t>>);
}

}  // namespace jaxbw::emulator
