// wgmma of sm_90a (PTX 9.7.15): matrix products of a warpgroup with its accumulators in registers.
//
// An operation begins when all four warps of the warpgroup have issued it. Its registers belong to it until a
// wait_group has seen it complete; operations of a warpgroup complete in order, so that accumulators may be shared by
// successive ones.
#include <algorithm>
#include <charconv>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"
#include "wgmma.h"

namespace jaxbw::emulator {

constexpr uint32_t kWarpgroupWarps = 4;

class WgmmaOperation final {
 public:
  Wgmma op;
  Warp* warps[kWarpgroupWarps] = {};
  const Instruction* instruction = nullptr;
  uint32_t a_registers = 0;
  uint32_t joined = 0;
  Clocks known;  // of the four warps

  void run(Machine& machine, Cta& cta, const Operation& operation, AgentId agent) {
    const size_t count = instruction->list.size() - a_registers;
    std::vector<uint32_t> a(a_registers * kWarpgroupThreads), d(count * kWarpgroupThreads);
    uint32_t poison = 0;
    for (uint32_t w = 0; w < kWarpgroupWarps; ++w) {
      const auto gather = [&](Reg reg, uint32_t* to) {
        std::copy_n(reinterpret_cast<const uint32_t*>(warps[w]->file + reg.at), kLanes, to);
      };
      for (uint32_t i = 0; i < count; ++i) {
        gather(instruction->list[i], &d[i * kWarpgroupThreads + w * kLanes]);
        if (op.accumulate) poison |= warps[w]->state(instruction->list[i]).undefined;
      }
      for (uint32_t i = 0; i < a_registers; ++i) {
        gather(instruction->list[count + i], &a[i * kWarpgroupThreads + w * kLanes]);
        poison |= warps[w]->state(instruction->list[count + i]).undefined;
      }
    }
    if (machine.checking()) check_sources(machine, cta, operation, poison);
    if (machine.checking())
      for (const uint32_t address : wgmma_shared_chunks(op))
        machine.touch_shared(operation, agent, cta, address - kSharedBase, kChunkBytes, false);
    execute_wgmma(op, {cta.shared.data(), kSharedBase, uint32_t(cta.shared.size())}, a, d);
    for (uint32_t w = 0; w < kWarpgroupWarps; ++w) {
      for (uint32_t i = 0; i < instruction->list.size(); ++i) {
        RowState& state = warps[w]->state(instruction->list[i]);
        if (i < count) {
          std::copy_n(&d[i * kWarpgroupThreads + w * kLanes], kLanes,
                      reinterpret_cast<uint32_t*>(warps[w]->file + instruction->list[i].at));
          state.undefined = 0;
          --state.wgmma_writes;
        } else {
          --state.wgmma_reads;
        }
      }
      --warps[w]->in_flight;
    }
  }

 private:
  void check_sources(Machine& machine, Cta& cta, const Operation& operation, uint32_t poison) const {
    if (poison) machine.finding("poison", operation, "wgmma reads registers that were never written");
    for (const uint32_t address : wgmma_shared_chunks(op)) {
      const uint8_t* flags =
          SharedView{cta.undefined.data(), kSharedBase, uint32_t(cta.undefined.size())}.at(address, kChunkBytes);
      if (std::none_of(flags, flags + kChunkBytes, [](uint8_t flag) { return flag != 0; })) continue;
      machine.finding("poison", operation,
                      "wgmma reads shared memory that was never written, or that a copy in flight will write");
      return;
    }
  }
};

namespace {

class Run final : public Operation {
 public:
  Run(Step& s, Warpgroup& group, std::shared_ptr<WgmmaOperation> operation)
      : Operation(s.line, s.cta), group_(group), operation_(std::move(operation)) {
    ++issuer->operations;
    ++s.machine.report().operations["wgmma"];
  }

  bool step(Machine& machine) override {
    if (RaceDetector* races = issuer->cluster->races.get()) races->begin_engine_step(group_.agent, operation_->known);
    operation_->run(machine, *issuer, *this, group_.agent);
    --issuer->operations;
    group_.issued.pop_front();
    ++group_.first;
    machine.wake(&group_);
    return true;
  }

