// From statements to a program: the opcode table's front end.
#include <algorithm>
#include <bit>
#include <cstring>

#include "address.h"
#include "bits.h"
#include "decoder.h"
#include "ptx_isa.h"

namespace jaxbw::emulator {

#define OP(mnemonic, modifiers, operands, decode, section) void decode(Decoder&);
#include "opcodes.inc"
#undef OP

namespace {

constexpr Opcode kOpcodes[] = {
#define OP(mnemonic, modifiers, operands, decode, section) {mnemonic, modifiers, operands, decode, section},
#include "opcodes.inc"
#undef OP
};

uint32_t row_bytes(Type type) {
  const uint32_t bytes = size_bytes(type);
  return bytes == 0 ? 0 : std::max(4u, bytes);
}

}  // namespace

bool lists(std::string_view list, std::string_view word) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(' ', at), list.size());
    if (end == at) {
      at = end + 1;
      continue;
    }
    const std::string_view entry = list.substr(at, end - at);
    if (entry == word || (entry.back() == '*' && word.starts_with(entry.substr(0, entry.size() - 1)))) return true;
    at = end + 1;
  }
  return false;
}

namespace {

void check_operands(const Decoder& decoder) {
  const std::string_view pattern = decoder.opcode.operands;
  size_t required = 0, accepted = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '?' || pattern[i] == ' ') continue;
    const bool optional = i + 1 < pattern.size() && pattern[i + 1] == '?';
    if (accepted < decoder.operands()) {
      const Operand::Kind kind = decoder.statement.operands[accepted].kind;
      const bool is_address = kind == Operand::Kind::kAddress;
      if (pattern[i] != '*' && is_address != (pattern[i] == 'm'))
        decoder.fail("operand " + std::to_string(accepted + 1) + (is_address ? " must not be" : " must be") +
                     " an address in []");
    }
    ++accepted;
    if (!optional) ++required;
  }
  if (decoder.operands() < required || decoder.operands() > accepted)
    decoder.fail("takes " + std::to_string(required) + (accepted > required ? " to " + std::to_string(accepted) : "") +
                 " operands, not " + std::to_string(decoder.operands()));
}

// The special registers of PTX 10 that Machine::special_value has a value for.
bool is_special_register(std::string_view name) {
  static constexpr std::string_view kVectors[] = {"%tid",       "%ntid",       "%ctaid",         "%nctaid",
                                                  "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"};
  static constexpr std::string_view kScalars =
      "%laneid %warpid %nwarpid %cluster_ctarank %cluster_nctarank %is_explicit_cluster %dynamic_smem_size "
      "%total_smem_size "
      "%aggr_smem_size %nsmid %smid %gridid %lanemask_eq %lanemask_lt %lanemask_le %lanemask_gt %lanemask_ge %envreg*";
  if (lists(kScalars, name)) return true;
  const bool component = name.ends_with(".x") || name.ends_with(".y") || name.ends_with(".z");
  return component &&
         std::find(std::begin(kVectors), std::end(kVectors), name.substr(0, name.size() - 2)) != std::end(kVectors);
}

// Function-scope .param variables of a call are per-thread memory, like .local.
bool is_per_thread(const Variable& variable) {
  return variable.space == Space::kLocal || variable.space == Space::kParam;
}

}  // namespace

void decode_statement(RowAllocator& rows, const Statement& statement, Instruction& out) {
  const std::string_view name = statement.opcode;
  const Opcode* opcode = find_opcode(name);
  if (!opcode)
    throw LocatedError(rows.module.file, statement.line,
                       (ptx_has_instruction(name) ? "the emulator does not know " : "PTX has no ") + quoted(name));
  Decoder decoder{.rows = rows, .statement = statement, .opcode = *opcode, .out = out, .modifiers = {}, .types = {}};
  out.line = statement.line;
  out.statement = &statement;
  for (size_t at = opcode->mnemonic.size(); at < name.size();) {
    const size_t end = std::min(name.find('.', at + 1), name.size());
    const std::string_view modifier = name.substr(at + 1, end - at - 1);
    if (!lists(opcode->modifiers, modifier)) {
      const std::string text = std::string(".").append(modifier);
      decoder.fail(ptx_has_modifier(modifier) ? "has the modifier " + text + ", which the emulator does not know here"
                                              : "has the modifier " + text + ": PTX has no such modifier");
    }
    decoder.modifiers.push_back(modifier);
    if (const auto type = type_from_name(modifier)) decoder.types.push_back(*type);
    at = end;
  }
  check_operands(decoder);
  if (statement.guard >= 0) {
    out.guarded = true;
    out.guard_negated = statement.guard_negated;
    out.guard = rows.of_register(uint32_t(statement.guard));
  }
  if (decoder.has("aligned")) out.flags |= kAligned;
  opcode->decode(decoder);
  if (!out.execute) decoder.fail("has a combination of modifiers that the emulator does not know");
}

