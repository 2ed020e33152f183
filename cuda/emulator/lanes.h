// Lane loops: turns a scalar function into the handler of an instruction.
//
//   out.execute = lanes<&add<uint32_t>>;    // d[i] = add(s0[i], s1[i]) for each active lane i
//
// The function's own types say how rows are read: bool is a predicate, everything else a 4- or 8-byte lane whose low
// bytes hold the value.
#pragma once

#include <bit>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "machine.h"

namespace jaxbw::emulator {

template <class T>
using RawLane = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
T from_raw(RawLane<T> raw) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(raw);
  else if constexpr (sizeof(T) == sizeof(RawLane<T>))
    return std::bit_cast<T>(raw);
  else
    return std::bit_cast<T>(static_cast<uint16_t>(raw));
}

template <class T>
RawLane<T> to_raw(T value) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<RawLane<T>>(static_cast<std::make_unsigned_t<T>>(value));
  else if constexpr (sizeof(T) == sizeof(RawLane<T>))
    return std::bit_cast<RawLane<T>>(value);
  else
    return std::bit_cast<uint16_t>(value);
}

template <class T>
struct LaneSource {
  const RawLane<T>* row;
  LaneSource(Step& s, Reg reg) : row(reinterpret_cast<const RawLane<T>*>(s.file + reg.at)) {}
  T operator[](uint32_t lane) const { return from_raw<T>(row[lane]); }
};
template <>
struct LaneSource<bool> {
  uint32_t mask;
  LaneSource(Step& s, Reg reg) : mask(predicate(s, reg)) {}
  bool operator[](uint32_t lane) const { return mask >> lane & 1; }
};

template <class Sequence, class R, class... A>
struct LaneLoop;

template <size_t... I, class R, class... A>
struct LaneLoop<std::index_sequence<I...>, R, A...> {
  template <auto F>
  static void run(Step& s, const Instruction& in) {
    const std::tuple<LaneSource<A>...> sources{LaneSource<A>(s, in.s[I])...};
    if constexpr (std::is_same_v<R, bool>) {
      uint32_t bits = 0;
      for (uint32_t i = 0; i < kLanes; ++i) bits |= uint32_t{F(std::get<I>(sources)[i]...)} << i;
      uint32_t& row = predicate(s, in.d[0]);
      row = (row & ~s.active) | (bits & s.active);
    } else {
      auto* row = reinterpret_cast<RawLane<R>*>(s.file + in.d[0].at);
      if (s.active == kAllLanes) {
#pragma GCC ivdep
        for (uint32_t i = 0; i < kLanes; ++i) row[i] = to_raw<R>(F(std::get<I>(sources)[i]...));
      } else {
        for_lanes(s.active, [&](uint32_t i) { row[i] = to_raw<R>(F(std::get<I>(sources)[i]...)); });
      }
    }
  }
};

template <class R, class... A>
LaneLoop<std::index_sequence_for<A...>, R, A...> lane_loop_of(R (*)(A...));

template <auto F>
void lanes(Step& s, const Instruction& in) {
  decltype(lane_loop_of(F))::template run<F>(s, in);
}

// Calls f with a value-initialised T of the C++ type of an integer PTX type, and returns what it returns.
template <class F>
Handler for_integer(Type type, F f) {
  switch (type) {
    case Type::k_u16:
    case Type::k_b16:
      return f(uint16_t{});
    case Type::k_s16:
      return f(int16_t{});
    case Type::k_u32:
    case Type::k_b32:
      return f(uint32_t{});
    case Type::k_s32:
      return f(int32_t{});
    case Type::k_u64:
    case Type::k_b64:
      return f(uint64_t{});
    case Type::k_s64:
      return f(int64_t{});
    default:
      return nullptr;
  }
}

}  // namespace jaxbw::emulator
