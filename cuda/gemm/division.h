// Division by what is known before the launch: a multiplication and a shift (Granlund and Montgomery, "Division by
// invariant integers using multiplication", PLDI 1994). An ordinary division takes a kernel 150 cycles, and a role does
// a dozen of them before its first load.
#pragma once

#include <cstdint>

namespace jaxbw {

// Made by divisor().
struct Divisor {
  uint32_t value, multiplier, shift;
};

// Of dividends below 2^31; `value` is in 1 .. 2^31. With value <= 2^shift the multiplier is 2^(31 + shift) / value
// rounded up, which has 32 bits; what the rounding adds to a quotient is too little to reach the next one.
constexpr Divisor divisor(uint32_t value) {
  uint32_t shift = 0;
  while (uint64_t{1} << shift < value) ++shift;
  return {value, static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + value - 1) / value), shift};
}

constexpr uint32_t operator/(uint32_t dividend, Divisor by) {
  return static_cast<uint32_t>(uint64_t{2 * dividend} * by.multiplier >> 32) >> by.shift;
}
constexpr uint32_t operator%(uint32_t dividend, Divisor by) { return dividend - dividend / by * by.value; }

namespace division_check {
constexpr uint32_t kLargest = 0x7fffffff;
constexpr bool exact(uint32_t value) {
  const Divisor by = divisor(value);
  for (uint32_t n : {0u, 1u, value - 1, value, value + 1, 2 * value - 1, 2 * value, kLargest - 1, kLargest}) {
    if (n <= kLargest && n / by != n / value) return false;
  }
  return true;
}
static_assert(exact(1) && exact(2) && exact(3) && exact(5) && exact(7) && exact(64) && exact(641) && exact(65537));
static_assert(exact(0x3fffffff) && exact(0x40000001) && exact(0x7ffffffe) && exact(0x7fffffff));
}  // namespace division_check

}  // namespace jaxbw
