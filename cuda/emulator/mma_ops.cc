// mma.sync (PTX 9.7.14.5): the product of 16 rows by 8 columns that a warp has in its registers.
//
// With e elements in a register and thread t = 4 * group + place (figures of 9.7.14.5.7 to 9.7.14.5.11):
//
//   A, register r:  row group + 8 * (r % 2), columns 4e * (r / 2) + e * place and the e - 1 behind it
//   B, register r:  rows 4e * r + e * place and the e - 1 behind it, column group
//   C and D:        row group + 8 * (i / 2), column 2 * place + i % 2, of element i; two f16 share a register
//
// Sums are float32 in ascending order, as those of wgmma (mma_kernel.h), or 32-bit integers.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "decoder.h"
#include "lanes.h"
#include "number_formats.h"

namespace jaxbw::emulator {
namespace {

constexpr uint32_t kRows = 16, kColumns = 8, kMostK = 32;

// Instruction::detail, beside the types of A and B in its low bytes.
constexpr uint64_t kSaturates = 1 << 16, kHalfD = 1 << 17, kHalfC = 1 << 18;

struct Shape {
  uint32_t k, elements;  // of a register
  uint32_t a_registers() const { return kRows * k / elements / kLanes; }
  uint32_t b_registers() const { return kColumns * k / elements / kLanes; }
};

uint32_t accumulators(bool half) { return half ? 2 : 4; }

NumberFormat format_of(Type type) {
  switch (type) {
    case Type::k_f16:
      return NumberFormat::kF16;
    case Type::k_bf16:
      return NumberFormat::kBf16;
    case Type::k_tf32:
      return NumberFormat::kTf32;
    case Type::k_e4m3:
      return NumberFormat::kE4M3;
    default:
      return NumberFormat::kE5M2;
  }
}

// The elements of one register, as numbers of the type that they are added up in.
void elements_of(Type type, uint32_t reg, float* out) {
  uint8_t chunk[16] = {};
  float values[16];
  std::memcpy(chunk, &reg, sizeof reg);
  decode_chunk(format_of(type), chunk, values);
  std::copy_n(values, 4 / container_bytes(format_of(type)), out);
}
void elements_of(Type type, uint32_t reg, int64_t* out) {
  for (uint32_t i = 0; i < 4; ++i) {
    const auto byte = uint8_t(reg >> 8 * i);
    out[i] = type == Type::k_s8 ? int64_t{int8_t(byte)} : int64_t{byte};
  }
}

template <class T>
struct Operands {
  T a[kRows][kMostK], b[kColumns][kMostK];
  bool a_undefined[kRows] = {}, b_undefined[kColumns] = {};
};

template <class T>
Operands<T> gather(Step& s, const Instruction& in, Shape shape) {
  Operands<T> out;
  const Type a = Type(in.detail & 255), b = Type(in.detail >> 8 & 255);
  const Reg* registers = in.list.data() + accumulators(in.detail & kHalfD);
  for (uint32_t t = 0; t < kLanes; ++t) {
    const uint32_t group = t / 4, first = shape.elements * (t % 4);
    for (uint32_t r = 0; r < shape.a_registers(); ++r) {
      const uint32_t row = group + 8 * (r % 2);
      elements_of(a, row32(s, registers[r])[t], &out.a[row][4 * shape.elements * (r / 2) + first]);
      out.a_undefined[row] |= undefined(s, registers[r]) >> t & 1;
    }
    for (uint32_t r = 0; r < shape.b_registers(); ++r) {
      const Reg reg = registers[shape.a_registers() + r];
      elements_of(b, row32(s, reg)[t], &out.b[group][4 * shape.elements * r + first]);
      out.b_undefined[group] |= undefined(s, reg) >> t & 1;
    }
  }
  return out;
}

uint32_t multiply(const Operands<float>& x, uint32_t row, uint32_t column, uint32_t k, uint32_t c, uint64_t) {
  auto sum = std::bit_cast<float>(c);
  for (uint32_t p = 0; p < k; ++p) sum += x.a[row][p] * x.b[column][p];
  return std::bit_cast<uint32_t>(sum);
}
uint32_t multiply(const Operands<int64_t>& x, uint32_t row, uint32_t column, uint32_t k, uint32_t c, uint64_t detail) {
  int64_t sum = int32_t(c);
  for (uint32_t p = 0; p < k; ++p) sum += x.a[row][p] * x.b[column][p];
  using Limits = std::numeric_limits<int32_t>;
  return uint32_t(detail & kSaturates ? std::clamp<int64_t>(sum, Limits::min(), Limits::max()) : sum);
}

template <class T>
void mma(Step& s, const Instruction& in) {
  const Shape shape{in.target, uint32_t(in.immediate)};
  const bool half_d = in.detail & kHalfD, half_c = in.detail & kHalfC;
  const Operands<T> x = gather<T>(s, in, shape);
  const Reg* c = in.list.data() + accumulators(half_d) + shape.a_registers() + shape.b_registers();
  uint32_t results[4][kLanes], poison[4] = {};
  for (uint32_t t = 0; t < kLanes; ++t) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = t / 4 + 8 * (i / 2), column = 2 * (t % 4) + i % 2;
      const Reg from = c[half_c ? i / 2 : i];
      uint32_t initial = row32(s, from)[t];
      if (half_c) initial = std::bit_cast<uint32_t>(f16_to_f32(uint16_t(initial >> 16 * (i % 2))));
      results[i][t] = multiply(x, row, column, shape.k, initial, in.detail);
      const bool unknown = x.a_undefined[row] || x.b_undefined[column] || (undefined(s, from) >> t & 1);
      poison[i] |= uint32_t{unknown} << t;
    }
  }
  for (uint32_t r = 0; r < accumulators(half_d); ++r) {
    for (uint32_t t = 0; t < kLanes; ++t) {
      const auto half = [&](uint32_t i) { return uint32_t{f32_to_f16(std::bit_cast<float>(results[i][t]))}; };
      row32(s, in.list[r])[t] = half_d ? half(2 * r) | half(2 * r + 1) << 16 : results[r][t];
    }
    mark_written(s, in.list[r], s.active, half_d ? poison[2 * r] | poison[2 * r + 1] : poison[r]);
  }
}

