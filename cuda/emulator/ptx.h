// A parsed PTX module: names resolved, opcodes not yet understood. The parser makes it, decode.h reads it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "types.h"

namespace jaxbw::emulator {

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

// A variable of any state space but .reg. Its address is assigned when a program is laid out.
struct Variable {
  std::string name;
  Space space = Space::kGlobal;
  uint32_t align = 1;
  uint64_t bytes = 0;
  bool is_extern = false;  // unsized .extern .shared: dynamic shared memory
  std::vector<uint8_t> initial;
};

struct Register {
  std::string name;
  Type type;
};

// Set in the index of a kVariable operand that names a parameter of its function.
constexpr uint32_t kParameterBit = 1u << 31;

struct Operand {
  enum class Kind : uint8_t {
    kRegister,    // index into Function::registers
    kSpecial,     // %tid.x, ...: `name`
    kImmediate,   // `bits`; `float_bytes` 4 or 8 where it was written as a floating-point number
    kVariable,    // variables[index] of the function (`local`; or its parameter), else of the module
    kLabel,       // statement `index`
    kTargets,     // a .branchtargets list: index into Function::branch_targets
    kFunction,    // name of a function
    kPrototype,   // of a call through a pointer
    kAddress,     // [parts[0] + bits, parts[1], ...]; parts[0] may be an immediate
    kVector,      // {parts}
    kPair,        // a|b
    kSink,        // _
    kIdentifier,  // not resolved yet; never leaves the parser
  };
  Kind kind = Kind::kSink;
  bool negated = false;  // !p
  bool local = false;
  uint8_t float_bytes = 0;
  uint32_t index = 0;
  uint32_t scope = 0;
  uint64_t bits = 0;
  std::string name;
  std::vector<Operand> parts;
};

struct Statement {
  std::string opcode;  // whole, as written: "add.s32"
  std::vector<Operand> operands;
  int32_t guard = -1;  // register index
  bool guard_negated = false;
  uint32_t line = 0;
};

// A parameter or return value of a device function, of which its body knows it as a variable or register.
struct Formal {
  bool is_register = false;
  uint32_t index = 0;  // into Function::registers or Function::variables
};

struct Function {
  std::string name;
  uint32_t line = 0;
  bool is_entry = false;
  bool is_declaration = false;
  std::vector<Variable> parameters;     // of an entry
  std::vector<Formal> inputs, outputs;  // of a device function
  std::vector<Variable> variables;
  std::vector<Register> registers;
  std::vector<Statement> statements;
  std::vector<std::vector<uint32_t>> branch_targets;
  uint32_t required_cluster[3] = {0, 0, 0};  // .reqnctapercluster; 0 = not given
  uint32_t max_threads = 0;                  // .maxntid / .reqntid product; 0 = not given
};

// From this line of the PTX on, it is compiled from that line of a source file (.loc); line 0: it does not say.
struct Source {
  uint32_t from = 0;
  uint32_t file = 0, line = 0;
};

struct Module {
  std::string file;
  std::string target;
  std::map<uint32_t, std::string> source_files;
  std::vector<Source> sources;  // in order

  std::string source_of(uint32_t line) const;  // "kernel.py:12", or nothing
  std::vector<Variable> variables;
  std::vector<Function> functions;
};

Module parse(std::string_view text, const std::string& file);

}  // namespace jaxbw::emulator
