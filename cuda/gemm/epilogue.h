// What happens to accumulators on their way out, in float32. The formula stands in params.h (Epilogue).
#pragma once

#include "gemm/finite_maximum.h"
#include "gemm/storage.h"
#include "ptx/float8.h"
#include "ptx/fragments.h"
#include "ptx/global.h"

namespace jaxbw {

// Calls function.operator()<kFirst>() for the first register of every kStep of kCount, which is a multiple of it.
template <uint32_t kStep, uint32_t kCount, uint32_t kFirst = 0, typename Function>
JAXBW_DEVICE void for_each_step(const Function& function) {
  static_assert((kCount - kFirst) % kStep == 0);
  if constexpr (kFirst < kCount) {
    function.template operator()<kFirst>();
    for_each_step<kStep, kCount, kFirst + kStep>(function);
  }
}

// alpha or beta of Epilogue: read once for all that a thread scales.
JAXBW_DEVICE float factor(float value, const float* data) { return data == nullptr ? value : *data; }
JAXBW_DEVICE float alpha_of(const Epilogue& e) { return factor(e.alpha, e.alpha_data); }

// x * sigmoid(z) = x / (1 + e^-z), of -z * log2(e). Exact to a few ulp: an overflowing e^-z gives 1 / inf = 0.
JAXBW_DEVICE float times_sigmoid(float x, float negative_log2) {
  return x * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(negative_log2));
}

constexpr float kLog2E = 1.4426950408889634f;

JAXBW_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }  // keeps NaN, as jax.nn.relu does
JAXBW_DEVICE float silu(float x) { return times_sigmoid(x, -kLog2E * x); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
JAXBW_DEVICE float gelu(float x) {
  constexpr float kLinear = -kLog2E * 1.5957691216057308f, kCubic = 0.044715f * kLinear;  // 2 sqrt(2 / pi)
  return times_sigmoid(x, x * fmaf(x * x, kCubic, kLinear));
}

JAXBW_DEVICE float gelu_exact(float x) {
  constexpr float kRsqrt2 = 0.70710678118654752f;
  return 0.5f * x * (1.0f + erff(x * kRsqrt2));
}

// Applies a function to the first kActive of the values.
template <uint32_t kActive, uint32_t kCount, typename Function>
JAXBW_DEVICE void apply(float (&values)[kCount], const Function& function) {
#pragma unroll
  for (uint32_t i = 0; i < kActive; ++i) values[i] = function(values[i]);
}

// Calls function(activation), if there is any. kLong: also those whose code is long. Without, the host never asks for
// one.
template <bool kLong, typename Function>
JAXBW_DEVICE void with_activation(Activation activation, const Function& function) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      return function(relu);
    case Activation::kGelu:
      return function(gelu);
    case Activation::kSilu:
      return function(silu);
    case Activation::kGeluExact:
      if constexpr (kLong) function(gelu_exact);
  }
}

template <uint32_t kActive, bool kLong = true, uint32_t kCount>
JAXBW_DEVICE void activate(float (&values)[kCount], Activation activation) {
  with_activation<kLong>(activation, [&](const auto& function) { apply<kActive>(values, function); });
}

// Calls function.operator()<value>(): two copies of the code, one of which a kernel takes.
template <typename Function>
JAXBW_DEVICE void with_bool(bool value, const Function& function) {
  if (value) {
    function.template operator()<true>();
  } else {
    function.template operator()<false>();
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
    case DataType::kE4M3:
    case DataType::kE5M2:
      break;  // operands, and D: see with_size()
  }
}

// The same, of a type of kSize bytes, two or four.
template <uint32_t kSize, typename Function>
JAXBW_DEVICE void with_type_of_size(DataType type, const Function& function) {
  if constexpr (kSize == 4) {
    function.template operator()<DataType::kF32>();
  } else {
    static_assert(kSize == 2);
    if (type == DataType::kBF16) return function.template operator()<DataType::kBF16>();
    function.template operator()<DataType::kF16>();
  }
}

// Calls function.operator()<bytes>(), of an element of D. Of two types of one size, what stores them is the same code.
template <typename Function>
JAXBW_DEVICE void with_size(DataType type, const Function& function) {
  if (type == DataType::kF32) return function.template operator()<4>();
  if (is_8bit(type)) return function.template operator()<1>();
  function.template operator()<2>();
}

// Two elements of a D of 8 bits, `low` in the low byte. Conversions saturate: behind the code of the largest number
// comes that of NaN in e4m3, of infinity in e5m2.
JAXBW_DEVICE uint32_t float8_pair(const GemmParams& p, float low, float high) {
  const uint32_t codes = p.output.type == DataType::kE4M3 ? ptx::pack_float8<DataType::kE4M3>(low, high)
                                                          : ptx::pack_float8<DataType::kE5M2>(low, high);
  return codes + (fabsf(low) > p.float8_limit ? 0x1 : 0) + (fabsf(high) > p.float8_limit ? 0x100 : 0);
}

