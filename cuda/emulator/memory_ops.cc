// Loads, stores, atomics and addresses (PTX 9.7.9, 9.7.13.6-7): the synchronous accesses of the generic proxy.
// Longer than other files: they share how an address, a type and a memory order are decoded.
#include <algorithm>
#include <bit>
#include <cstring>

#include "decoder.h"
#include "lanes.h"
#include "matrix_fragments.h"
#include "number_formats.h"
#include "operands.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kMaxAccessBytes = 64;  // .v8.b64

// Instruction::detail of a load or store.
constexpr uint64_t kSignedBit = 1 << 16;
constexpr uint64_t kWeakBit = 1 << 17;  // may race: neither volatile nor of a memory order
// Of strong accesses and of atomics.
constexpr uint64_t kGpuBit = 1 << 18;  // of the scope of the GPU, or of the system
constexpr uint64_t kAcquireBit = 1 << 19, kReleaseBit = 1 << 20;
uint64_t access_detail(Space space, Type type) {
  return uint64_t(space) | uint64_t{size_bytes(type)} << 8 | (is_signed(type) ? kSignedBit : 0);
}
Space space_of(const Instruction& in) { return Space(in.detail & 255); }
uint32_t element_of(const Instruction& in) { return uint32_t(in.detail >> 8 & 255); }

bool any_undefined(const Location& at, uint32_t bytes) {
  return at.undefined && std::any_of(at.undefined, at.undefined + bytes, [](uint8_t flag) { return flag != 0; });
}

bool is_there(const Location& at, const uint8_t* data, uint32_t bytes) {
  return std::memcmp(at.bytes, data, bytes) == 0 && !any_undefined(at, bytes);
}

// What a strong access of global memory hands on between clusters.
void strong_read(Step& s, const Instruction& in, const Location& at) {
  GlobalRaces* races = s.machine.global_races();
  if (races && at.global && (in.detail & kGpuBit))
    races->strong_read(s.cta.cluster->number, actor_of(s), at.global, in.detail & kAcquireBit);
}
void strong_write(Step& s, const Instruction& in, const Location& at) {
  GlobalRaces* races = s.machine.global_races();
  if (!races || !at.global || !(in.detail & kGpuBit)) return;
  RaceDetector& own = *s.cta.cluster->races;
  const Actor who = actor_of(s);
  races->strong_write(s.cta.cluster->number, who, own.knowledge(who), at.global, in.detail & kReleaseBit);
  if (in.detail & kReleaseBit) own.tick(s.warp.agent);
}

// For the race detectors.
void touch(Step& s, const Instruction& in, uint32_t lane, const Location& at, uint32_t bytes, bool write,
           bool repeats = false) {
  if (!(in.detail & kWeakBit))
    write ? strong_write(s, in, at) : strong_read(s, in, at);
  else if (at.cta)
    s.machine.touch_shared(s, uint8_t(lane), at, bytes, write, repeats);
  else
    s.machine.touch_global(s, uint8_t(lane), at, bytes, write, repeats);
}

void load(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  const uint32_t bytes = element_of(in), parts = uint32_t(in.list.size());
  uint32_t poison = 0;
  uint64_t global = 0;
  for_lanes(s.active, [&](uint32_t i) {
    const Location at =
        s.machine.locate(s, space_of(in), lane_address(s, in.s[0], in.immediate, i), bytes * parts, i, false);
    if (at.global) global += bytes * parts;
    if (s.machine.checking()) touch(s, in, i, at, bytes * parts, false);
    for (uint32_t part = 0; part < parts; ++part) {
      const Reg reg = in.list[part];
      if (bytes == 16) {
        std::memcpy(row64(s, reg) + 2 * i, at.bytes, 16);
        continue;
      }
      uint64_t value = 0;
      std::memcpy(&value, at.bytes + part * bytes, bytes);
      if (in.detail & kSignedBit) value = uint64_t(int64_t(value << (64 - 8 * bytes)) >> (64 - 8 * bytes));
      set_lane(s, reg, i, value);
    }
    if (any_undefined(at, bytes * parts)) poison |= 1u << i;
  });
  for (const Reg reg : in.list) mark_written(s, reg, s.active, poison);
  if (global) s.machine.report().bytes["global load"] += global;
}

