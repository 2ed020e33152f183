// Happens-before race detection in the shared and tensor memory of a cluster (FastTrack: Flanagan and Freund, PLDI
// 2009).
//
// Agents are the warps, the in-order engines (a CTA's tensor core, a warpgroup's wgmma) and the asynchronous operations
// in flight. An agent's clock is a vector: what of every other agent's past is ordered before its next access. There
// are three:
//
//   seen     by barriers and mbarriers, for accesses through the generic proxy, and among asynchronous operations
//   fenced   the part of it that a fence.proxy.async stands behind: what an asynchronous operation may rely on of
//   generic
//            accesses (PTX 8.9, proxy-preserved base causality)
//   tmem     for tensor memory: thread synchronisation carries it only between tcgen05.fence::before_thread_sync and
//            ::after_thread_sync (PTX 9.7.16.6)
//
// A relaxed arrival or wait carries what is known of asynchronous operations, and nothing of generic accesses. What is
// learnt by a relaxed wait orders writes behind the operations, but makes nothing that they wrote visible: for reads of
// it there are `read` and `tmem_read`, which only an acquire advances. tcgen05 operations know of synchronisation only
// what stands before a tcgen05.fence::after_thread_sync.
//
// Lanes of a warp share its agent and its time, and are ordered among themselves by bar.warp.sync, barriers and
// mbarriers. (elect.sync, shfl.sync and the like, and .aligned instructions, make lanes wait for each other, but of
// them only bar.warp.sync orders memory, PTX 9.7.13.2.) Lane 0, which acts for its warp where elect.sync stands, is
// told apart from the others: it has clocks of its own from when it alone has learnt something until the next
// bar.warp.sync, and a second entry in all clocks, for what it alone has handed on. What some other lanes do counts as
// done by all.
//
// Global memory is global_races.h's, which asks this detector about the order within a cluster.
//
// Not seen: strong (volatile, atomic, relaxed) accesses, which are no data races.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "clocks.h"

namespace jaxbw::emulator {

// Who of a warp does something.
enum class Lanes : uint8_t {
  kAll,    // all lanes as one
  kEach,   // each lane for itself: the others know after a bar.warp.sync
  kFirst,  // lane 0 alone
};
struct Actor {
  AgentId warp;
  Lanes lanes;
};

// By which an operation accesses memory.
enum class Proxy : uint8_t { kGeneric, kAsync };

// What orders two accesses: all that PTX asks for, or what GPUs need. These carry to tensor memory and the tensor core
// what a thread knows without tcgen05.fence, let what threads have accessed be overwritten asynchronously without
// fence.proxy.async, and copy into tensor memory behind the MMAs that were issued before.
enum class RaceRules : uint8_t { kPtx, kHardware };

// Access::lane, where it is no lane: several, each of which it is an access of; or one cannot tell.
constexpr uint8_t kSeveralLanes = 0xfe, kAnyLane = 0xff;

class RaceDetector {
 public:
  // `warps` agents are warps, as many their first lanes, then come `engines`, then operations in flight.
  RaceDetector(uint32_t warps, uint32_t engines, const std::vector<uint32_t>& shared_bytes, RaceRules rules);

  AgentId warp_agent(uint32_t index) const { return AgentId(index); }
  AgentId engine_agent(uint32_t index) const { return AgentId(2 * warps_ + index); }

  // --- threads
  void release(Actor who, SyncClocks& sync, bool relaxed);
  void acquire(Actor who, const SyncClocks& sync, bool relaxed);
  // A fence turns the relaxed arrivals behind it into releases of what is before it, and the relaxed waits before it
  // into acquires for what is behind it.
  void fence_release(Actor who);
  void fence_acquire(Actor who);
  void fence_proxy(Actor who);
  void fence_tmem_before(Actor who);
  void fence_tmem_after(Actor who);
  void sync_lanes(AgentId warp);  // bar.warp.sync

  // --- asynchronous operations. An operation knows what its issuer knew when it issued it.
  AgentId begin_operation(Actor issuer);
  // For an operation of an in-order engine: what the engine will know when it comes to it.
  Clocks issue_to_engine(AgentId engine, Actor issuer);
  Clocks issue_to_tensor_core(AgentId engine, Actor issuer);
  void begin_engine_step(AgentId engine, const Clocks& known);
  // A tcgen05.cp, by the agent that writes its columns. What the tensor core is given later comes after it, but PTX
  // does not put it after an mma that was given earlier (9.7.16.6.2): kPtx wants its issuer to know of that.
  AgentId begin_tensor_copy(AgentId engine, Actor issuer);
  void end_operation(AgentId operation, SyncClocks& sync);    // whoever waits there knows that it is complete
  void observe(Actor who, AgentId operation);                 // they know it, by a wait_group or wait::ld
  void observe(Actor who, AgentId operation, uint32_t time);  // that it has come so far
  void observe(Actor who, const VectorClock& operations);
  // A cp.async, whose writes nothing has fenced: whoever is told of it knows what `copied` says; and a thread that is.
  void end_copy(AgentId copy, Clocks& copied) const;
  void observe_copies(Actor who, const Clocks& copied);
  void retire(AgentId operation) { free_.push_back(operation); }
  void arrive_engine(AgentId engine, SyncClocks& sync);  // commit

