// The address model: what a kernel can see of where things lie.
//
// Taken from compiled code, not from the PTX ISA: kernels mask the CTA rank out of a shared address to reach
// the leader CTA's barrier, so the encoding is part of the machine.
#pragma once

#include <cstdint>

namespace jaxbw::emulator {

// A shared-space address: base + offset within the CTA + rank of the CTA in its cluster.
constexpr uint32_t kSharedBase = 0x400;
constexpr uint32_t kSharedRankShift = 24;
constexpr uint32_t kSharedOffsetMask = (1u << kSharedRankShift) - 1;

// Kernel parameters: low addresses, that fit a 32-bit register; aligned for tensor maps.
constexpr uint32_t kParamBase = 0x380;

// Windows of the generic address space; the address within the space is in the low 32 bits.
constexpr uint64_t kSharedWindow = 0x0000'0100'0000'0000;
constexpr uint64_t kLocalWindow = 0x0000'0200'0000'0000;
constexpr uint64_t kParamWindow = 0x0000'0300'0000'0000;
constexpr uint64_t kWindowMask = ~uint64_t{0xffff'ffff};

// Buffers passed to a launch; .global and .const variables lie below (kModuleDataAddress).
constexpr uint64_t kBufferAddress = 0x0000'7000'0000'0000;

}  // namespace jaxbw::emulator
