// Small helpers of the handlers that touch memory: addresses and other operands, checked for poison.
#pragma once

#include <string>

#include "machine.h"

namespace jaxbw::emulator {

// A value that was never written must not decide what happens.
inline void check_use(Step& s, Reg reg, const char* what) {
  if (s.machine.checking() && (undefined(s, reg) & s.active))
    s.machine.finding("poison", s, std::string(what) + " depends on a value that was never written");
}

// base + offset of one lane. 32-bit bases wrap, as the hardware's adder does.
inline uint64_t lane_address(Step& s, Reg base, uint64_t offset, uint32_t lane) {
  return base.bytes == 4 ? uint32_t(row32(s, base)[lane] + offset) : row64(s, base)[lane] + offset;
}

inline uint32_t first_lane(const Step& s) { return uint32_t(__builtin_ctz(s.active)); }

}  // namespace jaxbw::emulator
