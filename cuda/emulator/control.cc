// Control flow, votes and shuffles, barriers of a CTA and of a cluster, and what only steers the machine
// (PTX 9.7.12, 9.7.13.1-4, 9.7.13.8-14, 9.7.9.6, 9.7.19).
#include <algorithm>

#include "decoder.h"
#include "lanes.h"

namespace jaxbw::emulator {
namespace {

// --- branches

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

// --- a warp's lanes together. The lanes of the member mask wait for each other (PTX 9.7.13.8).

// True when all live lanes of `members` are here; else the group waits for them.
bool gathered(Step& s, uint32_t members) {
  if (!(members >> __builtin_ctz(s.active) & 1)) throw Error("the executing lane is not in its own member mask");
  if ((members & s.warp.live & ~s.group.mask) == 0) return true;
  s.group.wait = Wait::kConvergence;
  s.outcome = Step::Outcome::kPark;
  return false;
}

uint32_t member_mask(Step& s, Reg reg) { return row32(s, reg)[__builtin_ctz(s.active)]; }

void elect(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[0]);
  if (!gathered(s, members)) return;
  const uint32_t leader = uint32_t(__builtin_ctz(members & s.group.mask));
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, leader); });
  uint32_t& p = predicate(s, in.d[1]);
  p = (p & ~s.active) | (1u << leader & s.active);
  mark_written(s, in.d[0], s.active);
  mark_written(s, in.d[1], s.active);
}

enum class Shuffle : uint32_t { kUp, kDown, kButterfly, kIndex };

void shuffle(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[3]);
  if (!gathered(s, members)) return;
  const uint32_t *a = row32(s, in.s[0]), *b = row32(s, in.s[1]), *c = row32(s, in.s[2]);
  uint32_t values[kLanes], in_range = 0, poison = 0;
  for_lanes(s.active, [&](uint32_t lane) {
    const uint32_t amount = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
    const int32_t max_lane = int32_t((lane & segment) | (clamp & ~segment)), min_lane = int32_t(lane & segment);
    int32_t from = 0;
    bool valid = false;
    switch (Shuffle(in.target)) {
      case Shuffle::kUp:
        from = int32_t(lane) - int32_t(amount);
        valid = from >= max_lane;
        break;
      case Shuffle::kDown:
        from = int32_t(lane + amount);
        valid = from <= max_lane;
        break;
      case Shuffle::kButterfly:
        from = int32_t(lane ^ amount);
        valid = from <= max_lane;
        break;
      case Shuffle::kIndex:
        from = min_lane | int32_t(amount & ~segment);
        valid = from <= max_lane;
        break;
    }
    if (!valid) from = int32_t(lane);
    in_range |= uint32_t{valid} << lane;
    values[lane] = a[from];
    if (undefined(s, in.s[0]) >> from & 1 || !(s.active >> from & 1)) poison |= 1u << lane;
  });
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, values[i]); });
  mark_written(s, in.d[0], s.active, poison);
  if (in.destinations < 2) return;
  uint32_t& p = predicate(s, in.d[1]);
  p = (p & ~s.active) | (in_range & s.active);
  mark_written(s, in.d[1], s.active);
}

enum class Vote : uint32_t { kAll, kAny, kUniform, kBallot };

void vote(Step& s, const Instruction& in) {
  const uint32_t members = in.sources > 1 ? member_mask(s, in.s[1]) : s.active;
  if (in.sources > 1 && !gathered(s, members)) return;
  const uint32_t value = in.detail ? ~predicate(s, in.s[0]) : predicate(s, in.s[0]);
  const uint32_t yes = value & s.active;
  const uint32_t poison = undefined(s, in.s[0]) & s.active ? kAllLanes : 0;
  mark_written(s, in.d[0], s.active, poison);
  if (Vote(in.target) == Vote::kBallot) {
    for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, yes); });
    return;
  }
  const bool result = Vote(in.target) == Vote::kAll   ? yes == s.active
                      : Vote(in.target) == Vote::kAny ? yes != 0
                                                      : yes == 0 || yes == s.active;
  uint32_t& p = predicate(s, in.d[0]);
  p = result ? p | s.active : p & ~s.active;
}

void active_mask(Step& s, const Instruction& in) {
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, s.active); });
  mark_written(s, in.d[0], s.active);
}

void match(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[1]);
  if (!gathered(s, members)) return;
  uint32_t masks[kLanes];
  for_lanes(s.active, [&](uint32_t i) {
    masks[i] = 0;
    for_lanes(s.active,
              [&](uint32_t j) { masks[i] |= uint32_t{lane_value(s, in.s[0], i) == lane_value(s, in.s[0], j)} << j; });
  });
  const bool all = in.target;
  const bool agree = masks[__builtin_ctz(s.active)] == s.active;
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, all && !agree ? 0 : masks[i]); });
  mark_written(s, in.d[0], s.active);
  if (in.destinations < 2) return;
  uint32_t& p = predicate(s, in.d[1]);
  p = agree ? p | s.active : p & ~s.active;
  mark_written(s, in.d[1], s.active);
}

