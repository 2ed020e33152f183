// The one exception of the emulator: hostile or unsupported PTX, an illegal launch, a fault of the
// emulated kernel that leaves nothing to go on with. Never an abort, never undefined behaviour.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace jaxbw::emulator {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// An error with its place in the PTX source: "kernel.ptx:123: message".
class LocatedError : public Error {
 public:
  LocatedError(const std::string& file, uint32_t line, const std::string& message)
      : Error(file + ":" + std::to_string(line) + ": " + message) {}
};

inline std::string quoted(std::string_view text) {
  std::string result = "'";
  result += text;
  return result += "'";
}

}  // namespace jaxbw::emulator
