#include "lexer.h"

#include <bit>
#include <charconv>

#include "error.h"

namespace jaxbw::emulator {
namespace {

bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_word_start(c) || is_digit(c); }

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    do tokens.push_back(next());
    while (tokens.back().kind != Token::Kind::kEnd);
    return tokens;
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  [[noreturn]] void fail(const std::string& message) const { throw LocatedError(file_, line_, message); }

  void skip_space() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
      } else if (c == '/' && peek(1) == '/') {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c == '/' && peek(1) == '*') {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail("comment without end");
        for (; at_ < end + 1; ++at_) line_ += text_[at_] == '\n';
      } else if (c != ' ' && c != '\t' && c != '\r' && c != '\0') {
        return;
      }
    }
  }

  // A word goes on over dots and double colons that a letter or digit follows: "a.shared::cluster.b64".
  void word_tail() {
    while (is_word(peek()) || (peek() == '.' && is_word(peek(1))) ||
           (peek() == ':' && peek(1) == ':' && is_word(peek(2))))
      at_ += peek() == ':' ? 2 : 1;
  }

  Token finish(Token::Kind kind, size_t begin) const { return {kind, line_, text_.substr(begin, at_ - begin), 0}; }

  Token next() {
    skip_space();
    const size_t begin = at_;
    if (at_ >= text_.size()) return finish(Token::Kind::kEnd, begin);
    const char c = text_[at_];
    if (is_word_start(c) || (c == '.' && is_word(peek(1)))) {
      ++at_;
      word_tail();
      return finish(c == '.' ? Token::Kind::kDirective : Token::Kind::kWord, begin);
    }
    if (is_digit(c)) return number();
    if (static_cast<unsigned char>(c) >= 0x80) fail("PTX is ASCII outside of strings and comments");
    if (c == '"') {
      const uint32_t line = line_;
      for (++at_; peek() != '"'; ++at_) {
        if (at_ >= text_.size()) fail("string without end");
        if (peek() == '\\') ++at_;
        if (peek() == '\n') ++line_;
      }
      ++at_;
      Token token = finish(Token::Kind::kString, begin);
      token.line = line;
      token.text = token.text.substr(1, token.text.size() - 2);
      return token;
    }
    ++at_;
    return finish(Token::Kind::kPunctuation, begin);
  }

  // PTX 4.5: 0x, 0b and 0 (octal) integers with an optional U; 0f and 0d bit patterns; decimal floats.
  Token number() {
    const size_t begin = at_;
    const char prefix = peek() == '0' ? peek(1) : '\0';
    if (prefix == 'f' || prefix == 'F' || prefix == 'd' || prefix == 'D') {
      const bool is_float = prefix == 'f' || prefix == 'F';
      at_ += 2;
      const uint64_t bits = integer(16, is_float ? 8 : 16);
      Token token = finish(is_float ? Token::Kind::kFloat : Token::Kind::kDouble, begin);
      token.bits = bits;
      return token;
    }
    uint64_t bits = 0;
    if (prefix == 'x' || prefix == 'X') {
      at_ += 2;
      bits = integer(16, 16);
    } else if (prefix == 'b' || prefix == 'B') {
      at_ += 2;
      bits = integer(2, 64);
    } else {
      size_t end = at_;
      while (end < text_.size() && is_digit(text_[end])) ++end;
      const bool fraction = end < text_.size() && (text_[end] == '.' || text_[end] == 'e' || text_[end] == 'E');
      if (fraction) {
        double value = 0;
        const auto result = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
        if (result.ec != std::errc()) fail("malformed number");
        at_ = result.ptr - text_.data();
        Token token = finish(Token::Kind::kDouble, begin);
        token.bits = std::bit_cast<uint64_t>(value);
        return token;
      }
      bits = integer(prefix && is_digit(prefix) ? 8 : 10, 24);
    }
    if (peek() == 'U') ++at_;
    if (is_word(peek())) fail("malformed number");
    Token token = finish(Token::Kind::kInteger, begin);
    token.bits = bits;
    return token;
  }

  uint64_t integer(int base, size_t max_digits) {
    uint64_t value = 0;
    const char* first = text_.data() + at_;
    const char* last = text_.data() + text_.size();
    const auto result = std::from_chars(first, last, value, base);
    if (result.ec != std::errc() || size_t(result.ptr - first) > max_digits) fail("malformed number");
    at_ += result.ptr - first;
    return value;
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text, const std::string& file) { return Lexer(text, file).run(); }

}  // namespace jaxbw::emulator
