// cvt to and from pairs of formats of at most 8 bits (PTX 9.7.9.21): e4m3, e5m2, e2m3, e3m2, e2m1 and the scale ue8m0.
#pragma once

#include "decoder.h"

namespace jaxbw::emulator {

bool is_small_pair(Type type);
void decode_small_conversion(Decoder& d);

}  // namespace jaxbw::emulator