void store(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  const uint32_t bytes = element_of(in), parts = uint32_t(in.list.size());
  uint64_t global = 0;
  for_lanes(s.active, [&](uint32_t i) {
    const Location at =
        s.machine.locate(s, space_of(in), lane_address(s, in.s[0], in.immediate, i), bytes * parts, i, true);
    if (at.global) global += bytes * parts;
    uint8_t data[kMaxAccessBytes];
    for (uint32_t part = 0; part < parts; ++part) {
      const Reg reg = in.list[part];
      if (bytes == 16) {
        std::memcpy(data, row64(s, reg) + 2 * i, 16);
      } else {
        const uint64_t value = lane_value(s, reg, i);
        std::memcpy(data + part * bytes, &value, bytes);
      }
    }
    if (s.machine.checking()) touch(s, in, i, at, bytes * parts, true, is_there(at, data, bytes * parts));
    std::memcpy(at.bytes, data, bytes * parts);
    for (uint32_t part = 0; part < parts; ++part) {
      const Reg reg = in.list[part];
      const bool poison = undefined(s, reg) >> i & 1;
      if (at.undefined)
        std::memset(at.undefined + part * bytes, poison, bytes);
      else if (poison && s.machine.checking() && space_of(in) != Space::kLocal)
        s.machine.finding("poison", s, "a value that was never written is stored to global memory");
    }
  });
  if (global) s.machine.report().bytes["global store"] += global;
}

// Cache operators and hints change no value; a cache policy may follow as an operand.
Space access_space(const Decoder& d) {
  static constexpr std::pair<std::string_view, Space> kSpaces[] = {
      {"global", Space::kGlobal},          {"shared", Space::kShared},     {"shared::cta", Space::kShared},
      {"shared::cluster", Space::kShared}, {"local", Space::kLocal},       {"param", Space::kParam},
      {"param::entry", Space::kParam},     {"param::func", Space::kLocal}, {"const", Space::kConst}};
  // In a device function .param means ::func (PTX 9.7.9.8).
  if (d.has("param") && !d.rows.function.is_entry) return Space::kLocal;
  for (const auto& [name, space] : kSpaces)
    if (d.has(name)) return space;
  return Space::kGeneric;
}

// volatile counts as relaxed at system scope (PTX 8.4); an atomic without a scope has the GPU's (PTX 9.7.13.6).
uint64_t order_bits(const Decoder& d) {
  return (d.has("cta") || d.has("cluster") ? 0 : kGpuBit) | d.bits_if("acquire", kAcquireBit) |
         d.bits_if("release", kReleaseBit) | d.bits_if("acq_rel", kAcquireBit | kReleaseBit);
}
uint64_t weak_or_order_bits(const Decoder& d) {
  for (const std::string_view strong : {"volatile", "relaxed", "acquire", "release", "mmio"})
    if (d.has(strong)) return order_bits(d);
  return kWeakBit;
}

void data_operands(Decoder& d, const Operand& data, bool is_load) {
  const uint32_t parts = d.has("v2") ? 2 : d.has("v4") ? 4 : d.has("v8") ? 8 : 1;
  const auto add = [&](const Operand& operand) {
    d.out.list.push_back(is_load ? d.written(operand, d.type(), true) : d.read(operand, d.type(), true));
  };
  if (parts == 1 && data.kind != Operand::Kind::kVector) return add(data);
  if (data.kind != Operand::Kind::kVector || data.parts.size() != parts)
    d.fail("needs a vector of " + std::to_string(parts));
  for (const Operand& part : data.parts) add(part);
}

// --- atomics

enum class Atomic : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompareSwap, kIncrement, kDecrement };

template <class T>
T atomic_value(Atomic op, T old, T b, T c) {
  switch (op) {
    case Atomic::kAdd:
      return T(old + b);
    case Atomic::kMin:
      return std::min(old, b);
    case Atomic::kMax:
      return std::max(old, b);
    case Atomic::kExchange:
      return b;
    case Atomic::kCompareSwap:
      return old == b ? c : old;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case Atomic::kAnd:
        return old & b;
      case Atomic::kOr:
        return old | b;
      case Atomic::kXor:
        return old ^ b;
      case Atomic::kIncrement:
        return old >= b ? T(0) : T(old + 1);
      case Atomic::kDecrement:
        return old == 0 || old > b ? b : T(old - 1);
      default:
        break;
    }
  }
  return old;
}

