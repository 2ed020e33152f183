// The amax of what is stored as 8 bits: see finite_amax in jaxbw/_src/fp8.py.
#pragma once

#include "params.h"
#include "ptx/float8.h"
#include "ptx/fragments.h"

namespace jaxbw {

// The largest magnitude of the finite numbers among those that it is shown. They are compared as integers, with one
// more in the exponent: so infinity and NaN are negative, and never the largest.
template <DataType kType>
class FiniteMaximum {
 public:
  JAXBW_DEVICE void see(uint32_t word) {
    const uint32_t raised = (word & kMagnitude) + kOne;
    if constexpr (kType == DataType::kF32) {
      largest_ = max(static_cast<int32_t>(largest_), static_cast<int32_t>(raised));
    } else {
      largest_ = ptx::max_s16x2(largest_, raised);
    }
  }

  // As the bits of a float32, 0 where that would be subnormal.
  JAXBW_DEVICE uint32_t bits() const {
    constexpr uint32_t kLeastNormal = 0x00800000;
    uint32_t bits = largest_ - kOne;
    if constexpr (kType != DataType::kF32) {
      const uint16_t magnitude = static_cast<uint16_t>(max(bits >> 16, bits & 0xffff));
      bits = __float_as_uint(ptx::widen<kType>(magnitude));
    }
    return bits < kLeastNormal ? 0 : bits;
  }

 private:
  static constexpr uint32_t kMagnitude = kType == DataType::kF32 ? 0x7fffffff : 0x7fff7fff;
  static constexpr uint32_t kOne = kType == DataType::kF16    ? 0x04000400
                                   : kType == DataType::kBF16 ? 0x00800080
                                                              : 0x00800000;
  uint32_t largest_ = kOne;  // of each half, where there are two
};

}  // namespace jaxbw