// Four of them.
JAXBW_DEVICE uint32_t float8_quad(const GemmParams& p, const float* values) {
  return float8_pair(p, values[0], values[1]) | float8_pair(p, values[2], values[3]) << 16;
}

// What a warp does to its results where a D of 8 bits has a scale (GemmParams::out_scale). Between its chunks of a tile
// it keeps nothing but the maximum: registers are scarce while sums are gathered.
class OutputScale {
 public:
  JAXBW_DEVICE explicit OutputScale(const GemmParams& p) : p_(p) {}

  JAXBW_DEVICE bool wanted() const { return p_.out_scale != nullptr; }

  // Of the values the first `inside` are elements of D, which alone count.
  template <uint32_t kCount>
  JAXBW_DEVICE void apply(float (&values)[kCount], uint32_t inside = kCount) {
    const float inverse = inverse_of(*p_.out_scale);
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      if (i < inside) maximum_.see(__float_as_uint(values[i]));
      values[i] = ptx::multiply_flushed(values[i], inverse);
    }
  }

  // By all lanes, once for all that the warp has of a tile.
  JAXBW_DEVICE void leave_maximum(uint32_t batch) const {
    if (!wanted()) return;
    const uint32_t largest = __reduce_max_sync(ptx::kFullWarp, maximum_.bits());
    if (ptx::elect_one()) ptx::max_relaxed(p_.amax + batch, largest);
  }

 private:
  // NaN of what is no positive normal number.
  static JAXBW_DEVICE float inverse_of(float scale) {
    constexpr float kLeastNormal = 0x1p-126f;
    const bool is_scale = scale >= kLeastNormal && scale < __uint_as_float(0x7f800000);
    return is_scale ? fmaxf(__frcp_rn(scale), kLeastNormal) : __uint_as_float(0x7fffffff);
  }

  const GemmParams& p_;
  FiniteMaximum<DataType::kF32> maximum_;
};

// The bits of one element, widened. The type is known at run time only: a switch over an element costs less code than
// a copy of the epilogue for each type.
JAXBW_DEVICE float widen(DataType type, uint32_t bits) {
  if (type == DataType::kF32) return __uint_as_float(bits);
  if (type == DataType::kBF16) return __uint_as_float(bits << 16);
  return ptx::widen<DataType::kF16>(static_cast<uint16_t>(bits));
}

JAXBW_DEVICE float load_element(EpilogueOperand operand, uint64_t index) {
  const uint32_t bits = operand.type == DataType::kF32 ? static_cast<const uint32_t*>(operand.data)[index]
                                                       : static_cast<const uint16_t*>(operand.data)[index];
  return widen(operand.type, bits);
}

template <DataType kType>
JAXBW_DEVICE float load_element(const void* data, uint64_t index) {
  if constexpr (kType == DataType::kF32) {
    return static_cast<const float*>(data)[index];
  } else {
    return ptx::widen<kType>(static_cast<const uint16_t*>(data)[index]);
  }
}

template <DataType kType>
JAXBW_DEVICE void store_element(void* data, uint64_t index, float value) {
  if constexpr (kType == DataType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = ptx::narrow<kType>(value);
  }
}

// Where an element of D lies, in elements from its start.
JAXBW_DEVICE uint64_t element_index(const GemmParams& p, uint32_t row, uint32_t column, uint32_t batch) {
  return batch * p.batch_stride + row * p.row_stride + column * p.column_stride;
}

// Of all rows and columns that a tile is cut from; null where there are none.
struct ScaleArrays {
  const float* rows;
  uint32_t row_count;
  const float *columns, *up_columns;
};

// The scales of a batch index's rows of A, or columns of B, of which there are so many; null where there are none.
JAXBW_DEVICE const float* scales_of(const float* scales, uint32_t batched, uint32_t extent, uint32_t batch) {
  return scales == nullptr || batched == 0 ? scales : scales + uint64_t{batch} * extent;
}

// The bias of an element; rows and columns outside the matrix have none.
JAXBW_DEVICE float load_bias(const GemmParams& p, uint32_t row, uint32_t column) {
  const uint32_t index = p.epilogue.bias_along_m ? row : column;
  const uint32_t extent = p.epilogue.bias_along_m ? p.m : p.n;
  return index < extent ? load_element(p.epilogue.bias, index) : 0.0f;
}

}  // namespace jaxbw