template <bool kBrain>
uint32_t add_halves(uint32_t a, uint32_t b) {
  const auto half = [](uint16_t x, uint16_t y) {
    return kBrain ? f32_to_bf16(bf16_to_f32(x) + bf16_to_f32(y)) : f32_to_f16(f16_to_f32(x) + f16_to_f32(y));
  };
  return uint32_t{half(uint16_t(a), uint16_t(b))} | uint32_t{half(uint16_t(a >> 16), uint16_t(b >> 16))} << 16;
}

template <class T>
uint64_t atomic_of(Atomic op, uint64_t old, uint64_t b, uint64_t c) {
  return to_raw<T>(
      atomic_value(op, from_raw<T>(RawLane<T>(old)), from_raw<T>(RawLane<T>(b)), from_raw<T>(RawLane<T>(c))));
}

uint64_t atomic_result(Atomic op, Type type, uint64_t old, uint64_t b, uint64_t c) {
  switch (type) {
    case Type::k_u32:
    case Type::k_b32:
      return atomic_of<uint32_t>(op, old, b, c);
    case Type::k_s32:
      return atomic_of<int32_t>(op, old, b, c);
    case Type::k_u64:
    case Type::k_b64:
      return atomic_of<uint64_t>(op, old, b, c);
    case Type::k_s64:
      return atomic_of<int64_t>(op, old, b, c);
    case Type::k_u16:
    case Type::k_b16:
      return atomic_of<uint16_t>(op, old, b, c);
    case Type::k_f32:
      return atomic_of<float>(op, old, b, c);
    case Type::k_f64:
      return atomic_of<double>(op, old, b, c);
    case Type::k_f16:
    case Type::k_f16x2:
      return add_halves<false>(uint32_t(old), uint32_t(b));
    default:
      return add_halves<true>(uint32_t(old), uint32_t(b));
  }
}

void atomic(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  const Type type = Type(in.target);
  const uint32_t bytes = element_of(in);
  const auto op = Atomic(in.detail >> 24);
  uint32_t poison = 0;
  for_lanes(s.active, [&](uint32_t i) {
    const Location at = s.machine.locate(s, space_of(in), lane_address(s, in.s[0], in.immediate, i), bytes, i, true);
    strong_read(s, in, at);
    strong_write(s, in, at);
    uint64_t old = 0;
    std::memcpy(&old, at.bytes, bytes);
    const uint64_t c = in.sources > 2 ? lane_value(s, in.s[2], i) : 0;
    const uint64_t value = atomic_result(op, type, old, lane_value(s, in.s[1], i), c);
    std::memcpy(at.bytes, &value, bytes);
    if (op != Atomic::kExchange && any_undefined(at, bytes)) poison |= 1u << i;
    if (at.undefined && op == Atomic::kExchange) std::memset(at.undefined, undefined(s, in.s[1]) >> i & 1, bytes);
    if (in.destinations) set_lane(s, in.d[0], i, old);
  });
  if (in.destinations) mark_written(s, in.d[0], s.active, poison);
}

void decode_atomic(Decoder& d, bool returns) {
  static constexpr std::pair<std::string_view, Atomic> kOps[] = {
      {"add", Atomic::kAdd},       {"min", Atomic::kMin},         {"max", Atomic::kMax},
      {"and", Atomic::kAnd},       {"or", Atomic::kOr},           {"xor", Atomic::kXor},
      {"exch", Atomic::kExchange}, {"cas", Atomic::kCompareSwap}, {"inc", Atomic::kIncrement},
      {"dec", Atomic::kDecrement}};
  const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& row) { return d.has(row.first); });
  if (op == std::end(kOps)) d.fail("needs an operation");
  const Type type = d.type();
  const bool half = type == Type::k_f16 || type == Type::k_bf16 || type == Type::k_f16x2 || type == Type::k_bf16x2;
  if (size_bytes(type) < 2 || size_bytes(type) > 8 || (half && op->second != Atomic::kAdd))
    d.fail("does not support this type");
  size_t at = 0;
  if (returns) d.destination(at++, type);
  const Space space = d.address(at++, access_space(d));
  d.source(at++, type);
  if (op->second == Atomic::kCompareSwap) d.source(at++, type);
  d.out.target = uint32_t(type);
  d.out.detail = access_detail(space, type) | order_bits(d) | uint64_t(op->second) << 24;
  d.out.execute = atomic;
}

