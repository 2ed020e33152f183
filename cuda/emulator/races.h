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
// Global memory is global_races.h's, which asks this detector about the order within a cluster.
//
// Not seen: races between lanes of one warp (but those with an operation that one of them issued), accesses of less
// than 4 bytes, strong (volatile, atomic, relaxed) accesses, which are no data races.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace jaxbw::emulator {

using AgentId = uint16_t;
constexpr AgentId kNoAgent = 0xffff;

class VectorClock {
 public:
  explicit VectorClock(size_t agents = 0) : times_(agents) {}
  uint32_t operator[](AgentId agent) const { return agent < times_.size() ? times_[agent] : 0; }
  void set(AgentId agent, uint32_t time) {
    if (agent >= times_.size()) times_.resize(agent + 1);
    times_[agent] = time;
  }
  // Joins the entries of agents >= first.
  void join(const VectorClock& other, AgentId first = 0);
  static VectorClock least(const VectorClock& a, const VectorClock& b);  // entry by entry

 private:
  std::vector<uint32_t> times_;
};

struct Clocks {
  VectorClock seen, fenced, tmem;
  VectorClock read, tmem_read;
};

// What a barrier carries from those who arrive to those who wait: so far in this phase, and of the phases that are
// over.
struct SyncClocks {
  Clocks arriving, complete;
  void finish_phase();
};

enum class Proxy : uint8_t { kGeneric, kAsync };

class RaceDetector {
 public:
  // `warps` agents are warps, then come `engines`, then operations in flight.
  RaceDetector(uint32_t warps, uint32_t engines, const std::vector<uint32_t>& shared_bytes);

  AgentId warp_agent(uint32_t index) const { return AgentId(index); }
  AgentId engine_agent(uint32_t index) const { return AgentId(warps_ + index); }

  // --- threads
  void release(AgentId warp, SyncClocks& sync, bool relaxed);
  void acquire(AgentId warp, const SyncClocks& sync, bool relaxed);
  // A fence turns the relaxed arrivals behind it into releases of what is before it, and the relaxed waits before it
  // into acquires for what is behind it.
  void fence_release(AgentId warp);
  void fence_acquire(AgentId warp);
  void fence_proxy(AgentId warp) { clocks_[warp].fenced = clocks_[warp].seen; }
  void fence_tmem_before(AgentId warp);
  void fence_tmem_after(AgentId warp);

  // --- asynchronous operations. An operation knows what its issuer knew when it issued it.
  AgentId begin_operation(AgentId issuer);
  // For an operation of an in-order engine: what the engine will know when it comes to it.
  Clocks issue_to_engine(AgentId engine, AgentId issuer);
  Clocks issue_to_tensor_core(AgentId engine, AgentId issuer);
  void begin_engine_step(AgentId engine, const Clocks& known);
  void end_operation(AgentId operation, SyncClocks& sync);       // whoever waits there knows that it is complete
  void observe(AgentId warp, AgentId operation);                 // the warp does, by a wait_group or wait::ld
  void observe(AgentId warp, AgentId operation, uint32_t time);  // that it has come so far
  void observe(AgentId warp, const VectorClock& operations);
  void retire(AgentId operation) { free_.push_back(operation); }
  void arrive_engine(AgentId engine, SyncClocks& sync);  // commit

  // --- for global memory
  const Clocks& known(AgentId agent) const { return clocks_[agent]; }
  uint32_t time(AgentId agent) const { return clocks_[agent].seen[agent]; }
  void tick(AgentId agent) { clocks_[agent].seen.set(agent, time(agent) + 1); }  // what was is apart from what comes
  bool ordered_after(AgentId before, uint32_t time, Proxy before_proxy, bool before_writes, AgentId agent, Proxy proxy,
                     bool write) const {
    return ordered({.time = time, .agent = before, .proxy = before_proxy}, before_writes, agent, proxy, write, false);
  }

  // --- accesses. Returns a description of the race, if there is one; `line` is remembered for the next.
  std::string shared(AgentId agent, Proxy proxy, uint32_t cta, uint32_t offset, uint32_t bytes, bool write,
                     uint32_t line);
  std::string tensor(AgentId agent, uint32_t cta, uint32_t half_quarter, uint32_t column, uint32_t columns, bool write,
                     uint32_t line);
  void forget_tensor(uint32_t cta, uint32_t column, uint32_t columns);  // allocated anew

 private:
  struct Access {
    uint32_t time = 0;
    uint32_t line = 0;
    AgentId agent = kNoAgent;
    Proxy proxy = Proxy::kGeneric;
    uint8_t padding = 0;
  };
  // Copied and compared as words: in strict runs nothing is done more often.
  struct Cell {
    Access write, read;
    uint64_t more_reads = false;  // in more_reads_
  };
  using CellWords = std::array<uint64_t, sizeof(Cell) / sizeof(uint64_t)>;
  static_assert(std::has_unique_object_representations_v<Cell>);

  bool ordered(const Access& before, bool before_writes, AgentId agent, Proxy proxy, bool write, bool tensor) const;
  Clocks enqueue(AgentId engine, const Clocks& known);
  std::string check(std::vector<Cell>& cells, uint32_t first, uint32_t end, uint64_t key, const Access& access,
                    bool write, bool tensor);
  void check(Cell& cell, uint64_t key, const Access& access, bool write, bool tensor, std::string& race);
  std::string describe(const Access& before, bool before_writes, const Access& now, bool now_writes) const;

  const uint32_t warps_, engines_;
  std::vector<Clocks> clocks_;          // by agent
  std::vector<Clocks> issued_;          // by engine: what it will know when its queue is empty
  std::vector<Clocks> released_;        // by warp: at its last releasing fence
  std::vector<Clocks> unacquired_;      // by warp: from relaxed waits, until an acquiring fence
  std::vector<VectorClock> published_;  // warps: tmem at the last fence::before_thread_sync
  std::vector<Clocks> received_;        // warps: tmem and tmem_read not yet behind a fence::after_thread_sync
  std::vector<Clocks> behind_fence_;    // warps: what they knew at their last fence::after_thread_sync
  std::deque<AgentId> free_;
  std::vector<std::vector<Cell>> shared_, tensor_;  // by CTA
  std::unordered_map<uint64_t, std::vector<Access>> more_reads_;
};

}  // namespace jaxbw::emulator
