// The PTX parser: module directives, functions, nested scopes, statements (PTX 4 and 5).
//
// Names are scoped by braces, since inline assembly repeats its labels and registers in each use. A register
// or variable must be declared before it is used; a label may follow, so that labels are resolved at the end
// of a function. Registers of a range (".reg .b32 %r<100>") come to exist when they are first named.
//
// Longer than other files: one class, whose rules call each other.
#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "error.h"
#include "lexer.h"
#include "ptx.h"

namespace jaxbw::emulator {
namespace {

using Kind = Token::Kind;

constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 32;
constexpr size_t kMaxRegisters = 1 << 17;

std::optional<Space> space_from_name(std::string_view name) {
  if (name == ".global") return Space::kGlobal;
  if (name == ".shared" || name == ".shared::cta") return Space::kShared;
  if (name == ".local") return Space::kLocal;
  if (name == ".const") return Space::kConst;
  if (name == ".param") return Space::kParam;
  return std::nullopt;
}

struct Scope {
  struct Range {
    Type type;
    uint64_t count;
  };
  int32_t parent = -1;
  std::unordered_map<std::string, uint32_t> registers;
  std::unordered_map<std::string, Range> ranges;
  std::unordered_map<std::string, uint32_t> variables;
  std::unordered_map<std::string, uint32_t> labels;
  std::unordered_map<std::string, uint32_t> branch_targets;
  std::unordered_set<std::string> prototypes;
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : tokens_(tokenize(text, file)) { module_.file = file; }

  Module run() {
    while (peek().kind != Kind::kEnd) module_item();
    return std::move(module_);
  }