const Opcode* find_opcode(std::string_view opcode) {
  const Opcode* best = nullptr;
  for (const Opcode& row : kOpcodes) {
    const std::string_view name = row.mnemonic;
    const bool matches = opcode.starts_with(name) && (opcode.size() == name.size() || opcode[name.size()] == '.');
    if (matches && (!best || name.size() > best->mnemonic.size())) best = &row;
  }
  return best;
}

std::vector<Opcode> opcode_table() { return {std::begin(kOpcodes), std::end(kOpcodes)}; }

// --- rows

RowAllocator::RowAllocator(const Module& module, const ModuleData& data, const Function& function, Program& program)
    : module(module), data(data), function(function), program(program), registers_(function.registers.size()) {
  uint64_t shared = program.shared_bytes, local = program.local_bytes;
  for (const Variable& variable : function.variables) {
    if (variable.space == Space::kShared || is_per_thread(variable)) {
      uint64_t& end = variable.space == Space::kShared ? shared : local;
      variable_offsets.push_back(align_up(end, variable.align));
      end = variable_offsets.back() + variable.bytes;
    } else {
      throw LocatedError(module.file, function.line,
                         "variable " + quoted(variable.name) + ": .global and .const belong to the module");
    }
  }
  uint64_t parameters = program.parameter_bytes;
  for (const Variable& parameter : function.parameters) {
    parameters = align_up(parameters, parameter.align);
    program.parameter_offsets.push_back(uint32_t(parameters));
    parameters += parameter.bytes;
  }
  if (shared > (1u << 20) || local > (1u << 20) || parameters > (1u << 16))
    throw LocatedError(module.file, function.line, "function " + quoted(function.name) + " declares too much memory");
  program.shared_bytes = uint32_t(shared);
  program.local_bytes = uint32_t(local);
  program.parameter_bytes = uint32_t(parameters);
}

Reg RowAllocator::allocate(uint32_t bytes) {
  Reg reg{program.file_bytes + kRowHeader, uint8_t(bytes)};
  program.file_bytes = reg.at + std::max(64u, bytes * kLanes);
  program.rows.push_back(reg);
  return reg;
}

Place RowAllocator::formal(const Formal& formal) {
  if (formal.is_register)
    return {.row = of_register(formal.index), .bytes = size_bytes(function.registers[formal.index].type)};
  return {.in_memory = true,
          .offset = uint32_t(variable_offsets[formal.index]),
          .bytes = uint32_t(function.variables[formal.index].bytes)};
}

Reg RowAllocator::of_register(uint32_t index) {
  Reg& reg = registers_[index];
  if (reg.at == 0) reg = allocate(row_bytes(function.registers[index].type));
  return reg;
}

Reg RowAllocator::constant(uint64_t bits, uint32_t bytes) {
  auto [it, added] = constants_.try_emplace({bits, bytes});
  if (added) {
    it->second = allocate(bytes);
    program.constants.push_back({.reg = it->second, .bits = bits, .special = {}});
  }
  return it->second;
}

Reg RowAllocator::shared_address(uint64_t offset, uint32_t bytes) {
  auto [it, added] = shared_.try_emplace({offset, bytes});
  if (added) {
    it->second = allocate(bytes);
    program.constants.push_back(
        {.reg = it->second, .kind = Constant::Kind::kSharedAddress, .bits = offset, .special = {}});
  }
  return it->second;
}

Reg RowAllocator::special(const std::string& name, uint32_t bytes) {
  auto [it, added] = specials_.try_emplace({name, bytes});
  if (added) {
    it->second = allocate(bytes);
    program.constants.push_back({.reg = it->second, .kind = Constant::Kind::kSpecial, .special = name});
  }
  return it->second;
}

// --- decoder

void Decoder::fail(const std::string& message) const {
  throw LocatedError(rows.module.file, statement.line, quoted(statement.opcode) + " " + message);
}

bool Decoder::has(std::string_view modifier) const {
  return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
}

Type Decoder::type(size_t i) const {
  if (i >= types.size()) fail("needs a type");
  return types[i];
}

const Operand& Decoder::operand(size_t i) const {
  if (i >= statement.operands.size()) fail("has too few operands");
  return statement.operands[i];
}

Reg Decoder::written(const Operand& operand, Type type, bool wider) {
  if (operand.kind == Operand::Kind::kSink) return rows.scratch(row_bytes(type));
  if (operand.kind != Operand::Kind::kRegister) fail("writes to an operand that is not a register");
  return read(operand, type, wider);
}

