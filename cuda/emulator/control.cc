// Control flow (PTX 9.7.12), and what only steers the machine (9.7.19).
#include <cstring>

#include "decoder.h"
#include "lanes.h"

namespace jaxbw::emulator {
namespace {

// Those of the lanes that have the same value as the first of them.
uint32_t equal_lanes(const uint32_t* row, uint32_t lanes) {
  const uint32_t first = row[__builtin_ctz(lanes)];
  uint32_t same = 0;
  for_lanes(lanes, [&](uint32_t i) { same |= uint32_t{row[i] == first} << i; });
  return same;
}

// From a caller's place to a callee's, or back: as many bytes as the formal parameter has, which both places hold.
void copy(Step& s, const Place& from, const Place& to, uint32_t lanes) {
  const auto at = [&](const Place& place, uint32_t lane) {
    return place.in_memory ? s.warp.local.data() + size_t{lane} * s.machine.program().local_bytes + place.offset
                           : s.file + place.row.at + lane * place.row.bytes;
  };
  if (from.bytes == 0) return;
  for_lanes(lanes, [&](uint32_t i) {
    if (!to.in_memory) std::memset(at(to, i), 0, to.row.bytes);
    std::memcpy(at(to, i), at(from, i), from.bytes);
  });
  if (!to.in_memory) mark_written(s, to.row, lanes, from.in_memory ? 0 : undefined(s, from.row));
}

void branch(Step& s, const Instruction& in) { s.branch(s.active, in.target, s.next); }

// Lanes that agree with the first one go; the others execute the branch again.
void branch_indexed(Step& s, const Instruction& in) {
  const std::vector<uint32_t>& targets = s.machine.program().branch_targets[in.target];
  const uint32_t* index = row32(s, in.s[0]);
  const uint32_t first = index[__builtin_ctz(s.active)];
  if (first >= targets.size()) throw Error("brx.idx: index " + std::to_string(first) + " is past the list of targets");
  s.branch(equal_lanes(index, s.active), targets[first], s.group.pc);
}

// To where the lane was called from, with what the function returns; lanes that go elsewhere return after that.
void leave_function(Step& s, const Instruction& in) {
  const Program& program = s.machine.program();
  const uint32_t* to = row32(s, in.s[0]);
  const uint32_t first = to[__builtin_ctz(s.active)], lanes = equal_lanes(to, s.active);
  const Frame& frame = program.frames[in.target];
  const Call& call = program.calls[program.code[first - 1].target];
  for (size_t i = 0; i < call.outputs.size(); ++i) copy(s, frame.outputs[i], call.outputs[i], lanes);
  s.branch(lanes, first, s.group.pc);
}

void call_function(Step& s, const Instruction& in) {
  const Call& call = s.machine.program().calls[in.target];
  const Frame& frame = s.machine.program().frames[call.frame];
  for (size_t i = 0; i < call.inputs.size(); ++i) copy(s, call.inputs[i], frame.inputs[i], s.active);
  uint32_t* return_to = row32(s, frame.return_to);
  for_lanes(s.active, [&](uint32_t i) { return_to[i] = s.next; });
  s.branch(s.active, frame.begin, s.next);
}

void leave(Step& s, const Instruction&) { s.outcome = Step::Outcome::kExit; }
void nothing(Step&, const Instruction&) {}
void yield(Step& s, const Instruction&) { s.outcome = Step::Outcome::kYield; }
void trap(Step&, const Instruction&) { throw Error("the kernel executed a trap"); }

}  // namespace

void decode_bra(Decoder& d) {
  if (d.operand(0).kind != Operand::Kind::kLabel) d.fail("needs a label");
  d.out.target = d.rows.code_begin + d.operand(0).index;
  d.out.execute = branch;
}
void decode_brx(Decoder& d) {
  if (d.operand(1).kind != Operand::Kind::kTargets) d.fail("needs a list of targets");
  d.source(0, Type::k_u32);
  d.out.target = d.rows.targets_begin + d.operand(1).index;
  d.out.execute = branch_indexed;
}
void decode_exit(Decoder& d) {
  d.out.execute = leave;
  d.out.flags |= kExit;
}
void decode_trap(Decoder& d) { d.out.execute = trap; }
void decode_nothing(Decoder& d) { d.out.execute = nothing; }
void decode_yield(Decoder& d) { d.out.execute = yield; }
void decode_ret(Decoder& d) {
  if (d.rows.function.is_entry) return decode_exit(d);
  d.append_source(d.rows.program.frames[d.rows.frame].return_to);
  d.out.target = d.rows.frame;
  d.out.execute = leave_function;
}

// call (results), function, (arguments), prototype: all but the function may be absent.
void decode_call(Decoder& d) {
  const auto is_list = [&](size_t i) { return i < d.operands() && d.operand(i).kind == Operand::Kind::kVector; };
  const size_t at = is_list(0) ? 1 : 0;
  if (d.operand(at).kind != Operand::Kind::kFunction) d.fail("goes through a pointer: only direct calls are supported");
  Call call{.frame = d.rows.callees->at(d.operand(at).name)};
  const Frame& frame = d.rows.program.frames[call.frame];
  const auto pass = [&](const Operand* list, const std::vector<Place>& formals, std::vector<Place>& out, bool written) {
    const size_t count = list ? list->parts.size() : 0;
    if (count != formals.size())
      d.fail("has " + std::to_string(count) + (written ? " results" : " arguments") + ", but '" + d.operand(at).name +
             "' has " + std::to_string(formals.size()));
    for (size_t i = 0; i < count; ++i) out.push_back(d.passed(list->parts[i], formals[i].bytes, written));
  };
  pass(at ? &d.operand(0) : nullptr, frame.outputs, call.outputs, true);
  pass(is_list(at + 1) ? &d.operand(at + 1) : nullptr, frame.inputs, call.inputs, false);
  d.out.target = uint32_t(d.rows.program.calls.size());
  d.out.execute = call_function;
  d.rows.program.calls.push_back(std::move(call));
}

// Registers are not scarce here: only the bounds are checked (PTX 9.7.19.5).
void decode_setmaxnreg(Decoder& d) {
  const uint64_t count = d.constant(0);
  if (count % 8 || count < 24 || count > 256) d.fail("takes a multiple of 8 in 24..256");
  d.out.execute = nothing;
}

}  // namespace jaxbw::emulator
