// PTX text to tokens. Knows nothing of statements; the parser does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jaxbw::emulator {

struct Token {
  enum class Kind : uint8_t {
    kEnd,
    kWord,         // identifier or opcode, dots included: "%tid.x", "add.s32", "$L__BB0_1"
    kDirective,    // ".reg": a word that starts with a dot
    kInteger,      // `bits` is its 64-bit value
    kFloat,        // 0f... : `bits` is the binary32 pattern
    kDouble,       // 0d... or decimal: `bits` is the binary64 pattern
    kString,       // text without its quotes
    kPunctuation,  // one character
  };
  Kind kind = Kind::kEnd;
  uint32_t line = 0;
  std::string_view text;
  uint64_t bits = 0;

  bool is(char c) const { return kind == Kind::kPunctuation && text[0] == c; }
  bool is(std::string_view word) const { return (kind == Kind::kWord || kind == Kind::kDirective) && text == word; }
};

// The views point into `text`, which must outlive them. Ends with one kEnd token.
std::vector<Token> tokenize(std::string_view text, const std::string& file);

}  // namespace jaxbw::emulator
