// What happens to accumulators on their way out, in float32: bias and activation. See Epilogue in params.h.
#pragma once

#include "gemm/storage.h"
#include "ptx/fragments.h"

namespace jaxbw {

// x * sigmoid(z) = x / (1 + e^-z). Exact to a few ulp: an overflowing e^-z gives 1 / inf = 0.
JAXBW_DEVICE float times_sigmoid(float x, float z) {
  constexpr float kLog2E = 1.4426950408889634f;
  return x * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(-kLog2E * z));
}

JAXBW_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }  // keeps NaN, as jax.nn.relu does
JAXBW_DEVICE float silu(float x) { return times_sigmoid(x, x); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
JAXBW_DEVICE float gelu(float x) {
  constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;
  return times_sigmoid(x, kTwoSqrt2OverPi * (x + 0.044715f * x * x * x));
}

template <uint32_t kCount>
JAXBW_DEVICE void activate(float (&values)[kCount], Activation activation) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
#pragma unroll
      for (float& value : values) value = relu(value);
      break;
    case Activation::kGelu:
#pragma unroll
      for (float& value : values) value = gelu(value);
      break;
    case Activation::kSilu:
#pragma unroll
      for (float& value : values) value = silu(value);
      break;
  }
}

// Calls function.operator()<kType>(): makes a compile-time type of one that is known at run time.
template <typename Function>
JAXBW_DEVICE void with_type(DataType type, const Function& function) {
  switch (type) {
    case DataType::kF16:
      return function.template operator()<DataType::kF16>();
    case DataType::kBF16:
      return function.template operator()<DataType::kBF16>();
    case DataType::kF32:
      return function.template operator()<DataType::kF32>();
  }
}

// The bias of one column, 0 outside the matrix.
template <DataType kType>
JAXBW_DEVICE float load_bias(const void* bias, uint32_t column, uint32_t columns) {
  if (column >= columns) return 0.0f;
  if constexpr (kType == DataType::kF32) {
    return __ldg(static_cast<const float*>(bias) + column);
  } else {
    return ptx::widen<kType>(__ldg(static_cast<const uint16_t*>(bias) + column));
  }
}

}  // namespace jaxbw