template <auto F>
void reduce(Step& s, const Instruction& in) {
  const uint32_t members = member_mask(s, in.s[1]);
  if (!gathered(s, members)) return;
  const uint32_t* a = row32(s, in.s[0]);
  uint32_t out = a[__builtin_ctz(s.active)];
  for_lanes(s.active & (s.active - 1), [&](uint32_t i) { out = F(out, a[i]); });
  for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, out); });
  mark_written(s, in.d[0], s.active, undefined(s, in.s[0]) & s.active ? kAllLanes : 0);
}
uint32_t reduce_add(uint32_t a, uint32_t b) { return a + b; }
uint32_t reduce_and(uint32_t a, uint32_t b) { return a & b; }
uint32_t reduce_or(uint32_t a, uint32_t b) { return a | b; }
uint32_t reduce_xor(uint32_t a, uint32_t b) { return a ^ b; }
template <class T>
uint32_t reduce_min(uint32_t a, uint32_t b) {
  return uint32_t(std::min(T(a), T(b)));
}
template <class T>
uint32_t reduce_max(uint32_t a, uint32_t b) {
  return uint32_t(std::max(T(a), T(b)));
}

void warp_barrier(Step& s, const Instruction& in) { gathered(s, member_mask(s, in.s[0])); }

// --- barriers of the CTA (PTX 9.7.13.1). in.target: what; detail: reduction.

enum class BarrierOp : uint32_t { kSync, kArrive, kReduceCount, kReduceAnd, kReduceOr };

void barrier(Step& s, const Instruction& in) {
  const uint32_t lane = uint32_t(__builtin_ctz(s.active));
  const uint32_t id = row32(s, in.s[0])[lane];
  if (id >= 16) throw Error("barrier " + std::to_string(id) + ": there are 16");
  NamedBarrier& barrier = s.cta.barriers[id];
  const auto op = BarrierOp(in.target);
  RaceDetector* races = s.cta.cluster->races.get();
  const auto pass = [&](bool waits) {
    s.group.arrived = false;
    if (races && waits) races->acquire(s.warp.agent, barrier.clocks, false);
    if (op == BarrierOp::kReduceCount) {
      for_lanes(s.active, [&](uint32_t i) { set_lane(s, in.d[0], i, barrier.result); });
    } else if (op == BarrierOp::kReduceAnd || op == BarrierOp::kReduceOr) {
      const bool result = op == BarrierOp::kReduceOr ? barrier.result > 0 : barrier.result == barrier.result_threads;
      uint32_t& p = predicate(s, in.d[0]);
      p = result ? p | s.active : p & ~s.active;
    }
    if (in.destinations) mark_written(s, in.d[0], s.active);
  };
  if (s.group.arrived) {
    if (barrier.generation > s.group.token)
      pass(true);
    else
      s.park(Wait::kNamedBarrier, &barrier);
    return;
  }
  const bool counted = in.detail & 1;
  const uint32_t expected = counted ? row32(s, in.s[1])[lane] : s.machine.whole_warps(s.cta);
  if (counted && (expected == 0 || expected % kLanes))
    throw Error("barrier: the thread count must be a positive multiple of 32");
  if (barrier.arrived && (barrier.expected != expected || barrier.whole == counted))
    throw Error("barrier " + std::to_string(id) + ": a warp expects " + std::to_string(expected) +
                " threads, another " + std::to_string(barrier.expected));
  barrier.expected = expected;
  barrier.whole = !counted;
  // A warp arrives whole: as if all 32 threads did.
  barrier.arrived += s.active == s.warp.live ? kLanes : uint32_t(__builtin_popcount(s.active));
  if (op >= BarrierOp::kReduceCount) {
    const Reg value = in.s[in.sources - 1];
    const uint32_t yes = in.detail & 2 ? ~predicate(s, value) : predicate(s, value);
    barrier.reduction += uint32_t(__builtin_popcount(yes & s.active));
    barrier.reduction_threads += uint32_t(__builtin_popcount(s.active));
  }
  if (barrier.arrived > barrier.expected)
    throw Error("barrier " + std::to_string(id) + ": " + std::to_string(barrier.arrived) + " threads arrive where " +
                std::to_string(expected) + " are expected");
  s.group.token = barrier.generation;
  if (races) races->release(s.warp.agent, barrier.clocks, false);
  if (barrier.arrived == barrier.expected) {
    s.machine.complete(barrier);
    pass(op != BarrierOp::kArrive);
  } else if (op == BarrierOp::kArrive) {
    pass(false);
  } else {
    s.group.arrived = true;
    s.park(Wait::kNamedBarrier, &barrier);
  }
}