  struct Access {
    uint32_t time = 0;  // set by the detector
    uint32_t line : 24 = 0;
    uint32_t lane : 8 = kAnyLane;  // that does it, or has issued it
    AgentId agent = kNoAgent;
    uint16_t async : 1 = 0;    // through the async proxy
    uint16_t repeats : 1 = 0;  // writes what is there already
    uint16_t warp : 14 = 0;    // of the cluster: that does it, or has issued it
  };

  // Nothing orders `before` before `now`.
  struct Race {
    Access before, now;
    bool before_writes = false, now_writes = false;
    // They are synchronised, but for a tcgen05.fence or an acquire; but for a fence between their proxies.
    bool misses_acquire = false, misses_proxy_fence = false;
  };

  // --- for global memory
  Clocks knowledge(Actor who) const;
  uint32_t time(AgentId agent) const { return agent < warps_ ? times_[agent] : clocks_[agent].seen[agent]; }
  void tick(AgentId agent);  // what was is apart from what comes
  bool knows(const VectorClock& clock, const Access& access) const {
    return access.time <= clock[access.agent] ||
           (access.agent < warps_ && (access.lane == 0 || access.lane == kAnyLane) &&
            access.time <= clock[first_lane(access.agent)]);
  }
  RaceRules rules() const { return rules_; }
  // Whether a fence.proxy.async must stand between what a thread did and an asynchronous access.
  bool needs_proxy_fence(bool write) const { return rules_ == RaceRules::kPtx || !write; }
  bool ordered_after(const Access& before, bool before_writes, const Access& now, bool write) const {
    return ordered(before, before_writes, now, write, false);
  }

  // --- accesses. Returns the race, if there is one.
  std::optional<Race> shared(Access access, bool write, uint32_t cta, uint32_t offset, uint32_t bytes);
  std::optional<Race> tensor(Access access, bool write, uint32_t cta, uint32_t half_quarter, uint32_t column,
                             uint32_t columns);
  void forget_tensor(uint32_t cta, uint32_t column, uint32_t columns);  // allocated anew

 private:
  // Of 4 bytes. Copied and compared as words: in strict runs nothing is done more often.
  struct Cell {
    Access write, read;
    uint32_t more_reads = false;  // in more_reads_
    uint32_t divided = 0;         // into bytes: 1 + their place in bytes_
  };
  using CellWords = std::array<uint64_t, sizeof(Cell) / sizeof(uint64_t)>;
  static_assert(std::has_unique_object_representations_v<Cell>);

  // What lanes of a warp know beside their clocks.
  struct Thread {
    Clocks released;               // at their last releasing fence
    Clocks unacquired;             // from relaxed waits, until an acquiring fence
    VectorClock published;         // tmem at the last fence::before_thread_sync
    Clocks received;               // tmem and tmem_read not yet behind a fence::after_thread_sync
    Clocks behind_fence;           // what they knew at their last fence::after_thread_sync
    uint32_t fenced = 0;           // of their own accesses: until when they are behind a proxy fence,
    uint32_t released_own = 0;     // behind a releasing fence,
    uint32_t released_fenced = 0;  // behind both
  };

  // The first lane of a warp, as an agent.
  AgentId first_lane(AgentId warp) const { return AgentId(warps_ + warp); }
  AgentId state_of(AgentId warp, bool first) const { return first && apart_[warp] ? first_lane(warp) : warp; }
  void part(AgentId warp);  // from now on its first lane has clocks of its own
  template <class F>
  void learn(Actor who, F f);  // f(agent) for those whose clocks change
  template <class F>
  void recall(Actor who, F f) const;  // f(agent) for those whose clocks count
  // Where clocks that others get say what is known of the accesses of those who have the clocks of `state`.
  AgentId entry_of(Actor who, AgentId state) const { return who.lanes == Lanes::kFirst ? first_lane(who.warp) : state; }

  bool ordered(const Access& before, bool before_writes, const Access& now, bool write, bool tensor) const;
  Clocks enqueue(AgentId engine, const Clocks& known);
  void check(std::span<Cell> cells, uint32_t first, uint32_t end, uint64_t key, const Access& access, bool write,
             bool tensor, std::optional<Race>& race);
  void check_bytes(Cell& cell, uint64_t key, uint32_t first, uint32_t end, const Access& access, bool write,
                   std::optional<Race>& race);
  void check(Cell& cell, uint64_t key, Access access, bool write, bool tensor, std::optional<Race>& race);
  Race race_of(const Access& before, bool before_writes, const Access& now, bool now_writes) const;

  const uint32_t warps_, engines_;
  const RaceRules rules_;
  std::vector<Clocks> clocks_;   // by agent
  std::vector<Clocks> issued_;   // by engine: what it will know when its queue is empty
  std::vector<Thread> threads_;  // by agent, of warps and first lanes
  std::vector<uint32_t> times_;  // by warp: now
  std::vector<bool> apart_;      // by warp: its first lane knows something that the others do not, or the reverse
  std::deque<AgentId> free_;
  std::vector<std::vector<Cell>> shared_, tensor_;  // by CTA
  std::unordered_map<uint64_t, std::vector<Access>> more_reads_;
  std::vector<std::array<Cell, 4>> bytes_;  // of divided cells
  std::vector<uint32_t> free_bytes_;
};

}  // namespace jaxbw::emulator