 private:
  // --- tokens
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool accept(char c) { return peek().is(c) && (take(), true); }
  bool accept(std::string_view word) { return peek().is(word) && (take(), true); }
  [[noreturn]] void fail(const std::string& message) const { throw LocatedError(module_.file, peek().line, message); }
  void expect(char c) {
    if (!accept(c)) fail(std::string("expected '") + c + "' before '" + std::string(peek().text) + "'");
  }
  std::string word() {
    if (peek().kind != Kind::kWord) fail("expected a name before '" + std::string(peek().text) + "'");
    return std::string(take().text);
  }
  uint64_t integer() {
    if (peek().kind != Kind::kInteger) fail("expected an integer before '" + std::string(peek().text) + "'");
    return take().bits;
  }
  void skip_past(char c) {
    while (!peek().is(c)) {
      if (peek().kind == Kind::kEnd) fail(std::string("expected '") + c + "' before the end of the file");
      take();
    }
    take();
  }
  static uint32_t number(std::string_view text) {
    uint32_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
  // .file index "path"
  void source_file() {
    if (peek(2).kind == Kind::kString) {
      const std::string_view path = peek(2).text;
      module_.source_files[number(peek(1).text)] = path.substr(path.rfind('/') + 1);
    }
    skip_line();
  }
  void skip_line() {
    const uint32_t line = peek().line;
    while (peek().kind != Kind::kEnd && peek().line == line) take();
  }

  // --- module scope
  void module_item() {
    const Token& token = peek();
    if (token.is(".version") || token.is(".address_size")) return skip_line();
    if (token.is(".file")) return source_file();
    if (token.is(".target")) {
      take();
      module_.target = word();
      return skip_line_of(token.line);
    }
    if (token.is(".section")) return skip_past('}');
    if (token.is(".pragma") || token.is(".alias") || token.is(".loc"))
      return token.is(".loc") ? skip_line() : skip_past(';');
    bool is_extern = false;
    for (;; take()) {
      if (peek().is(".extern"))
        is_extern = true;
      else if (!peek().is(".visible") && !peek().is(".weak") && !peek().is(".common"))
        break;
    }
    if (peek().is(".entry") || peek().is(".func")) return function(is_extern);
    if (const auto space = space_from_name(peek().text); space && peek().kind == Kind::kDirective) {
      take();
      for (Variable& variable : declaration(*space, is_extern)) module_.variables.push_back(std::move(variable));
      return;
    }
    fail("unknown directive '" + std::string(peek().text) + "'");
  }

  void skip_line_of(uint32_t line) {
    while (peek().kind != Kind::kEnd && peek().line == line) take();
  }

  // After the state space: [.align n] [.v2|.v4] .type name [dims] [= init] {, name ...} ;
  std::vector<Variable> declaration(Space space, bool is_extern) {
    std::vector<Variable> out;
    const Variable common = declared_type(space, is_extern);
    do {
      out.push_back(common);
      declared_name(out.back());
    } while (accept(','));
    expect(';');
    return out;
  }

  // Alignment and element size (in `bytes`) of a declaration.
  Variable declared_type(Space space, bool is_extern) {
    Variable variable{.name = {}, .space = space, .align = 0, .bytes = 0, .is_extern = is_extern, .initial = {}};
    uint32_t vector = 1;
    for (;;) {
      if (peek().kind != Kind::kDirective) fail("expected a type before '" + std::string(peek().text) + "'");
      const std::string_view name = take().text;
      if (name == ".align") {
        const uint64_t align = integer();
        if (align == 0 || align > 1024 * 1024 || (align & (align - 1))) fail("bad alignment");
        variable.align = uint32_t(align);
      } else if (name == ".v2" || name == ".v4") {
        vector = name == ".v2" ? 2 : 4;
      } else if (name == ".ptr" || space_from_name(name) || name == ".attribute" || name == ".unified") {
        continue;
      } else if (const auto type = type_from_name(name.substr(1))) {
        variable.bytes = size_bytes(*type) * vector;
        element_bytes_ = size_bytes(*type);
        if (variable.align == 0) variable.align = uint32_t(std::max<uint64_t>(1, variable.bytes));
        // A parameter's pointer attributes follow its type.
        while (peek().is(".ptr") || peek().is(".align") ||
               (peek().kind == Kind::kDirective && space_from_name(peek().text)))
          if (take().text == ".align") integer();
        return variable;
      } else {
        fail("unknown type '" + std::string(name) + "'");
      }
    }
  }

  void declared_name(Variable& variable) {
    variable.name = word();
    while (accept('[')) {
      const uint64_t count = peek().is(']') ? 0 : integer();
      expect(']');
      if (count > kMaxVariableBytes || variable.bytes * count > kMaxVariableBytes) fail("variable too large");
      variable.bytes *= count;
    }
    if (accept('=')) initializer(variable);
  }

  void initializer(Variable& variable) {
    const auto element = [&] {
      const bool negative = accept('-');
      const Token token = take();
      if (token.kind != Kind::kInteger && token.kind != Kind::kFloat && token.kind != Kind::kDouble)
        fail("only numbers are supported in an initializer");
      const uint64_t bits = negative ? 0 - token.bits : token.bits;
      for (uint32_t i = 0; i < element_bytes_; ++i) variable.initial.push_back(uint8_t(bits >> 8 * i));
    };
    if (!accept('{')) return element();
    uint32_t depth = 1;
    while (depth) {
      if (accept('{'))
        ++depth;
      else if (accept('}'))
        --depth;
      else if (!accept(','))
        element();
      if (variable.initial.size() > variable.bytes) fail("initializer is longer than the variable");
    }
  }

  // --- functions
  void function(bool is_extern) {
    function_ = Function{};
    function_.line = peek().line;
    module_.sources.push_back({.from = function_.line});
    function_.is_entry = take().text == ".entry";
    scopes_.assign(1, Scope{});
    scope_ = 0;
    if (!function_.is_entry && peek().is('(')) formals(function_.outputs);
    function_.name = word();
    if (peek().is('(')) function_.is_entry ? parameters() : formals(function_.inputs);
    for (;;) {
      if (accept(';')) {
        function_.is_declaration = true;
        break;
      }
      if (peek().is('{')) {
        if (is_extern) fail("an .extern function has a body");
        body();
        break;
      }
      function_directive();
    }
    module_.functions.push_back(std::move(function_));
  }

  void parameters() {
    expect('(');
    if (accept(')')) return;
    do {
      Variable variable = parameter();
      scopes_[0].variables[variable.name] = uint32_t(function_.parameters.size()) | kParameterBit;
      function_.parameters.push_back(std::move(variable));
    } while (accept(','));
    expect(')');
  }

  Variable parameter() {
    if (!accept(".param")) fail("expected .param before '" + std::string(peek().text) + "'");
    Variable variable = declared_type(Space::kParam, false);
    declared_name(variable);
    return variable;
  }

  // Of a device function: registers, or variables that its body addresses like its own .param variables.
  void formals(std::vector<Formal>& out) {
    expect('(');
    if (accept(')')) return;
    do {
      if (accept(".reg")) {
        const Type type = register_type();
        const std::string name = word();
        out.push_back({.is_register = true, .index = scopes_[0].registers[name] = new_register(name, type)});
        continue;
      }
      Variable variable = parameter();
      out.push_back({.index = scopes_[0].variables[variable.name] = uint32_t(function_.variables.size())});
      function_.variables.push_back(std::move(variable));
    } while (accept(','));
    expect(')');
  }

  void function_directive() {
    const std::string name(peek().text);
    if (peek().kind != Kind::kDirective) fail("expected a function body before '" + name + "'");
    take();
    if (name == ".pragma") return skip_past(';');
    if (name == ".noreturn" || name == ".explicitcluster" || name == ".blocksareclusters") return;
    uint32_t values[3] = {1, 1, 1};
    uint32_t count = 0;
    do {
      if (count == 3) fail(name + " takes at most 3 values");
      values[count++] = uint32_t(std::min<uint64_t>(integer(), 1u << 20));
    } while (accept(','));
    if (name == ".maxntid" || name == ".reqntid") {
      function_.max_threads = uint32_t(std::min<uint64_t>(uint64_t{values[0]} * values[1] * values[2], 1u << 20));
    } else if (name == ".reqnctapercluster") {
      std::copy(values, values + 3, function_.required_cluster);
    } else if (name != ".minnctapersm" && name != ".maxnreg" && name != ".maxclusterrank" && name != ".maxnctapersm") {
      fail("unknown function directive '" + name + "'");
    }
  }

  void body() {
    expect('{');
    std::vector<int32_t> open{scope_};
    while (!open.empty()) {
      if (peek().kind == Kind::kEnd) fail("function '" + function_.name + "' has no end");
      if (accept('{')) {
        if (open.size() > 64) fail("scopes are nested too deep");
        scopes_.push_back(Scope{.parent = scope_});
        scope_ = int32_t(scopes_.size()) - 1;
        open.push_back(scope_);
      } else if (accept('}')) {
        open.pop_back();
        if (!open.empty()) scope_ = open.back();
      } else {
        body_item();
      }
    }
    for (Statement& statement : function_.statements)
      for (Operand& operand : statement.operands) resolve(operand, statement.line);
    for (auto& [targets, line] : pending_targets_)
      for (Operand& target : targets.second) {
        resolve(target, line);
        if (target.kind != Operand::Kind::kLabel)
          throw LocatedError(module_.file, line, "a branch target is not a label");
        function_.branch_targets[targets.first].push_back(target.index);
      }
    pending_targets_.clear();
  }

  void body_item() {
    const Token& token = peek();
    if (accept(';')) return;
    if (token.kind == Kind::kWord && peek(1).is(':')) return label();
    if (token.kind == Kind::kDirective) {
      if (token.is(".reg")) return registers();
      if (token.is(".loc")) return location();
      if (token.is(".pragma")) return skip_past(';');
      if (const auto space = space_from_name(token.text)) {
        take();
        for (Variable& variable : declaration(*space, false)) {
          scopes_[scope_].variables[variable.name] = uint32_t(function_.variables.size());
          function_.variables.push_back(std::move(variable));
        }
        return;
      }
      fail("unknown directive '" + std::string(token.text) + "'");
    }
    statement();
  }

  // ".loc file line column [, function_name symbol [+ n], inlined_at file line column]", ended by the line.
  void location() {
    uint32_t line = peek().line;
    const uint32_t file = number(peek(1).text);
    module_.sources.push_back({line, file, number(peek(2).text)});
    while (peek().kind != Kind::kEnd && peek().line == line && !peek().is(';')) take();
    accept(';');
  }

  void label() {
    const uint32_t line = peek().line;
    const std::string name = word();
    expect(':');
    if (peek().is(".branchtargets")) {
      take();
      std::vector<Operand> targets;
      do {
        targets.push_back({.kind = Operand::Kind::kIdentifier, .scope = uint32_t(scope_), .name = word()});
      } while (accept(','));
      expect(';');
      scopes_[scope_].branch_targets[name] = uint32_t(function_.branch_targets.size());
      pending_targets_.push_back({{uint32_t(function_.branch_targets.size()), std::move(targets)}, line});
      function_.branch_targets.emplace_back();
      return;
    }
    if (peek().is(".callprototype") || peek().is(".calltargets")) {
      scopes_[scope_].prototypes.insert(name);
      return skip_past(';');
    }
    if (!scopes_[scope_].labels.emplace(name, uint32_t(function_.statements.size())).second)
      fail("label '" + name + "' is defined twice in one scope");
  }

  void registers() {
    take();
    const Type type = register_type();
    do {
      const std::string name = word();
      Scope& scope = scopes_[scope_];
      if (accept('<')) {
        scope.ranges[name] = {type, integer()};
        expect('>');
      } else {
        scope.registers[name] = new_register(name, type);
      }
    } while (accept(','));
    expect(';');
  }

  Type register_type() {
    const auto type = type_from_name(peek().text.substr(std::min<size_t>(1, peek().text.size())));
    if (!type || peek().kind != Kind::kDirective) fail("unknown register type '" + std::string(peek().text) + "'");
    take();
    return *type;
  }

  uint32_t new_register(const std::string& name, Type type) {
    if (function_.registers.size() >= kMaxRegisters) fail("too many registers");
    function_.registers.push_back({name, type});
    return uint32_t(function_.registers.size()) - 1;
  }

  // --- statements
  void statement() {
    Statement out;
    out.line = peek().line;
    if (accept('@')) {
      out.guard_negated = accept('!');
      Operand guard = simple_operand();
      if (guard.kind != Operand::Kind::kRegister || function_.registers[guard.index].type != Type::k_pred)
        fail("a guard must be a predicate register");
      out.guard = int32_t(guard.index);
    }
    out.opcode = word();
    if (!peek().is(';')) {
      do out.operands.push_back(operand());
      while (accept(','));
    }
    expect(';');
    function_.statements.push_back(std::move(out));
  }

  Operand operand() {
    Operand first = simple_operand();
    if (!accept('|')) return first;
    Operand pair{.kind = Operand::Kind::kPair};
    pair.parts.push_back(std::move(first));
    pair.parts.push_back(simple_operand());
    return pair;
  }

  Operand simple_operand() {
    if (++depth_ > 8) fail("operands are nested too deep");
    Operand out = unguarded_operand();
    --depth_;
    return out;
  }

  Operand unguarded_operand() {
    if (accept('[')) return address();
    if (peek().is('{') || peek().is('(')) return list();
    if (accept('!')) {
      Operand out = simple_operand();
      out.negated = true;
      return out;
    }
    const bool negative = accept('-');
    const Token& token = peek();
    switch (token.kind) {
      case Kind::kInteger:
      case Kind::kFloat:
      case Kind::kDouble: {
        Operand out{.kind = Operand::Kind::kImmediate};
        out.float_bytes = token.kind == Kind::kFloat ? 4 : token.kind == Kind::kDouble ? 8 : 0;
        out.bits = token.bits;
        if (negative) {
          if (out.float_bytes)
            out.bits ^= uint64_t{1} << (8 * out.float_bytes - 1);
          else
            out.bits = 0 - out.bits;
        }
        take();
        return out;
      }
      case Kind::kWord:
        if (negative) fail("only a number can be negated");
        return identifier(std::string(take().text));
      default:
        fail("expected an operand before '" + std::string(token.text) + "'");
    }
  }

  Operand identifier(const std::string& name) {
    if (name == "_") return {.kind = Operand::Kind::kSink};
    if (name == "WARP_SZ") return {.kind = Operand::Kind::kImmediate, .bits = 32};
    for (int32_t s = scope_; s >= 0; s = scopes_[s].parent) {
      if (const auto it = scopes_[s].registers.find(name); it != scopes_[s].registers.end())
        return {.kind = Operand::Kind::kRegister, .index = it->second};
      if (const auto index = register_of_range(s, name)) return {.kind = Operand::Kind::kRegister, .index = *index};
      if (const auto it = scopes_[s].variables.find(name); it != scopes_[s].variables.end())
        return {.kind = Operand::Kind::kVariable, .local = true, .index = it->second, .name = name};
    }
    if (name[0] == '%') return {.kind = Operand::Kind::kSpecial, .name = name};
    return {.kind = Operand::Kind::kIdentifier, .scope = uint32_t(scope_), .name = name};
  }

  std::optional<uint32_t> register_of_range(int32_t scope, const std::string& name) {
    size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    if (digits == name.size()) return std::nullopt;
    const auto range = scopes_[scope].ranges.find(name.substr(0, digits));
    uint64_t number = 0;
    const auto result = std::from_chars(name.data() + digits, name.data() + name.size(), number);
    if (range == scopes_[scope].ranges.end() || result.ec != std::errc() || number >= range->second.count)
      return std::nullopt;
    return scopes_[scope].registers[name] = new_register(name, range->second.type);
  }

  Operand address() {
    Operand out{.kind = Operand::Kind::kAddress};
    out.parts.push_back(simple_operand());
    while (peek().is('+') || peek().is('-')) {
      const bool negative = take().is('-') != accept('-');
      const uint64_t value = integer();
      out.bits += negative ? 0 - value : value;
    }
    while (accept(',')) out.parts.push_back(simple_operand());
    expect(']');
    return out;
  }

  Operand list() {
    const char close = take().is('{') ? '}' : ')';
    Operand out{.kind = Operand::Kind::kVector};
    if (accept(close)) return out;
    do out.parts.push_back(simple_operand());
    while (accept(','));
    expect(close);
    return out;
  }

  // Whatever was no register when it was named: a label, a variable or function of the module.
  void resolve(Operand& operand, uint32_t line) {
    for (Operand& part : operand.parts) resolve(part, line);
    if (operand.kind != Operand::Kind::kIdentifier) return;
    for (int32_t s = int32_t(operand.scope); s >= 0; s = scopes_[s].parent) {
      if (const auto it = scopes_[s].labels.find(operand.name); it != scopes_[s].labels.end()) {
        operand.kind = Operand::Kind::kLabel;
        operand.index = it->second;
        return;
      }
      if (const auto it = scopes_[s].branch_targets.find(operand.name); it != scopes_[s].branch_targets.end()) {
        operand.kind = Operand::Kind::kTargets;
        operand.index = it->second;
        return;
      }
      if (scopes_[s].prototypes.contains(operand.name)) {
        operand.kind = Operand::Kind::kPrototype;
        return;
      }
    }
    for (size_t i = 0; i < module_.variables.size(); ++i) {
      if (module_.variables[i].name != operand.name) continue;
      operand.kind = Operand::Kind::kVariable;
      operand.index = uint32_t(i);
      return;
    }
    for (const Function& function : module_.functions)
      if (function.name == operand.name) operand.kind = Operand::Kind::kFunction;
    if (operand.name == function_.name) operand.kind = Operand::Kind::kFunction;
    if (operand.kind == Operand::Kind::kIdentifier)
      throw LocatedError(module_.file, line, "'" + operand.name + "' is not declared");
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Module module_;
  Function function_;
  std::vector<Scope> scopes_;
  int32_t scope_ = 0;
  uint32_t depth_ = 0;
  uint32_t element_bytes_ = 1;
  std::vector<std::pair<std::pair<uint32_t, std::vector<Operand>>, uint32_t>> pending_targets_;
};

}  // namespace

std::string Module::source_of(uint32_t line) const {
  const auto next = std::upper_bound(sources.begin(), sources.end(), line,
                                     [](uint32_t at, const Source& source) { return at < source.from; });
  if (next == sources.begin()) return {};
  const Source& source = *std::prev(next);
  const auto file = source_files.find(source.file);
  return source.line && file != source_files.end() ? file->second + ":" + std::to_string(source.line) : "";
}

Module parse(std::string_view text, const std::string& file) { return Parser(text, file).run(); }

}  // namespace jaxbw::emulator
