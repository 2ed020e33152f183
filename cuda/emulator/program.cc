// A program: the module's variables laid out, and an entry decoded with all functions that it calls
// (PTX 7.1, 9.7.12.5).
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "address.h"
#include "bits.h"
#include "decoder.h"

namespace jaxbw::emulator {
namespace {

constexpr size_t kMaxCallDepth = 64;

// A forward declaration stands for the definition elsewhere in the module.
using Functions = std::unordered_map<std::string_view, const Function*>;

Functions functions_of(const Module& module) {
  Functions functions;
  for (const Function& function : module.functions) {
    const Function*& known = functions[function.name];
    if (!known || known->is_declaration) known = &function;
  }
  return functions;
}

// The functions that an entry reaches, callees first: lanes in a callee then have the lower pc, so that they return
// before their warp goes on without them.
class CallOrder {
 public:
  CallOrder(const Module& module, const Function& entry) : module_(module), functions_(functions_of(module)) {
    visit(entry);
  }

  std::vector<const Function*> take() { return std::move(order_); }

 private:
  void visit(const Function& function) {
    if (!visited_.insert(&function).second) return;
    path_.push_back(&function);
    for (const Statement& statement : function.statements) {
      if (statement.opcode != "call" && !statement.opcode.starts_with("call.")) continue;
      for (const Operand& operand : statement.operands)
        if (operand.kind == Operand::Kind::kFunction) enter(*functions_.at(operand.name), statement.line);
    }
    path_.pop_back();
    order_.push_back(&function);
  }

  void enter(const Function& callee, uint32_t line) {
    const auto fail = [&](const std::string& message) { throw LocatedError(module_.file, line, message); };
    if (callee.is_entry) fail("calls the kernel " + quoted(callee.name));
    if (callee.is_declaration && !find_host_function(callee.name))
      fail("calls " + quoted(callee.name) + ", which the module does not define");
    if (std::find(path_.begin(), path_.end(), &callee) != path_.end())
      fail("calls " + quoted(callee.name) + " recursively, which is not supported");
    if (path_.size() > kMaxCallDepth) fail("calls are nested deeper than " + std::to_string(kMaxCallDepth));
    visit(callee);
  }