// --- addresses

uint64_t window_of(Space space) {
  return space == Space::kShared  ? kSharedWindow
         : space == Space::kLocal ? kLocalWindow
         : space == Space::kParam ? kParamWindow
                                  : 0;
}

void to_generic(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, lane_value(s, in.s[0], i) | in.immediate); });
}
void from_generic(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) {
    const uint64_t value = lane_value(s, in.s[0], i);
    set_lane(s, in.d[0], i, in.immediate ? value & ~kWindowMask : value);
  });
}
void is_space(Step& s, const Instruction& in) {
  uint32_t bits = 0;
  for_lanes(s.active, [&](uint32_t i) {
    const uint64_t window = lane_value(s, in.s[0], i) & kWindowMask;
    const bool other = window != kSharedWindow && window != kLocalWindow && window != kParamWindow;
    bits |= uint32_t{in.immediate ? window == in.immediate : other} << i;
  });
  uint32_t& p = predicate(s, in.d[0]);
  p = (p & ~s.active) | bits;
}
void map_rank(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) {
    const uint64_t address = lane_value(s, in.s[0], i);
    const uint64_t rank = row32(s, in.s[1])[i];
    set_lane(s, in.d[0], i, (address & ~uint64_t{0xff000000}) | rank << kSharedRankShift);
  });
}
void rank_of(Step& s, const Instruction& in) {
  for_lanes(s.active,
            [&](uint32_t i) { set_lane(s, in.d[0], i, lane_value(s, in.s[0], i) >> kSharedRankShift & 0xff); });
}

// --- ldmatrix, stmatrix

constexpr uint64_t kTransposed = 1, kByteElements = 2;

void matrix_rows(Step& s, const Instruction& in, uint32_t count, auto visit) {
  for (uint32_t row = 0; row < count * kMatrixRows; ++row)
    visit(row, s.machine.locate(s, Space::kShared, lane_address(s, in.s[0], in.immediate, row), kMatrixRowBytes, row,
                                false));
}

void load_matrix(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  const uint32_t count = uint32_t(in.list.size());
  uint8_t rows[4 * kMatrixRows * kMatrixRowBytes];
  uint32_t registers[4 * kLanes];
  bool poison = false;
  matrix_rows(s, in, count, [&](uint32_t row, const Location& at) {
    s.machine.touch_shared(s, kSeveralLanes, at, kMatrixRowBytes, false);
    std::memcpy(rows + row * kMatrixRowBytes, at.bytes, kMatrixRowBytes);
    poison |= any_undefined(at, kMatrixRowBytes);
  });
  const std::span<const uint8_t> bytes(rows, count * kMatrixRows * kMatrixRowBytes);
  if (in.detail & kByteElements)
    load_byte_matrices(bytes, {registers, count * kLanes});
  else
    load_matrices(in.detail & kTransposed, bytes, {registers, count * kLanes});
  for (uint32_t part = 0; part < count; ++part) {
    std::copy_n(registers + part * kLanes, kLanes, row32(s, in.list[part]));
    mark_written(s, in.list[part], s.active, poison ? kAllLanes : 0);
  }
}

void store_matrix(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  const uint32_t count = uint32_t(in.list.size());
  uint8_t rows[4 * kMatrixRows * kMatrixRowBytes];
  uint32_t registers[4 * kLanes];
  bool poison = false;
  for (uint32_t part = 0; part < count; ++part) {
    std::copy_n(row32(s, in.list[part]), kLanes, registers + part * kLanes);
    poison |= undefined(s, in.list[part]) != 0;
  }
  const std::span<uint8_t> bytes(rows, count * kMatrixRows * kMatrixRowBytes);
  if (in.detail & kByteElements)
    store_byte_matrices({registers, count * kLanes}, bytes);
  else
    store_matrices(in.detail & kTransposed, {registers, count * kLanes}, bytes);
  matrix_rows(s, in, count, [&](uint32_t row, const Location& at) {
    const uint8_t* from = rows + row * kMatrixRowBytes;
    s.machine.touch_shared(s, kSeveralLanes, at, kMatrixRowBytes, true, is_there(at, from, kMatrixRowBytes));
    std::memcpy(at.bytes, from, kMatrixRowBytes);
    std::memset(at.undefined, poison, kMatrixRowBytes);
  });
}

