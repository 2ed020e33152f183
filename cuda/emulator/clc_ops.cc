// Cluster launch control (PTX 9.7.13.17-18) and programmatic dependent launch (9.7.13.16).
//
// A request takes the next cluster that has not started. It may also be refused while there are some, as when the
// machine gives way to a grid of higher priority: the random schedules do that.
#include <cstring>

#include "clc.h"
#include "decoder.h"
#include "lanes.h"
#include "operands.h"

namespace jaxbw::emulator {
namespace {

// Writes the response into its CTAs one after another, in some order, and counts its bytes on their barriers.
class Cancel final : public Operation {
 public:
  Cancel(Step& s, std::vector<Cta*> ctas, uint32_t response, uint32_t barrier)
      : Operation(s.line, s.cta), ctas_(std::move(ctas)), response_(response), barrier_(barrier) {
    if (RaceDetector* races = s.cta.cluster->races.get()) agent_ = races->begin_operation(actor_of(s));
    for (Cta* cta : ctas_) {
      if (cta->exited) throw Error("clusterlaunchcontrol.try_cancel in a cluster of which a CTA has exited");
      ++cta->operations;
      if (s.machine.checking()) {
        std::memset(cta->shared.data() + response_, 0xff, kClcResponseBytes);
        std::memset(cta->undefined.data() + response_, 1, kClcResponseBytes);
      }
    }
    ++s.machine.report().operations["try_cancel"];
  }

  bool step(Machine& machine) override {
    if (!decided_) decide(machine);
    Cta* cta = ctas_[next_++];
    machine.touch_shared(*this, agent_, *cta, response_, kClcResponseBytes, true);
    std::memcpy(cta->shared.data() + response_, bytes_.data(), bytes_.size());
    std::memset(cta->undefined.data() + response_, 0, bytes_.size());
    MBarrier& barrier = machine.mbarrier_of(*cta, barrier_, *this);
    RaceDetector* races = issuer->cluster->races.get();
    if (races) races->end_operation(agent_, barrier.clocks);
    machine.advance(barrier, barrier.complete(kClcResponseBytes));
    --cta->operations;
    if (next_ < ctas_.size()) return false;
    if (races) races->retire(agent_);
    return true;
  }

 private:
  void decide(Machine& machine) {
    decided_ = true;
    ClcResponse response;
    if (!issuer->cluster->clc_refused && !machine.refuse_clc()) {
      if (const auto id = machine.take_cluster()) {
        const Dim shape = machine.options().cluster;
        response = CtaId{id->x * shape.x, id->y * shape.y, id->z * shape.z};
        ++machine.report().clusters_cancelled;
      }
    }
    if (!response) issuer->cluster->clc_refused = true;
    bytes_ = encode_clc_response(response);
  }

  const std::vector<Cta*> ctas_;
  const uint32_t response_, barrier_;
  bool decided_ = false;
  std::array<uint8_t, kClcResponseBytes> bytes_{};
  size_t next_ = 0;
  AgentId agent_ = kNoAgent;
};

void try_cancel(Step& s, const Instruction& in) {
  const auto& operands = in.statement->operands;
  check_use(s, in.s[0], "an address");
  check_use(s, in.s[1], "an address");
  for_lanes(s.active, [&](uint32_t lane) {
    const Location response = s.machine.locate_shared(s.cta, lane_address(s, in.s[0], operands[0].bits, lane), 16, 16);
    const Location barrier = s.machine.locate_shared(s.cta, lane_address(s, in.s[1], operands[1].bits, lane), 8, 8);
    if (response.cta != &s.cta || barrier.cta != &s.cta)
      throw Error("the response and the barrier must be the executing CTA's");
    if (s.machine.checking() && s.cta.cluster->clc_refusal_observed)
      s.machine.finding("clc", s, "try_cancel after a refusal has been observed is undefined");
    std::vector<Cta*> ctas{&s.cta};
    if (in.detail) {
      ctas.clear();
      for (const auto& cta : s.cta.cluster->ctas) ctas.push_back(cta.get());
    }
    s.machine.issue(std::make_unique<Cancel>(s, std::move(ctas), uint32_t(response.offset), uint32_t(barrier.offset)));
  });
}

ClcResponse response_of(Step& s, Reg reg, uint32_t lane) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row64(s, reg) + 2 * lane);
  return decode_clc_response(std::span<const uint8_t, kClcResponseBytes>(bytes, kClcResponseBytes));
}

void is_canceled(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "a CLC response");
  uint32_t bits = 0;
  for_lanes(s.active, [&](uint32_t i) {
    const bool canceled = response_of(s, in.s[0], i).has_value();
    bits |= uint32_t{canceled} << i;
    if (!canceled) s.cta.cluster->clc_refusal_observed = true;
  });
  uint32_t& p = predicate(s, in.d[0]);
  p = (p & ~s.active) | bits;
  mark_written(s, in.d[0], s.active);
}

// Of a refused request the answer is undefined (PTX 9.7.13.18). Compilers ask before they look at is_canceled, and drop
// it: so it is poison, and in unchecked runs no CTA of any grid.
constexpr CtaId kNoCta = {~0u, ~0u, ~0u};

void first_ctaid(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "a CLC response");
  uint32_t refused = 0;
  for_lanes(s.active, [&](uint32_t i) {
    const ClcResponse response = response_of(s, in.s[0], i);
    if (!response) refused |= 1u << i;
    const CtaId id = response.value_or(kNoCta);
    if (in.list.empty())
      set_lane(s, in.d[0], i, id[in.target]);
    else
      for (size_t part = 0; part < in.list.size(); ++part) set_lane(s, in.list[part], i, part < 3 ? id[part] : 0);
  });
  if (in.destinations) mark_written(s, in.d[0], s.active, refused);
  for (const Reg reg : in.list) mark_written(s, reg, s.active, refused);
}

}  // namespace

void decode_clc_try_cancel(Decoder& d) {
  for (size_t i = 0; i < 2; ++i) {
    const Operand& base = d.operand(i).parts[0];
    const bool wide =
        base.kind == Operand::Kind::kRegister && size_bytes(d.rows.function.registers[base.index].type) == 8;
    d.source(base, wide ? Type::k_b64 : Type::k_b32);
  }
  d.out.detail = d.has("multicast::cluster::all");
  d.out.execute = try_cancel;
}
void decode_clc_is_canceled(Decoder& d) {
  d.destination(0, Type::k_pred);
  d.source(1, Type::k_b128);
  d.out.execute = is_canceled;
}
void decode_clc_first_ctaid(Decoder& d) {
  if (d.operand(0).kind == Operand::Kind::kVector) {
    if (d.operand(0).parts.size() != 4) d.fail("needs a vector of 4");
    for (const Operand& part : d.operand(0).parts) d.out.list.push_back(d.written(part, Type::k_b32));
  } else {
    d.destination(0, Type::k_b32);
    d.out.target = d.opcode.mnemonic.ends_with("::y") ? 1 : d.opcode.mnemonic.ends_with("::z") ? 2 : 0;
  }
  d.source(1, Type::k_b128);
  d.out.execute = first_ctaid;
}

}  // namespace jaxbw::emulator