  const Module& module_;
  const Functions functions_;
  std::vector<const Function*> order_, path_;
  std::unordered_set<const Function*> visited_;
};

Frame frame_of(RowAllocator& rows) {
  Frame frame{.begin = uint32_t(rows.program.code.size()), .return_to = rows.scratch(4)};
  for (const Formal& formal : rows.function.inputs) frame.inputs.push_back(rows.formal(formal));
  for (const Formal& formal : rows.function.outputs) frame.outputs.push_back(rows.formal(formal));
  return frame;
}

// The largest alignment of the symbols among these operands that name dynamic shared memory.
uint32_t dynamic_alignment(const Module& module, const std::vector<Operand>& operands) {
  uint32_t align = 1;
  for (const Operand& operand : operands) {
    align = std::max(align, dynamic_alignment(module, operand.parts));
    if (operand.kind != Operand::Kind::kVariable || operand.local) continue;
    const Variable& variable = module.variables[operand.index];
    if (variable.space == Space::kShared && variable.is_extern) align = std::max(align, variable.align);
  }
  return align;
}

// The body of a function that the machine provides: one instruction, which finds its parameters in the frame.
void provide(const RowAllocator& rows, Instruction& out) {
  static const Statement kHostStatement{.opcode = "call", .operands = {}};
  const HostFunction& host = *find_host_function(rows.function.name);
  const Frame& frame = rows.program.frames[rows.frame];
  const auto agrees = [](const std::vector<Place>& places, const std::vector<uint32_t>& bytes) {
    return std::equal(places.begin(), places.end(), bytes.begin(), bytes.end(),
                      [](const Place& place, uint32_t size) { return place.in_memory && place.bytes == size; });
  };
  if (!agrees(frame.inputs, host.inputs) || !agrees(frame.outputs, host.outputs))
    throw LocatedError(rows.module.file, rows.function.line,
                       quoted(host.name) + " is declared with other parameters than CUDA's");
  out.statement = &kHostStatement;
  out.line = rows.function.line;
  out.target = rows.frame;
  out.execute = host.execute;
}

void decode_function(RowAllocator& rows) {
  Program& program = rows.program;
  const Function& function = rows.function;
  const size_t begin = program.code.size(), size = function.is_declaration ? 1 : function.statements.size();
  rows.code_begin = uint32_t(begin);
  rows.targets_begin = uint32_t(program.branch_targets.size());
  for (std::vector<uint32_t> targets : function.branch_targets) {
    for (uint32_t& target : targets) target += rows.code_begin;
    program.branch_targets.push_back(std::move(targets));
  }
  program.code.resize(begin + size + 1);
  if (function.is_declaration) provide(rows, program.code[begin]);
  for (size_t i = 0; i < function.statements.size(); ++i)
    decode_statement(rows, function.statements[i], program.code[begin + i]);
  // Running off the end is a return (PTX 9.7.12.6).
  static const Statement kEnd{.opcode = "ret", .operands = {}};
  decode_statement(rows, kEnd, program.code.back());
}

// Finds what uses rows that a wgmma has as well, as accumulators or A.
void mark_uses_of_fragments(std::vector<Instruction>& code) {
  std::unordered_set<uint32_t> fragments;
  for (const Instruction& in : code)
    if (in.flags & kOwnsList)
      for (const Reg reg : in.list) fragments.insert(reg.at);
  const auto is_fragment = [&](Reg reg) { return fragments.contains(reg.at); };
  for (Instruction& in : code)
    if (!(in.flags & kOwnsList) &&
        (std::any_of(in.s, in.s + in.sources, is_fragment) || std::any_of(in.d, in.d + in.destinations, is_fragment) ||
         std::any_of(in.list.begin(), in.list.end(), is_fragment)))
      in.flags |= kUsesFragments;
}

}  // namespace

ModuleData lay_out(const Module& module) {
  ModuleData data;
  uint64_t shared = 0;
  for (const Variable& variable : module.variables) {
    if (variable.space == Space::kShared) {
      if (variable.is_extern) {
        data.addresses.push_back(0);
        continue;
      }
      shared = align_up(shared, variable.align);
      data.addresses.push_back(shared);
      shared += variable.bytes;
      if (shared > (1u << 20)) throw Error("shared variable " + quoted(variable.name) + " is too large");
      continue;
    }
    const uint64_t begin = align_up(data.bytes.size(), variable.align);
    if (begin + variable.bytes > (uint64_t{1} << 30))
      throw Error("variable " + quoted(variable.name) + " is too large");
    data.addresses.push_back(kModuleDataAddress + begin);
    data.bytes.resize(begin + variable.bytes);
    std::copy(variable.initial.begin(), variable.initial.end(), data.bytes.begin() + begin);
  }
  data.shared_bytes = uint32_t(shared);
  return data;
}

Program decode(const Module& module, const ModuleData& data, const Function& function) {
  if (function.is_declaration)
    throw LocatedError(module.file, function.line, "the kernel " + quoted(function.name) + " is not defined");
  Program program;
  program.module = &module;
  program.function = &function;
  program.shared_bytes = data.shared_bytes;
  std::vector<std::unique_ptr<RowAllocator>>
      rows;  // all made first: dynamic shared memory begins behind what they allot
  for (const Function* each : CallOrder(module, function).take())
    rows.push_back(std::make_unique<RowAllocator>(module, data, *each, program));
  uint32_t align = 1;
  for (const auto& each : rows)
    for (const Statement& statement : each->function.statements)
      align = std::max(align, dynamic_alignment(module, statement.operands));
  program.shared_bytes = uint32_t(align_up(program.shared_bytes, align));
  std::map<std::string_view, uint32_t> frames;
  for (const auto& each : rows) {
    each->callees = &frames;
    if (!each->function.is_entry) {
      each->frame = frames[each->function.name] = uint32_t(program.frames.size());
      program.frames.push_back(frame_of(*each));
    }
    decode_function(*each);
  }
  program.begin = rows.back()->code_begin;
  mark_uses_of_fragments(program.code);
  return program;
}

}  // namespace jaxbw::emulator
