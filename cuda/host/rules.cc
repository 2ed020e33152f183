#include "host/rules.h"

#include <string_view>

namespace jaxbw {
namespace {

struct RuleText {
  const char *name, *text;
};

constexpr RuleText kTexts[] = {
#define JAXBW_RULE(code, text) {#code, text},
    JAXBW_RULES(JAXBW_RULE)
#undef JAXBW_RULE
};

constexpr const char* kOperands[] = {"lhs", "rhs", "result"};

std::string listed(const std::vector<uint32_t>& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += i + 1 == values.size() ? " or " : ", ";
    text += std::to_string(values[i]);
  }
  return text;
}

std::string value_of(const Violation& violation, std::string_view name) {
  if (name == "takes") return listed(violation.takes);
  for (const auto& [field, value] : violation.fields) {
    if (field == name) return name == "operand" ? kOperands[value] : std::to_string(value);
  }
  return "?";  // not reached: tests/native/test_plan.py breaks every rule
}

}  // namespace

const char* name(Rule rule) { return kTexts[static_cast<uint32_t>(rule)].name; }

std::string describe(const Violation& violation) {
  std::string text;
  std::string_view rest = kTexts[static_cast<uint32_t>(violation.rule)].text;
  for (size_t open; (open = rest.find('{')) != rest.npos;) {
    const size_t close = rest.find('}', open);
    text += rest.substr(0, open);
    text += value_of(violation, rest.substr(open + 1, close - open - 1));
    rest = rest.substr(close + 1);
  }
  return text += rest;
}

}  // namespace jaxbw