 private:
  Warpgroup& group_;
  std::shared_ptr<WgmmaOperation> operation_;
};

Warpgroup& warpgroup_of(Step& s) {
  const uint32_t index = s.warp.index / kWarpgroupWarps;
  auto& groups = s.cta.warpgroups;
  if (groups.size() <= index) groups.resize(index + 1);
  if (!groups[index]) {
    groups[index] = std::make_unique<Warpgroup>();
    const Cluster& cluster = *s.cta.cluster;
    const auto per_cta = uint32_t((s.cta.warps.size() + kWarpgroupWarps - 1) / kWarpgroupWarps);
    if (cluster.races)
      groups[index]->agent = cluster.races->engine_agent(cluster.size() + s.cta.rank * per_cta + index);
  }
  return *groups[index];
}

enum Flag : uint64_t {
  kARegisters = 1,
  kNegatedScale = 2,
  kNegateA = 4,
  kNegateB = 8,
  kTransposeA = 16,
  kTransposeB = 32,
  kF32 = 64,
  kFormatA = 8,
  kFormatB = 16,
  kWidth = 24
};

void issue(Step& s, const Instruction& in) {
  Warpgroup& group = warpgroup_of(s);
  const uint32_t warp = s.warp.index % kWarpgroupWarps;
  for (uint32_t i = 0; i < in.sources; ++i) check_use(s, in.s[i], "an operand of wgmma");
  const auto unfenced = [&](Reg reg) { return s.warp.state(reg).fences == s.warp.fences; };
  if (s.machine.strict() && std::any_of(in.list.begin(), in.list.end(), unfenced))
    s.machine.finding("wgmma", s, "no wgmma.fence orders earlier accesses to its registers before it (PTX 9.7.15.7.1)");
  const uint64_t number = group.next[warp]++;
  if (number - group.first == group.issued.size()) group.issued.push_back(std::make_shared<WgmmaOperation>());
  const std::shared_ptr<WgmmaOperation> operation = group.issued.at(number - group.first);
  const bool scale = (predicate(s, in.s[0]) & 1) != (in.detail & kNegatedScale ? 1 : 0);
  if (operation->joined == 0) {
    operation->instruction = &in;
    Wgmma& op = operation->op;
    op.n = uint32_t(in.detail >> kWidth & 0xffff);
    op.a_format = NumberFormat(in.detail >> kFormatA & 255);
    op.b_format = NumberFormat(in.detail >> kFormatB & 255);
    op.f32_result = in.detail & kF32;
    op.a_in_registers = in.detail & kARegisters;
    op.a_major = in.detail & kTransposeA ? OperandMajor::kMN : OperandMajor::kK;
    op.b_major = in.detail & kTransposeB ? OperandMajor::kMN : OperandMajor::kK;
    op.negate_a = in.detail & kNegateA;
    op.negate_b = in.detail & kNegateB;
    op.accumulate = scale;
    op.fused_sum = s.machine.options().fused_sums;
    op.b = decode_wgmma_shared_descriptor(row64(s, in.s[1])[0]);
    if (op.a_in_registers)
      operation->a_registers = kWgmmaARegisters;
    else
      op.a = decode_wgmma_shared_descriptor(row64(s, in.s[2])[0]);
    check_wgmma(op);
  } else if (operation->instruction != &in) {
    throw Error("the warps of a warpgroup issue different wgmma instructions");
  }
  if (RaceDetector* races = s.cta.cluster->races.get())
    operation->known = races->issue_to_engine(group.agent, actor_of(s));
  operation->warps[warp] = &s.warp;
  ++operation->joined;
  ++s.warp.in_flight;
  const size_t accumulators = in.list.size() - operation->a_registers;
  for (size_t i = 0; i < in.list.size(); ++i)
    ++(i < accumulators ? s.warp.state(in.list[i]).wgmma_writes : s.warp.state(in.list[i]).wgmma_reads);
  if (operation->joined == kWarpgroupWarps) s.machine.issue(std::make_unique<Run>(s, group, operation), &group.queue);
}

void commit_wgmmas(Step& s, const Instruction&) {
  Warpgroup& group = warpgroup_of(s);
  const uint32_t warp = s.warp.index % kWarpgroupWarps;
  group.groups[warp].push_back(group.next[warp]);
}

void wait_for_wgmmas(Step& s, const Instruction& in) {
  Warpgroup& group = warpgroup_of(s);
  auto& commits = group.groups[s.warp.index % kWarpgroupWarps];
  while (!commits.empty() && commits.front() <= group.first) commits.pop_front();
  if (commits.size() > in.immediate) return s.park(Wait::kWgmma, &group);
  if (s.cta.cluster->races) s.cta.cluster->races->observe(actor_of(s), group.agent);
}

void fence_registers(Step& s, const Instruction&) { ++s.warp.fences; }

NumberFormat operand_format(const Decoder& d, Type type) {
  switch (type) {
    case Type::k_f16:
      return NumberFormat::kF16;
    case Type::k_bf16:
      return NumberFormat::kBf16;
    case Type::k_tf32:
      return NumberFormat::kTf32;
    case Type::k_e4m3:
      return NumberFormat::kE4M3;
    case Type::k_e5m2:
      return NumberFormat::kE5M2;
    default:
      d.fail("does not support this operand type");
  }
}

}  // namespace

void decode_wgmma_mma(Decoder& d) {
  uint32_t n = 0;
  for (const std::string_view modifier : d.modifiers)
    if (modifier.starts_with("m64n")) std::from_chars(modifier.data() + 4, modifier.data() + modifier.size(), n);
  if (n == 0 || n > 256 || d.types.size() != 3) d.fail("needs a shape and three types");
  const bool f32 = d.type(0) == Type::k_f32;
  d.out.detail = uint64_t(operand_format(d, d.type(1))) << kFormatA |
                 uint64_t(operand_format(d, d.type(2))) << kFormatB | uint64_t{n} << kWidth |
                 (f32 ? uint64_t{kF32} : 0);
  const Operand& accumulators = d.operand(0);
  if (accumulators.parts.size() != (f32 ? n / 2 : n / 4)) d.fail("has the wrong number of accumulator registers");
  for (const Operand& part : accumulators.parts) d.out.list.push_back(d.written(part, Type::k_b32));
  const bool a_registers = d.operand(1).kind == Operand::Kind::kVector;
  Operand scale = d.operand(3);
  if (scale.negated) d.out.detail |= kNegatedScale;
  scale.negated = false;
  d.source(scale, Type::k_pred);
  d.source(2, Type::k_b64);
  if (a_registers) {
    d.out.detail |= kARegisters;
    if (d.operand(1).parts.size() != kWgmmaARegisters) d.fail("has the wrong number of A registers");
    for (const Operand& part : d.operand(1).parts) d.out.list.push_back(d.read(part, Type::k_b32));
  } else {
    d.source(1, Type::k_b64);
  }
  const auto sign = [&](size_t i) {
    const auto value = int64_t(d.constant(i));
    if (value != 1 && value != -1) d.fail("scales an operand by 1 or -1");
    return value == -1;
  };
  if (sign(4)) d.out.detail |= kNegateA;
  if (sign(5)) d.out.detail |= kNegateB;
  size_t at = 6;
  if (at < d.operands() && d.type(1) != Type::k_f16 && d.type(1) != Type::k_bf16)
    d.fail("takes no imm-trans: its operands are K-major, as all but f16 and bf16 are (PTX 9.7.15.5.2)");
  if (!a_registers && at < d.operands() && d.constant(at++)) d.out.detail |= kTransposeA;
  if (at < d.operands() && d.constant(at++)) d.out.detail |= kTransposeB;
  if (at != d.operands()) d.fail("has too many operands");
  d.out.flags |= kAligned | kOwnsList;
  d.out.execute = issue;
}
void decode_wgmma_fence(Decoder& d) { d.out.execute = fence_registers; }
void decode_wgmma_commit(Decoder& d) { d.out.execute = commit_wgmmas; }
void decode_wgmma_wait(Decoder& d) {
  d.out.immediate = d.constant(0);
  d.out.flags |= kMayPark;
  d.out.execute = wait_for_wgmmas;
}

}  // namespace jaxbw::emulator
