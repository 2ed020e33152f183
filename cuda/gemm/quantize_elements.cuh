// Elements of what is quantized, in memory and in words of a register.
#pragma once

#include "params.h"
#include "ptx/fragments.h"

namespace jaxbw {

// One of the elements in these words.
template <DataType kType>
JAXBW_DEVICE float element(const uint32_t* words, uint32_t index) {
  if constexpr (kType == DataType::kF32) {
    return __uint_as_float(words[index]);
  } else {
    return ptx::widen<kType>(static_cast<uint16_t>(words[index / 2] >> index % 2 * 16));
  }
}

// An element's bits, of x in whichever type.
template <DataType kType>
JAXBW_DEVICE uint32_t load_element(const void* x, uint64_t index) {
  if constexpr (kType == DataType::kF32) {
    return __ldcs(static_cast<const uint32_t*>(x) + index);
  } else {
    return __ldcs(static_cast<const uint16_t*>(x) + index);
  }
}

}  // namespace jaxbw
