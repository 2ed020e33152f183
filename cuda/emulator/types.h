// The PTX operand types (PTX 5.2), as they appear as opcode modifiers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace jaxbw::emulator {

// name, bytes of a register that holds it
// clang-format off: it never comes to rest on this list
#define JAXBW_PTX_TYPES(X)                                                                  \
  X(pred, 0) X(b8, 1) X(b16, 2) X(b32, 4) X(b64, 8) X(b128, 16)                             \
  X(u8, 1) X(u16, 2) X(u32, 4) X(u64, 8) X(s8, 1) X(s16, 2) X(s32, 4) X(s64, 8)             \
  X(u16x2, 4) X(s16x2, 4)                                                                   \
  X(f16, 2) X(f16x2, 4) X(bf16, 2) X(bf16x2, 4) X(tf32, 4) X(f32, 4) X(f32x2, 8) X(f64, 8)  \
  X(e4m3x2, 2) X(e5m2x2, 2) X(e4m3, 1) X(e5m2, 1)  \
  X(e2m3x2, 2) X(e3m2x2, 2) X(e2m1x2, 1) X(ue8m0x2, 2)
// clang-format on

enum class Type : uint8_t {
#define JAXBW_X(name, bytes) k_##name,
  JAXBW_PTX_TYPES(JAXBW_X)
#undef JAXBW_X
};

constexpr uint32_t size_bytes(Type type) {
  constexpr uint32_t kBytes[] = {
#define JAXBW_X(name, bytes) bytes,
      JAXBW_PTX_TYPES(JAXBW_X)
#undef JAXBW_X
  };
  return kBytes[static_cast<uint32_t>(type)];
}

constexpr std::optional<Type> type_from_name(std::string_view name) {
#define JAXBW_X(type, bytes) \
  if (name == #type) return Type::k_##type;
  JAXBW_PTX_TYPES(JAXBW_X)
#undef JAXBW_X
  return std::nullopt;
}

constexpr std::string_view type_name(Type type) {
  constexpr std::string_view kNames[] = {
#define JAXBW_X(name, bytes) #name,
      JAXBW_PTX_TYPES(JAXBW_X)
#undef JAXBW_X
  };
  return kNames[static_cast<uint32_t>(type)];
}

constexpr bool is_signed(Type type) {
  return type == Type::k_s8 || type == Type::k_s16 || type == Type::k_s32 || type == Type::k_s64;
}

}  // namespace jaxbw::emulator
