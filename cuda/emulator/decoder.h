// What a row of the opcode table decodes with: the modifiers and operands of one statement, checked.
#pragma once

#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "error.h"
#include "instruction.h"

namespace jaxbw::emulator {

struct Decoder;

struct Opcode {
  std::string_view mnemonic;   // the fixed first part: "cp.async.bulk.tensor"
  std::string_view modifiers;  // accepted, in any order
  std::string_view operands;   // one letter each: d destination, s source, m [address], * any, ? after = optional
  void (*decode)(Decoder&);
  std::string_view section;  // of the PTX ISA
};

// Allots rows; shared by all statements of a function. Its making allots the function's memory.
class RowAllocator {
 public:
  RowAllocator(const Module& module, const ModuleData& data, const Function& function, Program& program);

  Place formal(const Formal& formal);

  Reg of_register(uint32_t index);
  Reg constant(uint64_t bits, uint32_t bytes);
  Reg shared_address(uint64_t offset, uint32_t bytes);
  Reg special(const std::string& name, uint32_t bytes);
  Reg scratch(uint32_t bytes) { return allocate(bytes); }

  const Module& module;
  const ModuleData& data;
  const Function& function;
  Program& program;
  std::vector<uint64_t> variable_offsets;  // of the function's own variables, in their space
  // Set before its statements are decoded: where they and its branch targets begin in the program, its frame (device
  // functions only), and the frames of the functions that it calls.
  uint32_t code_begin = 0, targets_begin = 0, frame = 0;
  const std::map<std::string_view, uint32_t>* callees = nullptr;

 private:
  Reg allocate(uint32_t bytes);
  std::vector<Reg> registers_;
  std::map<std::pair<uint64_t, uint32_t>, Reg> constants_, shared_;
  std::map<std::pair<std::string, uint32_t>, Reg> specials_;
};

struct Decoder {
  RowAllocator& rows;
  const Statement& statement;
  const Opcode& opcode;
  Instruction& out;
  std::vector<std::string_view> modifiers;  // as written, after the mnemonic
  std::vector<Type> types;                  // those among them that are types

  [[noreturn]] void fail(const std::string& message) const;
  bool has(std::string_view modifier) const;
  // `bits` where the opcode has the modifier, else 0.
  uint64_t bits_if(std::string_view modifier, uint64_t bits) const { return has(modifier) ? bits : 0; }
  Type type(size_t i = 0) const;
  size_t operands() const { return statement.operands.size(); }
  const Operand& operand(size_t i) const;

  // Appends operand i to d[] or s[]. Its register must be as wide as the type; `wider` also takes a wider one.
  void destination(size_t i, Type type, bool wider = false) { destination(operand(i), type, wider); }
  void destination(const Operand& operand, Type type, bool wider = false);
  void source(size_t i, Type type, bool wider = false) { source(operand(i), type, wider); }
  void source(const Operand& operand, Type type, bool wider = false);
  void source_bits(uint64_t bits, uint32_t bytes) { append_source(rows.constant(bits, bytes)); }
  Reg read(const Operand& operand, Type type, bool wider = false);
  Reg written(const Operand& operand, Type type, bool wider = false);
  // An argument or result of a call, of as many bytes as the formal parameter.
  Place passed(const Operand& operand, uint32_t bytes, bool written);
  void append_source(Reg reg);

  // [base + offset]: the base goes to s[], the offset to `immediate`. Returns the state space of a variable base,
  // else `space`.
  Space address(size_t i, Space space);

  // An integer that must be known when the program is decoded.
  uint64_t constant(size_t i) const;
  // d, a, b, ...: every operand of one type, pure.
  void simple(Handler handler, Type type) { simple(handler, type, type); }
  void simple(Handler handler, Type destination_type, Type source_type);
};

void decode_statement(RowAllocator& rows, const Statement& statement, Instruction& out);

// Functions without a body that the machine provides (host_functions.cc).
struct HostFunction {
  std::string_view name;
  std::vector<uint32_t> inputs, outputs;  // bytes
  Handler execute;
};
const HostFunction* find_host_function(std::string_view name);

// Is `word` one of the space-separated words of `list`? A word there that ends in * stands for all with that beginning.
bool lists(std::string_view list, std::string_view word);

// The row of the table that `opcode` (as written) belongs to: the longest mnemonic that it starts with.
const Opcode* find_opcode(std::string_view opcode);
std::vector<Opcode> opcode_table();

}  // namespace jaxbw::emulator