void registers(Decoder& d, size_t i, uint32_t count, bool written) {
  const Operand& vector = d.operand(i);
  if ((vector.kind == Operand::Kind::kVector ? vector.parts.size() : 1) != count)
    d.fail("operand " + std::to_string(i + 1) + " must be a vector of " + std::to_string(count));
  const auto add = [&](const Operand& part) {
    d.out.list.push_back(written ? d.written(part, Type::k_b32) : d.read(part, Type::k_b32));
  };
  if (vector.kind != Operand::Kind::kVector) return add(vector);
  for (const Operand& part : vector.parts) add(part);
}

}  // namespace

void decode_mma(Decoder& d) {
  using enum Type;
  if (!d.has("aligned") || !d.has("row") || !d.has("col")) d.fail("is .sync.aligned, of .row and .col operands");
  if (d.types.size() != 4) d.fail("needs the types of D, A, B and C");
  const Type result = d.types[0], a = d.types[1], b = d.types[2], initial = d.types[3];
  const auto one_of = [](Type type, auto... types) { return ((type == types) || ...); };
  const bool integers = one_of(a, k_s8, k_u8), eight = integers || one_of(a, k_e4m3, k_e5m2);
  const Shape shape{.k = d.has("m16n8k4")    ? 4u
                         : d.has("m16n8k8")  ? 8u
                         : d.has("m16n8k16") ? 16u
                                             : 32u,
                    .elements = eight         ? 4u
                                : a == k_tf32 ? 1u
                                              : 2u};
  const bool pairs = integers ? one_of(b, k_s8, k_u8) : eight ? one_of(b, k_e4m3, k_e5m2) : a == b;
  const bool known = integers || eight || one_of(a, k_f16, k_bf16, k_tf32);
  const bool sums = integers                         ? result == k_s32 && initial == k_s32
                    : a == k_f16 || (eight && pairs) ? one_of(result, k_f16, k_f32) && one_of(initial, k_f16, k_f32)
                                                     : result == k_f32 && initial == k_f32;
  if (!known || !pairs || !sums) d.fail("has a combination of types that the emulator does not know");
  // Every type has a shape of two registers of A, and one of four.
  if (shape.a_registers() != 2 && shape.a_registers() != 4) d.fail("has a shape that its types have not");
  const bool half_d = result == k_f16, half_c = initial == k_f16;
  registers(d, 0, accumulators(half_d), true);
  registers(d, 1, shape.a_registers(), false);
  registers(d, 2, shape.b_registers(), false);
  registers(d, 3, accumulators(half_c), false);
  d.out.target = shape.k;
  d.out.immediate = shape.elements;
  d.out.detail = uint64_t(a) | uint64_t(b) << 8 | d.bits_if("satfinite", kSaturates) | (half_d ? kHalfD : 0) |
                 (half_c ? kHalfC : 0);
  d.out.execute = integers ? mma<int64_t> : mma<float>;
}

}  // namespace jaxbw::emulator
