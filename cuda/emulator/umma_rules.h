// What the parts of tcgen05.mma share.
#pragma once

#include <string>

#include "error.h"
#include "umma.h"

namespace jaxbw::emulator {

inline void require(bool condition, const std::string& rule) {
  if (!condition) throw Error("tcgen05.mma: " + rule);
}

// Elements of K.
inline uint32_t k_extent(const Umma& op) { return kMmaKBytes / kChunkBytes * chunk_elements(op.instruction.a_format); }

}  // namespace jaxbw::emulator
