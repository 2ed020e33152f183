// The barriers of a CTA and of a cluster, and fences (PTX 9.7.13.1, 9.7.13.4-5).
#include <algorithm>
#include <ranges>

#include "decoder.h"
#include "lanes.h"

namespace jaxbw::emulator {
namespace {

// --- barriers of the CTA (PTX 9.7.13.1). in.target: what; detail: reduction.

enum class BarrierOp : uint32_t { kSync, kArrive, kReduceCount, kReduceAnd, kReduceOr };

// Who waits here knows of every phase that somebody who has arrived has seen complete. (Warps that take turns at the
// stages of a ring rely on that: a parity alone would not tell them how many rounds the others have gone through.)
void tell_phases(Cta& cta, NamedBarrier& barrier) {
  for (auto& [offset, mbarrier] : cta.mbarriers) {
    uint64_t latest = 0;
    for (const void* warp : barrier.arrivals) {
      const auto seen = mbarrier.seen.find(warp);
      if (seen != mbarrier.seen.end()) latest = std::max(latest, *std::ranges::max_element(seen->second));
    }
    if (latest == 0) continue;
    for (const void* warp : barrier.waiters) {
      for (uint64_t& seen : mbarrier.seen[warp]) seen = std::max(seen, latest);
    }
  }
  barrier.arrivals.clear();
  barrier.waiters.clear();
}

void barrier(Step& s, const Instruction& in) {
  const uint32_t lane = uint32_t(__builtin_ctz(s.active));
  const uint32_t id = row32(s, in.s[0])[lane];
  if (id >= 16) throw Error("barrier " + std::to_string(id) + ": there are 16");
  NamedBarrier& barrier = s.cta.barriers[id];
  const auto op = BarrierOp(in.target);
  RaceDetector* races = s.cta.cluster->races.get();
  const auto pass = [&](bool waits) {
    s.group.arrived = false;
    if (races && waits) races->acquire(actor_of(s), barrier.clocks, false);
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
  release(s, barrier.clocks, false);
  if (s.machine.checking()) {
    barrier.arrivals.push_back(&s.warp);
    if (op != BarrierOp::kArrive) barrier.waiters.push_back(&s.warp);
  }
  if (barrier.arrived == barrier.expected) {
    if (s.machine.checking()) tell_phases(s.cta, barrier);
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
  const bool relaxed = in.detail;
  if (!relaxed) s.machine.land_arrivals(s.warp);
  release(s, cluster.barrier_clocks, relaxed);
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
  if (!complete) return s.park(Wait::kClusterBarrier, &cluster);
  for_lanes(s.active, [&](uint32_t i) { s.warp.cluster_phase[i] = 0; });
  if (cluster.races) cluster.races->acquire(actor_of(s), cluster.barrier_clocks, false);
}

// Fences. The machine itself has sequentially consistent memory: only the race detector cares, and arrivals that
// travel.
enum Fence : uint64_t {
  kRelease = 1,
  kAcquire = 2,
  kProxy = 4,
  kTmemBefore = 8,
  kTmemAfter = 16,
  kBarrierInit = 32,
  kGpu = 64,
  kCluster = 128  // or wider
};

void fence(Step& s, const Instruction& in) {
  if (in.detail & kRelease && in.detail & kCluster) s.machine.land_arrivals(s.warp);
  RaceDetector* races = s.cta.cluster->races.get();
  if (!races) return;
  const Actor who = actor_of(s);
  if (in.detail & kAcquire) races->fence_acquire(who);
  if (in.detail & kProxy) {
    races->fence_proxy(who);
    s.machine.global_races()->fence_proxy(s.cta.cluster->number);
  }
  if (in.detail & kGpu) s.machine.global_races()->fence(s.cta.cluster->number, races->knowledge(who));
  if (in.detail & kRelease) races->fence_release(who);
  if (in.detail & kTmemBefore) races->fence_tmem_before(who);
  if (in.detail & kTmemAfter) races->fence_tmem_after(who);
  if (in.detail & (kBarrierInit | kProxy))
    for (auto& [offset, barrier] : s.cta.mbarriers)
      if (barrier.initialiser == s.warp.agent) barrier.initialiser = kNoAgent;
}

}  // namespace

void decode_fence(Decoder& d) {
  const bool is_proxy = d.has("proxy");
  // Of the one-way forms, .release hands on what stands before it, .acquire takes what others have handed on.
  if (d.has("async") || (d.has("async::generic") && !d.has("acquire"))) d.out.detail |= kProxy;
  if (d.has("mbarrier_init")) d.out.detail |= kBarrierInit;
  // A fence is acq_rel unless it says .release or .acquire; a plain proxy fence is neither.
  if (!is_proxy && !d.has("release") && !d.has("acquire")) d.out.detail |= kRelease | kAcquire;
  d.out.detail |= d.bits_if("release", kRelease) | d.bits_if("acquire", kAcquire);
  if (!is_proxy && !d.has("mbarrier_init") && !d.has("cta") && !d.has("cluster")) d.out.detail |= kGpu;
  if (!d.has("cta")) d.out.detail |= kCluster;
  d.out.execute = fence;
}
void decode_tcgen05_fence(Decoder& d) {
  d.out.detail = d.opcode.mnemonic.ends_with("before_thread_sync") ? kTmemBefore : kTmemAfter;
  d.out.execute = fence;
}
void decode_bar(Decoder& d) { decode_cta_barrier(d, true); }
void decode_barrier(Decoder& d) { decode_cta_barrier(d, false); }
void decode_cluster_barrier(Decoder& d) {
  if (d.has("arrive") == d.has("wait")) d.fail("needs .arrive or .wait");
  d.out.flags |= kMayPark;
  d.out.detail = d.has("relaxed");
  d.out.execute = d.has("arrive") ? cluster_arrive : cluster_wait;
}

}  // namespace jaxbw::emulator
