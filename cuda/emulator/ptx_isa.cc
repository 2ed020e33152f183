#include "ptx_isa.h"

#include "decoder.h"

namespace jaxbw::emulator {
namespace {

// Instructions of PTX ISA 9.7 without a row in opcodes.inc, by the words that they begin with.
constexpr std::string_view kInstructions =
    "fns cvt.pack movmatrix wmma tex tld4 txq istypep suld sust sured suq vadd vsub vabsdiff vmin vmax vshl vshr "
    "vmad vset vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2 vset2 vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vset4 dp2a "
    "multimem red.async st.bulk alloca stacksave stackrestore tcgen05.shift "
    "wgmma.mma_async.sp";

// Modifiers that PTX has and no row of opcodes.inc.
constexpr std::string_view kModifiers =
    "abs sp ws shift down red kind::i8 ashift b8x16.b6x16_p32 b8x16 b6x16_p32 b4x16_p64 im2col im2col::w "
    "im2col::w::128 im2col_no_offs cp_mask ignore_oob scaled::n2::ue8m0 rs rna e4m3x4 "
    "e5m2x4 e2m3x4 e3m2x4 e2m1x4 m8n16 spformat unified bulk s4 u4 b1 "
    "collector::b0::fill collector::b0::use collector::b0::lastuse collector::b0::discard collector::b1::fill "
    "collector::b1::use collector::b1::lastuse collector::b1::discard sparsity::selector::0 sparsity::selector::1";

}  // namespace

bool ptx_has_instruction(std::string_view opcode) {
  for (size_t end = opcode.size();;) {
    if (lists(kInstructions, opcode.substr(0, end))) return true;
    end = end == 0 ? std::string_view::npos : opcode.rfind('.', end - 1);
    if (end == std::string_view::npos) return false;
  }
}

bool ptx_has_modifier(std::string_view modifier) {
  if (lists(kModifiers, modifier) || type_from_name(modifier)) return true;
  for (const Opcode& row : opcode_table())
    if (lists(row.modifiers, modifier)) return true;
  return false;
}

}  // namespace jaxbw::emulator
