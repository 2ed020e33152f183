// mbarrier instructions (PTX 9.7.13.15).
//
// An arrival at a barrier of another CTA travels (remote_arrivals.h). What orders it is that somebody sees the phase
// complete, or a release at cluster scope by whoever has sent it (Machine::land_arrivals). In a trace it stands where
// it was sent, and lands there.
//
// The state that arrive returns is opaque to a kernel: here the phase in the high bits, the pending count in the
// low 20.
#include <algorithm>

#include "decoder.h"
#include "lanes.h"
#include "operands.h"
#include "remote_arrivals.h"

namespace jaxbw::emulator {
namespace {

using enum Arrival::Detail;

constexpr uint32_t kStateShift = 20;

Location barrier_location(Step& s, const Instruction& in, uint32_t lane) {
  return s.machine.locate_shared(s.cta, lane_address(s, in.s[0], in.immediate, lane), 8, 8);
}

void init(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  for_lanes(s.active, [&](uint32_t i) {
    const Location at = barrier_location(s, in, i);
    const uint32_t count = row32(s, in.s[1])[i];
    if (count == 0 || count > kMaxArrivals)
      throw Error("mbarrier.init: the count must be in 1..2^20-1, not " + std::to_string(count));
    const auto offset = uint32_t(at.offset);
    if (s.machine.checking() && at.cta->mbarriers.contains(offset))
      s.machine.finding("mbarrier", s, "mbarrier.init of a barrier that is in use (mbarrier.inval must come first)");
    MBarrier barrier;
    barrier.offset = offset;
    barrier.rank = at.cta->rank;
    barrier.count = count;
    barrier.pending = count;
    if (s.machine.strict()) barrier.initialiser = s.warp.agent;
    at.cta->mbarriers.insert_or_assign(offset, std::move(barrier));
    std::fill_n(at.undefined, 8, 0);
  });
}

void invalidate(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) {
    const Location at = barrier_location(s, in, i);
    s.machine.mbarrier(at);
    at.cta->mbarriers.erase(uint32_t(at.offset));
    std::fill_n(at.undefined, 8, 1);
  });
}

// arrive, arrive_drop, expect_tx, complete_tx and arrive.expect_tx.
void mbarrier_arrive(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  if (in.sources > 1) check_use(s, in.s[1], "a count");
  // Lanes that arrive at one barrier together all get the state before the first of them, as on an H200; PTX leaves
  // their order open.
  const MBarrier* arrived_at = nullptr;
  uint64_t state = 0;
  std::vector<RemoteArrivals::Part> remote;
  for_lanes(s.active, [&](uint32_t i) {
    const Location at = barrier_location(s, in, i);
    MBarrier& barrier = s.machine.mbarrier(at);
    if (at.cta != &s.cta && barrier.initialiser != kNoAgent)
      s.machine.finding("mbarrier", s,
                        "arrives at a barrier of another CTA whose mbarrier.init no fence.mbarrier_init has followed");
    const Arrival arrival{in.detail, in.sources > 1 ? row32(s, in.s[1])[i] : 1};
    if (&barrier != arrived_at || barrier.phase != state >> kStateShift) {
      arrived_at = &barrier;
      state = barrier.phase << kStateShift | uint64_t(barrier.pending);
    }
    if (in.destinations) set_lane(s, in.d[0], i, state);
    if (!(in.detail & kNoArrive)) release(s, barrier.clocks, in.detail & kRelaxed);
    if (at.cta == &s.cta || !s.machine.arrivals_travel()) {
      at.cta->heard_of_cluster |= at.cta != &s.cta;
      arrival.land(s.machine, barrier);
    } else {
      remote.push_back({at.cta, uint32_t(at.offset), arrival});
    }
  });
  if (!remote.empty())
    s.machine.issue(std::make_unique<RemoteArrivals>(s.line, s.cta, std::move(remote)), &s.warp.arrivals);
  if (in.destinations) mark_written(s, in.d[0], s.active);
}