void decode_cta_barrier(Decoder& d, bool implicitly_aligned) {
  if (implicitly_aligned || d.has("aligned")) d.out.flags |= kAligned;
  d.out.flags |= kMayPark;
  const bool reduces = d.has("red");
  const auto op = d.has("arrive") ? BarrierOp::kArrive
                  : !reduces      ? BarrierOp::kSync
                  : d.has("popc") ? BarrierOp::kReduceCount
                  : d.has("and")  ? BarrierOp::kReduceAnd
                                  : BarrierOp::kReduceOr;
  if (!d.has("arrive") && !d.has("sync") && !reduces) d.fail("needs .sync, .arrive or .red");
  d.out.target = uint32_t(op);
  size_t at = 0;
  if (reduces) d.destination(at++, op == BarrierOp::kReduceCount ? Type::k_u32 : Type::k_pred);
  d.source(at++, Type::k_u32);
  const size_t rest = d.operands() - at - (reduces ? 1 : 0);
  if (rest > 1) d.fail("has too many operands");
  if (rest == 1) {
    d.source(at++, Type::k_u32);
    d.out.detail |= 1;
  }
  if (op == BarrierOp::kArrive && rest == 0) d.fail("needs a thread count");
  if (reduces) {
    Operand value = d.operand(at);
    if (value.negated) d.out.detail |= 2;
    value.negated = false;
    d.source(value, Type::k_pred);
  }
  d.out.execute = barrier;
}

// --- the cluster's barrier (PTX 9.7.13.4)

void cluster_arrive(Step& s, const Instruction& in) {
  Cluster& cluster = *s.cta.cluster;
  if (cluster.races) cluster.races->release(s.warp.agent, cluster.barrier_clocks, in.detail);
  for_lanes(s.active, [&](uint32_t i) {
    if (s.warp.cluster_phase[i] == cluster.barrier_phase + 1)
      throw Error("a thread arrives twice at the cluster barrier without a wait");
    s.warp.cluster_phase[i] = uint32_t(cluster.barrier_phase + 1);
  });
  cluster.barrier_arrived += uint32_t(__builtin_popcount(s.active));
  s.machine.check_cluster_barrier(cluster);
}

void cluster_wait(Step& s, const Instruction&) {
  Cluster& cluster = *s.cta.cluster;
  bool complete = true;
  for_lanes(s.active, [&](uint32_t i) {
    if (s.warp.cluster_phase[i] == 0) throw Error("barrier.cluster.wait before barrier.cluster.arrive");
    complete &= cluster.barrier_phase >= s.warp.cluster_phase[i];
  });
  if (!complete)
    s.park(Wait::kClusterBarrier, &cluster);
  else if (cluster.races)
    cluster.races->acquire(s.warp.agent, cluster.barrier_clocks, false);
}

// --- registers

// setmaxnreg (PTX 9.7.19.5): the sum over the CTA may not grow. Only the bounds are checked.
void set_registers(Step& s, const Instruction& in) { s.warp.max_registers = uint32_t(in.immediate); }

// Fences. The machine itself has sequentially consistent memory: only the race detector cares.
enum Fence : uint64_t { kRelease = 1, kAcquire = 2, kProxy = 4, kTmemBefore = 8, kTmemAfter = 16, kBarrierInit = 32 };

void fence(Step& s, const Instruction& in) {
  RaceDetector* races = s.cta.cluster->races.get();
  if (!races) return;
  if (in.detail & kAcquire) races->fence_acquire(s.warp.agent);
  if (in.detail & kProxy) races->fence_proxy(s.warp.agent);
  if (in.detail & kRelease) races->fence_release(s.warp.agent);
  if (in.detail & kTmemBefore) races->fence_tmem_before(s.warp.agent);
  if (in.detail & kTmemAfter) races->fence_tmem_after(s.warp.agent);
  if (in.detail & (kBarrierInit | kProxy))
    for (auto& [offset, barrier] : s.cta.mbarriers)
      if (barrier.initialiser == s.warp.agent) barrier.initialiser = kNoAgent;
}

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

void decode_elect(Decoder& d) {
  const Operand& to = d.operand(0);
  if (to.kind != Operand::Kind::kPair) d.fail("writes d|p");
  d.destination(to.parts[0], Type::k_b32);
  d.destination(to.parts[1], Type::k_pred);
  d.source(1, Type::k_b32);
  d.out.flags |= kMayPark;
  d.out.execute = elect;
}