void matrix_operands(Decoder& d, size_t address, size_t data, bool is_load) {
  const bool bytes = d.has("b8");
  if (!d.has(!bytes ? "m8n8" : is_load ? "m16n16" : "m16n8") || (bytes && !d.has("trans")))
    d.fail(is_load ? "is of .m8n8 .b16 or .m16n16 .trans .b8" : "is of .m8n8 .b16 or .m16n8 .trans .b8");
  d.address(address, Space::kShared);
  const Operand& vector = d.operand(data);
  const uint32_t matrices = d.has("x4") ? 4 : d.has("x2") ? 2 : 1, count = matrices * (bytes && is_load ? 2 : 1);
  if (count > 4) d.fail("loads one matrix of 16x16, or two");
  std::vector<Operand> parts = vector.kind == Operand::Kind::kVector ? vector.parts : std::vector<Operand>{vector};
  if (parts.size() != count) d.fail("needs " + std::to_string(count) + " registers");
  for (const Operand& part : parts)
    d.out.list.push_back(is_load ? d.written(part, Type::k_b32) : d.read(part, Type::k_b32));
  d.out.detail = d.bits_if("trans", kTransposed) | (bytes ? kByteElements : 0);
  d.out.flags |= kAligned;
}

}  // namespace

void decode_ld(Decoder& d) {
  data_operands(d, d.operand(0), true);
  const Space space = d.address(1, access_space(d));
  d.out.detail = access_detail(space, d.type()) | weak_or_order_bits(d);
  d.out.execute = load;
}
void decode_st(Decoder& d) {
  data_operands(d, d.operand(1), false);
  const Space space = d.address(0, access_space(d));
  if (space == Space::kConst || space == Space::kParam) d.fail("cannot write to this space");
  d.out.detail = access_detail(space, d.type()) | weak_or_order_bits(d);
  d.out.execute = store;
}
void decode_atom(Decoder& d) { decode_atomic(d, true); }
void decode_red(Decoder& d) { decode_atomic(d, false); }

void decode_cvta(Decoder& d) {
  Space space = access_space(d);
  d.destination(0, d.type());
  d.source(1, d.type());
  if (d.operand(1).kind == Operand::Kind::kVariable && d.operand(1).local && !(d.operand(1).index & kParameterBit) &&
      d.rows.function.variables[d.operand(1).index].space == Space::kParam)
    space = Space::kLocal;
  d.out.immediate = window_of(space);
  d.out.execute = d.has("to") ? from_generic : to_generic;
  d.out.flags |= kPure;
}
void decode_isspacep(Decoder& d) {
  d.destination(0, Type::k_pred);
  d.source(1, Type::k_b64);
  d.out.immediate = window_of(access_space(d));
  d.out.execute = is_space;
  d.out.flags |= kPure;
}
void decode_mapa(Decoder& d) {
  d.destination(0, d.type());
  d.source(1, d.type());
  d.source(2, Type::k_u32);
  d.out.execute = map_rank;
  d.out.flags |= kPure;
}
void decode_getctarank(Decoder& d) {
  d.destination(0, Type::k_u32);
  d.source(1, d.type());
  d.out.execute = rank_of;
  d.out.flags |= kPure;
}
void decode_ldmatrix(Decoder& d) {
  matrix_operands(d, 1, 0, true);
  d.out.execute = load_matrix;
}
void decode_stmatrix(Decoder& d) {
  matrix_operands(d, 0, 1, false);
  d.out.execute = store_matrix;
}
// createpolicy: an opaque cache policy, which no result depends on.
void decode_createpolicy(Decoder& d) {
  d.destination(0, Type::k_b64);
  d.source_bits(0, 8);
  d.out.execute = to_generic;
  d.out.flags |= kPure;
}

}  // namespace jaxbw::emulator