// try_wait (in.target = 1) parks its lanes until the phase is over; test_wait only looks.
void mbarrier_wait(Step& s, const Instruction& in) {
  check_use(s, in.s[0], "an address");
  check_use(s, in.s[1], "a phase");
  const uint32_t lane = first_lane(s);
  const bool by_parity = in.detail & 1, parks = in.target;
  const Location at = barrier_location(s, in, lane);
  const uint64_t wanted = lane_value(s, in.s[1], lane);
  uint32_t same = 0;
  for_lanes(s.active, [&](uint32_t i) {
    same |= uint32_t{barrier_location(s, in, i).bytes == at.bytes && lane_value(s, in.s[1], i) == wanted} << i;
  });
  if (same != s.group.mask) {  // lanes that wait for different things go on apart
    s.outcome = Step::Outcome::kDiverge;
    s.taken = same;
    s.next = s.other = s.group.pc;
    s.group.apart = true;
    return;
  }
  s.group.apart = false;
  MBarrier& barrier = s.machine.mbarrier(at);
  if (by_parity && wanted > 1) throw Error("mbarrier wait: the parity must be 0 or 1, not " + std::to_string(wanted));
  const uint64_t awaited = wanted >> kStateShift;
  const bool done = by_parity ? barrier.parity_done(uint32_t(wanted)) : barrier.phase > awaited;
  // A waiter that has seen phase p complete waits for p + 1 next. If that and the one after it are over, the parity
  // no longer tells, and the hardware would report the wrong phase.
  std::array<uint64_t, kLanes>& all_seen = barrier.seen[&s.warp];
  const uint64_t seen = all_seen[lane];
  if (by_parity && s.machine.checking() && seen && barrier.phase >= seen + 2 && ((seen & 1) == wanted))
    s.machine.finding("mbarrier", s,
                      "a waiter is " + std::to_string(barrier.phase - seen) + " phases behind: it has missed a phase");
  if (done || !parks || s.group.arrived || s.machine.gives_up_early()) {
    if (done) {
      s.machine.trace_pass(s, &barrier);
      s.group.timed_out = false;
      if (s.cta.cluster->races) s.cta.cluster->races->acquire(actor_of(s), barrier.clocks, in.detail & kRelaxed);
      std::array<uint64_t, kLanes>& waited = barrier.waited[&s.warp];
      for_lanes(s.active, [&](uint32_t i) {
        all_seen[i] = by_parity ? barrier.phase : awaited + 1;
        // A first wait for parity 1 is for the phase before the first.
        if (!by_parity)
          waited[i] = awaited + 1;
        else if (waited[i] || wanted == 0)
          waited[i] += 1 + ((waited[i] & 1) != wanted);
      });
    }
    s.group.arrived = false;
    uint32_t& p = predicate(s, in.d[0]);
    p = done ? p | s.active : p & ~s.active;
    mark_written(s, in.d[0], s.active);
    if (!done) {
      s.outcome = Step::Outcome::kYield;
    }
    return;
  }
  s.group.wait_parity = uint32_t(by_parity ? wanted : awaited & 1);
  s.park(Wait::kMBarrier, &barrier);
}

void pending_count(Step& s, const Instruction& in) {
  for_lanes(s.active,
            [&](uint32_t i) { set_lane(s, in.d[0], i, lane_value(s, in.s[0], i) & ((1 << kStateShift) - 1)); });
}

void decode_wait(Decoder& d, bool parks) {
  d.destination(0, Type::k_pred);
  d.address(1, Space::kShared);
  d.source(2, d.has("parity") ? Type::k_b32 : Type::k_b64);
  d.out.detail = uint64_t{d.has("parity")} | d.bits_if("relaxed", kRelaxed);
  d.out.target = parks;
  d.out.flags |= kMayPark;
  d.out.execute = mbarrier_wait;
}

}  // namespace

void decode_mbarrier_init(Decoder& d) {
  d.address(0, Space::kShared);
  d.source(1, Type::k_u32);
  d.out.execute = init;
}
void decode_mbarrier_inval(Decoder& d) {
  d.address(0, Space::kShared);
  d.out.execute = invalidate;
}
void decode_mbarrier_arrive(Decoder& d) {
  const bool drop = d.opcode.mnemonic == "mbarrier.arrive_drop";
  const bool returns = d.operand(0).kind != Operand::Kind::kAddress;
  if (returns && d.operand(0).kind != Operand::Kind::kSink) {
    if (d.has("shared::cluster")) d.fail("returns no state for a barrier of the cluster");
    d.destination(0, Type::k_b64);
  }
  const size_t at = returns;
  d.address(at, Space::kShared);
  if (d.operands() > at + 1)
    d.source(at + 1, Type::k_u32);
  else if (d.has("expect_tx"))
    d.fail("needs a number of bytes");
  d.out.detail = d.bits_if("expect_tx", kExpect) | d.bits_if("relaxed", kRelaxed) | (drop ? uint64_t{kDrop} : 0);
  d.out.execute = mbarrier_arrive;
}
void decode_mbarrier_expect_tx(Decoder& d) {
  d.address(0, Space::kShared);
  d.source(1, Type::k_u32);
  d.out.detail = kNoArrive | (d.opcode.mnemonic == "mbarrier.expect_tx" ? kExpect : kComplete);
  d.out.execute = mbarrier_arrive;
}
void decode_mbarrier_test_wait(Decoder& d) { decode_wait(d, false); }
void decode_mbarrier_try_wait(Decoder& d) { decode_wait(d, true); }
void decode_mbarrier_pending_count(Decoder& d) {
  d.destination(0, Type::k_u32);
  d.source(1, Type::k_b64);
  d.out.execute = pending_count;
  d.out.flags |= kPure;
}

}  // namespace jaxbw::emulator