void decode_shfl(Decoder& d) {
  const Operand& to = d.operand(0);
  const bool dual = to.kind == Operand::Kind::kPair;
  d.destination(dual ? to.parts[0] : to, Type::k_b32);
  if (dual) d.destination(to.parts[1], Type::k_pred);
  for (size_t i = 1; i < 5; ++i) d.source(i, Type::k_b32);
  d.out.target = uint32_t(d.has("up")     ? Shuffle::kUp
                          : d.has("down") ? Shuffle::kDown
                          : d.has("bfly") ? Shuffle::kButterfly
                                          : Shuffle::kIndex);
  d.out.flags |= kMayPark;
  d.out.execute = shuffle;
}

void decode_vote(Decoder& d) {
  const bool ballot = d.has("ballot");
  d.destination(0, ballot ? Type::k_b32 : Type::k_pred);
  Operand value = d.operand(1);
  d.out.detail = value.negated;
  value.negated = false;
  d.source(value, Type::k_pred);
  if (d.has("sync")) d.source(2, Type::k_b32);
  d.out.target = uint32_t(ballot         ? Vote::kBallot
                          : d.has("all") ? Vote::kAll
                          : d.has("any") ? Vote::kAny
                                         : Vote::kUniform);
  d.out.flags |= kMayPark;
  d.out.execute = vote;
}

void decode_activemask(Decoder& d) {
  d.destination(0, Type::k_b32);
  d.out.execute = active_mask;
}

void decode_match(Decoder& d) {
  const Operand& to = d.operand(0);
  const bool dual = to.kind == Operand::Kind::kPair;
  d.destination(dual ? to.parts[0] : to, Type::k_b32);
  if (dual) d.destination(to.parts[1], Type::k_pred);
  d.source(1, d.type());
  d.source(2, Type::k_b32);
  d.out.target = d.has("all");
  d.out.flags |= kMayPark;
  d.out.execute = match;
}

void decode_redux(Decoder& d) {
  const Type type = d.type();
  d.destination(0, type);
  d.source(1, type);
  d.source(2, Type::k_b32);
  d.out.flags |= kMayPark;
  const bool is_s = type == Type::k_s32;
  if (size_bytes(type) != 4 || type == Type::k_f32) d.fail("is supported for 32-bit integers only");
  d.out.execute = d.has("add")   ? reduce<&reduce_add>
                  : d.has("and") ? reduce<&reduce_and>
                  : d.has("or")  ? reduce<&reduce_or>
                  : d.has("xor") ? reduce<&reduce_xor>
                  : d.has("min") ? (is_s ? reduce<&reduce_min<int32_t>> : reduce<&reduce_min<uint32_t>>)
                                 : (is_s ? reduce<&reduce_max<int32_t>> : reduce<&reduce_max<uint32_t>>);
}

void decode_fence(Decoder& d) {
  const bool is_proxy = d.has("proxy");
  // Of the one-way forms, .release hands on what stands before it, .acquire takes what others have handed on.
  if (d.has("async") || (d.has("async::generic") && !d.has("acquire"))) d.out.detail |= kProxy;
  if (d.has("mbarrier_init")) d.out.detail |= kBarrierInit;
  // A fence is acq_rel unless it says .release or .acquire; a plain proxy fence is neither.
  if (!is_proxy && !d.has("release") && !d.has("acquire")) d.out.detail |= kRelease | kAcquire;
  d.out.detail |= d.bits_if("release", kRelease) | d.bits_if("acquire", kAcquire);
  d.out.execute = fence;
}
void decode_tcgen05_fence(Decoder& d) {
  d.out.detail = d.opcode.mnemonic.ends_with("before_thread_sync") ? kTmemBefore : kTmemAfter;
  d.out.execute = fence;
}
void decode_bar(Decoder& d) { decode_cta_barrier(d, true); }
void decode_barrier(Decoder& d) { decode_cta_barrier(d, false); }
void decode_bar_warp(Decoder& d) {
  d.source(0, Type::k_b32);
  d.out.flags |= kMayPark;
  d.out.execute = warp_barrier;
}
void decode_cluster_barrier(Decoder& d) {
  if (d.has("arrive") == d.has("wait")) d.fail("needs .arrive or .wait");
  d.out.flags |= kMayPark;
  d.out.detail = d.has("relaxed");
  d.out.execute = d.has("arrive") ? cluster_arrive : cluster_wait;
}
void decode_setmaxnreg(Decoder& d) {
  d.out.immediate = d.constant(0);
  if (d.out.immediate % 8 || d.out.immediate < 24 || d.out.immediate > 256) d.fail("takes a multiple of 8 in 24..256");
  d.out.execute = set_registers;
}

}  // namespace jaxbw::emulator