Reg Decoder::read(const Operand& operand, Type type, bool wider) {
  const uint32_t bytes = row_bytes(type);
  switch (operand.kind) {
    case Operand::Kind::kRegister: {
      const Register& reg = rows.function.registers[operand.index];
      const bool both_predicates = (reg.type == Type::k_pred) == (type == Type::k_pred);
      const uint32_t have = size_bytes(reg.type), want = size_bytes(type);
      if (!both_predicates || (wider ? have < want : have != want))
        fail("operand " + quoted(reg.name) + " is ." + std::string(type_name(reg.type)) + " where ." +
             std::string(type_name(type)) + " is meant");
      return rows.of_register(operand.index);
    }
    case Operand::Kind::kImmediate: {
      uint64_t bits = operand.bits;
      if (operand.float_bytes == 8 && (bytes == 4 || type == Type::k_f32))
        bits = std::bit_cast<uint32_t>(float(std::bit_cast<double>(bits)));
      if (operand.float_bytes == 4 && type == Type::k_f64)
        bits = std::bit_cast<uint64_t>(double(std::bit_cast<float>(uint32_t(bits))));
      if (bytes == 0) bits = bits ? ~uint64_t{0} : 0;
      if (size_bytes(type) < 8 && bytes) bits &= (uint64_t{1} << 8 * size_bytes(type)) - 1;
      return rows.constant(bits, bytes);
    }
    case Operand::Kind::kSpecial:
      if (!is_special_register(operand.name)) fail("has an unknown special register " + quoted(operand.name));
      return rows.special(operand.name, bytes);
    case Operand::Kind::kVariable: {
      if (operand.local && (operand.index & kParameterBit))
        return rows.constant(kParamBase + rows.program.parameter_offsets[operand.index & ~kParameterBit], bytes);
      const Variable& variable =
          operand.local ? rows.function.variables[operand.index] : rows.module.variables[operand.index];
      if (variable.space == Space::kShared) {
        // Dynamic shared memory starts behind all static shared memory, under every name.
        const uint64_t offset = variable.is_extern ? rows.program.shared_bytes
                                : operand.local    ? rows.variable_offsets[operand.index]
                                                   : rows.data.addresses[operand.index];
        return rows.shared_address(offset, bytes);
      }
      return rows.constant(operand.local ? rows.variable_offsets[operand.index] : rows.data.addresses[operand.index],
                           bytes);
    }
    case Operand::Kind::kFunction:
      fail("takes the address of " + quoted(operand.name) + ": calls through a pointer are not supported");
    default:
      fail("has an operand of the wrong kind");
  }
}

Place Decoder::passed(const Operand& operand, uint32_t bytes, bool written) {
  if (operand.kind == Operand::Kind::kVariable) {
    if (!operand.local || (operand.index & kParameterBit) ||
        rows.function.variables[operand.index].space != Space::kParam)
      fail("passes " + quoted(operand.name) + ", which is no .param variable of this function");
    const Place place = rows.formal({.index = operand.index});
    if (place.bytes != bytes)
      fail("passes " + quoted(operand.name) + " of " + std::to_string(place.bytes) + " bytes where " +
           std::to_string(bytes) + " are meant");
    return place;
  }
  static constexpr std::pair<uint32_t, Type> kTypes[] = {
      {1, Type::k_b8}, {2, Type::k_b16}, {4, Type::k_b32}, {8, Type::k_b64}, {16, Type::k_b128}};
  for (const auto& [size, type] : kTypes)
    if (size == bytes) {
      out.list.push_back(written ? this->written(operand, type, true) : read(operand, type, true));
      return {.row = out.list.back(), .bytes = bytes};
    }
  fail("passes " + std::to_string(bytes) + " bytes in a register");
}

void Decoder::append_source(Reg reg) {
  if (out.sources == std::size(out.s)) fail("has too many sources");
  out.s[out.sources++] = reg;
}

void Decoder::destination(const Operand& operand, Type type, bool wider) {
  if (out.destinations == std::size(out.d)) fail("has too many destinations");
  out.d[out.destinations++] = written(operand, type, wider);
}

void Decoder::source(const Operand& operand, Type type, bool wider) { append_source(read(operand, type, wider)); }

Space Decoder::address(size_t i, Space space) {
  const Operand& whole = operand(i);
  if (whole.kind != Operand::Kind::kAddress) fail("needs an address in []");
  const Operand& base = whole.parts[0];
  out.immediate = whole.bits;
  if (base.kind == Operand::Kind::kVariable) {
    if (base.local && (base.index & kParameterBit))
      space = Space::kParam;
    else if (base.local && is_per_thread(rows.function.variables[base.index]))
      space = Space::kLocal;
    else if (space == Space::kGeneric)
      fail("addresses a variable without its state space");
  }
  const bool narrow =
      base.kind == Operand::Kind::kRegister && size_bytes(rows.function.registers[base.index].type) == 4;
  if (narrow && (space == Space::kGeneric || space == Space::kGlobal)) fail("takes a 64-bit address");
  source(base, narrow ? Type::k_b32 : Type::k_b64);
  return space;
}

uint64_t Decoder::constant(size_t i) const {
  if (operand(i).kind != Operand::Kind::kImmediate) fail("operand " + std::to_string(i + 1) + " must be a constant");
  return operand(i).bits;
}

void Decoder::simple(Handler handler, Type destination_type, Type source_type) {
  destination(0, destination_type);
  for (size_t i = 1; i < operands(); ++i) source(i, source_type);
  out.execute = handler;
  out.flags |= kPure;
}

}  // namespace jaxbw::emulator
