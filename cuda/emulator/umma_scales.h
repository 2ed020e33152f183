// The scales of tcgen05.mma's block-scaled kinds (PTX 9.7.16.10.7), and the multiply with them.
//
// `block` elements along K share a scale. In tensor memory the scale of row r of A (column r of B) lies in lane r % 32,
// column address + r / 32, once in each quarter of the lanes; byte `id` of that cell is the first block's of the
// instruction, the next bytes are those of the next blocks:
//
//   kind      block   K   scales of an instruction   id        format
//   mxf8f6f4   32     32            1                0 to 3    ue8m0
//   mxf4       32     64            2                0 or 2    ue8m0
//   mxf4nvf4   32     64            2                0 or 2    ue8m0
//   mxf4nvf4   16     64            4                0         ue4m3 or ue8m0
//
// In a pair each CTA holds the scales of its own rows of A, and of all columns of B.
//
// That the quarters hold the same is checked when the scales are read.
#pragma once

#include <vector>

#include "umma.h"

namespace jaxbw::emulator {

// Throws Error on scales that the instruction may not have, or that D overlaps. Nothing to check for other kinds.
void check_umma_scales(const Umma& op);

// What each CTA reads; nothing for other kinds.
std::vector<TmemRegion> scale_regions(const Umma& op);

// D of one CTA, whose scales lie in `tmem`: a is [rows][k], b [k][n], `cells` are the rows of D.
void multiply_scaled(const Umma& op, const std::vector<float>& a, const std::vector<float>& b, const TensorMemory& tmem,
                     const std::vector<uint32_t*>& cells);

}  // namespace jaxbw::emulator
