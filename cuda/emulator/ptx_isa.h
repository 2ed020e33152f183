// What PTX has, beyond what the emulator knows: so that a message can tell a gap of ours from a mistake in the text.
#pragma once

#include <string_view>

namespace jaxbw::emulator {

// Whether PTX (ISA 9.0) has an instruction that begins so, or any instruction a modifier of this name.
bool ptx_has_instruction(std::string_view opcode);
bool ptx_has_modifier(std::string_view modifier);

}  // namespace jaxbw::emulator
