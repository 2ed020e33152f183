// Control flow (PTX 9.7.12), and what only steers the machine (9.7.19).
#include "decoder.h"
#include "lanes.h"

namespace jaxbw::emulator {
namespace {

void branch(Step& s, const Instruction& in) {
  if (s.active == s.group.mask) {
    s.next = in.target;
    return;
  }
  s.outcome = Step::Outcome::kDiverge;
  s.taken = s.active;
  s.other = s.next;
  s.next = in.target;
}

// Lanes that agree with the first one go; the others execute the branch again.
void branch_indexed(Step& s, const Instruction& in) {
  const std::vector<uint32_t>& targets = s.machine.program().branch_targets[in.target];
  const uint32_t* index = row32(s, in.s[0]);
  const uint32_t first = index[__builtin_ctz(s.active)];
  if (first >= targets.size()) throw Error("brx.idx: index " + std::to_string(first) + " is past the list of targets");
  uint32_t same = 0;
  for_lanes(s.active, [&](uint32_t i) { same |= uint32_t{index[i] == first} << i; });
  s.next = targets[first];
  if (same == s.group.mask) return;
  s.outcome = Step::Outcome::kDiverge;
  s.taken = same;
  s.other = s.group.pc;
}

void leave(Step& s, const Instruction&) { s.outcome = Step::Outcome::kExit; }
void nothing(Step&, const Instruction&) {}
void yield(Step& s, const Instruction&) { s.outcome = Step::Outcome::kYield; }
void trap(Step&, const Instruction&) { throw Error("the kernel executed a trap"); }

void call(Step&, const Instruction& in) {
  const auto& operands = in.statement->operands;
  for (const Operand& operand : operands) {
    if (operand.kind != Operand::Kind::kFunction) continue;
    if (operand.name == "vprintf") return;
    throw Error("the kernel called " + operand.name);
  }
}

}  // namespace

void decode_bra(Decoder& d) {
  if (d.operand(0).kind != Operand::Kind::kLabel) d.fail("needs a label");
  d.out.target = d.operand(0).index;
  d.out.execute = branch;
}
void decode_brx(Decoder& d) {
  if (d.operand(1).kind != Operand::Kind::kTargets) d.fail("needs a list of targets");
  d.source(0, Type::k_u32);
  d.out.target = d.operand(1).index;
  d.out.execute = branch_indexed;
}
void decode_exit(Decoder& d) {
  d.out.execute = leave;
  d.out.flags |= kExit;
}
void decode_trap(Decoder& d) { d.out.execute = trap; }
void decode_nothing(Decoder& d) { d.out.execute = nothing; }
void decode_yield(Decoder& d) { d.out.execute = yield; }
void decode_call(Decoder& d) {
  bool known = false;
  for (size_t i = 0; i < d.operands(); ++i)
    known |= d.operand(i).kind == Operand::Kind::kFunction &&
             (d.operand(i).name == "vprintf" || d.operand(i).name == "__assertfail");
  if (!known) d.fail("can only call vprintf and __assertfail");
  d.out.execute = call;
}
// Registers are not scarce here: only the bounds are checked (PTX 9.7.19.5).
void decode_setmaxnreg(Decoder& d) {
  const uint64_t count = d.constant(0);
  if (count % 8 || count < 24 || count > 256) d.fail("takes a multiple of 8 in 24..256");
  d.out.execute = nothing;
}

}  // namespace jaxbw::emulator
